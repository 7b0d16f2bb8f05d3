//! Atomic batches of the clustered tree: a map whose entries have one to three copies in pages far
//! from each other, which one batch writes.
//!
//! ```text
//! key k   --> copies 0 to k mod 3: keys k, k + 2^40, k + 2^41
//! ```
//!
//! Copies that differ, or of which some are missing, show a batch that took effect in part. A batch
//! of keys is one batch of all their copies, so it also splits pages that its changes do not fit.
//!
//! One of the subjects opens its tree without reading pages, and then writes two marks far from
//! each other in one batch. So it uses a commit slot while pages may have groups that no commit
//! made count.
//!
//! Reading is done at a snapshot, all copies. Changes that rest on it are written only if the
//! copies have not changed since.
//!
//! # Crash states
//! Those of the tree, and of commit slots: groups that a crash came before. Snapshots have none.

use super::index::Numbered;
use super::{batch_keys, make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_designs::clustered::{
    ClusteredOptions, ClusteredTree, LazyTree, ReadError, Snapshot, WriteError,
};
use bristlecone_designs::index::{Direction, DurableIndex, TreeError};
use bristlecone_designs::repr::KeyRepr;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::RootError;
use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::ControlFlow;

const ROOT: &str = "batches";
/// Distance between the copies of a key.
const APART: u64 = 1 << 40;
/// The keys of the marks, above all others.
const MARKS: [u64; 2] = [1 << 44, 1 << 45];
const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 1024 };

/// A tree whose entries have copies.
pub struct BatchSubject<K: ?Sized> {
    /// Pages are read when they are touched.
    lazy: bool,
    kind: PhantomData<fn(&K)>,
}

impl<K: ?Sized> BatchSubject<K> {
    /// Returns the subject that reads all pages when it is opened.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lazy: false,
            kind: PhantomData,
        }
    }

    /// Returns the subject that reads pages when they are touched.
    #[must_use]
    pub const fn lazy() -> Self {
        Self {
            lazy: true,
            kind: PhantomData,
        }
    }
}

impl<K: ?Sized> Default for BatchSubject<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Numbered + KeyRepr + ?Sized> Subject for BatchSubject<K> {
    fn name(&self) -> String {
        let lazy = if self.lazy { "-lazy" } else { "" };
        format!("clustered-{}-{}-batches{lazy}", OPTIONS.page_bytes, K::NAME)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = make_pool()?;
        let tree = ClusteredTree::<K, K, Sim>::create(&pool, ROOT, &OPTIONS);
        let tree = tree.map_err(|e| progress(&"creating the tree", &e))?;
        Ok(Box::new(LiveBatches {
            tree: tree.into(),
            settled: Cell::new(true),
        }))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let opened = if self.lazy {
            LazyTree::<K, K, Sim>::open(&pool, ROOT, &OPTIONS)
        } else {
            ClusteredTree::open(&pool, ROOT, &OPTIONS).map(LazyTree::from)
        };
        match opened {
            Ok(tree) => {
                let settled = Cell::new(tree.recovery().repaired == 0 && !self.lazy);
                let live = LiveBatches { tree, settled };
                if self.lazy {
                    live.mark()?;
                }
                Ok(Opened::Live(Box::new(live)))
            }
            Err(TreeError::Root(RootError::NotFound(_))) => Ok(Opened::Absent),
            Err(e) => Err(Fault::new(FaultKind::Recovery, e.to_string())),
        }
    }

    fn stores_when_observed(&self) -> bool {
        self.lazy
    }

    fn max_key(&self) -> u64 {
        APART - 1
    }
}

fn progress(doing: &dyn std::fmt::Debug, e: &dyn std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, format!("{doing:?}: {e}"))
}

fn unread(e: ReadError) -> Fault {
    Fault::new(FaultKind::Recovery, e.to_string())
}

/// The keys of the copies of `key`.
fn copies(key: u64) -> impl Iterator<Item = u64> {
    (0..=key % 3).map(move |copy| key + copy * APART)
}

struct LiveBatches<K: KeyRepr + ?Sized> {
    tree: LazyTree<K, K, Sim>,
    /// No operation was done since recovery, and recovery left no chunk without a live block.
    settled: Cell<bool>,
}

impl<K: Numbered + KeyRepr + ?Sized> LiveBatches<K> {
    /// The value of all copies of a key at a snapshot.
    fn get(&self, snapshot: &Snapshot<'_, K, K, Sim>, key: u64) -> Result<Option<u64>, Fault> {
        let number = |value: K::Owned| {
            let value: &K = value.borrow();
            let torn = || Fault::new(FaultKind::Torn, format!("no value was ever: {value:?}"));
            value.value_number().ok_or_else(torn)
        };
        let one = |copy| {
            let found = K::with_key(copy, |key| snapshot.get(key));
            found.map_err(unread)?.map(number).transpose()
        };
        let first = one(key)?;
        for copy in copies(key).skip(1) {
            let other = one(copy)?;
            if other != first {
                let what = format!("key {key} has {first:?}, and its copy {copy} has {other:?}");
                return Err(Fault::new(FaultKind::Torn, what));
            }
        }
        Ok(first)
    }

    /// Writes all copies of the keys that `decide` finds at a snapshot, in one batch, if they have
    /// not changed since. Refused if it finds that nothing is to be done.
    fn write(
        &self,
        op: &Op,
        value: Option<u64>,
        decide: impl Fn(&Snapshot<'_, K, K, Sim>) -> Result<Option<Vec<u64>>, Fault>,
    ) -> Result<Reply, Fault> {
        let value = value.map(|value| K::with_value(value, ToOwned::to_owned));
        loop {
            let snapshot = self.tree.snapshot();
            let Some(keys) = decide(&snapshot)? else {
                return Ok(Reply::Refused);
            };
            let keys: Vec<K::Owned> = (keys.into_iter().flat_map(copies))
                .map(|key| K::with_key(key, ToOwned::to_owned))
                .collect();
            let changes = keys
                .iter()
                .map(|key| (key.borrow(), value.as_ref().map(Borrow::borrow)));
            match snapshot.write_batch(changes) {
                Ok(()) => return Ok(Reply::Done),
                // Another thread was faster.
                Err(WriteError::Conflict) => {}
                Err(e) => return Err(progress(op, &e)),
            }
        }
    }

    /// Counts an opening, in both marks.
    fn mark(&self) -> Result<(), Fault> {
        let mark = |key| K::with_key(key, |key| self.tree.get(key)).map_err(unread);
        let number = |mark: Option<K::Owned>| mark.and_then(|mark| mark.borrow().value_number());
        let (one, other) = (number(mark(MARKS[0])?), number(mark(MARKS[1])?));
        if one != other {
            let what = format!("one mark is {one:?}, and the other {other:?}");
            return Err(Fault::new(FaultKind::Torn, what));
        }
        let value = K::with_value(one.unwrap_or(0) + 1, ToOwned::to_owned);
        let keys = MARKS.map(|key| K::with_key(key, ToOwned::to_owned));
        let changes = keys.iter().map(|key| (key.borrow(), Some(value.borrow())));
        let written = self.tree.write_batch(changes);
        written.map_err(|e| progress(&"marking", &e))
    }

    /// Writes a key, whatever it has.
    fn put(&self, op: &Op, key: u64, value: u64) -> Result<Reply, Fault> {
        let keys: Vec<K::Owned> = copies(key)
            .map(|key| K::with_key(key, ToOwned::to_owned))
            .collect();
        let value = K::with_value(value, ToOwned::to_owned);
        let changes = keys.iter().map(|key| (key.borrow(), Some(value.borrow())));
        let written = self.tree.write_batch(changes);
        written.map_err(|e| progress(op, &e))?;
        Ok(Reply::Done)
    }

    /// Writes a key if its being there is as `wanted`.
    fn write_if(
        &self,
        op: &Op,
        key: u64,
        value: Option<u64>,
        wanted: bool,
    ) -> Result<Reply, Fault> {
        self.write(op, value, |snapshot| {
            let there = self.get(snapshot, key)?.is_some();
            Ok((there == wanted).then(|| vec![key]))
        })
    }
}

impl<K: Numbered + KeyRepr + ?Sized> Live for LiveBatches<K> {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.settled.set(false);
        match *op {
            Op::Insert(key, value) => self.write_if(op, key, Some(value), false),
            Op::Upsert(key, value) => self.put(op, key, value),
            Op::Update(key, value) => self.write_if(op, key, Some(value), true),
            Op::Remove(key) => self.write_if(op, key, None, true),
            Op::Get(key) => self.get(&self.tree.snapshot(), key).map(Reply::Found),
            Op::Batch {
                first,
                step,
                count,
                value,
            } => self.write(op, Some(value), |snapshot| {
                let mut absent = Vec::new();
                for key in batch_keys(first, step, count) {
                    if self.get(snapshot, key)?.is_none() {
                        absent.push(key);
                    }
                }
                Ok(Some(absent))
            }),
            Op::Compact => {
                self.tree.compact().map_err(|e| progress(op, &e))?;
                match self.tree.pool().compact() {
                    Ok(_) => Ok(Reply::Done),
                    Err(e) => Err(progress(op, &e)),
                }
            }
            Op::Reopen => Err(progress(op, &"the explorer closes and opens")),
        }
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        let mut found: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut wrong = None;
        let scanned = self.tree.scan(.., Direction::Up, |key, value| {
            match (key.key_number(), value.value_number()) {
                (Some(key), Some(_)) if MARKS.contains(&key) => ControlFlow::Continue(()),
                (Some(key), Some(value)) => {
                    let of = found.entry(key % APART).or_default();
                    of.push((key, value));
                    ControlFlow::Continue(())
                }
                _ => {
                    let what = format!("no entry was ever: {key:?}, {value:?}");
                    wrong = Some(Fault::new(FaultKind::Torn, what));
                    ControlFlow::Break(())
                }
            }
        });
        scanned.map_err(unread)?;
        for (key, found) in found {
            let value = found.first().map_or(0, |(_, value)| *value);
            let expected = copies(key).map(|copy| (copy, value));
            if !found.iter().copied().eq(expected) {
                let what = format!("key {key} has the copies {found:?}");
                wrong.get_or_insert(Fault::new(FaultKind::Torn, what));
            }
            each(key, value);
        }
        wrong.map_or(Ok(()), Err)
    }

    fn verify(&self) -> Result<(), Fault> {
        (self.tree.verify()).map_err(|found| Fault::broken(found.what, found.leak))?;
        verify_pool(self.tree.pool(), self.settled.get())?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        (self.tree.close()).map_err(|e| progress(&"closing", &e))
    }
}
