//! Transactions and batches: changes that are committed together.

use crate::error::OrError;
use crate::iter::{Bounds, Ends};
use crate::keyspace::millis;
use crate::snapshot::{owned, prefix_of};
use crate::{Database, Keyspace, Result, Slice};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{
    Batch as StoreBatch, Entry, Keyspace as Handle, Savepoint as StoreSavepoint,
    Transaction as StoreTransaction,
};
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};
use std::time::{Duration, SystemTime};

/// Changes to any number of keys of any keyspaces that are committed together or not at all, over a
/// snapshot. A transaction reads its own changes; nobody else does before it is committed. Dropping
/// it forgets them.
///
/// [`Database::transaction`](crate::Database::transaction) begins, commits and retries;
/// [`begin`](crate::Database::begin) is for doing that by hand.
///
/// Memory holds the changes until they are committed.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("bank.db"))?;
/// let accounts = db.keyspace("accounts")?;
/// accounts.insert("alice", "10")?;
/// let mut tx = db.begin();
/// let before = tx.savepoint();
/// tx.remove(&accounts, "alice")?;
/// assert_eq!(tx.get(&accounts, "alice")?, None);
/// tx.rollback_to(before);
/// assert_eq!(tx.get(&accounts, "alice")?, Some(b"10".to_vec()));
/// tx.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a transaction forgets its changes"]
pub struct Transaction {
    pub(crate) inner: StoreTransaction<Auto>,
    /// The handle that began it, whose durability its commit has.
    pub(crate) db: Database,
}

/// A place in a transaction that [`rollback_to`](Transaction::rollback_to) comes back to.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// let mut tx = db.begin();
/// tx.insert(&orders, "17", "new")?;
/// let savepoint = tx.savepoint();
/// tx.insert(&orders, "18", "a mistake")?;
/// tx.rollback_to(savepoint);
/// tx.commit()?;
/// assert_eq!(orders.iter().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(StoreSavepoint);

impl Transaction {
    /// Returns a copy of the value of a key, as this transaction sees it.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "new")?;
    /// assert_eq!(tx.get(&orders, "17")?, Some(b"new".to_vec()), "its own change");
    /// orders.insert("18", "new")?;
    /// assert_eq!(tx.get(&orders, "18")?, None, "it came after the transaction began");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.inner.get(&keyspace.handle, key.as_ref()).or_error()
    }

    /// Returns whether there is such a key, as this transaction sees it.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let mut tx = db.begin();
    /// tx.remove(&orders, "17")?;
    /// assert!(!tx.contains_key(&orders, "17")?);
    /// assert!(orders.contains_key("17")?, "it is not committed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains_key(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let found = (self.inner).get_with(&keyspace.handle, key.as_ref(), |_| ());
        Ok(found.or_error()?.is_some())
    }

    /// Puts a value. Others see it once the transaction is committed.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a key or value that is too long, or the
    /// keyspace of another database.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "new")?;
    /// assert!(!orders.contains_key("17")?, "it is not committed");
    /// tx.commit()?;
    /// assert!(orders.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.inner.put(&keyspace.handle, key, value).or_error()
    }

    /// Puts a value that expires after `ttl` from now.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("sessions.db"))?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// db.transaction(|tx| tx.insert_expiring(&sessions, "a7", "alice", Duration::from_secs(1800)))?;
    /// assert!(sessions.get("a7")?.expect("it is new").expires_at().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let at = Some(keyspace.db.expiry_of(ttl));
        let (key, value) = (key.as_ref(), value.as_ref());
        (self.inner)
            .put_expiring(&keyspace.handle, key, value, at)
            .or_error()
    }

    /// Removes a key, if it is there. Others see that once the transaction is committed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// db.transaction(|tx| tx.remove(&orders, "17"))?;
    /// assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.inner.delete(&keyspace.handle, key.as_ref()).or_error()
    }

    /// Returns the entries of a range, as this transaction sees them, from either end. A
    /// serialisable transaction has read everything that the iterator has given, and what it has
    /// read ahead.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// let mut tx = db.begin();
    /// tx.insert(&k, "b", "2")?;
    /// let (last, _) = tx.range(&k, "a"..).next_back().expect("there are two")?;
    /// assert_eq!(last, "b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<'t, K: AsRef<[u8]>>(
        &'t mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> TransactionIter<'t> {
        self.iter_over(keyspace, owned(&range))
    }

    /// Returns all entries, as [`range`](Self::range) does.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let mut tx = db.begin();
    /// tx.remove(&orders, "17")?;
    /// assert_eq!(tx.iter(&orders).count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&mut self, keyspace: &Keyspace) -> TransactionIter<'_> {
        self.iter_over(keyspace, (Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns the entries whose keys begin with `prefix`, as [`range`](Self::range) does.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("2026-03-01/17", "packed")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "2026-03-01/18", "new")?;
    /// assert_eq!(tx.prefix(&orders, "2026-03").count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefix<'t>(
        &'t mut self,
        keyspace: &Keyspace,
        prefix: impl AsRef<[u8]>,
    ) -> TransactionIter<'t> {
        self.iter_over(keyspace, prefix_of(prefix.as_ref()))
    }

    fn iter_over(&mut self, keyspace: &Keyspace, rest: Bounds) -> TransactionIter<'_> {
        TransactionIter {
            transaction: self,
            keyspace: keyspace.handle.clone(),
            ends: Ends::new(rest),
        }
    }

    /// Returns how many keys the transaction has changed.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "new")?;
    /// tx.insert(&orders, "17", "packed")?;
    /// assert_eq!(tx.changes(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn changes(&self) -> usize {
        self.inner.changes()
    }

    /// Returns a place that [`rollback_to`](Self::rollback_to) comes back to.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// db.transaction(|tx| {
    ///     for (id, state) in [("17", "packed"), ("18", "")] {
    ///         let before = tx.savepoint();
    ///         tx.insert(&orders, id, state)?;
    ///         if state.is_empty() {
    ///             tx.rollback_to(before); // without this one
    ///         }
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(orders.iter().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.inner.savepoint())
    }

    /// Takes back all changes since the savepoint. One that was itself rolled back past does
    /// nothing.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// let (first, second) = (tx.savepoint(), tx.savepoint());
    /// tx.insert(&orders, "17", "new")?;
    /// tx.rollback_to(first);
    /// assert_eq!(tx.changes(), 0);
    /// tx.rollback_to(second); // does nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.inner.rollback_to(savepoint.0);
    }

    /// Commits all changes, or none of them. Returns the time stamp of the commit, or 0 if nothing
    /// was changed.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) if another transaction was first; those of every
    /// write. Nothing has changed then, but with [`NotDurable`](crate::ErrorKind::NotDurable).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "new")?;
    /// let timestamp = tx.commit()?;
    /// assert!(timestamp > 0 && db.snapshot().timestamp() >= timestamp);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit(self) -> Result<u64> {
        self.db.committed(self.inner.commit())
    }

    /// Forgets all changes, as dropping it does.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "new")?;
    /// tx.rollback();
    /// assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rollback(self) {}
}

/// The entries of a range as a [`Transaction`] sees them, from either end, like an
/// [`Iter`](crate::Iter).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
/// let mut tx = db.begin();
/// tx.insert(&orders, "18", "new")?;
/// let mut both = tx.iter(&orders);
/// assert_eq!(both.next_back().transpose()?.expect("there are two").0, "18");
/// assert_eq!(both.next().transpose()?.expect("there is one left").0, "17");
/// assert!(both.next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it reads nothing before it is asked"]
pub struct TransactionIter<'t> {
    transaction: &'t mut Transaction,
    keyspace: Handle,
    ends: Ends,
}

impl TransactionIter<'_> {
    fn step(&mut self, up: bool) -> Option<Result<(Slice, Slice)>> {
        let (transaction, keyspace) = (&mut self.transaction.inner, &self.keyspace);
        self.ends.step(up, |range, into| {
            let visit = |key: &[u8], entry: Entry<'_>| into.push(key, entry.value);
            if up {
                transaction.scan(keyspace, range, visit)
            } else {
                transaction.scan_reverse(keyspace, range, visit)
            }
        })
    }
}

impl Iterator for TransactionIter<'_> {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl DoubleEndedIterator for TransactionIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl FusedIterator for TransactionIter<'_> {}

/// Changes to any number of keys of any keyspaces that [`Database::write`](crate::Database::write)
/// makes together, without reading anything, so that there are no conflicts. The last change of a
/// key counts.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::Batch;
///
/// let (orders, by_day) = (db.keyspace("orders")?, db.keyspace("by day")?);
/// let mut batch = Batch::new();
/// batch.insert(&orders, "17", "packed");
/// batch.insert(&by_day, "2026-03-01/17", "");
/// db.write(batch)?;
/// assert_eq!(by_day.prefix("2026-03-01").count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch(pub(crate) StoreBatch);

impl Batch {
    /// Returns an empty batch.
    ///
    /// # Examples
    /// ```
    /// assert!(bristlecone::Batch::new().is_empty());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that is to be put.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let mut batch = bristlecone::Batch::new();
    /// batch.insert(&orders, "17", "new");
    /// batch.insert(&orders, "17", "packed"); // the last one counts
    /// db.write(batch)?;
    /// assert_eq!(orders.get("17")?.expect("it was written"), "packed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.put(&keyspace.handle, key.as_ref(), value.as_ref());
    }

    /// Adds a value that is to be put, and expires at that time.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("sessions.db"))?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// let mut batch = bristlecone::Batch::new();
    /// batch.insert_expiring(&sessions, "a7", "alice", SystemTime::now() + Duration::from_secs(1800));
    /// batch.insert_expiring(&sessions, "b2", "bob", SystemTime::now());
    /// db.write(batch)?;
    /// assert!(sessions.contains_key("a7")? && !sessions.contains_key("b2")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        at: SystemTime,
    ) {
        let (key, value) = (key.as_ref(), value.as_ref());
        let at = Some(millis(at));
        self.0.put_expiring(&keyspace.handle, key, value, at);
    }

    /// Adds a key that is to be removed, if it is there.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// let mut batch = bristlecone::Batch::new();
    /// batch.remove(&orders, "17");
    /// batch.remove(&orders, "18"); // is not there, which is no error
    /// db.write(batch)?;
    /// assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.0.delete(&keyspace.handle, key.as_ref());
    }

    /// Returns how many changes there are. A key that is changed twice counts twice.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let mut batch = bristlecone::Batch::new();
    /// batch.insert(&orders, "17", "new");
    /// batch.insert(&orders, "17", "packed");
    /// batch.remove(&orders, "16");
    /// assert_eq!(batch.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the batch changes nothing.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # let orders = db.keyspace("orders")?;
    /// let mut batch = bristlecone::Batch::new();
    /// assert!(batch.is_empty());
    /// batch.insert(&orders, "17", "new");
    /// assert!(!batch.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
