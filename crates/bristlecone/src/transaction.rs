//! Transactions and batches: changes that are committed together.

use crate::iter::{Bounds, Ends};
use crate::keyspace::millis;
use crate::snapshot::{owned, prefix_of};
use crate::{Keyspace, Result, Slice};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{
    Batch as StoreBatch, Keyspace as Handle, Savepoint as StoreSavepoint,
    Transaction as StoreTransaction,
};
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};
use std::time::{Duration, SystemTime};

pub use bristlecone_store::Isolation;

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
pub struct Transaction(pub(crate) StoreTransaction<Auto>);

/// A place in a transaction that [`rollback_to`](Transaction::rollback_to) comes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(StoreSavepoint);

impl Transaction {
    /// Returns a copy of the value of a key, as this transaction sees it.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(&keyspace.handle, key.as_ref())?)
    }

    /// Returns whether there is such a key, as this transaction sees it.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let found = self.0.get_with(&keyspace.handle, key.as_ref(), |_| ())?;
        Ok(found.is_some())
    }

    /// Puts a value. Others see it once the transaction is committed.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a key or value that is too long, or the
    /// keyspace of another database.
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.0.put(&keyspace.handle, key, value)?)
    }

    /// Puts a value that expires after `ttl` from now.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let at = Some(keyspace.db.expiry_of(ttl));
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.0.put_expiring(&keyspace.handle, key, value, at)?)
    }

    /// Removes a key, if it is there. Others see that once the transaction is committed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.0.delete(&keyspace.handle, key.as_ref())?)
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
    pub fn iter(&mut self, keyspace: &Keyspace) -> TransactionIter<'_> {
        self.iter_over(keyspace, (Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns the entries whose keys begin with `prefix`, as [`range`](Self::range) does.
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
    #[must_use]
    pub fn changes(&self) -> usize {
        self.0.changes()
    }

    /// Returns a place that [`rollback_to`](Self::rollback_to) comes back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.0.savepoint())
    }

    /// Takes back all changes since the savepoint. One that was itself rolled back past does
    /// nothing.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.0.rollback_to(savepoint.0);
    }

    /// Commits all changes, or none of them. Returns the time stamp of the commit, or 0 if nothing
    /// was changed.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) if another transaction was first; those of every
    /// write. Nothing has changed then, but with [`NotDurable`](crate::ErrorKind::NotDurable).
    pub fn commit(self) -> Result<u64> {
        Ok(self.0.commit()?)
    }

    /// Forgets all changes, as dropping it does.
    pub fn rollback(self) {}
}

/// The entries of a range as a [`Transaction`] sees them, from either end, like an
/// [`Iter`](crate::Iter).
#[derive(Debug)]
#[must_use = "it reads nothing before it is asked"]
pub struct TransactionIter<'t> {
    transaction: &'t mut Transaction,
    keyspace: Handle,
    ends: Ends,
}

impl TransactionIter<'_> {
    fn step(&mut self, up: bool) -> Option<Result<(Slice, Slice)>> {
        let (transaction, keyspace) = (&mut self.transaction.0, &self.keyspace);
        self.ends.step(up, |range, visit| {
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
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that is to be put.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.put(&keyspace.handle, key.as_ref(), value.as_ref());
    }

    /// Adds a value that is to be put, and expires at that time.
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
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.0.delete(&keyspace.handle, key.as_ref());
    }

    /// Returns how many keys the batch changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the batch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
