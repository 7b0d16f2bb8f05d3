//! The LB+-Tree, in both node layouts, both key kinds, and without entry moving.
//!
//! Numbers become keys and values so that nothing torn can pass for whole:
//!
//! ```text
//! u64     | the number itself (8 bytes are failure-atomic)
//! key     | "key/" | number / 4, big-endian (8 bytes) | "x" (number % 4) times
//! value 0 | nothing
//! value v | v (8 bytes) | 0 to 142 bytes, each of which depends on v and its place
//! ```
//!
//! Byte-string keys keep the numbers' order, share a prefix, and three in four begin with another key.

use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::RootError;
use bristlecone_trees::{
    DurableIndex, InsertError, KeyRepr, LbOptions, LbTree, OrderedIndex, Repr, TreeError,
    UpdateError,
};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::ControlFlow;

/// The only root.
const ROOT: &str = "index";

/// A key or value type that numbers can be turned into and back.
pub trait Numbered: ToOwned + std::fmt::Debug {
    /// Its name in a subject's name.
    const NAME: &'static str;

    /// Calls `f` with the key of this number.
    fn with_key<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R;

    /// The number of a key; `None` if it is no number's.
    fn key_number(&self) -> Option<u64>;

    /// Calls `f` with the value of this number.
    fn with_value<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R;

    /// The number of a value; `None` if it is no number's.
    fn value_number(&self) -> Option<u64>;
}

impl Numbered for u64 {
    const NAME: &'static str = "u64";

    fn with_key<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        f(&number)
    }

    fn key_number(&self) -> Option<u64> {
        Some(*self)
    }

    fn with_value<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        f(&number)
    }

    fn value_number(&self) -> Option<u64> {
        Some(*self)
    }
}

const PREFIX: [u8; 4] = *b"key/";
/// Longest value, less one.
const VALUES: u64 = 143;

/// The bytes of value `number`, in `room`.
fn value_bytes(number: u64, room: &mut [u8; 8 + VALUES as usize]) -> &[u8] {
    if number == 0 {
        return &[];
    }
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = 8 + ((mixed >> 32) % VALUES) as usize;
    room[..8].copy_from_slice(&number.to_le_bytes());
    for (i, byte) in room[8..len].iter_mut().enumerate() {
        // Never 0, which is what lost stores leave.
        *byte = (mixed >> (i % 7 * 8)) as u8 ^ i as u8 | 1;
    }
    &room[..len]
}

impl Numbered for [u8] {
    const NAME: &'static str = "bytes";

    fn with_key<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        let mut key = [b'x'; 15];
        key[..4].copy_from_slice(&PREFIX);
        key[4..12].copy_from_slice(&(number / 4).to_be_bytes());
        f(&key[..12 + (number % 4) as usize])
    }

    fn key_number(&self) -> Option<u64> {
        let (high, rest) = self.strip_prefix(&PREFIX)?.split_first_chunk::<8>()?;
        let high = u64::from_be_bytes(*high);
        (high < 1 << 62 && rest.len() < 4 && rest.iter().all(|byte| *byte == b'x'))
            .then_some(high * 4 + rest.len() as u64)
    }

    fn with_value<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        f(value_bytes(number, &mut [0; 8 + VALUES as usize]))
    }

    fn value_number(&self) -> Option<u64> {
        let Some((number, _)) = self.split_first_chunk::<8>() else {
            return self.is_empty().then_some(0);
        };
        let number = u64::from_le_bytes(*number);
        (value_bytes(number, &mut [0; 8 + VALUES as usize]) == self).then_some(number)
    }
}

/// An LB+-Tree as a subject.
#[derive(Debug)]
pub struct LbSubject<K: ?Sized, V: ?Sized, const B: usize> {
    options: LbOptions,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: ?Sized, V: ?Sized, const B: usize> LbSubject<K, V, B> {
    /// The tree, with the paper's entry moving or in the traditional design.
    #[must_use]
    pub fn new(entry_moving: bool) -> Self {
        Self {
            options: LbOptions {
                entry_moving,
                recovery_threads: 1,
            },
            kinds: PhantomData,
        }
    }
}

impl<K, V, const B: usize> LbSubject<K, V, B>
where
    K: KeyRepr + Numbered + ?Sized + 'static,
    V: Repr + Numbered + ?Sized + 'static,
{
    fn live(tree: LbTree<K, V, Sim, B>) -> Box<dyn Live> {
        // Recovery that unlinked leaves may keep their chunk for the next ones.
        let settled = tree.recovery().repaired == 0;
        Box::new(LiveTree {
            tree,
            settled: Cell::new(settled),
        })
    }
}

impl<K, V, const B: usize> Subject for LbSubject<K, V, B>
where
    K: KeyRepr + Numbered + ?Sized + 'static,
    V: Repr + Numbered + ?Sized + 'static,
{
    fn name(&self) -> String {
        let mode = if self.options.entry_moving {
            ""
        } else {
            "-traditional"
        };
        format!("lbtree-{}-{}{mode}", B * 256, K::NAME)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = super::make_pool()?;
        let tree = LbTree::create(&pool, ROOT, &self.options)
            .map_err(|e| Fault::new(FaultKind::Progress, format!("creating the tree: {e}")))?;
        Ok(Self::live(tree))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = super::open_pool()? else {
            return Ok(Opened::Absent);
        };
        match LbTree::open(&pool, ROOT, &self.options) {
            // A clean closing is of no use if its snapshot is not durable by then.
            Ok(tree) if pool.info().was_clean && !tree.recovery().clean => Err(Fault::new(
                FaultKind::Lost,
                "closed cleanly, but the snapshot was not there",
            )),
            Ok(tree) => Ok(Opened::Live(Self::live(tree))),
            Err(TreeError::Root(RootError::NotFound(_))) => Ok(Opened::Absent),
            Err(e) => Err(Fault::new(FaultKind::Recovery, e.to_string())),
        }
    }
}

/// An open tree.
struct LiveTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, const B: usize> {
    tree: LbTree<K, V, Sim, B>,
    /// Nothing was done since recovery, which left no chunk without a live block.
    settled: Cell<bool>,
}

/// What an operation's error means. A commit cannot fail on a simulated medium.
fn failed(op: &Op, e: &dyn std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, format!("{op:?}: {e}"))
}

fn torn(what: &str, found: &(impl std::fmt::Debug + ?Sized)) -> Fault {
    Fault::new(FaultKind::Torn, format!("no {what} was ever: {found:?}"))
}

impl<K, V, const B: usize> LiveTree<K, V, B>
where
    K: KeyRepr + Numbered + ?Sized,
    V: Repr + Numbered + ?Sized,
{
    fn insert(&self, op: &Op, key: u64, value: u64) -> Result<Reply, Fault> {
        match K::with_key(key, |key| {
            V::with_value(value, |value| self.tree.insert(key, value))
        }) {
            Ok(()) => Ok(Reply::Done),
            Err(InsertError::KeyExists) => Ok(Reply::Refused),
            Err(e) => Err(failed(op, &e)),
        }
    }

    fn batch(&self, op: &Op, keys: impl Iterator<Item = u64>, value: u64) -> Result<Reply, Fault> {
        let pairs: Vec<(K::Owned, V::Owned)> = keys
            .map(|key| {
                let key = K::with_key(key, ToOwned::to_owned);
                (key, V::with_value(value, ToOwned::to_owned))
            })
            .collect();
        let mut results = Vec::with_capacity(pairs.len());
        self.tree.multi_insert(&pairs, &mut results);
        for result in results {
            match result {
                Ok(()) | Err(InsertError::KeyExists) => {}
                Err(e) => return Err(failed(op, &e)),
            }
        }
        Ok(Reply::Done)
    }
}

impl<K, V, const B: usize> Live for LiveTree<K, V, B>
where
    K: KeyRepr + Numbered + ?Sized + 'static,
    V: Repr + Numbered + ?Sized + 'static,
{
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.settled.set(false);
        let tree = &self.tree;
        match *op {
            Op::Insert(key, value) => self.insert(op, key, value),
            Op::Upsert(key, value) => K::with_key(key, |key| {
                V::with_value(value, |value| tree.upsert(key, value))
            })
            .map(|_| Reply::Done)
            .map_err(|e| failed(op, &e)),
            Op::Update(key, value) => {
                match K::with_key(key, |key| {
                    V::with_value(value, |value| tree.update(key, value))
                }) {
                    Ok(()) => Ok(Reply::Done),
                    Err(UpdateError::NotFound) => Ok(Reply::Refused),
                    Err(e) => Err(failed(op, &e)),
                }
            }
            Op::Remove(key) => match K::with_key(key, |key| tree.remove(key)) {
                Ok(true) => Ok(Reply::Done),
                Ok(false) => Ok(Reply::Refused),
                Err(e) => Err(failed(op, &e)),
            },
            Op::Get(key) => {
                let found = K::with_key(key, |key| {
                    tree.get_with(key, |value| {
                        value.value_number().ok_or_else(|| torn("value", value))
                    })
                });
                found.transpose().map(Reply::Found)
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => self.batch(op, super::batch_keys(first, step, count), value),
            Op::Compact => match tree.pool().compact() {
                Ok(_) => Ok(Reply::Done),
                Err(e) => Err(failed(op, &e)),
            },
            Op::Reopen => Err(failed(op, &"the explorer closes and opens")),
        }
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        let mut wrong = None;
        self.tree.scan(.., |key, value| {
            match (key.key_number(), value.value_number()) {
                (Some(key), Some(value)) => each(key, value),
                (None, _) => wrong = Some(torn("key", key)),
                (_, None) => wrong = Some(torn("value", value)),
            }
            if wrong.is_none() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    fn verify(&self) -> Result<(), Fault> {
        self.tree.verify().map_err(|violation| {
            let kind = if violation.leak {
                FaultKind::Leak
            } else {
                FaultKind::Structure
            };
            Fault::new(kind, violation.what)
        })?;
        super::verify_pool(self.tree.pool(), self.settled.get())?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        self.tree
            .close()
            .map_err(|e| Fault::new(FaultKind::Progress, format!("closing: {e}")))
    }
}
