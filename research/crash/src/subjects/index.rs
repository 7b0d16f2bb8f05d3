//! Every index design, in the leaf sizes that are worth exploring and with all kinds of keys.
//!
//! A design is explored because it is in [`DESIGNS`]. `variants` adds ways of running it that have
//! a name of their own, such as the LB+-Tree without entry moving. [`own`] makes a subject of a
//! design that is not there.
//!
//! Numbers become keys and values in such a way that nothing torn passes for whole:
//!
//! ```text
//! u64     | the number itself (8 bytes are failure-atomic)
//! u128    | key: number / 2 | number % 2 | 63 bits that depend on the number; 0 is 0
//!         | value: 64 bits that depend on the number | the number
//! key     | "key/" | number / 4, big-endian (8 bytes) | "x" (number % 4) times
//! value 0 | nothing
//! value v | v (8 bytes) | 0 to 142 bytes, each of which depends on v and its place
//! ```
//!
//! Byte-string keys keep the order of the numbers and share a prefix. Three in four have another
//! key as a prefix.

use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_designs::crabtree::{CrabOptions, Strategy};
use bristlecone_designs::designs::{
    AnyDesign, Choice, Crab, DESIGNS, DesignInfo, Fair, Fp, Lb, Lcb, Ls, OwnDesign, Unsorted, Wal,
    Wb,
};
use bristlecone_designs::engines::{Compiled, Engine, Maker};
use bristlecone_designs::index::Direction;
use bristlecone_designs::lstree::LsOptions;
use bristlecone_designs::{
    BTreeOptions, CentralOptions, Design, FastFairOptions, InsertError, KeyRepr, LbOptions,
    SplitLog, TreeError, UpdateError, is_sealed,
};
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::RootError;
use std::borrow::Borrow;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// The only root.
const ROOT: &str = "index";

/// Simulated threads that recover.
const THREADS: usize = 2;

/// A key or value type with a mapping from and to numbers.
pub trait Numbered: ToOwned + std::fmt::Debug + 'static {
    /// The name of the type in a subject's name.
    const NAME: &'static str;

    /// Calls `f` with the key of this number.
    fn with_key<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R;

    /// Returns the number of a key; `None` if it is no number's key.
    fn key_number(&self) -> Option<u64>;

    /// Calls `f` with the value of this number.
    fn with_value<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R;

    /// Returns the number of a value; `None` if it is no number's value.
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

impl Numbered for u128 {
    const NAME: &'static str = "u128";

    fn with_key<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        // Successive numbers share the high half in pairs, so that shifts meet keys that differ in
        // one half or in both.
        let ordered = Self::from(number / 2) << 64 | Self::from(number % 2) << 63;
        f(&match number {
            // In FAST/FAIR, the smallest key ends a node wherever it is not the first entry.
            0 => 0,
            _ => ordered | Self::from(!number >> 1),
        })
    }

    fn key_number(&self) -> Option<u64> {
        let number = u64::try_from(self >> 63).ok()?;
        Self::with_key(number, |key| key == self).then_some(number)
    }

    fn with_value<R>(number: u64, f: impl FnOnce(&Self) -> R) -> R {
        f(&(Self::from(number.wrapping_mul(GOLDEN)) << 64 | Self::from(number)))
    }

    fn value_number(&self) -> Option<u64> {
        let number = *self as u64;
        Self::with_value(number, |value| value == self).then_some(number)
    }
}

/// An odd number without a pattern. The high bits of a product depend on all bits of the other
/// factor.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

const PREFIX: [u8; 4] = *b"key/";
/// Number of value lengths.
const LENGTHS: u64 = 143;

/// Writes the bytes of value `number` to `room`, and returns them.
fn value_bytes(number: u64, room: &mut [u8; 8 + LENGTHS as usize]) -> &[u8] {
    if number == 0 {
        return &[];
    }
    let mixed = number.wrapping_mul(GOLDEN);
    let len = 8 + ((mixed >> 32) % LENGTHS) as usize;
    room[..8].copy_from_slice(&number.to_le_bytes());
    for (i, byte) in room[8..len].iter_mut().enumerate() {
        // Never 0, since a lost store leaves 0.
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
        f(value_bytes(number, &mut [0; 8 + LENGTHS as usize]))
    }

    fn value_number(&self) -> Option<u64> {
        let Some((number, _)) = self.split_first_chunk::<8>() else {
            return self.is_empty().then_some(0);
        };
        let number = u64::from_le_bytes(*number);
        (value_bytes(number, &mut [0; 8 + LENGTHS as usize]) == self).then_some(number)
    }
}

/// An index from `K` to `K` as a subject.
struct IndexSubject<K: Numbered + ?Sized> {
    maker: Box<dyn Maker<K, K, Sim>>,
    name: String,
}

impl<K: Numbered + ?Sized> IndexSubject<K> {
    fn live(&self, index: Box<dyn Engine<K, K>>, pool: Arc<Pool<Sim>>) -> Box<dyn Live> {
        // A recovery that unlinked leaves may keep their chunk for the next leaves.
        let settled = index.recovery().repaired == 0;
        Box::new(LiveIndex {
            index,
            pool,
            settled: Cell::new(settled),
        })
    }
}

impl<K: Numbered + ?Sized> Subject for IndexSubject<K> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn unit(&self) -> u8 {
        self.maker.failure_unit()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = super::make_pool()?;
        let index = self.maker.create(&pool, ROOT);
        let index = index
            .map_err(|e| Fault::new(FaultKind::Progress, format!("creating the index: {e}")))?;
        Ok(self.live(index, pool))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = super::open_pool()? else {
            return Ok(Opened::Absent);
        };
        let root = pool.info().was_clean.then(|| pool.open_root(ROOT, None));
        let sealed = root.and_then(Result::ok).and_then(|root| is_sealed(&root));
        if sealed == Some(false) {
            return Err(Fault::new(
                FaultKind::Lost,
                "closed cleanly, but the sum of its content was not there",
            ));
        }
        match self.maker.open(&pool, ROOT) {
            // A clean close must leave a durable snapshot.
            Ok(index)
                if self.maker.snapshot() && pool.info().was_clean && !index.recovery().clean =>
            {
                Err(Fault::new(
                    FaultKind::Lost,
                    "closed cleanly, but the snapshot was not there",
                ))
            }
            Ok(index) => Ok(Opened::Live(self.live(index, pool))),
            Err(TreeError::Root(RootError::NotFound(_))) => Ok(Opened::Absent),
            Err(e) => Err(Fault::new(FaultKind::Recovery, e.to_string())),
        }
    }
}

/// Returns `design`, called `name`, with leaves of `bytes` bytes as a subject; `None` if it does
/// not hold such keys. `suffix` tells a variant from the design's default.
fn subject<K>(
    design: impl Into<AnyDesign>,
    name: &str,
    bytes: u32,
    suffix: &str,
) -> Option<Box<dyn Subject>>
where
    K: Numbered + ?Sized,
    Sim: Compiled<K, K>,
{
    Some(made(Sim::maker_of(design.into())?, name, bytes, suffix))
}

/// Returns what `maker` makes as a subject.
fn made<K: Numbered + ?Sized>(
    maker: Box<dyn Maker<K, K, Sim>>,
    name: &str,
    bytes: u32,
    suffix: &str,
) -> Box<dyn Subject> {
    let name = format!("{name}-{bytes}-{}{suffix}", K::NAME);
    Box::new(IndexSubject { maker, name })
}

/// Returns a design that is not in the registry as a subject, with keys and values `K`: `u64` or
/// `[u8]`. Its name has the leaf size and the kind of keys behind the design's.
#[must_use]
pub fn own<K: Numbered + KeyRepr + ?Sized>(own: &OwnDesign<impl Design>) -> Box<dyn Subject> {
    made::<K>(Box::new(own.design.clone()), own.name, own.node_bytes, "")
}

/// Returns the design in each of the leaf sizes as subjects; none if it does not hold such keys.
fn subjects_of<K>(
    design: &'static DesignInfo,
    sizes: &'static [u32],
) -> impl Iterator<Item = Box<dyn Subject>>
where
    K: Numbered + ?Sized,
    Sim: Compiled<K, K>,
{
    sizes.iter().filter_map(|bytes| {
        let choice = Choice {
            node_bytes: Some(*bytes),
            recovery_threads: THREADS,
            ..Choice::of(design.name)
        };
        let chosen = AnyDesign::of(&choice).expect("a leaf size that the design says it has");
        subject::<K>(chosen, design.name, *bytes, "")
    })
}

/// Returns the variants of the design `name`, which have names of their own.
fn variants(name: &'static str) -> Vec<Box<dyn Subject>> {
    fn both(design: impl Into<AnyDesign>, name: &str, suffix: &str) -> Vec<Box<dyn Subject>> {
        let design = design.into();
        let numbers = subject::<u64>(design.clone(), name, 256, suffix);
        numbers
            .into_iter()
            .chain(subject::<[u8]>(design, name, 256, suffix))
            .collect()
    }
    // Trees that are high with few keys.
    let high = BTreeOptions {
        recovery_threads: THREADS,
        node_bytes: Some(256),
        most_entries: Some(3),
        ..BTreeOptions::default()
    };
    match name {
        "lbtree" => {
            let traditional = Lb::<1>(LbOptions {
                entry_moving: false,
                recovery_threads: THREADS,
            });
            Vec::from_iter(subject::<u64>(traditional, name, 256, "-traditional"))
        }
        "fptree" => {
            let logging = Fp::<1>(CentralOptions {
                split_log: SplitLog::Leaf,
                recovery_threads: THREADS,
                ..CentralOptions::default()
            });
            both(logging, name, "-logging")
        }
        "wbtree" => {
            let logging = Wb::<1>(CentralOptions {
                split_log: SplitLog::Leaves,
                lazy_removal: true,
                recovery_threads: THREADS,
            });
            both(logging, name, "-logging")
        }
        "fastfair" => {
            let high = Fair(FastFairOptions {
                node_bytes: 256,
                most_entries: Some(4),
                recovery_threads: THREADS,
            });
            both(high, name, "-high")
        }
        "crabtree" => {
            let copying = CrabOptions {
                recovery_threads: THREADS,
                leaf_bytes: 256,
                strategy: Strategy::CopyOnWrite,
                ..CrabOptions::PLAIN
            };
            both(Crab(copying), name, "-copying")
        }
        "lstree" => {
            // Every other change writes a whole leaf, in a record of several lines.
            let short = LsOptions {
                recovery_threads: THREADS,
                leaf_bytes: 256,
                logs: 1,
                cached_deltas: 1,
                ..LsOptions::default()
            };
            both(Ls(short), name, "-short")
        }
        "lcbtree" => both(Lcb(high), name, "-high"),
        "btree-wal" => both(Wal(high), name, "-high"),
        "unsorted" => {
            let mut all = both(Unsorted(high), name, "-high");
            // Small leaves are often full, and the log then replaces a wide value.
            let full = BTreeOptions {
                recovery_threads: THREADS,
                node_bytes: Some(128),
                ..BTreeOptions::default()
            };
            all.extend(subject::<u128>(Unsorted(full), name, 128, ""));
            all
        }
        _ => Vec::new(),
    }
}

/// Returns every design in the leaf sizes that are explored by default.
#[must_use]
pub fn all() -> Vec<Box<dyn Subject>> {
    let mut all = Vec::new();
    for design in DESIGNS {
        let sizes = design.explored();
        all.extend(subjects_of::<u64>(design, sizes));
        all.extend(subjects_of::<[u8]>(design, sizes));
        all.extend(subjects_of::<u128>(design, sizes));
        all.extend(variants(design.name));
    }
    all
}

/// Returns every design in every leaf size that it has.
pub(super) fn every_size() -> impl Iterator<Item = Box<dyn Subject>> {
    DESIGNS.iter().flat_map(|design| {
        subjects_of::<u64>(design, design.node_bytes)
            .chain(subjects_of::<[u8]>(design, design.node_bytes))
            .chain(subjects_of::<u128>(design, design.node_bytes))
    })
}

/// An open index.
struct LiveIndex<K: Numbered + ?Sized> {
    // The index comes before the pool, so that it is dropped first.
    index: Box<dyn Engine<K, K>>,
    pool: Arc<Pool<Sim>>,
    /// True if no operation was done since recovery, and recovery left no chunk without a live
    /// block.
    settled: Cell<bool>,
}

/// Returns the fault of an operation's error. A commit cannot fail on a simulated medium.
fn failed(op: &Op, e: &dyn std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, format!("{op:?}: {e}"))
}

fn torn(what: &str, found: &(impl std::fmt::Debug + ?Sized)) -> Fault {
    Fault::new(FaultKind::Torn, format!("no {what} was ever: {found:?}"))
}

impl<K: Numbered + ?Sized> LiveIndex<K> {
    fn insert(&self, op: &Op, key: u64, value: u64) -> Result<Reply, Fault> {
        match K::with_key(key, |key| {
            K::with_value(value, |value| self.index.insert(key, value))
        }) {
            Ok(()) => Ok(Reply::Done),
            Err(InsertError::KeyExists) => Ok(Reply::Refused),
            Err(e) => Err(failed(op, &e)),
        }
    }

    fn batch(&self, op: &Op, keys: impl Iterator<Item = u64>, value: u64) -> Result<Reply, Fault> {
        let pairs: Vec<(K::Owned, K::Owned)> = keys
            .map(|key| {
                let key = K::with_key(key, ToOwned::to_owned);
                (key, K::with_value(value, ToOwned::to_owned))
            })
            .collect();
        let pairs: Vec<(&K, &K)> = (pairs.iter())
            .map(|(key, value)| (key.borrow(), value.borrow()))
            .collect();
        for result in self.index.insert_many(&pairs) {
            match result {
                Ok(()) | Err(InsertError::KeyExists) => {}
                Err(e) => return Err(failed(op, &e)),
            }
        }
        Ok(Reply::Done)
    }
}

impl<K: Numbered + ?Sized> Live for LiveIndex<K> {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.settled.set(false);
        let index = &self.index;
        match *op {
            Op::Insert(key, value) => self.insert(op, key, value),
            Op::Upsert(key, value) => K::with_key(key, |key| {
                K::with_value(value, |value| index.upsert(key, value))
            })
            .map(|_| Reply::Done)
            .map_err(|e| failed(op, &e)),
            Op::Update(key, value) => {
                match K::with_key(key, |key| {
                    K::with_value(value, |value| index.update(key, value))
                }) {
                    Ok(()) => Ok(Reply::Done),
                    Err(UpdateError::NotFound) => Ok(Reply::Refused),
                    Err(e) => Err(failed(op, &e)),
                }
            }
            Op::Remove(key) => match K::with_key(key, |key| index.remove(key)) {
                Ok(true) => Ok(Reply::Done),
                Ok(false) => Ok(Reply::Refused),
                Err(e) => Err(failed(op, &e)),
            },
            Op::Get(key) => {
                let found = K::with_key(key, |key| index.get(key));
                let number = |value: K::Owned| {
                    let value: &K = value.borrow();
                    value.value_number().ok_or_else(|| torn("value", value))
                };
                found.map(number).transpose().map(Reply::Found)
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => self.batch(op, super::batch_keys(first, step, count), value),
            Op::Compact => {
                self.index.compact().map_err(|e| failed(op, &e))?;
                match self.pool.compact() {
                    Ok(_) => Ok(Reply::Done),
                    Err(e) => Err(failed(op, &e)),
                }
            }
            Op::Reopen => Err(failed(op, &"the explorer closes and opens")),
        }
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        let mut wrong = None;
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.index
            .scan(all, Direction::Up, None, &mut |key, value| {
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
        (self.index.verify()).map_err(|found| Fault::broken(found.what, found.leak))?;
        super::verify_pool(&self.pool, self.settled.get())?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        self.index
            .close()
            .map_err(|e| Fault::new(FaultKind::Progress, format!("closing: {e}")))
    }
}
