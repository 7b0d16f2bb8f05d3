//! The open database: its keyspaces, transactions and upkeep.

use crate::transaction::{Batch, Isolation, Transaction};
use crate::{Error, ErrorKind, Keyspace, Options, Result, Snapshot, Watch};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::pool::CompactReport;
use bristlecone_pmem::{MediumKind, Pool};
use bristlecone_store::{
    BackupReport, CheckReport, Store, StoreOptions, StoreRecovery, StoreStats, TransactionOptions,
};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An open database: any number of [keyspaces](Keyspace) in one file. Cheap to clone, and may be
/// used from any number of threads.
///
/// It is closed when the last clone, keyspace, iterator, snapshot and transaction of it is dropped;
/// [`close`](Self::close) does that at once, and reports what dropping cannot. One process opens a
/// database for writing at a time, or any number for reading.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("orders.db");
/// let db = bristlecone::Database::open(&path)?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("2026-03-01/17", "packed")?;
/// drop(orders);
/// db.close()?;
///
/// let db = bristlecone::Database::open(&path)?;
/// assert!(db.keyspace("orders")?.contains_key("2026-03-01/17")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Database {
    store: Store<Auto>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.path()).finish()
    }
}

impl Database {
    pub(crate) fn new(store: Store<Auto>) -> Self {
        Self { store }
    }

    /// Returns the store below, for crates that are built beside this one, as the server is. Its
    /// API may change with any release.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &Store<Auto> {
        &self.store
    }

    fn pool(&self) -> &Arc<Pool<Auto>> {
        self.store.pool()
    }

    /// Returns when a value expires that is written now and lives for `ttl`.
    pub(crate) fn expiry_of(&self, ttl: Duration) -> u64 {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.store.now().saturating_add(ms)
    }

    /// Opens the database at `path`, or makes it where there is none. The path decides the medium:
    /// persistent memory, a plain mapping on tmpfs, else a journal ([`medium`](Self::medium) says
    /// which it is).
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("orders.db");
    /// let db = bristlecone::Database::open(&path)?;
    /// assert_eq!(db.path(), path);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().open(path)
    }

    /// Returns options for opening a database in another way than [`open`](Self::open) does. See
    /// [`Options`].
    pub fn builder() -> Options {
        Options::default()
    }

    /// Returns the keyspace of that name, which is made if there is none.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) unless the name has 1 to 1024 bytes; those of
    /// every write.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// assert_eq!(orders.name(), "orders");
    /// assert_eq!(db.keyspaces().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let handle = match self.store.find_keyspace(name) {
            Some(handle) => handle,
            None => self.store.keyspace(name)?,
        };
        let db = self.clone();
        Ok(Keyspace { db, handle })
    }

    /// Returns the keyspace of that name, or `None` if there is none.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert!(db.find_keyspace("orders").is_none());
    /// db.keyspace("orders")?;
    /// assert!(db.find_keyspace("orders").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let handle = self.store.find_keyspace(name)?;
        let db = self.clone();
        Some(Keyspace { db, handle })
    }

    /// Gives a keyspace another name, as [`Keyspace::rename`] does. Returns the handle with the new
    /// name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no keyspace `from`; else as
    /// [`Keyspace::rename`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// let archive = db.rename_keyspace("orders", "archive")?;
    /// assert!(archive.contains_key("17")?);
    ///
    /// let error = db.rename_keyspace("orders", "archive").unwrap_err();
    /// assert_eq!(error.kind(), bristlecone::ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rename_keyspace(&self, from: &str, to: &str) -> Result<Keyspace> {
        let Some(keyspace) = self.find_keyspace(from) else {
            return Err(Error::not_found(format!(
                "{}: there is no keyspace {from:?}",
                self.path().display()
            )));
        };
        keyspace.rename(to)
    }

    /// Returns all keyspaces, in the order of their names.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        let handles = self.store.keyspaces().into_iter();
        let with_db = |handle| Keyspace {
            db: self.clone(),
            handle,
        };
        handles.map(with_db).collect()
    }

    /// Returns the keyspace that a watch is of now. Clearing a keyspace makes a new one under its name, which a
    /// watch follows and a handle does not. `None` if it was dropped, if another thread is clearing it at this
    /// moment, or for a watch of another database.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch()?;
    /// let emptied = orders.clear()?;
    /// assert!(matches!(watch.try_next()?, Some(bristlecone::Event::Clear { .. })));
    /// assert_eq!(db.watched(&watch), Some(emptied));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn watched(&self, watch: &Watch) -> Option<Keyspace> {
        let handle = self.store.watched(&watch.0)?;
        let db = self.clone();
        Some(Keyspace { db, handle })
    }

    /// Runs `f` in a transaction and commits it; all over again if another transaction was first,
    /// so `f` should have no effects elsewhere. Returns what `f` returned.
    ///
    /// It reads one snapshot and its own changes, and commits only if nobody else has changed a key
    /// that it writes ([snapshot isolation](Isolation::Snapshot)). Where a decision rests on what
    /// was only read, use [`serializable`](Self::serializable).
    ///
    /// # Errors
    /// The error that `f` returned, [`Error::other`] included: nothing has changed then. Those of
    /// [`Transaction::commit`] but for conflicts.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("bank.db"))?;
    /// let accounts = db.keyspace("accounts")?;
    /// accounts.insert("alice", "10")?;
    /// db.transaction(|tx| {
    ///     tx.insert(&accounts, "alice", "7")?;
    ///     tx.insert(&accounts, "bob", "3")
    /// })?;
    /// assert_eq!(accounts.get("bob")?.expect("all or nothing"), "3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transaction<R>(&self, f: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.retry(Isolation::Snapshot, f)
    }

    /// Runs `f` as [`transaction`](Self::transaction) does, and commits only if nobody has changed
    /// what it read, either, keys and ranges: such transactions take place one after the other
    /// ([`Isolation::Serializable`]).
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let doctors = db.keyspace("doctors on call")?;
    /// doctors.insert("alice", "")?;
    /// doctors.insert("bob", "")?;
    /// // One of them may leave, and only if another one stays: the decision rests on what is read.
    /// let left = db.serializable(|tx| {
    ///     if tx.iter(&doctors).count() < 2 {
    ///         return Ok(false);
    ///     }
    ///     tx.remove(&doctors, "alice")?;
    ///     Ok(true)
    /// })?;
    /// assert!(left);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serializable<R>(&self, f: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.retry(Isolation::Serializable, f)
    }

    fn retry<R>(
        &self,
        isolation: Isolation,
        mut f: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        for round in 0.. {
            let mut transaction = self.begin_with(isolation);
            let result = f(&mut transaction)?;
            match transaction.commit() {
                Err(e) if e.kind() == ErrorKind::Conflict => give_way(round),
                Err(e) => return Err(e),
                Ok(_) => return Ok(result),
            }
        }
        unreachable!("the rounds do not end")
    }

    /// Begins a transaction that the caller commits, of level [`Isolation::Snapshot`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::ErrorKind;
    ///
    /// let k = db.keyspace("k")?;
    /// let (mut one, mut other) = (db.begin(), db.begin());
    /// one.insert(&k, "key", "1")?;
    /// other.insert(&k, "key", "2")?;
    /// one.commit()?;
    /// let error = other.commit().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Conflict);
    /// assert_eq!(error.conflict().expect("it is one").key, b"key");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        self.begin_with(Isolation::Snapshot)
    }

    /// Begins a transaction of that isolation level, which the caller commits.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::Isolation;
    ///
    /// let k = db.keyspace("k")?;
    /// let mut tx = db.begin_with(Isolation::Serializable);
    /// let there = tx.contains_key(&k, "key")?;
    /// k.insert("key", "by somebody else")?;
    /// tx.insert(&k, "there", if there { "yes" } else { "no" })?;
    /// assert!(tx.commit().unwrap_err().conflict().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_with(&self, isolation: Isolation) -> Transaction {
        Transaction(self.store.begin(TransactionOptions { isolation }))
    }

    /// Makes the changes of a batch, all or none of them. Returns the time stamp of the commit, or
    /// 0 if nothing was to be changed.
    ///
    /// # Errors
    /// As [`Keyspace::insert`], for any of them.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::Batch;
    ///
    /// let orders = db.keyspace("orders")?;
    /// let mut batch = Batch::new();
    /// batch.insert(&orders, "17", "packed");
    /// batch.remove(&orders, "16");
    /// let timestamp = db.write(batch)?;
    /// assert!(timestamp <= db.snapshot().timestamp());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, batch: Batch) -> Result<u64> {
        Ok(self.store.write(batch.0)?)
    }

    /// Returns the database as it is now, for reading. See [`Snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.store.snapshot())
    }

    /// Returns a handle of the same database whose commits do not wait for durability, and neither
    /// do those of the keyspaces and transactions that it gives: the choice is made for each commit
    /// by the handle that makes it.
    ///
    /// | handle | a commit returns once | reads see |
    /// | --- | --- | --- |
    /// | as opened | it is as durable as [`Options::durability`] says | what is durable to that degree |
    /// | deferred | it is in memory | everything that is committed |
    ///
    /// The changes of a deferred commit become durable with the next commit of a handle that waits,
    /// with [`flush`](Self::flush), or when the database is closed. Until then a crash of the
    /// process or of the machine may lose it, but never a part of it, and whatever was committed
    /// after it had returned is lost with it. Other handles and [watches](crate::Watch) do not see
    /// it before it is durable, so nobody relies on what may be lost. Memory holds it meanwhile.
    ///
    /// So one `flush` can serve a thousand commits. For the opposite, single commits that are
    /// durable in a database that was opened with
    /// [`Durability::Interval`](crate::Durability::Interval) or [`None`](crate::Durability::None),
    /// call `flush` after them.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("log.db"))?;
    /// let deferred = db.deferred();
    /// let log = deferred.keyspace("log")?;
    /// for line in 0..1000u32 {
    ///     log.insert(line.to_be_bytes(), "started")?; // does not wait
    /// }
    /// deferred.flush()?; // one sync for all of them
    /// assert_eq!(db.keyspace("log")?.approximate_len(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deferred(&self) -> Self {
        Self::new(self.store.deferring())
    }

    /// Makes durable all that has been committed, whatever [`Durability`](crate::Durability) the
    /// database was opened with, and by [`deferred`](Self::deferred) handles, too.
    ///
    /// # Errors
    /// [`NotDurable`](ErrorKind::NotDurable), [`NoSpace`](ErrorKind::NoSpace)
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, Durability};
    ///
    /// let options = Database::builder().durability(Durability::None);
    /// let db = options.open(dir.path().join("metrics.db"))?;
    /// let metrics = db.keyspace("metrics")?;
    /// metrics.insert("temperature", "21")?; // may be lost
    /// db.flush()?; // cannot be lost any more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.store.make_durable(self.store.applied())?;
        self.pool().sync().map_err(Error::not_durable)
    }

    /// Copies the database, as it is at one commit, to a new file while others go on reading and
    /// writing. The copy is a stream, from which [`restore`](Self::restore) makes a database again.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists), and those of writing a file; no file is left
    /// then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// let report = db.backup_to(dir.path().join("orders.backup"))?;
    /// assert_eq!(report.entries, 1);
    ///
    /// let copy = bristlecone::Database::restore(dir.path().join("orders.backup"), dir.path().join("copy.db"))?;
    /// assert!(copy.keyspace("orders")?.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup_to(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        let path = path.as_ref();
        let failed = |e| Error::io(format!("{}: writing the backup", path.display()), e);
        let file = File::create_new(path).map_err(failed)?;
        let written = (|| {
            let mut out = BufWriter::new(&file);
            let report = self.store.backup(&mut out)?;
            io::Write::flush(&mut out).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            Ok(report)
        })();
        if written.is_err() {
            // Half a backup is of no use; the first error is the one that is reported.
            let _ = std::fs::remove_file(path);
        }
        written
    }

    /// Makes a database at `path`, where there is no file yet, from what
    /// [`backup_to`](Self::backup_to) wrote, and opens it. There is an example at `backup_to`.
    ///
    /// # Errors
    /// [`NotADatabase`](ErrorKind::NotADatabase) if it is no backup,
    /// [`Damaged`](ErrorKind::Damaged), [`AlreadyExists`](ErrorKind::AlreadyExists); no database is
    /// left then.
    pub fn restore(backup: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Self> {
        let (backup, path) = (backup.as_ref(), path.as_ref());
        let failed = |e| Error::io(format!("{}: reading the backup", backup.display()), e);
        let mut from = BufReader::new(File::open(backup).map_err(failed)?);
        Options::default().restore(&mut from, path)
    }

    /// Compares every record with its checksum and every structure with its invariants. Others may
    /// go on meanwhile.
    ///
    /// # Errors
    /// [`Damaged`](ErrorKind::Damaged), with what is damaged and where.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// let report = db.check()?;
    /// assert_eq!(report.entries, 2, "the order, and the keyspace's name");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<CheckReport> {
        let report = self.store.check();
        report.map_err(|violation| Error::damaged(violation.to_string()))
    }

    /// Frees every version that nobody can read any more, and gives free space back to the file
    /// system.
    ///
    /// # Errors
    /// Those of every write; what was freed stays free.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let k = db.keyspace("k")?;
    /// k.insert("large", vec![0; 8 << 20])?;
    /// k.remove("large")?;
    /// let report = db.compact()?;
    /// println!("{} bytes less", report.before_bytes - report.after_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<CompactReport> {
        self.store.vacuum_all()?;
        Ok(self.pool().compact()?)
    }

    /// Returns counts of keys, versions and bytes, and of the work done since the database was
    /// opened.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// assert_eq!(db.stats().keys, 2, "the order, and the keyspace's name");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Returns what opening found and repaired, damaged records included.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert!(db.recovery().damage.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        self.store.recovery()
    }

    /// Returns the medium that the database is on, which says what an acknowledged write survives.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// println!("a write survives {}", db.medium().survives());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn medium(&self) -> MediumKind {
        self.pool().info().medium
    }

    /// Returns the path of the database's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.pool().path()
    }

    /// Closes the database: all that is committed is durable, and the next opening has nothing to
    /// repair.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if a clone, keyspace, iterator, snapshot or transaction of it is
    /// left: it is closed when the last of them is dropped. [`NotDurable`](ErrorKind::NotDurable),
    /// [`NoSpace`](ErrorKind::NoSpace).
    pub fn close(self) -> Result<()> {
        self.store.close().map_err(|(_, e)| e.into())
    }
}

impl Options {
    fn restore(self, from: &mut impl io::Read, path: &Path) -> Result<Database> {
        let (pool, root) = self.new_pool(path)?;
        let restored = Store::restore(&pool, root, &StoreOptions::default(), from);
        match restored {
            Ok((store, _)) => Ok(Database::new(store)),
            Err(e) => {
                drop(pool);
                // A file without a database is of no use; the first error is the one that is
                // reported.
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(journal_path(path));
                Err(e.into())
            }
        }
    }
}

/// Waits for the transaction that was first, the longer the more often that happened.
fn give_way(round: u32) {
    if round < 3 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(10 << round.min(10)));
    }
}
