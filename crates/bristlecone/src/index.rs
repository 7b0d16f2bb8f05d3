//! A bare index of numbers: no versions, no transactions, no keyspaces, and nothing between it and
//! the tree.
//!
//! A [`NumberIndex`] is a file of its own, from `u64` to `u64`: an LB+-Tree whose changes are each
//! atomic and durable by themselves. Where several changes belong together, or values are more than
//! numbers, use a [`Database`](crate::Database).

use crate::error::OrError;
use crate::{Error, Options, Result};
use bristlecone_index::{
    DurableIndex, Fill, InsertError, LbOptions, LbTree, OrderedIndex, RemoveError, ReverseScan,
};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{CloseError, StoreError, WriteError};
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::path::Path;
use std::sync::Arc;

/// Shape and size of an index; [`NumberIndex::stats`] returns it.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # use bristlecone::index::NumberIndex;
/// # let mut index = NumberIndex::open(dir.path().join("numbers.index"))?;
/// index.bulk_load((0..10_000).map(|n| (n, n)))?;
/// let stats = index.stats();
/// assert!(stats.entries == 10_000 && stats.depth > 1 && stats.leaf_fill > 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_index::IndexStats;

/// The report of opening the index of a database;
/// [`StoreRecovery::index`](crate::StoreRecovery::index) is one.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # db.keyspace("orders")?.insert("17", "packed")?;
/// # let path = db.path().to_owned();
/// db.close()?;
/// let db = bristlecone::Database::open(path)?;
/// assert_eq!(db.recovery().index.repaired, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_index::RecoveryReport as IndexRecovery;

/// How many entries are read ahead at first; each time twice as many, up to [`MAX_AHEAD`].
const FIRST_AHEAD: usize = 16;
const MAX_AHEAD: usize = 512;

type Tree = LbTree<u64, u64, Auto>;

/// An open index from `u64` to `u64`. Cheap to clone, and may be used from any number of threads.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use bristlecone::index::NumberIndex;
///
/// let postings = NumberIndex::open(dir.path().join("postings.index"))?;
/// for document in [17, 4, 99] {
///     postings.insert(document, document * 10)?; // durable when it returns
/// }
/// assert_eq!(postings.get(4), Some(40));
/// let newest: Vec<_> = postings.range(10..).rev().collect();
/// assert_eq!(newest, [(99, 990), (17, 170)]);
/// postings.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct NumberIndex {
    tree: Arc<Tree>,
}

impl fmt::Debug for NumberIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NumberIndex").field(&self.path()).finish()
    }
}

fn refused(e: InsertError) -> Error {
    Error::of(WriteError::from(e))
}

impl NumberIndex {
    /// Opens the index at `path`, or makes it where there is none. The path decides the medium, as
    /// for a [`Database`](crate::Database::open).
    ///
    /// # Errors
    /// As [`Options::open`]; [`NotADatabase`](crate::ErrorKind::NotADatabase) if the file holds
    /// something else.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::index::NumberIndex;
    ///
    /// let path = dir.path().join("numbers.index");
    /// NumberIndex::open(&path)?.insert(7, 70)?;
    /// assert_eq!(NumberIndex::open(&path)?.get(7), Some(70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(&Options::default(), path)
    }

    /// Opens it with options. [`vacuum_every`](Options::vacuum_every) says nothing here.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::index::NumberIndex;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let options = Database::builder().create(false);
    /// let missing = NumberIndex::open_with(&options, dir.path().join("numbers.index"));
    /// assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(options: &Options, path: impl AsRef<Path>) -> Result<Self> {
        let (pool, root) = options.index_pool(path.as_ref())?;
        let run = LbOptions {
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            ..LbOptions::default()
        };
        let there = pool.roots().iter().any(|info| info.name == root);
        let made = if there {
            Tree::open(&pool, root, &run)
        } else {
            Tree::create(&pool, root, &run)
        };
        let tree = Arc::new(made.map_err(StoreError::from).or_error()?);
        Ok(Self { tree })
    }

    /// Returns the value of a key, or `None` if there is no such key.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(7, 70)?;
    /// assert_eq!((index.get(7), index.get(8)), (Some(70), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.tree.get(&key)
    }

    /// Returns the values of several keys, in their order. The searches' waits for memory overlap.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(7, 70)?;
    /// assert_eq!(index.multi_get(&[8, 7]), [None, Some(70)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn multi_get(&self, keys: &[u64]) -> Vec<Option<u64>> {
        let mut values = Vec::new();
        self.tree.multi_get(keys, &mut values);
        values
    }

    /// Returns whether there is such a key.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(7, 70)?;
    /// assert!(index.contains_key(7) && !index.contains_key(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn contains_key(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value. Returns whether there was another one, which it replaces.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace), [`ReadOnly`](crate::ErrorKind::ReadOnly): nothing
    /// has changed then. [`NotDurable`](crate::ErrorKind::NotDurable): the change is visible.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// assert!(!index.insert(7, 70)?);
    /// assert!(index.insert(7, 71)?, "it replaces 70");
    /// assert_eq!(index.get(7), Some(71));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, key: u64, value: u64) -> Result<bool> {
        self.tree.upsert(&key, &value).map_err(refused)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(7, 70)?;
    /// assert!(index.remove(7)?);
    /// assert!(!index.remove(7)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: u64) -> Result<bool> {
        let removed = OrderedIndex::remove(&*self.tree, &key);
        removed.map_err(|e: RemoveError| Error::of(WriteError::from(e)))
    }

    /// Fills an empty index with pairs in ascending order, leaf by leaf. A crash before it returns
    /// leaves the index empty. Returns how many pairs there were.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) unless the index is empty, the pairs ascend
    /// strictly, and this handle is the only one; those of [`insert`](Self::insert). The index is
    /// as it was.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// # let mut index = index;
    /// assert_eq!(index.bulk_load((0..10_000).map(|n| (n, 10 * n)))?, 10_000);
    /// assert_eq!(index.get(9_999), Some(99_990));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bulk_load(&mut self, sorted: impl IntoIterator<Item = (u64, u64)>) -> Result<u64> {
        let Some(tree) = Arc::get_mut(&mut self.tree) else {
            return Err(Error::invalid(
                "another handle of the index is in use, which bulk loading cannot have",
            ));
        };
        let loaded = bristlecone_index::BulkLoad::bulk_load(tree, sorted.into_iter(), Fill::USUAL);
        loaded.map_err(|e| match e {
            InsertError::KeyExists => Error::invalid(
                "bulk loading takes an empty index, and pairs whose keys ascend strictly",
            ),
            e => refused(e),
        })
    }

    /// Returns all entries, in the order of their keys, from either end.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// for key in [17, 4] {
    ///     index.insert(key, 10 * key)?;
    /// }
    /// assert!(index.iter().eq([(4, 40), (17, 170)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> NumberIter {
        self.range(..)
    }

    /// Returns the entries of a range, from either end.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// for key in [17, 4, 99] {
    ///     index.insert(key, 10 * key)?;
    /// }
    /// assert!(index.range(5..).rev().eq([(99, 990), (17, 170)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self, range: impl RangeBounds<u64>) -> NumberIter {
        let first = match range.start_bound() {
            Bound::Unbounded => Some(0),
            Bound::Included(first) => Some(*first),
            Bound::Excluded(before) => before.checked_add(1),
        };
        let last = match range.end_bound() {
            Bound::Unbounded => Some(u64::MAX),
            Bound::Included(last) => Some(*last),
            Bound::Excluded(after) => after.checked_sub(1),
        };
        NumberIter {
            index: self.clone(),
            rest: first.zip(last).filter(|(first, last)| first <= last),
            low: VecDeque::new(),
            high: VecDeque::new(),
            ahead: [FIRST_AHEAD; 2],
        }
    }

    /// Returns the entry with the least key, or `None` if there is no key.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// assert_eq!(index.first(), None);
    /// index.insert(4, 40)?;
    /// assert_eq!(index.first(), Some((4, 40)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn first(&self) -> Option<(u64, u64)> {
        self.iter().next()
    }

    /// Returns the entry with the largest key, or `None` if there is no key.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(4, 40)?;
    /// index.insert(99, 990)?;
    /// assert_eq!(index.last(), Some((99, 990)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn last(&self) -> Option<(u64, u64)> {
        self.iter().next_back()
    }

    /// Returns counts of keys, nodes and bytes. It visits all leaves.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(4, 40)?;
    /// let stats = index.stats();
    /// assert_eq!((stats.entries, stats.leaves), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.tree.stats()
    }

    /// Compares every structure with its invariants. It must run while nobody writes.
    ///
    /// # Errors
    /// [`Damaged`](crate::ErrorKind::Damaged), with what and where.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// index.insert(4, 40)?;
    /// assert!(index.check().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        match self.tree.verify() {
            Ok(_) => Ok(()),
            Err(violation) => Err(Error::damaged(violation.to_string())),
        }
    }

    /// Makes durable all that was changed, whatever [`Durability`](crate::Durability) the index was
    /// opened with.
    ///
    /// # Errors
    /// [`NotDurable`](crate::ErrorKind::NotDurable), [`NoSpace`](crate::ErrorKind::NoSpace)
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::index::NumberIndex;
    /// use bristlecone::{Database, Durability};
    ///
    /// let options = Database::builder().durability(Durability::None);
    /// let index = NumberIndex::open_with(&options, dir.path().join("numbers.index"))?;
    /// index.insert(4, 40)?; // may be lost
    /// index.flush()?; // cannot be lost any more
    /// assert_eq!(index.get(4), Some(40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.tree.pool().sync().map_err(Error::not_durable)
    }

    /// Returns the path of the index's file.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// assert!(index.path().ends_with("numbers.index"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        self.tree.pool().path()
    }

    /// Closes the index, so that the next opening has nothing to recover.
    ///
    /// # Errors
    /// [`InUse`](crate::ErrorKind::InUse) if a clone or an iterator is left: it is closed when the
    /// last of them is dropped. [`NotDurable`](crate::ErrorKind::NotDurable).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use bristlecone::index::NumberIndex;
    /// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
    /// use bristlecone::ErrorKind;
    ///
    /// let another = index.clone();
    /// assert_eq!(index.close().unwrap_err().kind(), ErrorKind::InUse);
    /// another.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) -> Result<()> {
        let Some(tree) = Arc::into_inner(self.tree) else {
            return Err(Error::of(CloseError::InUse));
        };
        tree.close().map_err(Error::not_durable)
    }
}

/// The entries of a range of a [`NumberIndex`], ascending; descending from the [other
/// end](DoubleEndedIterator).
///
/// It sees the index as it changes: each key comes at most once and in order, and one that is there
/// all the time comes.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # use bristlecone::index::NumberIndex;
/// # let index = NumberIndex::open(dir.path().join("numbers.index"))?;
/// for key in 0..5 {
///     index.insert(key, 10 * key)?;
/// }
/// let mut entries = index.range(1..=3);
/// assert_eq!(entries.next(), Some((1, 10)));
/// assert_eq!(entries.next_back(), Some((3, 30)));
/// assert!(entries.eq([(2, 20)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it reads nothing before it is asked"]
pub struct NumberIter {
    index: NumberIndex,
    /// The first and the last key that have not been read.
    rest: Option<(u64, u64)>,
    /// Read, and not given yet: the lowest at the front.
    low: VecDeque<(u64, u64)>,
    /// The same at the upper end: the highest at the front.
    high: VecDeque<(u64, u64)>,
    /// How many are read next, at either end.
    ahead: [usize; 2],
}

impl NumberIter {
    fn step(&mut self, up: bool) -> Option<(u64, u64)> {
        let own = if up { &mut self.low } else { &mut self.high };
        if own.is_empty()
            && let Some((first, last)) = self.rest
        {
            let most = &mut self.ahead[usize::from(up)];
            let take = |key: &u64, value: &u64| {
                own.push_back((*key, *value));
                if own.len() < *most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            };
            if up {
                self.index.tree.scan(first..=last, take);
            } else {
                self.index.tree.scan_reverse(first..=last, take);
            }
            let whole = own.len() < *most;
            *most = (2 * *most).min(MAX_AHEAD);
            self.rest = match own.back() {
                Some((key, _)) if !whole && up && *key < last => Some((key + 1, last)),
                Some((key, _)) if !whole && !up && *key > first => Some((first, key - 1)),
                _ => None,
            };
        }
        let (own, other) = if up {
            (&mut self.low, &mut self.high)
        } else {
            (&mut self.high, &mut self.low)
        };
        // Nothing else is left then: the other end gives back its entries, the last that it read
        // first.
        own.pop_front().or_else(|| other.pop_back())
    }
}

impl Iterator for NumberIter {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl DoubleEndedIterator for NumberIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl FusedIterator for NumberIter {}

impl IntoIterator for &NumberIndex {
    type Item = (u64, u64);
    type IntoIter = NumberIter;

    fn into_iter(self) -> NumberIter {
        self.iter()
    }
}
