//! A memtable's index: an LB+-Tree or, to compare with, the divided skip list of LB+-Tree's paper
//! (feature `skiplist`).
//!
//! Both lead from the key in a record to its sequence number and type. An entry is inserted without
//! a commit of the medium: whoever acknowledges writes commits for all of them at once.

use crate::error::Fault;
use crate::key::{
    Bytewise, Called, Comparator, Entry, EntryKey, KeyOrder, OwnedKey, with_comparator,
};
use crate::record::{self, OFFSET_MASK};
#[cfg(feature = "skiplist")]
use bristlecone_designs::{DividedSkipList, SkipOptions};
use bristlecone_index::contract::IfPresent;
use bristlecone_index::{DurableIndex, InsertError, LbOptions, LbTree, OrderedIndex, Stored};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Media, Pool};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// The design of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The LB+-Tree.
    Tree,
    /// The divided skip list.
    SkipList,
}

/// The order of a memtable's keys: `None` is that of bytes.
pub type Order = Option<Comparator>;

/// Where a scan begins.
#[derive(Clone, Copy, Debug)]
pub enum Start<'k> {
    /// At the first or, downwards, the last entry.
    End,
    /// At this key, or the next one after it.
    At(&'k [u8]),
    /// At the next one after this key.
    After(&'k [u8]),
}

/// The index of a memtable.
pub trait Table: Send + Sync {
    /// Inserts an entry, whose record is sealed. Returns false if its key is there.
    ///
    /// # Errors
    /// [`InsertError`]; nothing has changed.
    fn insert(&self, entry: &[u8]) -> Result<bool, InsertError>;

    /// Returns the first entry from `key` on, if it has the same user key.
    fn get(&self, key: &[u8]) -> Option<*const u8>;

    /// Calls `visit` with entries in order, upwards or downwards, until it breaks.
    fn scan(&self, from: Start<'_>, up: bool, visit: &mut dyn FnMut(*const u8) -> ControlFlow<()>);

    /// Checks the index.
    ///
    /// # Errors
    /// What is wrong.
    fn verify(&self) -> Result<u64, String>;

    /// Removes the index from its pool.
    fn destroy(self: Box<Self>);
}

/// What only one of the designs can do, or each does in its own way.
trait Design<O: KeyOrder>: DurableIndex<EntryKey<O>, u64, Auto> + Send + Sync + 'static {
    /// Inserts a key whose record is sealed.
    fn put(&self, key: &EntryKey<O>, trailer: u64) -> Result<(), InsertError>;

    /// Returns the first entry from `key` on, if it has the same user key.
    fn first(&self, key: &EntryKey<O>) -> Option<*const u8> {
        first_of_scan(self, key)
    }

    /// Removes the index, which is at the root `name`.
    fn remove(self, name: &str);
}

/// Returns the first entry from `key` on.
fn first_of_scan<O: KeyOrder>(
    index: &(impl OrderedIndex<EntryKey<O>, u64> + ?Sized),
    key: &EntryKey<O>,
) -> Option<*const u8> {
    let mut first = None;
    let from: (Bound<&EntryKey<O>>, Bound<&EntryKey<O>>) = (Bound::Included(key), Bound::Unbounded);
    index.scan(from, |found, _| {
        first = Some(found.bytes().as_ptr());
        ControlFlow::Break(())
    });
    first
}

impl<O: KeyOrder> Design<O> for LbTree<EntryKey<O>, u64, Auto> {
    fn put(&self, key: &EntryKey<O>, trailer: u64) -> Result<(), InsertError> {
        self.put_uncommitted(key, &trailer, IfPresent::Refuse)
            .map(|_| ())
    }

    /// In the order of bytes: the newest of the leaf's entries with the fingerprint and user key of
    /// `key` that is not newer than it. If there is none, such an entry can only be in the leaves
    /// after it that begin with a version of the same user key.
    fn first(&self, key: &EntryKey<O>) -> Option<*const u8> {
        if !O::BYTEWISE {
            return first_of_scan(self, key);
        }
        let (user_key, newest) = (key.user_key(), key.trailer());
        let guard = &epoch::pin();
        let mut end: Option<OwnedKey<O>>;
        let mut from = key;
        loop {
            let best = self.look_at_candidates(
                from,
                guard,
                |best: &mut Option<(u64, u64)>, word, trailer| {
                    let better = trailer <= newest && best.is_none_or(|(best, _)| trailer > best);
                    let same = |found: &EntryKey<O>| found.user_key() == user_key;
                    if better && EntryKey::read(self.pm(), word, same) == Some(true) {
                        *best = Some((trailer, word));
                    }
                },
            );
            if let Some((_, word)) = best {
                return record::entry(self.pm(), word & OFFSET_MASK).map(<[u8]>::as_ptr);
            }
            end = self.end_of_leaf(from);
            from = end.as_ref()?.borrow();
            if from.user_key() != user_key {
                return None;
            }
        }
    }

    fn remove(self, _name: &str) {
        self.destroy();
    }
}

#[cfg(feature = "skiplist")]
impl<O: KeyOrder> Design<O> for DividedSkipList<EntryKey<O>, u64, Auto> {
    fn put(&self, key: &EntryKey<O>, trailer: u64) -> Result<(), InsertError> {
        self.insert(key, &trailer)
    }

    fn remove(self, name: &str) {
        let pool = Arc::clone(self.pool());
        drop(self);
        remove_root(&pool, name);
    }
}

/// Removes the index of this name, which is not open, and gives its space back.
pub fn remove_root(pool: &Arc<Pool<Auto>>, name: &str) {
    if let Ok(root) = pool.open_root(name, None) {
        // PERSIST: (in `unpublish`) the root is gone, before its chunks serve another.
        root.unpublish();
        let heap = root.heap();
        // Blocks that nothing has marked are free.
        heap.begin_recovery();
        heap.finish_recovery();
    }
}

struct Of<I> {
    index: I,
    order: Order,
    name: String,
}

impl<I> Of<I> {
    fn key<O: KeyOrder>(bytes: &[u8]) -> Option<&EntryKey<O>> {
        EntryKey::new(crate::key::key_bytes(bytes)?)
    }
}

/// As [`Table`], for the order that a type of keys has.
fn scan_index<O: KeyOrder>(
    index: &impl Design<O>,
    from: Start<'_>,
    up: bool,
    visit: &mut dyn FnMut(*const u8) -> ControlFlow<()>,
) {
    let bound = match from {
        Start::End => Some(Bound::Unbounded),
        Start::At(key) => EntryKey::<O>::new(key).map(Bound::Included),
        Start::After(key) => EntryKey::<O>::new(key).map(Bound::Excluded),
    };
    let Some(bound) = bound else { return };
    let visit = |key: &EntryKey<O>, _: &u64| visit(key.bytes().as_ptr());
    match up {
        true => index.scan((bound, Bound::Unbounded), visit),
        false => index.scan_reverse((Bound::Unbounded, bound), visit),
    }
}

macro_rules! table {
    ($order:ty, $index:ty) => {
        impl Table for Of<$index> {
            fn insert(&self, entry: &[u8]) -> Result<bool, InsertError> {
                let Some(key) = Self::key::<$order>(entry) else {
                    return Ok(false);
                };
                with_comparator(self.order, || match self.index.put(key, key.trailer()) {
                    Ok(()) => Ok(true),
                    Err(InsertError::KeyExists) => Ok(false),
                    Err(e) => Err(e),
                })
            }

            fn get(&self, key: &[u8]) -> Option<*const u8> {
                let key = Self::key::<$order>(key)?;
                with_comparator(self.order, || self.index.first(key))
            }

            fn scan(
                &self,
                from: Start<'_>,
                up: bool,
                visit: &mut dyn FnMut(*const u8) -> ControlFlow<()>,
            ) {
                with_comparator(self.order, || {
                    scan_index::<$order>(&self.index, from, up, visit);
                });
            }

            fn verify(&self) -> Result<u64, String> {
                let verified = with_comparator(self.order, || self.index.verify());
                verified.map(|report| report.entries).map_err(|e| e.what)
            }

            fn destroy(self: Box<Self>) {
                Design::<$order>::remove(self.index, &self.name);
            }
        }
    };
}

table!(Bytewise, LbTree<EntryKey<Bytewise>, u64, Auto>);
table!(Called, LbTree<EntryKey<Called>, u64, Auto>);
#[cfg(feature = "skiplist")]
table!(Bytewise, DividedSkipList<EntryKey<Bytewise>, u64, Auto>);
#[cfg(feature = "skiplist")]
table!(Called, DividedSkipList<EntryKey<Called>, u64, Auto>);

/// Makes an empty index, or opens one.
///
/// # Errors
/// [`Fault`]; nothing is left behind.
pub fn table(
    pool: &Arc<Pool<Auto>>,
    name: &str,
    kind: Kind,
    order: Order,
    create: bool,
) -> Result<Box<dyn Table>, Fault> {
    fn made<O: KeyOrder, I: Design<O>>(
        pool: &Arc<Pool<Auto>>,
        name: &str,
        order: Order,
        options: &I::Options,
        create: bool,
    ) -> Result<Of<I>, Fault> {
        let index = with_comparator(order, || match create {
            true => I::create(pool, name, options),
            false => I::open(pool, name, options),
        })?;
        Ok(Of {
            index,
            order,
            name: name.to_owned(),
        })
    }
    let options = LbOptions::default();
    Ok(match (kind, order) {
        (Kind::Tree, None) => Box::new(made::<Bytewise, LbTree<_, _, _>>(
            pool, name, order, &options, create,
        )?),
        (Kind::Tree, Some(_)) => Box::new(made::<Called, LbTree<_, _, _>>(
            pool, name, order, &options, create,
        )?),
        #[cfg(feature = "skiplist")]
        (Kind::SkipList, None) => Box::new(made::<Bytewise, DividedSkipList<_, _, _>>(
            pool,
            name,
            order,
            &SkipOptions::default(),
            create,
        )?),
        #[cfg(feature = "skiplist")]
        (Kind::SkipList, Some(_)) => Box::new(made::<Called, DividedSkipList<_, _, _>>(
            pool,
            name,
            order,
            &SkipOptions::default(),
            create,
        )?),
        #[cfg(not(feature = "skiplist"))]
        (Kind::SkipList, _) => {
            let what = "this library was built without its feature skiplist; build it with that";
            return Err(Fault::new(crate::error::FaultKind::Invalid, what));
        }
    })
}

/// Returns the trailers and entries of an index, unsorted.
///
/// # Errors
/// [`Fault`] if a record is damaged.
pub fn entries(table: &dyn Table, pool: &Pool<Auto>) -> Result<Vec<(u64, u64)>, Fault> {
    let pm = pool.pm();
    let (mut entries, mut wrong) = (Vec::new(), None);
    table.scan(Start::End, true, &mut |at| {
        let off = (at.addr() - pm.base().addr() - record::HEADER) as u64;
        let parsed = record::check(pm, off).map(|()| record::entry(pm, off).and_then(Entry::parse));
        match parsed {
            Ok(Some(entry)) => {
                entries.push((entry.trailer, off));
                ControlFlow::Continue(())
            }
            Ok(None) => ControlFlow::Continue(()), // `check` would have told
            Err(what) => {
                wrong = Some(what);
                ControlFlow::Break(())
            }
        }
    });
    match wrong {
        Some(what) => Err(Fault::corrupt(pool.path(), what)),
        None => Ok(entries),
    }
}
