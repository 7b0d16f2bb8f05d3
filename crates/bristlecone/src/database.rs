//! The database: opening, keyspaces, transactions, upkeep.

use crate::transaction::{Batch, Isolation, Transaction};
use crate::{Error, ErrorKind, Keyspace, Options, Result, Snapshot};
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

/// An open database: any number of [keyspaces](Keyspace) in one file. Cheap to clone, and may be used from any number of threads.
///
/// It is closed when the last clone, keyspace, iterator, snapshot and transaction of it is dropped; [`close`](Self::close) does that at
/// once, and reports what dropping cannot. One process opens a database for writing at a time, or any number for reading.
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

    /// The store below: for what is built beside this crate, as the server is. Its API may change with any release.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &Store<Auto> {
        &self.store
    }

    fn pool(&self) -> &Arc<Pool<Auto>> {
        self.store.pool()
    }

    /// When what is written now and lives for `ttl` expires.
    pub(crate) fn expiry_of(&self, ttl: Duration) -> u64 {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.store.now().saturating_add(ms)
    }

    /// Opens the database at `path`, or makes it where there is none. The path decides the medium: persistent memory, a plain
    /// mapping on tmpfs, else a journal ([`medium`](Self::medium) says which it is).
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().open(path)
    }

    /// Options for opening a database otherwise.
    pub fn builder() -> Options {
        Options::default()
    }

    /// The keyspace of that name, which is made if there is none.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) unless the name has 1 to 1024 bytes; those of every write.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let handle = match self.store.find_keyspace(name) {
            Some(handle) => handle,
            None => self.store.keyspace(name)?,
        };
        let db = self.clone();
        Ok(Keyspace { db, handle })
    }

    /// The keyspace of that name, if there is one.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let handle = self.store.find_keyspace(name)?;
        let db = self.clone();
        Some(Keyspace { db, handle })
    }

    /// Gives a keyspace another name, as [`Keyspace::rename`] does. Returns the handle with the new name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no keyspace `from`; else as [`Keyspace::rename`].
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

    /// Runs `f` in a transaction and commits it; all over again if another transaction was first, so `f` should have no
    /// effects elsewhere. Returns what `f` returned.
    ///
    /// It reads one snapshot and its own changes, and commits only if nobody else has changed a key that it writes
    /// ([snapshot isolation](Isolation::Snapshot)). Where a decision rests on what was only read, use
    /// [`serializable`](Self::serializable).
    ///
    /// # Errors
    /// The error that `f` returned, [`Error::other`] included: nothing has changed then. Those of [`Transaction::commit`] but for conflicts.
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

    /// As [`transaction`](Self::transaction), and commits only if nobody has changed what it read either, keys and ranges: such
    /// transactions take place one after the other ([`Isolation::Serializable`]).
    ///
    /// # Errors
    /// As there.
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

    /// Begins a transaction that the caller commits.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        self.begin_with(Isolation::Snapshot)
    }

    /// Begins a transaction of that isolation level.
    #[must_use]
    pub fn begin_with(&self, isolation: Isolation) -> Transaction {
        Transaction(self.store.begin(TransactionOptions { isolation }))
    }

    /// Makes the changes of a batch, all or none. Returns the time stamp of the commit, 0 if there were none.
    ///
    /// # Errors
    /// As [`Keyspace::insert`], for any of them.
    pub fn write(&self, batch: Batch) -> Result<u64> {
        Ok(self.store.write(batch.0)?)
    }

    /// The database as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.store.snapshot())
    }

    /// Returns a handle of the same database whose commits do not wait for durability, and neither do those of the keyspaces and
    /// transactions that it gives: the choice is made for each commit by the handle that makes it.
    ///
    /// | handle | a commit returns once | reads see |
    /// | --- | --- | --- |
    /// | as opened | it is as durable as [`Options::durability`] says | what is durable to that degree |
    /// | deferred | it is in memory | everything that is committed |
    ///
    /// What a deferred commit changed becomes durable with the next commit of a handle that waits, with [`flush`](Self::flush), or when
    /// the database is closed. Until then a crash of the process or of the machine may lose it, but never a part of it, and whatever was committed after it had
    /// returned is lost with it. Other handles and [watches](crate::Watch) do not see it before it is durable, so nobody relies on what may be
    /// lost. Memory holds it meanwhile.
    ///
    /// So one `flush` can serve a thousand commits. For the opposite, single commits that are durable in a database that was opened with
    /// [`Durability::Interval`](crate::Durability::Interval) or [`None`](crate::Durability::None), call `flush` after them.
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

    /// Makes all that has been committed durable, whatever [`Durability`](crate::Durability) it was opened with.
    ///
    /// # Errors
    /// [`NotDurable`](ErrorKind::NotDurable), [`NoSpace`](ErrorKind::NoSpace)
    pub fn flush(&self) -> Result<()> {
        self.store.settle(self.store.applied())?;
        self.pool().sync().map_err(Error::not_durable)
    }

    /// Copies the database to a new file while others go on reading and writing: as it was at one commit. The copy is a stream, from
    /// which [`restore`](Self::restore) makes a database again.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists), and those of writing a file; no file is left then.
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

    /// Makes a database at `path`, where there is no file yet, from what [`backup_to`](Self::backup_to) wrote.
    ///
    /// # Errors
    /// [`NotADatabase`](ErrorKind::NotADatabase) if it is no backup, [`Damaged`](ErrorKind::Damaged),
    /// [`AlreadyExists`](ErrorKind::AlreadyExists); no database is left then.
    pub fn restore(backup: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Self> {
        let (backup, path) = (backup.as_ref(), path.as_ref());
        let failed = |e| Error::io(format!("{}: reading the backup", backup.display()), e);
        let mut from = BufReader::new(File::open(backup).map_err(failed)?);
        Options::default().restore(&mut from, path)
    }

    /// Compares every record with its checksum and every structure with its invariants. Others may go on meanwhile.
    ///
    /// # Errors
    /// [`Damaged`](ErrorKind::Damaged), with what and where.
    pub fn check(&self) -> Result<CheckReport> {
        let report = self.store.check();
        report.map_err(|violation| Error::damaged(violation.to_string()))
    }

    /// Frees every version that nobody can read any more, and gives free space back to the file system.
    ///
    /// # Errors
    /// Those of every write; what was freed stays free.
    pub fn compact(&self) -> Result<CompactReport> {
        self.store.vacuum_all()?;
        Ok(self.pool().compact()?)
    }

    /// Counts of its keys, versions and bytes, and of the work done since it was opened.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Report of the recovery at opening, damaged records included.
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        self.store.recovery()
    }

    /// The medium that it is on, which says what an acknowledged write survives.
    #[must_use]
    pub fn medium(&self) -> MediumKind {
        self.pool().info().medium
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.pool().path()
    }

    /// Closes it: all that is committed is durable, and the next opening has nothing to repair.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) if a clone, keyspace, iterator, snapshot or transaction of it is left: it is closed when the last of
    /// them is dropped. [`NotDurable`](ErrorKind::NotDurable), [`NoSpace`](ErrorKind::NoSpace).
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
                // A file without a database is of no use; the first error is the one that is reported.
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(journal_path(path));
                Err(e.into())
            }
        }
    }
}

/// Lets the transaction that was first go on: the longer, the more often it was.
fn give_way(round: u32) {
    if round < 3 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(10 << round.min(10)));
    }
}
