//! The store's handle: making, opening and closing it, and its keyspaces. Operations on keys are in
//! `store/keys.rs`, reading a damaged store in `store/salvage.rs`, archives in `store/archive.rs`.

mod archive;
mod keys;
mod salvage;

pub use archive::RestoredReport;

use crate::archive::ArchiveStats;
use crate::batch::Batch;
use crate::catalogue::Keyspace;
use crate::engine::{Shares, StorageEngine, Wait};
use crate::error::{CloseError, StoreError, WriteError};
use crate::feed::{Watch, WatchLimits};
use crate::format::{self, StoreFormat};
use crate::options::StoreOptions;
use crate::report::{StoreRecovery, VacuumReport};
use crate::root;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::transaction::{Transaction, TransactionOptions};
use crate::tree::Clustered;
use bristlecone_pmem::pool::{CompactReport, RootError};
use bristlecone_pmem::{Media, Pool};
use std::fmt;
use std::sync::Arc;

/// A durable multi-version store. Cheap to clone: all clones are one store, which is closed when
/// the last of them, of its snapshots and of its transactions is dropped, or by
/// [`close`](Self::close), which reports errors.
///
/// # Promises
/// 1. A write that has returned `Ok` is as durable as the pool's medium promises, and every later
///    read sees it.
/// 2. After a crash each write, batch and transaction is there completely or not at all. Those that
///    had returned `Ok` are there.
/// 3. Reads take no lock. They see durable commits only, and each of them completely or not at all.
///
/// # Persist cost
/// A write of one key costs the lines of its change in a page, and a fence.
pub struct Store<M: Media> {
    pub(crate) shared: Arc<Shared<M>>,
    wait: Wait,
}

impl<M: Media> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            wait: self.wait,
        }
    }
}

impl<M: Media> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("name", &self.shared.name)
            .field("design", &self.design().0)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Store<M> {
    /// Makes an empty store as roots `name` and `name.index`. The store is durable once this has
    /// returned.
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    pub fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        Self::create_marked(pool, name, options, &Clustered, false)
    }

    /// As [`create`](Self::create), of that format.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn create_as(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        format: &dyn StoreFormat<M>,
    ) -> Result<Self, StoreError> {
        Self::create_marked(pool, name, options, format, false)
    }

    /// As [`create_as`](Self::create_as). A store made with `unfinished` cannot be opened until
    /// that mark is removed.
    pub(crate) fn create_marked(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        format: &dyn StoreFormat<M>,
        unfinished: bool,
    ) -> Result<Self, StoreError> {
        let shares = Shares::default();
        let engine = format.create(pool, name, options, unfinished, shares.clone())?;
        Ok(Self::over(engine, name, options, shares))
    }

    /// Opens the store `name`.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn open(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        Self::open_with(pool, name, options, &[&Clustered])
    }

    /// As [`open`](Self::open), of a store that has one of these formats.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn open_with(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        formats: &[&dyn StoreFormat<M>],
    ) -> Result<Self, StoreError> {
        let (store, format) = format::open(pool, name, formats)?;
        let shares = Shares::default();
        let engine = format.open(pool, store, options, shares.clone())?;
        Ok(Self::over(engine, name, options, shares))
    }

    fn over(
        engine: Box<dyn StorageEngine<M>>,
        name: &str,
        options: &StoreOptions,
        shares: Shares,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                catalogue: shares.catalogue,
                feed: shares.feed,
                wall: options.clock.clone(),
                name: name.to_owned(),
            }),
            wait: Wait::Durable,
        }
    }

    /// Returns the names of the stores in a pool, whether they can be opened or not.
    #[must_use]
    pub fn names(pool: &Pool<M>) -> Vec<String> {
        let stores = pool
            .roots()
            .into_iter()
            .filter(|root| root.kind == root::kind());
        stores.map(|root| root.name).collect()
    }

    /// Removes the store `name`, which is not open. Its space is free once the pool is opened
    /// again.
    ///
    /// # Errors
    /// [`StoreError::Root`]; nothing has changed then.
    pub fn remove(pool: &Arc<Pool<M>>, name: &str) -> Result<(), StoreError> {
        let index_name = root::index_root(name)?;
        let root = pool.open_root(name, Some(&root::kind()))?;
        match pool.open_root(&index_name, None) {
            // PERSIST: (in `unpublish`) the removal of the index, before the store's: a store
            // without an index can still be removed.
            Ok(index) => index.unpublish(),
            Err(RootError::NotFound(_)) => {}
            Err(e) => return Err(e.into()),
        }
        // PERSIST: (in `unpublish`) the removal of the store's root.
        root.unpublish();
        Ok(pool.pm().commit()?)
    }

    /// Returns what was archived; `None` if nothing [is to be](StoreOptions::archive).
    #[must_use]
    pub fn archive_stats(&self) -> Option<ArchiveStats> {
        self.shared.engine.archive_stats()
    }

    /// Returns a handle of the same store that does not wait for durability, for servers. Its
    /// writes return as soon as later reads of such handles see them, and it reads commits that may
    /// not be durable yet. This also holds for its snapshots and transactions.
    ///
    /// Before a client is answered on the ground of such reads or writes, call
    /// [`make_durable`](Self::make_durable) with the [applied](Self::applied) timestamp. One commit
    /// of the medium then serves any number of operations.
    #[must_use]
    pub fn deferring(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            wait: Wait::Applied,
        }
    }

    /// Returns what operations of this handle wait for.
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    /// Returns the timestamp up to which every commit is visible to [deferring](Self::deferring)
    /// handles, durable or not.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.shared.engine.applied()
    }

    /// Makes every commit up to that timestamp durable, and all others that are applied. Returns at
    /// once if they are durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]; the [durable](Self::durable) timestamp stays where it was.
    pub fn make_durable(&self, ts: u64) -> Result<(), WriteError> {
        Ok(self.shared.engine.wait_for(ts, Wait::Durable)?)
    }

    /// Closes the store: everything [applied](Self::applied) is made durable, the vacuum's thread
    /// ends, and the store can be opened again. Dropping the last handle does the same as far as it
    /// can, but reports no errors. The pool stays open.
    ///
    /// # Errors
    /// [`CloseError`], together with the store, which stays open: another call tries again.
    pub fn close(mut self) -> Result<(), (Self, CloseError)> {
        let applied = self.applied();
        if let Err(e) = self.shared.engine.wait_for(applied, Wait::Durable) {
            return Err((self, CloseError::Commit(e)));
        }
        if Arc::get_mut(&mut self.shared).is_none() {
            return Err((self, CloseError::InUse));
        }
        if let Some(e) = self.shared.engine.take_failure() {
            return Err((self, CloseError::Vacuum(e)));
        }
        match self.shared.engine.archive_now() {
            Err(e) => Err((self, CloseError::Archive(e))),
            Ok(()) => Ok(()),
        }
    }

    /// Returns the store's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the name of the tree's design, `clustered`, and the bytes in one of its pages.
    #[must_use]
    pub fn design(&self) -> (&str, u32) {
        self.shared.engine.design()
    }

    /// Returns the pool that the store is in.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.shared.engine.pool()
    }

    /// Returns what opening the store found and did.
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        self.shared.engine.recovery()
    }

    /// Returns the keyspace of that name, and makes it if there is none.
    ///
    /// # Errors
    /// [`WriteError::BadName`] unless the name has 1 to 1024 bytes; those of a write.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        self.shared.make_keyspace(name)
    }

    /// Returns the keyspace of that name, if there is one.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        self.shared.find_keyspace(name)
    }

    /// Returns all keyspaces, ordered by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        self.shared.all_keyspaces()
    }

    /// Removes all keys of a keyspace atomically: drops it, and returns an empty keyspace of the
    /// same name. Otherwise as [`drop_keyspace`](Self::drop_keyspace).
    ///
    /// # Errors
    /// As there.
    pub fn clear(&self, keyspace: Keyspace) -> Result<Keyspace, WriteError> {
        self.shared.catalogue.number(&keyspace)?;
        let number = self.shared.catalogue.new_number()?;
        let name = self.shared.drop_keyspace(&keyspace, Some(number))?;
        Ok(self.shared.catalogue.handle(number, name))
    }

    /// Gives a keyspace another name, by one commit: a crash leaves the old name or the new one.
    /// Nothing of its keys is written. The handle that is returned says the new name; others are of
    /// the same keyspace, and say the one it had when they were given.
    ///
    /// # Errors
    /// [`WriteError::Exists`] if another keyspace has that name, [`WriteError::Dropped`],
    /// [`WriteError::BadName`]; those of a write. After [`WriteError::Commit`] it has the new name.
    pub fn rename_keyspace(&self, keyspace: &Keyspace, to: &str) -> Result<Keyspace, WriteError> {
        self.shared.rename_keyspace(keyspace, to)
    }

    /// Drops a keyspace with all its keys in one commit, however many there are: a crash leaves all
    /// of them or none. The vacuum frees the space afterwards, and goes on with that when the store
    /// is opened again.
    ///
    /// Snapshots and transactions from before the drop still see the keyspace, and keep it from
    /// being vacuumed. Other reads through its handles find nothing, and writes fail with
    /// [`WriteError::Dropped`]. A keyspace that is made later under the same name is a different
    /// one.
    ///
    /// All writers wait during the commit, some tens of microseconds. Dropping n keyspaces while a
    /// store is open takes memory in proportion to n, and so does the time of the last drop.
    ///
    /// # Errors
    /// [`WriteError::Dropped`] if it was dropped before, and those of a write.
    pub fn drop_keyspace(&self, keyspace: Keyspace) -> Result<(), WriteError> {
        self.shared.drop_keyspace(&keyspace, None).map(drop)
    }

    /// Returns how many keys a keyspace has. Expired keys count until they are vacuumed; commits in
    /// progress may count. After a crash it waits until the keys have been counted. Returns 0 for a
    /// keyspace of another store.
    #[must_use]
    pub fn len(&self, keyspace: &Keyspace) -> u64 {
        let Ok(number) = self.shared.catalogue.number(keyspace) else {
            return 0;
        };
        self.shared.engine.len(number)
    }

    /// Returns whether a keyspace has no keys, counted as [`len`](Self::len) does.
    #[must_use]
    pub fn is_empty(&self, keyspace: &Keyspace) -> bool {
        self.len(keyspace) == 0
    }

    /// Commits the changes of a batch atomically. Returns the timestamp of the commit, 0 if nothing
    /// changed.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`].
    pub fn write(&self, batch: Batch) -> Result<u64, WriteError> {
        let writes = batch.writes(&self.shared.catalogue)?;
        self.shared.engine.commit(&writes, None, None, self.wait)
    }

    /// The changes of the keys of a keyspace that begin with `prefix`, from now on. A snapshot that
    /// is taken after this returns has all that was changed before; what comes has a higher time
    /// stamp than that snapshot, or is in it. While somebody watches, each change of the keyspace
    /// is copied into memory, and its committer takes a lock.
    ///
    /// Subscribing makes all writers wait for some tens of microseconds.
    ///
    /// # Errors
    /// [`WriteError::ReadOnly`], [`WriteError::Dropped`], [`WriteError::OtherStore`],
    /// [`WriteError::Commit`]
    pub fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError> {
        self.shared.engine.watch(keyspace, prefix, limits)
    }

    /// Returns the keyspace that a watch is of now: the empty one after it was cleared, under its
    /// present name. `None` if it was dropped, if another thread is clearing it at this moment, or
    /// for a watch of another store.
    #[must_use]
    pub fn watched(&self, watch: &Watch) -> Option<Keyspace> {
        let number = watch.number_in(&self.shared.feed)?;
        self.shared.catalogue.handle_of(number)
    }

    /// Begins a transaction.
    #[must_use]
    pub fn begin(&self, options: TransactionOptions) -> Transaction<M> {
        Transaction::begin(self.snapshot(), options)
    }

    /// Returns a snapshot: the store as it is now. Versions that it can read are not vacuumed while
    /// it exists.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<M> {
        Snapshot::enter(&self.shared, self.wait)
    }

    /// Returns the timestamp up to which every commit is durable and visible.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.engine.durable()
    }

    /// Returns the time in ms since 1970, by the clock of the store's options.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shared.wall.now()
    }

    /// Frees up to `most` versions that no snapshot can read any more.
    ///
    /// # Errors
    /// [`WriteError`]; the versions freed by then stay freed.
    pub fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.shared.engine.vacuum(most)
    }

    /// Frees all versions that no snapshot can read any more.
    ///
    /// # Errors
    /// As [`vacuum`](Self::vacuum).
    pub fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        self.shared.engine.vacuum_all()
    }

    /// Frees all versions that no snapshot can read any more, moves what is live together, and
    /// gives the space that becomes free back to the file system. Others may go on meanwhile.
    ///
    /// A thread of the store does so by itself where more than half of the space is free.
    ///
    /// # Errors
    /// The first [`WriteError`]; what could be given back all the same is.
    ///
    /// # Examples
    /// ```
    /// # use bristlecone_pmem::media::Dram;
    /// # use bristlecone_pmem::{Pool, PoolOptions};
    /// # use bristlecone_store::{Store, StoreOptions};
    /// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
    /// let store = Store::create(&pool, "store", &StoreOptions::default())?;
    /// let all = store.keyspace("all")?;
    /// for i in 0..40_000_u32 {
    ///     store.put(&all, &i.to_be_bytes(), &[1; 200])?;
    /// }
    /// for i in (0..40_000_u32).filter(|i| i % 10 != 0) {
    ///     store.delete(&all, &i.to_be_bytes())?;
    /// }
    /// let report = store.compact()?;
    /// let left = report.after_bytes - report.punched_bytes;
    /// assert!(left * 2 < report.before_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<CompactReport, WriteError> {
        let vacuumed = self.vacuum_all();
        let moved = self.shared.engine.compact();
        let report = self.pool().compact()?;
        vacuumed?;
        moved?;
        Ok(report)
    }
}
