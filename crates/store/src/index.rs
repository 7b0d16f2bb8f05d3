//! The index of a store: (keyspace, key) to the offset of the newest version's record, in any design.
//!
//! ```text
//! index key | keyspace (32, big-endian) | key ...
//! ```
//!
//! Which design it is, is what the pool's root table says of the index's root. It is known when the store is opened, so calls go
//! through a table of functions; what they do is compiled for each design.

use crate::error::{StoreError, WriteError};
use bristlecone_pmem::{Media, Pool};
use bristlecone_trees::designs::{self, Choice, Design, DesignInfo};
use bristlecone_trees::{
    DurableIndex, IndexStats, OrderedIndex, Place, RecoveryReport, ReverseScan, TreeError,
    VerifyReport, Violation,
};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Longest key in bytes.
pub const KEY_MOST: usize = 64 << 10;
/// Bytes of a keyspace's number before a key.
pub(crate) const PREFIX: usize = 4;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Longest index key that is built without allocating.
const SHORT: usize = 124;

const _: () = assert!(PREFIX + KEY_MOST <= bristlecone_trees::MAX_KEY);

/// Bounds of index keys.
pub(crate) type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// What a walk calls with an index key and an offset.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], u64) -> ControlFlow<()>;

/// An index key.
pub(crate) enum IndexKey {
    Short([u8; PREFIX + SHORT], usize),
    Long(Vec<u8>),
}

impl IndexKey {
    pub fn new(keyspace: u32, key: &[u8]) -> Self {
        let prefix = keyspace.to_be_bytes();
        if key.len() <= SHORT {
            let mut bytes = [0; PREFIX + SHORT];
            bytes[..PREFIX].copy_from_slice(&prefix);
            bytes[PREFIX..PREFIX + key.len()].copy_from_slice(key);
            Self::Short(bytes, PREFIX + key.len())
        } else {
            Self::Long([&prefix, key].concat())
        }
    }
}

impl std::ops::Deref for IndexKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..*len],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Index keys of one keyspace, in one piece of memory; each begins at a word, so that it is summed fast.
pub(crate) struct IndexKeys {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl IndexKeys {
    pub fn new<'k>(keyspace: u32, keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone) -> Self {
        let room = keys.clone().map(|key| PREFIX + key.len() + WORD).sum();
        let (mut bytes, mut places) = (Vec::with_capacity(room), Vec::with_capacity(keys.len()));
        let prefix = keyspace.to_be_bytes();
        for key in keys {
            let start = bytes.len();
            bytes.extend_from_slice(&prefix);
            bytes.extend_from_slice(key);
            places.push((start, bytes.len()));
            bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        }
        Self { bytes, places }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (self.places.iter()).map(|(start, end)| &self.bytes[*start..*end])
    }
}

/// The keyspace and the key of an index key, if it is one.
pub(crate) fn split(index_key: &[u8]) -> Option<(u32, &[u8])> {
    let (prefix, key) = index_key.split_first_chunk::<PREFIX>()?;
    Some((u32::from_be_bytes(*prefix), key))
}

/// An index, whatever its design.
pub(crate) trait Entries: Send + Sync {
    fn get(&self, key: &[u8]) -> Option<u64>;

    /// Where each of these keys leads to, if it is there, and its place. `ahead` is told early what may be the offsets, for asking
    /// for what is there.
    fn find_together(
        &self,
        keys: &[&[u8]],
        ahead: &mut dyn FnMut(u64),
    ) -> Vec<(Option<u64>, Place)>;

    /// Adds an entry, or changes it if it is `there`. Durable as far as a fence makes it.
    fn set(&self, key: &[u8], offset: u64, there: bool) -> Result<(), WriteError>;

    /// Adds entries, each durable as far as a fence makes it, and says of each whether it is there now.
    fn add_together(&self, entries: &[(&[u8], u64)]) -> Vec<Result<(), WriteError>>;

    /// Changes the entry of a key at its place; where it can be, the fence is left to the caller, and the flush of the word
    /// whose offset is given.
    fn set_at(&self, place: &Place, key: &[u8], offset: u64) -> Result<Option<u64>, WriteError>;

    fn remove(&self, key: &[u8]) -> Result<bool, WriteError>;

    fn scan(&self, range: Range<'_>, visit: Visit<'_>);

    fn scan_reverse(&self, range: Range<'_>, visit: Visit<'_>);

    /// As [`scan`](Self::scan); `ahead` is told early what may be the next offsets, for prefetching what is there.
    fn scan_ahead(&self, range: Range<'_>, ahead: &mut dyn FnMut(u64), visit: Visit<'_>);

    /// As [`scan_reverse`](Self::scan_reverse), likewise.
    fn scan_reverse_ahead(&self, range: Range<'_>, ahead: &mut dyn FnMut(u64), visit: Visit<'_>);

    fn stats(&self) -> IndexStats;

    fn verify(&self) -> Result<VerifyReport, Violation>;

    fn recovery(&self) -> RecoveryReport;
}

/// True if no key can be in the range; such ranges are not handed on.
pub(crate) fn is_empty(range: &Range<'_>) -> bool {
    match (range.0, range.1) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
    }
}

/// Any design's index as [`Entries`].
struct Any<I>(I);

impl<I> Any<I> {
    fn open<M>(made: Result<I, TreeError>) -> Result<Box<dyn Entries>, TreeError>
    where
        M: Media,
        I: DurableIndex<[u8], u64, M> + 'static,
    {
        made.map(|index| Box::new(Wrapped::<I, M>(Any(index), std::marker::PhantomData)) as _)
    }
}

/// [`Any`] with its medium, which an index's own contract does not name.
struct Wrapped<I, M>(Any<I>, std::marker::PhantomData<fn(&M)>);

impl<I, M> Entries for Wrapped<I, M>
where
    M: Media,
    I: DurableIndex<[u8], u64, M>,
{
    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.0.get_with(key, |offset| *offset)
    }

    fn find_together(
        &self,
        keys: &[&[u8]],
        ahead: &mut dyn FnMut(u64),
    ) -> Vec<(Option<u64>, Place)> {
        let mut found = Vec::new();
        (self.0.0).multi_find(keys, |offset| ahead(*offset), &mut found);
        found
    }

    fn add_together(&self, entries: &[(&[u8], u64)]) -> Vec<Result<(), WriteError>> {
        let mut added = Vec::new();
        self.0.0.multi_insert(entries, &mut added);
        let added = added.into_iter();
        added.map(|one| one.map_err(WriteError::from)).collect()
    }

    fn set_at(&self, place: &Place, key: &[u8], offset: u64) -> Result<Option<u64>, WriteError> {
        Ok(self.0.0.update_at(place, key, &offset)?)
    }

    fn set(&self, key: &[u8], offset: u64, there: bool) -> Result<(), WriteError> {
        if there {
            Ok(self.0.0.update(key, &offset)?)
        } else {
            Ok(self.0.0.insert(key, &offset)?)
        }
    }

    fn remove(&self, key: &[u8]) -> Result<bool, WriteError> {
        Ok(OrderedIndex::remove(&self.0.0, key)?)
    }

    fn scan(&self, range: Range<'_>, visit: Visit<'_>) {
        if !is_empty(&range) {
            self.0.0.scan(range, |key, offset| visit(key, *offset));
        }
    }

    fn scan_reverse(&self, range: Range<'_>, visit: Visit<'_>) {
        if !is_empty(&range) {
            ReverseScan::scan_reverse(&self.0.0, range, |key, offset| visit(key, *offset));
        }
    }

    fn scan_ahead(&self, range: Range<'_>, ahead: &mut dyn FnMut(u64), visit: Visit<'_>) {
        if !is_empty(&range) {
            let (ahead, visit) = (
                |off: &u64| ahead(*off),
                |key: &[u8], off: &u64| visit(key, *off),
            );
            self.0.0.scan_ahead(range, ahead, visit);
        }
    }

    fn scan_reverse_ahead(&self, range: Range<'_>, ahead: &mut dyn FnMut(u64), visit: Visit<'_>) {
        if !is_empty(&range) {
            let (ahead, visit) = (
                |off: &u64| ahead(*off),
                |key: &[u8], off: &u64| visit(key, *off),
            );
            ReverseScan::scan_reverse_ahead(&self.0.0, range, ahead, visit);
        }
    }

    fn stats(&self) -> IndexStats {
        self.0.0.stats()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.0.0.verify()
    }

    fn recovery(&self) -> RecoveryReport {
        self.0.0.recovery().clone()
    }
}

/// What is to be done with the design that was chosen.
struct Build<'a, M: Media> {
    pool: &'a Arc<Pool<M>>,
    root: &'a str,
    create: bool,
}

impl<M: Media> Build<'_, M> {
    fn build<D: Design>(self, design: &D) -> Result<Box<dyn Entries>, TreeError> {
        let made = if self.create {
            design.create::<[u8], u64, M>(self.pool, self.root)
        } else {
            design.open::<[u8], u64, M>(self.pool, self.root)
        };
        Any::open::<M>(made)
    }
}

#[cfg(feature = "every-design")]
impl<M: Media> designs::Task for Build<'_, M> {
    type Output = Result<Box<dyn Entries>, TreeError>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        self.build(&design)
    }
}

#[cfg(feature = "every-design")]
fn with_design<M: Media>(
    choice: &Choice<'_>,
    build: Build<'_, M>,
) -> Result<Box<dyn Entries>, StoreError> {
    resolve(choice)?;
    Ok(designs::with_design(choice, build)??)
}

/// The designs of builds without the feature `every-design`, the default first.
const FEW: [&str; 2] = ["lbtree", "nvtree"];

/// The index designs that stores of this build can have: LB+-Tree and NV-Tree, or with the feature
/// `every-design` all of [`DESIGNS`](designs::DESIGNS).
pub fn designs() -> impl Iterator<Item = &'static DesignInfo> {
    let few = |design: &&DesignInfo| cfg!(feature = "every-design") || FEW.contains(&design.name);
    designs::DESIGNS.iter().filter(few)
}

/// Looks a design up among [`designs`].
///
/// # Errors
/// [`StoreError::NoDesign`], [`StoreError::Design`]
pub(crate) fn resolve(choice: &Choice<'_>) -> Result<(&'static DesignInfo, u32), StoreError> {
    if !designs().any(|design| design.name == choice.name) {
        return Err(StoreError::NoDesign(choice.name.to_owned()));
    }
    Ok(choice.resolve()?)
}

#[cfg(not(feature = "every-design"))]
fn with_design<M: Media>(
    choice: &Choice<'_>,
    build: Build<'_, M>,
) -> Result<Box<dyn Entries>, StoreError> {
    use bristlecone_trees::designs::{Lb, Nv};
    use bristlecone_trees::{LbOptions, NvOptions};
    let (info, leaf_bytes) = resolve(choice)?;
    let recovery_threads = choice.recovery_threads;
    let lb = LbOptions {
        recovery_threads,
        ..LbOptions::default()
    };
    let nv = NvOptions {
        recovery_threads,
        leaf_bytes,
        ..NvOptions::default()
    };
    Ok(match (info.name, leaf_bytes) {
        ("lbtree", 256) => build.build(&Lb::<1>(lb)),
        ("lbtree", 512) => build.build(&Lb::<2>(lb)),
        ("lbtree", 1024) => build.build(&Lb::<4>(lb)),
        ("nvtree", _) => build.build(&Nv(nv)),
        // A name of FEW without its arm; the tests create them all.
        _ => return Err(StoreError::NoDesign(info.name.to_owned())),
    }?)
}

/// Makes an index as root `root`.
pub(crate) fn create<M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
    choice: &Choice<'_>,
) -> Result<Box<dyn Entries>, StoreError> {
    let create = true;
    with_design(choice, Build { pool, root, create })
}

/// Opens the index at root `root`, in the design that it has.
pub(crate) fn open<M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
    recovery_threads: usize,
) -> Result<(Box<dyn Entries>, String, u32), StoreError> {
    use bristlecone_pmem::pool::RootError;
    let there = pool.roots().into_iter().find(|info| info.name == root);
    let kind = there
        .ok_or_else(|| RootError::NotFound(root.to_owned()))?
        .kind;
    let choice = Choice {
        name: &kind.design,
        node_bytes: Some(kind.node_bytes),
        recovery_threads,
    };
    let create = false;
    let index = with_design(&choice, Build { pool, root, create })?;
    Ok((index, kind.design.clone(), kind.node_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_keys_keep_the_order_of_keyspace_and_key() {
        let long = vec![7; SHORT + 1];
        let keys: [(u32, &[u8]); 6] = [
            (0, b"z"),
            (1, b""),
            (1, b"a"),
            (1, b"ab"),
            (1, &long[..SHORT]),
            (256, &long),
        ];
        for (keyspace, key) in keys {
            assert_eq!(split(&IndexKey::new(keyspace, key)), Some((keyspace, key)));
        }
        let together = IndexKeys::new(1, keys.iter().map(|(_, key)| *key));
        for (together, (_, key)) in together.iter().zip(keys) {
            assert_eq!(*together, *IndexKey::new(1, key));
        }
        let a = IndexKey::new(255, b"zzz");
        let b = IndexKey::new(256, b"");
        assert!(*a < *b);
        assert_eq!(split(b"abc"), None);
    }

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
}
