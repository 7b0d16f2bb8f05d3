//! An index behind a table of functions, whatever its design, its keys and values, and its medium.
//!
//! Code over an [`Engine`] is compiled once for all designs, and a design is compiled where an
//! engine is made of it. The store's engines lead from byte strings to offsets ([`EngineKind`]);
//! its default one is [`LbEngine`]. `research/designs` makes engines of every design.
//!
//! A boxed engine implements [`OrderedIndex`], so that code over an index takes either.

use crate::contract::{
    BulkLoad, Direction, DurableIndex, Fill, Hint, IndexStats, InsertError, OrderedIndex,
    RecoveryReport, RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::lbtree::{LbOptions, LbTree};
use crate::repr::{Stored, StoredKey};
use bristlecone_pmem::{CommitError, Media, Pool, SpaceError};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// Bounds of keys.
pub type Range<'a, K = [u8]> = (Bound<&'a K>, Bound<&'a K>);

/// Visitor of a scan: gets keys with their values, and ends the scan by breaking.
pub type Visit<'a, K = [u8], V = u64> = &'a mut dyn FnMut(&K, &V) -> ControlFlow<()>;

/// Returns true if no key can be in a range.
#[must_use]
pub fn is_empty<K: Ord + ?Sized>(range: &Range<'_, K>) -> bool {
    match (range.0, range.1) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
    }
}

/// A durable ordered index from `K` to `V`; by default from byte strings to offsets, as in a store.
/// Each method does the same as the named one of [`OrderedIndex`] or [`DurableIndex`].
pub trait Engine<K = [u8], V = u64>: Send + Sync
where
    K: ?Sized,
    V: ToOwned + ?Sized,
{
    /// [`OrderedIndex::get`]
    fn get(&self, key: &K) -> Option<V::Owned>;

    /// [`OrderedIndex::multi_get`]
    fn get_many(&self, keys: &[&K], out: &mut Vec<Option<V::Owned>>);

    /// [`OrderedIndex::multi_get_hinted`]: the value of each key, and a hint. `ahead` gets likely
    /// values early, to prefetch what they lead to.
    fn find(&self, keys: &[&K], ahead: &mut dyn FnMut(&V)) -> Vec<(Option<V::Owned>, Hint)>;

    /// [`OrderedIndex::insert`]
    ///
    /// # Errors
    /// As there.
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError>;

    /// [`OrderedIndex::multi_insert`]: the result for each entry.
    fn insert_many(&self, entries: &[(&K, &V)]) -> Vec<Result<(), InsertError>>;

    /// [`OrderedIndex::upsert`]
    ///
    /// # Errors
    /// As there.
    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError>;

    /// [`OrderedIndex::update`]
    ///
    /// # Errors
    /// As there.
    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError>;

    /// [`OrderedIndex::update_unflushed`]
    ///
    /// # Errors
    /// As there.
    fn update_unflushed(&self, hint: &Hint, key: &K, value: &V)
    -> Result<Option<u64>, UpdateError>;

    /// [`OrderedIndex::remove`]
    ///
    /// # Errors
    /// As there.
    fn remove(&self, key: &K) -> Result<bool, RemoveError>;

    /// Visits the entries of a range. `ahead`, if given, gets likely next values early, to prefetch
    /// what they lead to. A range that [is empty](is_empty) has no entries.
    fn scan(
        &self,
        range: Range<'_, K>,
        direction: Direction,
        ahead: Option<&mut dyn FnMut(&V)>,
        visit: Visit<'_, K, V>,
    );

    /// [`BulkLoad::bulk_load`]
    ///
    /// # Errors
    /// As there.
    fn load(
        &mut self,
        sorted: &mut dyn Iterator<Item = Pair<K, V>>,
        fill: Fill,
    ) -> Result<u64, InsertError>
    where
        K: ToOwned;

    /// [`OrderedIndex::stats`]
    fn stats(&self) -> IndexStats;

    /// [`OrderedIndex::verify`]
    ///
    /// # Errors
    /// As there.
    fn verify(&self) -> Result<VerifyReport, Violation>;

    /// [`DurableIndex::compact`]
    ///
    /// # Errors
    /// As there.
    fn compact(&self) -> Result<(), SpaceError>;

    /// [`DurableIndex::recovery`]
    fn recovery(&self) -> &RecoveryReport;

    /// [`DurableIndex::close`]
    ///
    /// # Errors
    /// As there.
    fn close(self: Box<Self>) -> Result<(), CommitError>;
}

/// A key and a value, owned.
pub type Pair<K, V> = (<K as ToOwned>::Owned, <V as ToOwned>::Owned);

/// The name and the leaf sizes of a kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Name of the design in root tables.
    pub name: &'static str,
    /// Leaf sizes in bytes, ascending.
    pub node_bytes: &'static [u32],
    /// The leaf size by default.
    pub default_node_bytes: u32,
}

/// Makes and opens engines of one design, on one kind of medium.
pub trait EngineKind<M: Media>: Send + Sync {
    /// Returns its name and leaf sizes.
    fn info(&self) -> EngineInfo;

    /// [`DurableIndex::create`], with one of its leaf sizes.
    ///
    /// # Errors
    /// As there.
    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError>;

    /// [`DurableIndex::open`]
    ///
    /// # Errors
    /// As there.
    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError>;
}

/// Returns the index as an [`Engine`].
pub fn engine<I, K, V, M>(index: I) -> Box<dyn Engine<K, V>>
where
    I: DurableIndex<K, V, M> + 'static,
    K: StoredKey + ?Sized + 'static,
    V: Stored + ?Sized + 'static,
    M: Media,
{
    Box::new(Erased(index, PhantomData::<fn(&M)>))
}

/// An index with its medium, which the contract of an index does not name.
struct Erased<I, M>(I, PhantomData<fn(&M)>);

impl<I, K, V, M> Engine<K, V> for Erased<I, M>
where
    I: DurableIndex<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn get(&self, key: &K) -> Option<V::Owned> {
        OrderedIndex::get(&self.0, key)
    }

    fn get_many(&self, keys: &[&K], out: &mut Vec<Option<V::Owned>>) {
        self.0.multi_get(keys, out);
    }

    fn find(&self, keys: &[&K], ahead: &mut dyn FnMut(&V)) -> Vec<(Option<V::Owned>, Hint)> {
        let mut found = Vec::new();
        self.0.multi_get_hinted(keys, ahead, &mut found);
        found
    }

    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.0.insert(key, value)
    }

    fn insert_many(&self, entries: &[(&K, &V)]) -> Vec<Result<(), InsertError>> {
        let mut inserted = Vec::new();
        self.0.multi_insert(entries, &mut inserted);
        inserted
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.0.upsert(key, value)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        self.0.update(key, value)
    }

    fn update_unflushed(
        &self,
        hint: &Hint,
        key: &K,
        value: &V,
    ) -> Result<Option<u64>, UpdateError> {
        self.0.update_unflushed(hint, key, value)
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        OrderedIndex::remove(&self.0, key)
    }

    fn scan(
        &self,
        range: Range<'_, K>,
        direction: Direction,
        ahead: Option<&mut dyn FnMut(&V)>,
        visit: Visit<'_, K, V>,
    ) {
        match (direction, ahead) {
            (Direction::Up, None) => self.0.scan(range, visit),
            (Direction::Down, None) => self.0.scan_reverse(range, visit),
            (Direction::Up, Some(ahead)) => self.0.scan_ahead(range, ahead, visit),
            (Direction::Down, Some(ahead)) => self.0.scan_reverse_ahead(range, ahead, visit),
        }
    }

    fn load(
        &mut self,
        sorted: &mut dyn Iterator<Item = Pair<K, V>>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        self.0.bulk_load(sorted, fill)
    }

    fn stats(&self) -> IndexStats {
        self.0.stats()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.0.verify()
    }

    fn compact(&self) -> Result<(), SpaceError> {
        self.0.compact()
    }

    fn recovery(&self) -> &RecoveryReport {
        self.0.recovery()
    }

    fn close(self: Box<Self>) -> Result<(), CommitError> {
        self.0.close()
    }
}

/// Returns the bounds of a range.
fn bounds<K: ?Sized>(range: &impl RangeBounds<K>) -> Range<'_, K> {
    (range.start_bound(), range.end_bound())
}

impl<K, V> OrderedIndex<K, V> for Box<dyn Engine<K, V>>
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        (**self).insert(key, value)
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        (**self).upsert(key, value)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        (**self).update(key, value)
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        (**self).remove(key)
    }

    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        (**self).get(key).map(|value| f(value.borrow()))
    }

    fn get(&self, key: &K) -> Option<V::Owned> {
        (**self).get(key)
    }

    fn scan<R: RangeBounds<K>>(&self, range: R, mut visit: impl FnMut(&K, &V) -> ControlFlow<()>) {
        (**self).scan(bounds(&range), Direction::Up, None, &mut visit);
    }

    fn scan_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        mut ahead: impl FnMut(&V),
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        (**self).scan(bounds(&range), Direction::Up, Some(&mut ahead), &mut visit);
    }

    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        self.get_many(&keys, out);
    }

    fn multi_get_hinted<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        mut ahead: impl FnMut(&V),
        out: &mut Vec<(Option<V::Owned>, Hint)>,
    ) {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        *out = self.find(&keys, &mut ahead);
    }

    fn update_unflushed(
        &self,
        hint: &Hint,
        key: &K,
        value: &V,
    ) -> Result<Option<u64>, UpdateError> {
        (**self).update_unflushed(hint, key, value)
    }

    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        let entries = pairs
            .iter()
            .map(|(key, value)| (key.borrow(), value.borrow()));
        *out = self.insert_many(&entries.collect::<Vec<_>>());
    }

    fn stats(&self) -> IndexStats {
        (**self).stats()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        (**self).verify()
    }
}

impl<K, V> ReverseScan<K, V> for Box<dyn Engine<K, V>>
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        (**self).scan(bounds(&range), Direction::Down, None, &mut visit);
    }

    fn scan_reverse_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        mut ahead: impl FnMut(&V),
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        (**self).scan(
            bounds(&range),
            Direction::Down,
            Some(&mut ahead),
            &mut visit,
        );
    }
}

impl<K, V> BulkLoad<K, V> for Box<dyn Engine<K, V>>
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        let owned = |(key, value): (Q, W)| (key.borrow().to_owned(), value.borrow().to_owned());
        (**self).load(&mut sorted.map(owned), fill)
    }
}

/// LB+-Trees.
#[derive(Clone, Copy, Debug, Default)]
pub struct LbEngine;

impl LbEngine {
    /// Their name and leaf sizes.
    pub const INFO: EngineInfo = EngineInfo {
        name: "lbtree",
        node_bytes: &[256, 512, 1024],
        default_node_bytes: 256,
    };

    /// Calls `make` for the tree with leaves of that size.
    fn with<M: Media>(
        pool: &Arc<Pool<M>>,
        root: &str,
        (node_bytes, recovery_threads): (u32, usize),
        create: bool,
    ) -> Result<Box<dyn Engine>, TreeError> {
        let options = LbOptions {
            recovery_threads,
            ..LbOptions::default()
        };
        match node_bytes {
            512 => made::<LbTree<[u8], u64, M, 2>, M>(pool, root, &options, create),
            1024 => made::<LbTree<[u8], u64, M, 4>, M>(pool, root, &options, create),
            // Only the root table knows any other size, and a tree reports it when it is opened.
            _ => made::<LbTree<[u8], u64, M, 1>, M>(pool, root, &options, create),
        }
    }
}

fn made<I, M>(
    pool: &Arc<Pool<M>>,
    root: &str,
    options: &I::Options,
    create: bool,
) -> Result<Box<dyn Engine>, TreeError>
where
    M: Media,
    I: DurableIndex<[u8], u64, M> + 'static,
{
    let made = if create {
        I::create(pool, root, options)
    } else {
        I::open(pool, root, options)
    };
    made.map(engine)
}

impl<M: Media> EngineKind<M> for LbEngine {
    fn info(&self) -> EngineInfo {
        Self::INFO
    }

    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        Self::with(pool, root, (node_bytes, recovery_threads), true)
    }

    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        Self::with(pool, root, (node_bytes, recovery_threads), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::PoolOptions;
    use bristlecone_pmem::media::Dram;
    use std::path::Path;

    #[test]
    fn ranges_without_keys_are_known() {
        use Bound::{Excluded, Included, Unbounded};
        let (a, b) = ("a", "b");
        assert!(is_empty(&(Included(b), Included(a))));
        assert!(is_empty(&(Excluded(a), Excluded(a))));
        assert!(is_empty(&(Excluded(a), Included(a))));
        assert!(!is_empty(&(Included(a), Included(a))));
        assert!(!is_empty(&(Excluded(a), Unbounded)));
    }

    #[test]
    fn an_engine_of_each_leaf_size_does_what_its_tree_does() {
        let kind: &dyn EngineKind<Dram> = &LbEngine;
        for bytes in kind.info().node_bytes {
            let pool = Pool::<Dram>::create(Path::new("none"), &PoolOptions::default()).unwrap();
            let index = kind.create(&pool, "i", *bytes, 1).unwrap();
            let index = &*index;
            assert_eq!(pool.roots()[0].kind.node_bytes, *bytes);
            for i in 0..100u64 {
                index.insert(&i.to_be_bytes(), &i).unwrap();
            }
            index.update(&5u64.to_be_bytes(), &500).unwrap();
            assert!(index.remove(&6u64.to_be_bytes()).unwrap());
            assert_eq!(index.get(&5u64.to_be_bytes()), Some(500));
            assert_eq!(index.stats().entries, 99);
            let four = 4u64.to_be_bytes();
            let range: Range<'_> = (Bound::Included(&four), Bound::Unbounded);
            for (direction, expected) in [
                (Direction::Up, [4, 500, 7]),
                (Direction::Down, [99, 98, 97]),
            ] {
                let (mut told, mut seen) = (0, Vec::new());
                let mut visit = |_: &[u8], &offset: &u64| {
                    seen.push(offset);
                    match seen.len() {
                        3 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                };
                index.scan(range, direction, Some(&mut |_| told += 1), &mut visit);
                assert_eq!(seen, expected);
                assert!(told >= 3, "{told}");
            }
            index.verify().unwrap();
        }
    }
}
