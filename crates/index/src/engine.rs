//! An index from byte strings to offsets behind a table of functions, whatever its design.
//!
//! Code over an [`Engine`] is compiled once, however many designs there are; a design is compiled in the crate of its [`EngineKind`].
//! The product has one, [`LbEngine`]; `research/designs` has others.

use crate::contract::{
    Direction, DurableIndex, IndexStats, InsertError, OrderedIndex, Place, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::lbtree::{LbOptions, LbTree};
use bristlecone_pmem::{Media, Pool};
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Bounds of keys.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The visitor of a scan: gets keys with their offsets, and ends the scan by breaking.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], u64) -> ControlFlow<()>;

/// Whether no key can be in a range.
#[must_use]
pub fn is_empty(range: &Range<'_>) -> bool {
    match (range.0, range.1) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
    }
}

/// A durable ordered index from byte strings to offsets. Each method does what the one of [`OrderedIndex`] or
/// [`DurableIndex`] does that is named.
pub trait Engine: Send + Sync {
    /// [`OrderedIndex::get`]
    fn get(&self, key: &[u8]) -> Option<u64>;

    /// [`OrderedIndex::multi_find`]: what each key leads to, and its place. `ahead` is told early what may be the offsets, for
    /// prefetching what is there.
    fn find(&self, keys: &[&[u8]], ahead: &mut dyn FnMut(u64)) -> Vec<(Option<u64>, Place)>;

    /// [`OrderedIndex::insert`]
    ///
    /// # Errors
    /// As there.
    fn insert(&self, key: &[u8], offset: u64) -> Result<(), InsertError>;

    /// [`OrderedIndex::multi_insert`]: says of each entry whether it is there now.
    fn insert_many(&self, entries: &[(&[u8], u64)]) -> Vec<Result<(), InsertError>>;

    /// [`OrderedIndex::update`]
    ///
    /// # Errors
    /// As there.
    fn update(&self, key: &[u8], offset: u64) -> Result<(), UpdateError>;

    /// [`OrderedIndex::update_at`]
    ///
    /// # Errors
    /// As there.
    fn update_at(&self, place: &Place, key: &[u8], offset: u64)
    -> Result<Option<u64>, UpdateError>;

    /// [`OrderedIndex::remove`]
    ///
    /// # Errors
    /// As there.
    fn remove(&self, key: &[u8]) -> Result<bool, RemoveError>;

    /// Visits the entries of a range. `ahead`, if there is one, is told early what may be the next offsets, for prefetching what is
    /// there. A range that [is empty](is_empty) has none.
    fn scan(
        &self,
        range: Range<'_>,
        direction: Direction,
        ahead: Option<&mut dyn FnMut(u64)>,
        visit: Visit<'_>,
    );

    /// [`OrderedIndex::stats`]
    fn stats(&self) -> IndexStats;

    /// [`OrderedIndex::verify`]
    ///
    /// # Errors
    /// As there.
    fn verify(&self) -> Result<VerifyReport, Violation>;

    /// [`DurableIndex::recovery`]
    fn recovery(&self) -> RecoveryReport;
}

/// The name and the leaf sizes of a kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// The name of its design in root tables.
    pub name: &'static str,
    /// Leaf sizes in bytes, ascending.
    pub node_bytes: &'static [u32],
    /// The leaf size where none is asked for.
    pub default_node_bytes: u32,
}

/// Makes and opens engines of one design, on one kind of medium.
pub trait EngineKind<M: Media>: Send + Sync {
    /// Its name and leaf sizes.
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

/// An index as an [`Engine`].
pub fn engine<I, M>(index: I) -> Box<dyn Engine>
where
    M: Media,
    I: DurableIndex<[u8], u64, M> + 'static,
{
    Box::new(Erased(index, PhantomData::<fn(&M)>))
}

/// An index with its medium, which its contract does not name.
struct Erased<I, M>(I, PhantomData<fn(&M)>);

impl<I, M> Engine for Erased<I, M>
where
    M: Media,
    I: DurableIndex<[u8], u64, M>,
{
    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get_with(key, |offset| *offset)
    }

    fn find(&self, keys: &[&[u8]], ahead: &mut dyn FnMut(u64)) -> Vec<(Option<u64>, Place)> {
        let mut found = Vec::new();
        self.0.multi_find(keys, |offset| ahead(*offset), &mut found);
        found
    }

    fn insert(&self, key: &[u8], offset: u64) -> Result<(), InsertError> {
        self.0.insert(key, &offset)
    }

    fn insert_many(&self, entries: &[(&[u8], u64)]) -> Vec<Result<(), InsertError>> {
        let mut inserted = Vec::new();
        self.0.multi_insert(entries, &mut inserted);
        inserted
    }

    fn update(&self, key: &[u8], offset: u64) -> Result<(), UpdateError> {
        self.0.update(key, &offset)
    }

    fn update_at(
        &self,
        place: &Place,
        key: &[u8],
        offset: u64,
    ) -> Result<Option<u64>, UpdateError> {
        self.0.update_at(place, key, &offset)
    }

    fn remove(&self, key: &[u8]) -> Result<bool, RemoveError> {
        OrderedIndex::remove(&self.0, key)
    }

    fn scan(
        &self,
        range: Range<'_>,
        direction: Direction,
        ahead: Option<&mut dyn FnMut(u64)>,
        visit: Visit<'_>,
    ) {
        if is_empty(&range) {
            return;
        }
        let visit = |key: &[u8], offset: &u64| visit(key, *offset);
        match (direction, ahead) {
            (Direction::Up, None) => self.0.scan(range, visit),
            (Direction::Down, None) => ReverseScan::scan_reverse(&self.0, range, visit),
            (Direction::Up, Some(ahead)) => self.0.scan_ahead(range, |at| ahead(*at), visit),
            (Direction::Down, Some(ahead)) => {
                ReverseScan::scan_reverse_ahead(&self.0, range, |at| ahead(*at), visit);
            }
        }
    }

    fn stats(&self) -> IndexStats {
        self.0.stats()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.0.verify()
    }

    fn recovery(&self) -> RecoveryReport {
        self.0.recovery().clone()
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

    /// Calls `make` of the tree with leaves of that size.
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
            // Of any other size only the root table can be told, which a tree does when it is opened.
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
    made.map(engine::<I, M>)
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
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
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
            assert_eq!(pool.roots()[0].kind.node_bytes, *bytes);
            for i in 0..100u64 {
                index.insert(&i.to_be_bytes(), i).unwrap();
            }
            index.update(&5u64.to_be_bytes(), 500).unwrap();
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
                let mut visit = |_: &[u8], offset| {
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
