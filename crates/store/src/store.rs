//! The store's handle: making, opening and closing it, and its keyspaces. Operations on keys are in
//! `store/keys.rs`.

mod keys;

use crate::batch::Batch;
use crate::catalogue::{Catalogue, Keyspace};
use crate::clock::{Clock, Wait};
use crate::commit::Committer;
use crate::damaged::DamagedEntries;
use crate::dropped::Dropped;
use crate::error::{CloseError, StoreError, WriteError};
use crate::feed::{Watch, WatchLimits};
use crate::horizon::Snapshots;
use crate::index;
use crate::limits::{INDEX_SUFFIX, MAX_NAME_BYTES};
use crate::read::Reader;
use crate::record::MIN_BLOCK;
use crate::recovery::{StoreRecovery, Walk, root_word};
use crate::shared::{CLOSED_IN_ORDER, Shared, WORD_OPEN};
use crate::slots::Slots;
use crate::snapshot::Snapshot;
use crate::stripes::Stripes;
use crate::transaction::{Transaction, TransactionOptions};
use crate::vacuum::{self, Vacuum, VacuumReport};
use crate::wall::WallClock;
use bristlecone_index::engine::{Engine, EngineKind, LbEngine};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::{Heap, Media, POff, Pool};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The design that the root table names for a store.
const DESIGN: &str = "store";
/// Version of the format.
const FORMAT: u64 = 2;

/// Root word: the version of the format.
const WORD_FORMAT: usize = 0;
/// Root word: offset of the commit table.
const WORD_SLOTS: usize = 1;
/// Root word: 1 while a backup is being restored into the store.
pub(crate) const WORD_UNFINISHED: usize = 2;

/// How a store is made and run. Only the leaf size of its index is stored in the pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes in a leaf of the index of a new store; `None` for the engine's default.
    pub node_bytes: Option<u32>,
    /// Threads that recover the index. The store's own walk uses at most two.
    pub recovery_threads: usize,
    /// Interval at which a thread of the store vacuums. With `None` there is no thread, and
    /// [`Store::vacuum`] has to be called.
    pub vacuum_every: Option<Duration>,
    /// The clock that expiries are compared with.
    pub clock: WallClock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            node_bytes: None,
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            vacuum_every: Some(Duration::from_millis(50)),
            clock: WallClock::default(),
        }
    }
}

impl StoreOptions {
    /// Returns these options without the vacuum's thread.
    #[must_use]
    pub fn without_thread(self) -> Self {
        Self {
            vacuum_every: None,
            ..self
        }
    }
}

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
/// A write of one key costs the lines of its record (24 bytes and the value) and a fence, then the
/// index's insertion or update.
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
            .field("design", &self.shared.design)
            .finish_non_exhaustive()
    }
}

/// A store's root, opened.
pub(crate) struct StoreRoot<M: Media> {
    pub root: Root<M>,
    /// Name of the index's root.
    pub index_name: String,
    /// Offset of the commit table.
    pub table: u64,
}

fn kind() -> RootKind {
    RootKind {
        design: DESIGN.into(),
        keys: DataKind::Bytes,
        values: DataKind::Bytes,
        node_bytes: 0,
    }
}

fn index_root(name: &str) -> Result<String, StoreError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(StoreError::BadName(name.to_owned()));
    }
    Ok(format!("{name}{INDEX_SUFFIX}"))
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
        Self::create_with(pool, name, options, &LbEngine)
    }

    /// As [`create`](Self::create), with another engine for the index.
    ///
    /// # Errors
    /// As there.
    pub fn create_with(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        kind: &dyn EngineKind<M>,
    ) -> Result<Self, StoreError> {
        Self::create_marked(pool, name, options, kind, false)
    }

    /// As [`create_with`](Self::create_with). A store made with `unfinished` cannot be opened until
    /// that mark is removed.
    pub(crate) fn create_marked(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        engine: &dyn EngineKind<M>,
        unfinished: bool,
    ) -> Result<Self, StoreError> {
        let index_name = index_root(name)?;
        let info = engine.info();
        let node_bytes = index::node_bytes(info, options.node_bytes)?;
        if pool.roots().iter().any(|root| root.name == name) {
            return Err(RootError::Exists(name.to_owned()).into());
        }
        clear_remains(pool, &index_name, engine)?;
        let root = pool.create_root(name, &kind())?;
        let index = engine.create(pool, &index_name, node_bytes, options.recovery_threads)?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let pm = pool.pm();
        let (slots, table) = Slots::create(&heap)?;
        for (word, value) in [
            (WORD_FORMAT, FORMAT),
            (WORD_SLOTS, table),
            (WORD_UNFINISHED, u64::from(unfinished)),
            (WORD_OPEN, 0),
        ] {
            // ORDERING: Relaxed; the root is not published.
            root.word(word).store(pm, value, Ordering::Relaxed);
            // PERSIST: the root's words; fenced by `publish`, before the root is.
            pm.flush_of(root.word(word));
        }
        root.publish();
        if let Err(e) = pm.commit() {
            root.unpublish();
            return Err(e.into());
        }
        let parts = Parts {
            index,
            clock: Clock::on(pm, 0),
            stripes: Stripes::new(pm),
            slots,
            damaged: DamagedEntries::default(),
            heap,
        };
        let committer = parts.assemble(options);
        committer.load_catalogue(0, 0)?;
        let index = (info.name.to_owned(), node_bytes);
        Self::run(
            committer,
            (name, root, index),
            options,
            StoreRecovery::default(),
        )
    }

    /// Opens the store `name`, whose index is an LB+-Tree.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn open(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        Self::open_with(pool, name, options, &[&LbEngine])
    }

    /// As [`open`](Self::open), for a store whose index is of one of these engines.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        kinds: &[&dyn EngineKind<M>],
    ) -> Result<Self, StoreError> {
        let StoreRoot {
            root,
            index_name,
            table,
        } = Self::open_root(pool, name)?;
        let pm = pool.pm();
        let (index, design, node_bytes) =
            index::open(pool, &index_name, kinds, options.recovery_threads.max(1))?;
        let heap = root.heap();
        heap.begin_recovery();
        let slots = Slots::open(pm, table)?;
        let stripes = Stripes::new(pm);
        let threads = options.recovery_threads;
        let in_order = root_word(pm, root.word(WORD_OPEN)) == CLOSED_IN_ORDER;
        let closed = pool.info().was_clean && in_order;
        let mut walk = Walk::of(&*index, &heap, &slots, &stripes, (table, threads), closed)?;
        walk.apply_fixes(&*index, &stripes)?;
        let damaged = DamagedEntries::new(std::mem::take(&mut walk.damaged_entries));
        let (floor, largest, mut report) = (walk.floor, walk.largest, walk.report);
        report.index = index.recovery().clone();
        let parts = Parts {
            index,
            clock: Clock::on(pm, floor),
            stripes,
            slots,
            damaged,
            heap,
        };
        let committer = parts.assemble(options);
        committer.load_catalogue(largest, report.damaged)?;
        Self::run(
            committer,
            (name, root, (design, node_bytes)),
            options,
            report,
        )
    }

    /// Opens the root of a store. Its format must be the one that this build reads, and it must not
    /// be unfinished.
    pub(crate) fn open_root(pool: &Arc<Pool<M>>, name: &str) -> Result<StoreRoot<M>, StoreError> {
        let index_name = index_root(name)?;
        let root = pool.open_root(name, Some(&kind()))?;
        let pm = pool.pm();
        let found = root_word(pm, root.word(WORD_FORMAT));
        if found != FORMAT {
            return Err(StoreError::NewerVersion {
                found,
                supported: FORMAT,
            });
        }
        if root_word(pm, root.word(WORD_UNFINISHED)) != 0 {
            return Err(StoreError::Unfinished(name.to_owned()));
        }
        let table = root_word(pm, root.word(WORD_SLOTS));
        Ok(StoreRoot {
            root,
            index_name,
            table,
        })
    }

    /// Returns the names of the stores in a pool, whether they can be opened or not.
    #[must_use]
    pub fn names(pool: &Pool<M>) -> Vec<String> {
        let stores = pool.roots().into_iter().filter(|root| root.kind == kind());
        stores.map(|root| root.name).collect()
    }

    /// Removes the store `name`, which is not open. Its space is free once the pool is opened
    /// again.
    ///
    /// # Errors
    /// [`StoreError::Root`]; nothing has changed then.
    pub fn remove(pool: &Arc<Pool<M>>, name: &str) -> Result<(), StoreError> {
        let index_name = index_root(name)?;
        let root = pool.open_root(name, Some(&kind()))?;
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

    /// Starts the vacuum's thread of a store that is otherwise open.
    fn run(
        committer: Committer<M>,
        (name, root, (design, node_bytes)): (&str, Root<M>, (String, u32)),
        options: &StoreOptions,
        recovery: StoreRecovery,
    ) -> Result<Self, StoreError> {
        let writable = !committer.pm().read_only();
        if writable {
            // PERSIST: (in `publish`) the store is open, and the stamps that recovery wrote, before
            // any commit of it can be in progress.
            root.word(WORD_OPEN).publish(committer.pm(), 1);
        }
        let thread = match options.vacuum_every.filter(|_| writable) {
            Some(every) => {
                Some(vacuum::spawn(&committer.vacuum, every).map_err(StoreError::Thread)?)
            }
            None => None,
        };
        let deletion_reserve = reserve_for_deletions(&committer.heap);
        Ok(Self {
            shared: Arc::new(Shared {
                committer,
                thread,
                recovery,
                name: name.to_owned(),
                design,
                node_bytes,
                deletion_reserve,
                root,
            }),
            wait: Wait::Durable,
        })
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
        self.shared.clock.applied()
    }

    /// Makes every commit up to that timestamp durable, and all others that are applied. Returns at
    /// once if they are durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]; the [durable](Self::durable) timestamp stays where it was.
    pub fn make_durable(&self, ts: u64) -> Result<(), WriteError> {
        Ok(self.shared.make_durable(ts)?)
    }

    /// Closes the store: everything [applied](Self::applied) is made durable, the vacuum's thread
    /// ends, and the store can be opened again. Dropping the last handle does the same as far as it
    /// can, but reports no errors. The pool stays open.
    ///
    /// # Errors
    /// [`CloseError`], together with the store, which stays open: another call tries again.
    pub fn close(mut self) -> Result<(), (Self, CloseError)> {
        if let Err(e) = self.shared.make_durable(self.applied()) {
            return Err((self, CloseError::Commit(e)));
        }
        if Arc::get_mut(&mut self.shared).is_none() {
            return Err((self, CloseError::InUse));
        }
        match self.shared.control.take_failure() {
            Some(e) => Err((self, CloseError::Vacuum(e))),
            None => Ok(()),
        }
    }

    /// Returns the store's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the design of the index and the bytes in one of its leaves.
    #[must_use]
    pub fn design(&self) -> (&str, u32) {
        (&self.shared.design, self.shared.node_bytes)
    }

    /// Returns the pool that the store is in.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.shared.heap.pool()
    }

    /// Returns what opening the store found and did.
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        &self.shared.recovery
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
    /// progress may count. Takes each stripe's lock for a moment. Returns 0 for a keyspace of
    /// another store.
    #[must_use]
    pub fn len(&self, keyspace: &Keyspace) -> u64 {
        let Ok(number) = self.shared.catalogue.number(keyspace) else {
            return 0;
        };
        if self.shared.is_dropped(number) {
            return 0;
        }
        let counts = self.shared.stripes.counts();
        let of = counts.keys.iter().find(|(id, _)| *id == number);
        of.map_or(0, |(_, keys)| *keys)
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
        let writes = batch.into_writes(&self.shared.catalogue)?;
        self.shared.commit_many(&writes, None, None, self.wait)
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
        self.shared.watch(keyspace, prefix, limits)
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
        self.shared.clock.durable()
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
        self.shared.step(most)
    }

    /// Frees all versions that no snapshot can read any more.
    ///
    /// # Errors
    /// As [`vacuum`](Self::vacuum).
    pub fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        self.shared.run_to_end()
    }
}

/// The parts of a store that differ between a new one and one that is opened.
struct Parts<M: Media> {
    index: Box<dyn Engine>,
    clock: Clock,
    stripes: Stripes,
    slots: Slots,
    damaged: DamagedEntries,
    heap: Heap<M>,
}

impl<M: Media> Parts<M> {
    fn assemble(self, options: &StoreOptions) -> Committer<M> {
        let reader = Reader {
            index: self.index,
            clock: self.clock,
            snapshots: Snapshots::new(),
            slots: self.slots,
            dropped: Dropped::default(),
            damaged: self.damaged,
            wall: options.clock.clone(),
            heap: self.heap,
        };
        Committer {
            vacuum: Arc::new(Vacuum::new(reader, self.stripes)),
            catalogue: Catalogue::new(),
            feed: Arc::default(),
        }
    }
}

/// Allocates [`Shared::deletion_reserve`].
fn reserve_for_deletions<M: Media>(heap: &Heap<M>) -> u64 {
    if heap.pool().pm().read_only() {
        return 0;
    }
    heap.alloc(MIN_BLOCK).map_or(0, POff::get)
}

/// Removes the index that a crash left while a store was being made.
fn clear_remains<M: Media>(
    pool: &Arc<Pool<M>>,
    index_name: &str,
    kind: &dyn EngineKind<M>,
) -> Result<(), StoreError> {
    if !pool.roots().iter().any(|root| root.name == index_name) {
        return Ok(());
    }
    let (index, ..) = index::open(pool, index_name, &[kind], 1)?;
    // Such an index is empty. This one belongs to somebody else.
    if !index::is_empty(&*index) {
        return Err(RootError::Exists(index_name.to_owned()).into());
    }
    drop(index);
    pool.open_root(index_name, None)?.unpublish();
    Ok(())
}
