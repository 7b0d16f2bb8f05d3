//! The entries of a keyspace in the order of their keys.

use super::Keyspace;
use crate::iter::Bounds;
use crate::snapshot::{owned, prefix_of, visited};
use crate::{Iter, Result, Slice};
use bristlecone_index::Direction;
use bristlecone_store::{Entry, Update};
use std::ops::{Bound, ControlFlow, RangeBounds};

impl Keyspace {
    /// Returns all entries as they are now, in the order of their keys, from either end. See
    /// [`Iter`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("18", "new")?;
    /// orders.insert("17", "packed")?;
    /// let mut ids = Vec::new();
    /// for entry in &orders {
    ///     let (id, _) = entry?;
    ///     ids.push(id);
    /// }
    /// assert_eq!(ids, ["17", "18"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> Iter {
        self.iter_over((Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns the entries of a range of keys. See [`Iter`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-03-01/17", "packed")?;
    /// orders.insert("2026-04-01/20", "shipped")?;
    /// for entry in orders.range("2026-03"..).rev().take(1) {
    ///     let (key, value) = entry?;
    ///     assert_eq!((&*key, &*value), (&b"2026-04-01/20"[..], &b"shipped"[..]));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.iter_over(owned(&range))
    }

    /// Returns the entries whose keys begin with `prefix`. See [`Iter`], which has an example.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-03-01/17", "packed")?;
    /// orders.insert("2026-04-01/20", "new")?;
    /// assert_eq!(orders.prefix("2026-03").count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.iter_over(prefix_of(prefix.as_ref()))
    }

    /// Visits the entries of a range where they lie, in the order of their keys, as they are now,
    /// until `visit` breaks. Values are not copied, but for those of several parts, so a short scan
    /// takes less than half of the time that one by [`range`](Self::range) takes. Memory of this
    /// process is reclaimed after every few pages only, so `visit` is to be quick.
    ///
    /// # Errors
    /// As [`get`](Self::get), after the entries before what is damaged.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use std::ops::ControlFlow;
    ///
    /// let orders = db.keyspace("orders")?;
    /// for id in ["17", "18", "19"] {
    ///     orders.insert(id, "packed")?;
    /// }
    /// let mut bytes = 0;
    /// orders.scan("18".., |key, value| {
    ///     bytes += key.len() + value.len();
    ///     if key == b"19" {
    ///         return ControlFlow::Break(());
    ///     }
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 2 * 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let snapshot = self.db.store().snapshot();
        visited(&snapshot, &self.handle, &range, Direction::Up, visit)
    }

    /// As [`scan`](Self::scan), from the largest key down.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// orders.insert("18", "new")?;
    /// let mut last = None;
    /// orders.scan_reverse::<&str>(.., |key, _| {
    ///     last = Some(key.to_vec());
    ///     std::ops::ControlFlow::Break(())
    /// })?;
    /// assert_eq!(last.as_deref(), Some(&b"18"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan_reverse<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let snapshot = self.db.store().snapshot();
        visited(&snapshot, &self.handle, &range, Direction::Down, visit)
    }

    fn iter_over(&self, range: Bounds) -> Iter {
        let snapshot = self.db.store().snapshot();
        Iter::new(snapshot, self.handle.clone(), range)
    }

    /// Returns the entry with the least key, or `None` if there is no key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// assert_eq!(orders.first()?, None);
    /// orders.insert("17", "packed")?;
    /// assert_eq!(orders.first()?, Some(("17".into(), "packed".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the largest key, or `None` if there is no key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// orders.insert("18", "new")?;
    /// assert_eq!(orders.last()?.expect("there are two").0, "18");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Takes the entry with the least key out and returns it. Exactly one caller gets each entry,
    /// so a keyspace can be a queue.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("jobs.db"))?;
    /// let jobs = db.keyspace("jobs")?;
    /// jobs.insert("0001", "mail alice")?;
    /// let (_, job) = jobs.pop_first()?.expect("there is one");
    /// assert_eq!(job, "mail alice");
    /// assert_eq!(jobs.pop_first()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<(Slice, Slice)>> {
        self.pop(true)
    }

    /// Takes the entry with the largest key out and returns it, as [`pop_first`](Self::pop_first)
    /// does with the least.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let stack = db.keyspace("stack")?;
    /// stack.insert("0001", "first")?;
    /// stack.insert("0002", "second")?;
    /// assert_eq!(stack.pop_last()?.expect("there are two").1, "second");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pop_last(&self) -> Result<Option<(Slice, Slice)>> {
        self.pop(false)
    }

    fn pop(&self, first: bool) -> Result<Option<(Slice, Slice)>> {
        // The value is read again under the key's lock, since it may have been replaced meanwhile.
        let take = |entry: Option<Entry<'_>>| {
            Ok(match entry {
                Some(entry) => (Update::Delete, Some(entry.value.to_vec())),
                None => (Update::Keep, None),
            })
        };
        loop {
            let mut entries = self.iter();
            let mut empty = true;
            loop {
                let next = if first {
                    entries.next()
                } else {
                    entries.next_back()
                };
                let Some((key, _)) = next.transpose()? else {
                    break;
                };
                empty = false;
                let taken = self.db.store().update(&self.handle, &key, take);
                if let Some(taken) = self.db.committed(taken)? {
                    return Ok(Some((key, Slice::from(taken))));
                }
                // Another caller had it.
            }
            if empty {
                return Ok(None);
            }
        }
    }
}

impl IntoIterator for &Keyspace {
    type Item = Result<(Slice, Slice)>;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}
