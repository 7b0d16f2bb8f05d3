//! The store: creating, opening, keyspaces. Operations on keys are in `store/keys.rs`.

mod keys;

use crate::clock::Clock;
use crate::clock::Wait;
use crate::commit::Inner;
use crate::dropped::Dropped;
use crate::error::{CloseError, StoreError, WriteError};
use crate::horizon::Snapshots;
use crate::keyspace::{Catalogue, Keyspace};
use crate::newest::Suspects;
use crate::record::HEADER;
use crate::recovery::{StoreRecovery, Walk, root_word};
use crate::slots::Slots;
use crate::stripes::Stripes;
use crate::vacuum::{self, Control, VacuumReport};
use crate::{Batch, Snapshot, Transaction, TransactionOptions, index};
use bristlecone_index::engine::{EngineKind, LbEngine};
use bristlecone_pmem::pool::{DataKind, ROOT_NAME, Root, RootError, RootKind};
use bristlecone_pmem::{Heap, Media, POff, Pool};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest name of a store in bytes.
pub const NAME_MOST: usize = ROOT_NAME - INDEX.len();
/// What the root of a store's index has after the store's name.
const INDEX: &str = ".index";
/// What the root table calls a store.
const DESIGN: &str = "store";
/// Version of the format.
const FORMAT: u64 = 1;

/// Root word: the version of the format.
const WORD_FORMAT: usize = 0;
/// Root word: offset of the commit table.
const WORD_SLOTS: usize = 1;
/// Root word: 1 while a backup is being restored into the store.
pub(crate) const WORD_UNFINISHED: usize = 2;
/// Root word: 1 while the store is open for writing, and until it has been closed in order, which makes it 2.
/// In a store that only earlier builds have written it is 0, which says neither.
const WORD_OPEN: usize = 3;
const CLOSED_IN_ORDER: u64 = 2;

/// Where the time comes from that expiries are compared with.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WallClock {
    /// A clock of the caller's, which gives ms since 1970.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Ms since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.0)()
    }
}

impl Default for WallClock {
    /// The system's.
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.map_or(0, |since| since.as_millis() as u64)
        })
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({})", self.now())
    }
}

/// How a store is made and run. Only the leaf size of its index is stored in the pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes in a leaf of the index, for a store that is made; `None` for what its kind takes by default.
    pub node_bytes: Option<u32>,
    /// Threads that recover the index; the store's own walk takes two at the most.
    pub recovery_threads: usize,
    /// How often a thread of the store's vacuums; `None` for never: [`Store::vacuum`] does it.
    pub vacuum_every: Option<Duration>,
    /// Where the time comes from.
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
    /// Without a thread of the store's own.
    #[must_use]
    pub fn without_thread(self) -> Self {
        Self {
            vacuum_every: None,
            ..self
        }
    }
}

/// What every handle keeps alive.
pub(crate) struct Shared<M: Media> {
    inner: Arc<Inner<M>>,
    thread: Option<JoinHandle<()>>,
    pub recovery: StoreRecovery,
}

impl<M: Media> Deref for Shared<M> {
    type Target = Inner<M>;

    fn deref(&self) -> &Inner<M> {
        &self.inner
    }
}

impl<M: Media> Drop for Shared<M> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.inner.control.stop();
            // It ends; whether it panicked was shown when it did.
            let _ = thread.join();
        }
        // What failed, or a panic cut short, may have left records of a commit that never was, as a crash does.
        if !self.inner.pm().read_only() && self.inner.clock.sound().is_ok() {
            // PERSIST: (in `publish`) nothing is under way; after all that this store has fenced.
            let word = self.inner.root.word(WORD_OPEN);
            word.publish(self.inner.pm(), CLOSED_IN_ORDER);
        }
    }
}

/// A key's value, as an [update](Store::update) finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The value.
    pub value: &'a [u8],
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
}

/// What an [update](Store::update) makes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// As it was.
    Keep,
    /// A new value.
    Put {
        /// The value, up to 512 MiB.
        value: Vec<u8>,
        /// When it expires, in ms since 1970.
        expires_at: Option<u64>,
    },
    /// Nothing.
    Delete,
}

/// A durable multi-version store. Cheap to clone: all clones are one store, which is closed when the last of them, of its
/// snapshots and of its transactions is dropped, or by [`close`](Self::close), which reports errors.
///
/// # Promises
/// 1. A write that has returned `Ok` is durable at the pool's level, and every later read sees it.
/// 2. After a crash each write, batch and transaction is wholly there or wholly absent; those that had returned `Ok` are there.
/// 3. Reads take no lock. They see durable commits only, each wholly or not at all.
///
/// # Persist cost
/// A write of one key: its record (32 bytes and the value) and a fence, then the index's insertion or update.
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
    if name.is_empty() || name.len() > NAME_MOST {
        return Err(StoreError::BadName(name.to_owned()));
    }
    Ok(format!("{name}{INDEX}"))
}

impl<M: Media> Store<M> {
    /// Makes an empty store as roots `name` and `name.index`. It is there after a crash once this has returned.
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

    /// As [`create`](Self::create), with an index of that kind.
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

    /// As [`create`](Self::create); an `unfinished` one cannot be opened until that mark is taken away.
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
            // PERSIST: what the root holds; fenced by `publish`.
            pm.flush_of(root.word(word));
        }
        root.publish();
        if let Err(e) = pm.commit() {
            root.unpublish();
            return Err(e.into());
        }
        let inner = Inner {
            index,
            clock: Clock::on(pm, 0),
            stripes: Stripes::new(pm),
            snapshots: Snapshots::new(),
            slots,
            catalogue: Catalogue::new(),
            suspects: Suspects::default(),
            dropped: Dropped::default(),
            control: Control::default(),
            wall: options.clock.clone(),
            name: name.to_owned(),
            design: info.name.to_owned(),
            node_bytes,
            spare: spare(&heap),
            heap,
            root,
        };
        inner.load_catalogue(0, 0)?;
        Self::run(inner, options, StoreRecovery::default())
    }

    /// Opens the store `name`, with the index that it was made with.
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

    /// As [`open`](Self::open), of a store whose index is of one of these kinds.
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
        walk.mend(&*index, &stripes)?;
        let suspects = Suspects::new(std::mem::take(&mut walk.suspects));
        let (floor, largest, mut report) = (walk.floor, walk.largest, walk.report);
        report.index = index.recovery().clone();
        let inner = Inner {
            index,
            clock: Clock::on(pm, floor),
            stripes,
            snapshots: Snapshots::new(),
            slots,
            catalogue: Catalogue::new(),
            suspects,
            dropped: Dropped::default(),
            control: Control::default(),
            wall: options.clock.clone(),
            name: name.to_owned(),
            design,
            node_bytes,
            spare: spare(&heap),
            heap,
            root,
        };
        inner.load_catalogue(largest, report.damaged)?;
        Self::run(inner, options, report)
    }

    /// Opens a store's root, of a format that this build reads, of a store that is finished.
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

    /// The stores in a pool, by name, whether they can be opened or not.
    #[must_use]
    pub fn names(pool: &Pool<M>) -> Vec<String> {
        let stores = pool.roots().into_iter().filter(|root| root.kind == kind());
        stores.map(|root| root.name).collect()
    }

    /// Removes the store `name`, which is not open. Its space is free once the pool is opened again.
    ///
    /// # Errors
    /// [`StoreError::Root`]; nothing has changed then.
    pub fn remove(pool: &Arc<Pool<M>>, name: &str) -> Result<(), StoreError> {
        let index_name = index_root(name)?;
        let root = pool.open_root(name, Some(&kind()))?;
        match pool.open_root(&index_name, None) {
            // PERSIST: (in `unpublish`) the index is gone, before the store is: what has none can be removed again.
            Ok(index) => index.unpublish(),
            Err(RootError::NotFound(_)) => {}
            Err(e) => return Err(e.into()),
        }
        // PERSIST: (in `unpublish`) the store is gone.
        root.unpublish();
        Ok(pool.pm().commit()?)
    }

    fn run(
        inner: Inner<M>,
        options: &StoreOptions,
        recovery: StoreRecovery,
    ) -> Result<Self, StoreError> {
        if !inner.pm().read_only() {
            // PERSIST: (in `publish`) the store is open, before any commit of it is under way.
            inner.root.word(WORD_OPEN).publish(inner.pm(), 1);
        }
        let inner = Arc::new(inner);
        let every = options.vacuum_every.filter(|_| !inner.pm().read_only());
        let thread = match every {
            Some(every) => Some(vacuum::spawn(&inner, every).map_err(StoreError::Thread)?),
            None => None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                inner,
                thread,
                recovery,
            }),
            wait: Wait::Durable,
        })
    }

    /// A handle of the same store that does not wait for durability, nor does anything that is begun by it: its writes return when every
    /// later read of such handles sees them, and it reads what may not be durable yet. Before anyone is answered, on the ground of what
    /// it wrote or read, the [applied](Self::applied) time stamp is to be made durable by [`settle`](Self::settle): one commit of the medium then serves
    /// any number of operations. For servers.
    #[must_use]
    pub fn deferring(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            wait: Wait::Applied,
        }
    }

    /// What operations of this handle wait for.
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    /// Every commit up to this time stamp is there, durable or not.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.shared.clock.applied()
    }

    /// Makes every commit up to that time stamp durable, with whatever else is applied; at once, if they are.
    ///
    /// # Errors
    /// [`WriteError::Commit`]; what is [durable](Self::durable) stays so.
    pub fn settle(&self, ts: u64) -> Result<(), WriteError> {
        Ok(self.shared.clock.make_durable(self.shared.pm(), ts)?)
    }

    /// Closes the store: all that is [applied](Self::applied) is durable, the vacuum's thread has ended, and the root can be opened
    /// again. Dropping the last handle does the same as far as it can, and says nothing where it cannot. The pool stays open.
    ///
    /// # Errors
    /// [`CloseError`], with the store, which is open as before: another call tries again.
    pub fn close(mut self) -> Result<(), (Self, CloseError)> {
        if let Err(e) = self
            .shared
            .clock
            .make_durable(self.shared.pm(), self.applied())
        {
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The design of its index, and bytes in a leaf.
    #[must_use]
    pub fn design(&self) -> (&str, u32) {
        (&self.shared.design, self.shared.node_bytes)
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.shared.heap.pool()
    }

    /// What opening did.
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        &self.shared.recovery
    }

    /// The keyspace of that name, which is made if there is none.
    ///
    /// # Errors
    /// [`WriteError::BadName`] unless the name has 1 to 1024 bytes; those of a write.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        self.shared.make_keyspace(name)
    }

    /// The keyspace of that name, if there is one.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        self.shared.find_keyspace(name)
    }

    /// All keyspaces, by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        self.shared.all_keyspaces()
    }

    /// Empties a keyspace, atomically: it is dropped, and there is an empty one of its name, which is given. All else is as for
    /// [`drop_keyspace`](Self::drop_keyspace).
    ///
    /// # Errors
    /// As there.
    pub fn clear(&self, keyspace: Keyspace) -> Result<Keyspace, WriteError> {
        self.shared.catalogue.number(&keyspace)?;
        let number = self.shared.catalogue.new_number()?;
        self.shared.drop_keyspace(&keyspace, Some(number))?;
        Ok(keyspace.renumbered(number))
    }

    /// Drops a keyspace with all its keys, however many it has, by one commit: a crash leaves all of it or nothing. Its space is
    /// free once it is vacuumed, which opening the store takes up again if need be.
    ///
    /// Snapshots and transactions from before see it as it was, and keep it from being vacuumed, until they end. Whoever else still
    /// has a handle of it finds nothing there, and cannot write: [`WriteError::Dropped`]. A keyspace that is made under its
    /// name is another one.
    ///
    /// All writers wait while it is committed, some tens of microseconds. Dropping n keyspaces while a store is open takes memory, and
    /// time for the last one, in proportion to n.
    ///
    /// # Errors
    /// [`WriteError::Dropped`] if it was dropped before; those of a write.
    pub fn drop_keyspace(&self, keyspace: Keyspace) -> Result<(), WriteError> {
        self.shared.drop_keyspace(&keyspace, None)
    }

    /// How many keys a keyspace has; those that have expired count until they are vacuumed, and commits under way may count.
    /// Takes each stripe's lock for a moment. A keyspace of another store has none here.
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

    /// True if a keyspace has no keys. As [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self, keyspace: &Keyspace) -> bool {
        self.len(keyspace) == 0
    }

    /// Makes the changes of a batch, all or none of them; gives the time stamp of the commit, 0 if nothing changed.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, but for [`WriteError::Commit`].
    pub fn write(&self, batch: Batch) -> Result<u64, WriteError> {
        let writes = batch.into_writes(&self.shared.catalogue)?;
        self.shared.commit_many(&writes, None, None, self.wait)
    }

    /// Begins a transaction.
    #[must_use]
    pub fn begin(&self, options: TransactionOptions) -> Transaction<M> {
        Transaction::begin(self.snapshot(), options)
    }

    /// The store as it is now, for as long as the snapshot is kept. Versions that it can read are not vacuumed.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<M> {
        Snapshot::enter(&self.shared, self.wait)
    }

    /// Every commit up to this time stamp is durable and can be read.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.clock.durable()
    }

    /// The time, in ms since 1970, as the store has it.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shared.wall.now()
    }

    /// Frees up to `most` versions that nobody can read any more.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed stays freed.
    pub fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.shared.vacuum_step(most)
    }

    /// Frees all versions that nobody can read any more.
    ///
    /// # Errors
    /// As [`vacuum`](Self::vacuum).
    pub fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        self.shared.vacuum_everything()
    }
}

/// See [`Inner::spare`].
fn spare<M: Media>(heap: &Heap<M>) -> u64 {
    if heap.pool().pm().read_only() {
        return 0;
    }
    heap.alloc(HEADER).map_or(0, POff::get)
}

/// Takes away the index of a store whose making was cut short.
fn clear_remains<M: Media>(
    pool: &Arc<Pool<M>>,
    index_name: &str,
    kind: &dyn EngineKind<M>,
) -> Result<(), StoreError> {
    if !pool.roots().iter().any(|root| root.name == index_name) {
        return Ok(());
    }
    let (index, ..) = index::open(pool, index_name, &[kind], 1)?;
    // The making of a store leaves an empty one; this one is somebody else's.
    if !Inner::<M>::index_is_empty(&*index) {
        return Err(RootError::Exists(index_name.to_owned()).into());
    }
    drop(index);
    pool.open_root(index_name, None)?.unpublish();
    Ok(())
}

/// Expiry as records have it.
pub(crate) fn expiry(expires_at: Option<u64>) -> u64 {
    // 0 stands for none, and all of these have passed.
    expires_at.map_or(0, |at| at.max(1))
}

/// Expiry as users have it.
pub(crate) fn expires_at(expiry: u64) -> Option<u64> {
    (expiry != 0).then_some(expiry)
}
