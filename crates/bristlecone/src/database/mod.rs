//! The open database: its keyspaces, transactions and durability. Its upkeep is in
//! `database/upkeep.rs`.

mod upkeep;

use crate::durability::{Syncer, sync_if_not_immediate};
use crate::error::OrError;
use crate::{
    Batch, Durability, Error, ErrorKind, Isolation, Keyspace, Options, Result, Snapshot,
    Transaction, Watch,
};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Media, Pool};
use bristlecone_store::{Store, TransactionOptions, WriteError};
use std::fmt;
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
    core: Arc<Core>,
    /// Durability of this handle's commits; with `None` the options of the opening decide.
    durability: Option<Durability>,
}

/// The state that all handles of an open database share.
struct Core {
    // Fields are dropped in this order: the syncer's thread ends before the store closes.
    syncer: Syncer,
    /// Its commits wait for durability.
    store: Store<Auto>,
    /// Those of this handle do not.
    deferring: Store<Auto>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.path()).finish()
    }
}

impl Database {
    pub(crate) fn new(store: Store<Auto>) -> Self {
        let core = Core {
            syncer: Syncer::default(),
            deferring: store.deferring(),
            store,
        };
        Self {
            core: Arc::new(core),
            durability: None,
        }
    }

    /// Returns the store below, for crates that are built beside this one, as the server is. Its
    /// API may change with any release.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &Store<Auto> {
        match self.durability {
            None | Some(Durability::Immediate) => &self.core.store,
            Some(Durability::Interval(_) | Durability::None) => &self.core.deferring,
        }
    }

    fn pool(&self) -> &Arc<Pool<Auto>> {
        self.store().pool()
    }

    /// Returns what a write has returned, once it is as durable as this handle promises.
    pub(crate) fn committed<T>(&self, done: Result<T, WriteError>) -> Result<T> {
        let done = done.or_error()?;
        match self.durability {
            None => {}
            Some(Durability::None) => self.wait_for_room()?,
            Some(Durability::Immediate) => sync_if_not_immediate(&self.core.store)?,
            Some(Durability::Interval(interval)) => {
                let Core {
                    syncer, deferring, ..
                } = &*self.core;
                syncer.sync_within(interval, deferring)?;
                self.wait_for_room()?;
            }
        }
        Ok(done)
    }

    /// A handle that does not wait for durability waits for the medium to have room.
    fn wait_for_room(&self) -> Result<()> {
        self.pool().pm().wait_for_room().map_err(Error::not_durable)
    }

    /// Makes commits up to `ts`, of a handle that does not wait, as durable as this one promises.
    pub(crate) fn catch_up(&self, ts: u64) -> Result<()> {
        self.committed(match self.durability {
            None | Some(Durability::Immediate) => self.store().make_durable(ts),
            Some(Durability::Interval(_) | Durability::None) => Ok(()),
        })
    }

    /// Returns when a value expires that is written now and lives for `ttl`.
    pub(crate) fn expiry_of(&self, ttl: Duration) -> u64 {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.store().now().saturating_add(ms)
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
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = bristlecone::Database::builder()
    ///     .max_bytes(1 << 30)
    ///     .open(dir.path().join("orders.db"))?;
    /// assert!(db.keyspaces().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        let handle = match self.store().find_keyspace(name) {
            Some(handle) => handle,
            None => self.committed(self.store().keyspace(name))?,
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
        let handle = self.store().find_keyspace(name)?;
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
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?;
    /// db.keyspace("customers")?;
    /// let names: Vec<_> = db.keyspaces().iter().map(|k| k.name().to_owned()).collect();
    /// assert_eq!(names, ["customers", "orders"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        let handles = self.store().keyspaces().into_iter();
        let with_db = |handle| Keyspace {
            db: self.clone(),
            handle,
        };
        handles.map(with_db).collect()
    }

    /// Returns the keyspace that a watch is of now. Clearing a keyspace makes a new one under its
    /// name, which a watch follows and a handle does not. `None` if it was dropped, if another
    /// thread is clearing it at this moment, or for a watch of another database.
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
        let handle = self.store().watched(&watch.0)?;
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
        Transaction {
            inner: self.store().begin(TransactionOptions { isolation }),
            db: self.clone(),
        }
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
        self.committed(self.store().write(batch.0))
    }

    /// Returns the database as it is now, for reading. See [`Snapshot`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let before = db.snapshot();
    /// orders.insert("17", "packed")?;
    /// assert!(orders.at(&before)?.get("17")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.store().snapshot())
    }

    /// Returns a handle of the same database whose commits have that durability, and so do those
    /// of the keyspaces and transactions that it gives: each commit is as durable as the handle
    /// that makes it says. Cheap, and leaves other handles as they are.
    ///
    /// | durability | a commit returns once | and is durable |
    /// | --- | --- | --- |
    /// | [`Immediate`](Durability::Immediate) | it is durable | when it returns |
    /// | [`Interval`](Durability::Interval) | it is in memory | within that time, by a thread in the background |
    /// | [`None`](Durability::None) | it is in memory | with the next commit of a handle that waits |
    ///
    /// [`flush`](Self::flush) and closing the database make all of them durable. Until then a crash
    /// of the process or of the machine may lose a commit with `Interval` or `None`, but never a
    /// part of it, and whatever was committed after it is lost with it.
    ///
    /// A handle with `Interval` or `None` reads everything that is committed. Other handles and
    /// [watches](crate::Watch) do not see such a commit before it is durable, so nobody relies on
    /// what may be lost. Memory holds it meanwhile. Making, clearing, renaming and removing a
    /// keyspace waits for durability with every handle.
    ///
    /// If the sync in the background fails, the next commit with `Interval` does it itself and
    /// returns its error. In a database that was [opened](Options::durability) with `Interval` or
    /// `None`, a commit with `Immediate` costs as much as `flush`.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("shop.db"))?;
    /// use bristlecone::Durability;
    /// use std::time::Duration;
    ///
    /// let (orders, clicks) = (db.keyspace("orders")?, db.keyspace("clicks")?);
    /// let soon = db.with_durability(Durability::Interval(Duration::from_millis(50)));
    ///
    /// orders.insert("17", "packed")?; // durable when it returns
    /// soon.transaction(|tx| tx.insert(&clicks, "17", "2"))?; // durable 50 ms later
    /// # db.flush()?;
    /// # assert!(clicks.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self {
            core: Arc::clone(&self.core),
            durability: Some(durability),
        }
    }

    /// Returns a handle of the same database whose commits do not wait for durability: that of
    /// [`with_durability`](Self::with_durability) with [`Durability::None`]. One
    /// [`flush`](Self::flush) can then serve a thousand commits.
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
    /// assert_eq!(db.keyspace("log")?.iter().count(), 0, "a crash could undo it");
    /// deferred.flush()?; // one sync for all of them
    /// assert_eq!(db.keyspace("log")?.iter().count(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deferred(&self) -> Self {
        self.with_durability(Durability::None)
    }

    /// Makes durable all that has been committed, whatever the [`Durability`] of the database and
    /// of the handles that committed it.
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
    /// # assert!(metrics.contains_key("temperature")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.store()
            .make_durable(self.store().applied())
            .or_error()?;
        self.pool().sync().map_err(Error::not_durable)
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
