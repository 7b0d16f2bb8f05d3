//! A tree whose pages are loaded as they are touched.

use super::open::Loading;
use super::{ClusteredOptions, ClusteredTree, Compacted, Modification, ReadError, Snapshot};
use crate::contract::{
    Direction, DurableIndex, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError, VerifyReport, Violation,
};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{CommitError, Media, Pool};
use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

/// A [`ClusteredTree`] that is opened without reading its pages: opening reads 8 bytes of each,
/// from the page table, and at most 32 entries of sessions that crashes ended.
///
/// A page is read, and its sums are checked, when it is first touched. So damage shows then, as an
/// error of what touches it; everything else goes on. After a crash, damage of a page's last change
/// is told from a change that the crash tore once the page has been loaded, and the tree closed.
///
/// # Examples
/// ```
/// use bristlecone_index::clustered::{ClusteredOptions, ClusteredTree, LazyTree};
/// use bristlecone_index::{DurableIndex, OrderedIndex};
/// use bristlecone_pmem::media::Dram;
/// use bristlecone_pmem::{Pool, PoolOptions};
///
/// let (pool, options) = (
///     Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?,
///     ClusteredOptions::default(),
/// );
/// let tree = ClusteredTree::<u64, u64, Dram>::create(&pool, "index", &options)?;
/// tree.insert(&1, &10)?;
/// tree.close()?;
/// let tree = LazyTree::<u64, u64, Dram>::open(&pool, "index", &options)?;
/// assert_eq!(tree.get(&1)?, Some(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LazyTree<K, V, M>(ClusteredTree<K, V, M>)
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media;

impl<K, V, M> From<ClusteredTree<K, V, M>> for LazyTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn from(mut tree: ClusteredTree<K, V, M>) -> Self {
        tree.sums_on_read = true;
        Self(tree)
    }
}

impl<K, V, M> LazyTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Opens the tree in root `name`.
    ///
    /// Persist cost: 1 line and 1 fence; after a close as much again; after a crash 10 lines and 2
    /// fences more, and those of newborn pages and of a merge that it came into.
    ///
    /// After 32 crashes in a row without all pages being loaded, it loads them. If one is damaged,
    /// the tree is open for reading only.
    ///
    /// # Errors
    /// As of [`DurableIndex::open`], but for damaged pages.
    pub fn open(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
    ) -> Result<Self, TreeError> {
        ClusteredTree::reopen(pool, name, options, Loading::WhenTouched).map(Self)
    }

    #[cfg(test)]
    pub(super) fn tree(&self) -> &ClusteredTree<K, V, M> {
        &self.0
    }

    pub(super) fn into_tree(self) -> ClusteredTree<K, V, M> {
        self.0
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`ReadError`], at the page that the key belongs to.
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>, ReadError> {
        self.0.find_value(key, ToOwned::to_owned)
    }

    /// Visits the entries of the range, in the order of their keys or down, until `visit` breaks.
    ///
    /// # Errors
    /// [`ReadError`], at the first page of the range that cannot be read; what comes before has
    /// been visited.
    pub fn scan<R: RangeBounds<K>>(
        &self,
        range: R,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        (self.0).scan_pages(&range, direction, super::scan::NOW, visit)
    }

    /// Returns the tree as it is now: see [`ClusteredTree::snapshot`].
    pub fn snapshot(&self) -> Snapshot<'_, K, V, M> {
        self.0.snapshot()
    }

    /// [`OrderedIndex::insert`]
    ///
    /// # Errors
    /// As there. A page that cannot be read is [`InsertError::Space`], with the cause.
    pub fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.0.insert(key, value)
    }

    /// [`OrderedIndex::upsert`]
    ///
    /// # Errors
    /// As of [`insert`](Self::insert).
    pub fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.0.upsert(key, value)
    }

    /// [`OrderedIndex::update`]
    ///
    /// # Errors
    /// As there, and of [`insert`](Self::insert).
    pub fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        self.0.update(key, value)
    }

    /// [`OrderedIndex::remove`]
    ///
    /// # Errors
    /// As there, and of [`insert`](Self::insert).
    pub fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        self.0.remove(key)
    }

    /// [`ClusteredTree::modify`]
    ///
    /// # Errors
    /// As there, and of [`insert`](Self::insert).
    pub fn modify(
        &self,
        key: &K,
        decide: impl FnMut(Option<&V>) -> Modification<V::Owned>,
    ) -> Result<bool, InsertError> {
        self.0.modify(key, decide)
    }

    /// [`ClusteredTree::write_batch`]
    ///
    /// # Errors
    /// As there, and of [`insert`](Self::insert).
    pub fn write_batch<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
    ) -> Result<(), InsertError>
    where
        K: 'c,
        V: 'c,
    {
        self.0.write_batch(changes)
    }

    /// As [`ClusteredTree::compact`]. Loads all pages.
    ///
    /// # Errors
    /// As there.
    pub fn compact(&self) -> Result<Compacted, ReadError> {
        self.0.compact()
    }

    /// Loads all pages that are not, and returns the number of entries. Entries of ended
    /// sessions are given up then, durably if the tree is open for writing.
    ///
    /// # Errors
    /// [`ReadError`], at the first page that cannot be read.
    pub fn load_rest(&self) -> Result<u64, ReadError> {
        self.0.load_rest().map(|(_, entries)| entries)
    }

    /// [`OrderedIndex::verify`], of all pages.
    ///
    /// # Errors
    /// [`Violation`]
    pub fn verify(&self) -> Result<VerifyReport, Violation> {
        if let Err(e) = self.load_rest() {
            return Err(Violation::new(e.to_string()));
        }
        self.0.verify()
    }

    /// As [`DurableIndex::recovery`]: of opening alone, so it counts entries only if that loaded
    /// all pages.
    pub fn recovery(&self) -> &RecoveryReport {
        self.0.recovery()
    }

    /// [`DurableIndex::pool`]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.0.pool()
    }

    /// [`DurableIndex::close`]
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<(), CommitError> {
        self.0.close()
    }
}
