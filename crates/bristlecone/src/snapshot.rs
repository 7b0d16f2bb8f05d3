//! Snapshots: a database as it was at one commit.

use crate::error::OrError;
use crate::iter::Bounds;
use crate::{Database, Iter, Result, Slice, Value, ValueReader};
use bristlecone_index::Direction;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Entry, Keyspace as Handle, Snapshot as StoreSnapshot};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// A database as it was at one durable commit, for as long as it is kept:
/// [`Keyspace::at`](crate::Keyspace::at) reads a keyspace in it. Reads block nobody and are blocked
/// by nobody. Versions that it can still read are not freed, so it should not be kept for ever.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
/// let before = db.snapshot();
/// orders.insert("17", "shipped")?;
/// assert_eq!(orders.at(&before)?.get("17")?.expect("it was there"), "packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot(pub(crate) StoreSnapshot<Auto>);

impl Snapshot {
    /// Returns the time stamp of the last commit that the snapshot sees. Time stamps rise with
    /// every commit of the database.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let before = db.snapshot();
    /// orders.insert("17", "packed")?;
    /// assert!(db.snapshot().timestamp() > before.timestamp());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.0.timestamp()
    }

    pub(crate) fn is_of(&self, db: &Database) -> bool {
        Arc::ptr_eq(self.0.pool(), db.store().pool())
    }
}

/// A keyspace as a [`Snapshot`] has it, for reading.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
/// let snapshot = db.snapshot();
/// orders.insert("18", "new")?;
/// let before = orders.at(&snapshot)?;
/// assert_eq!(before.iter().count(), 1);
/// assert!(before.contains_key("17")? && !before.contains_key("18")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeyspaceAt<'s> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) handle: Handle,
}

impl KeyspaceAt<'_> {
    /// Returns the value that a key had then.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let snapshot = db.snapshot();
    /// orders.remove("17")?;
    /// assert_eq!(orders.at(&snapshot)?.get("17")?.expect("it was there"), "packed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'_>>> {
        let found = (self.snapshot.0).get_pinned(&self.handle, key.as_ref());
        Ok(found.or_error()?.map(Value))
    }

    /// Returns the bytes of a range of the value that a key had then, as
    /// [`Keyspace::get_range`](crate::Keyspace::get_range) does.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("readme", "a durable database")?;
    /// let snapshot = db.snapshot();
    /// files.remove("readme")?;
    /// let some = files.at(&snapshot)?.get_range("readme", 2..9)?;
    /// assert_eq!(some.as_deref(), Some(&b"durable"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_range(
        &self,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<u64>,
    ) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let snapshot = &self.snapshot.0;
        let len = snapshot.get_range(&self.handle, key.as_ref(), range, &mut bytes);
        Ok(len.or_error()?.map(|_| bytes))
    }

    /// Returns the value that a key had then as a stream, as
    /// [`Keyspace::reader`](crate::Keyspace::reader) does.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("readme", "a durable database")?;
    /// let snapshot = db.snapshot();
    /// files.remove("readme")?;
    /// let reader = files.at(&snapshot)?.reader("readme")?;
    /// assert_eq!(reader.expect("it was there").len(), 18);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ValueReader::new(self.snapshot.0.clone(), &self.handle, key.as_ref())
    }

    /// Returns the entries of a range of keys then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// for id in ["16", "17", "18"] {
    ///     orders.insert(id, "new")?;
    /// }
    /// let snapshot = db.snapshot();
    /// let orders = orders.clear()?;
    /// assert_eq!(orders.at(&snapshot)?.range("17"..).count(), 0, "the empty keyspace is another one");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        let range = owned(&range);
        Iter::new(self.snapshot.0.clone(), self.handle.clone(), range)
    }

    /// Visits the entries of a range of keys then, as [`Keyspace::scan`](crate::Keyspace::scan)
    /// does.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let snapshot = db.snapshot();
    /// orders.remove("17")?;
    /// let mut seen = 0;
    /// orders.at(&snapshot)?.scan("1".., |_, _| {
    ///     seen += 1;
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(seen, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let snapshot = &self.snapshot.0;
        visited(snapshot, &self.handle, &range, Direction::Up, visit)
    }

    /// As [`scan`](Self::scan), from the largest key down.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    ///
    /// # Examples
    /// As of [`Keyspace::scan_reverse`](crate::Keyspace::scan_reverse).
    pub fn scan_reverse<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let snapshot = &self.snapshot.0;
        visited(snapshot, &self.handle, &range, Direction::Down, visit)
    }

    /// Returns whether there was such a key then.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let snapshot = db.snapshot();
    /// orders.insert("17", "new")?;
    /// assert!(!orders.at(&snapshot)?.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let found = (self.snapshot.0).get_with(&self.handle, key.as_ref(), |_| ());
        Ok(found.or_error()?.is_some())
    }

    /// Returns the entry that had the least key then.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let snapshot = db.snapshot();
    /// orders.insert("16", "late")?;
    /// let (first, _) = orders.at(&snapshot)?.first()?.expect("there was one");
    /// assert_eq!(first, "17");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry that had the largest key then.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let snapshot = db.snapshot();
    /// orders.insert("18", "late")?;
    /// let (last, _) = orders.at(&snapshot)?.last()?.expect("there was one");
    /// assert_eq!(last, "17");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns all entries then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let snapshot = db.snapshot();
    /// orders.insert("18", "late")?;
    /// for entry in &orders.at(&snapshot)? {
    ///     let (id, state) = entry?;
    ///     assert!(id == "17" && state == "new");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> Iter {
        let range = (Bound::Unbounded, Bound::Unbounded);
        Iter::new(self.snapshot.0.clone(), self.handle.clone(), range)
    }

    /// Returns the entries then whose keys begin with `prefix`.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// orders.insert("2026-03-01/17", "new")?;
    /// let snapshot = db.snapshot();
    /// orders.insert("2026-03-01/18", "late")?;
    /// assert_eq!(orders.at(&snapshot)?.prefix("2026-03").count(), 1);
    /// assert_eq!(orders.prefix("2026-03").count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        let range = prefix_of(prefix.as_ref());
        Iter::new(self.snapshot.0.clone(), self.handle.clone(), range)
    }
}

impl IntoIterator for &KeyspaceAt<'_> {
    type Item = Result<(Slice, Slice)>;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}

/// Visits the entries of a range in a snapshot.
pub(crate) fn visited<K: AsRef<[u8]>>(
    snapshot: &StoreSnapshot<Auto>,
    handle: &Handle,
    range: &impl RangeBounds<K>,
    direction: Direction,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let bounds = (
        range.start_bound().map(AsRef::as_ref),
        range.end_bound().map(AsRef::as_ref),
    );
    let visit = move |key: &[u8], entry: Entry<'_>| visit(key, entry.value);
    let visited = match direction {
        Direction::Up => snapshot.scan::<&[u8]>(handle, bounds, visit),
        Direction::Down => snapshot.scan_reverse::<&[u8]>(handle, bounds, visit),
    };
    visited.or_error()
}

/// A range with keys that are owned.
pub(crate) fn owned<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Bounds {
    let bytes = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bytes(range.start_bound()), bytes(range.end_bound()))
}

/// The range of the keys that begin with `prefix`.
pub(crate) fn prefix_of(prefix: &[u8]) -> Bounds {
    // The least that is above all of them: without what cannot be raised, and the last byte raised.
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}
