//! Databases over a store: their keyspaces, locks of keys, values, and transactions.
//!
//! | module | holds |
//! | --- | --- |
//! | `spaces` | keyspaces: what is stored where |
//! | `record`, `value` | the record of a key; values as a transaction sees them |
//! | `collection`, `fields`, `list`, `sorted_set` | collections, small and large |
//! | `caller` | what scripts know of their client |
//! | `tx` | transactions: what a command or an `EXEC` reads and writes |
//! | `locks`, `watchers`, `watch` | locks of keys; who is told of changes; `WATCH` |
//! | `waiting` | clients that wait for a key |
//! | `cursors` | cursors of `SCAN` |
//! | `order`, `clear`, `sweep` | swapping and clearing databases; deleting in the background |
//! | `mend` | collections that have lost elements |
//!
//! # Concurrency
//! A writer holds the lock of its key. Commands on one key are therefore executed one after
//! the other, and a writer reads the current record without a snapshot. Readers hold no locks.
//! Elements belong to the key whose head has their id. The changes of a command are one commit.

pub mod bounds;
pub mod caller;
pub mod clear;
pub mod collection;
pub mod cursors;
pub mod fields;
pub mod list;
pub mod locks;
pub mod mend;
mod order;
pub mod record;
pub mod sorted_set;
pub mod spaces;
pub mod sweep;
pub mod tx;
mod value;
pub mod waiting;
pub mod watch;
pub mod watchers;

use crate::script::Scripts;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{CommitError, VersionError};
use bristlecone_store::{CloseError, Keyspace, ReadError, Snapshot, Store, WriteError};
use cursors::Cursors;
use locks::{Held, Locks};
use spaces::{DATABASES, Keyspaces, Order, Orphans, Space};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tx::{SHORT_WORK, Take};
use waiting::Waiting;
use watchers::Watchers;

/// Why databases cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// They have a version that this build does not read. Nothing was changed.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// The store refused to make a keyspace, or cannot be read.
    #[error("{0}")]
    Store(#[from] WriteError),
}

/// Databases in a store. See the module's documentation.
#[derive(Debug)]
pub struct Data {
    /// Reads see what is durable.
    store: Store<Auto>,
    /// Writes return before they are durable, and reads see them.
    deferring: Store<Auto>,
    /// All sets of keyspaces since opening: readers hold references to earlier ones.
    all_spaces: boxcar::Vec<Keyspaces>,
    /// The index of the current set.
    current_spaces: AtomicUsize,
    /// There may be elements that no head refers to.
    unswept: AtomicBool,
    /// Those that were found and are being deleted.
    orphans: Mutex<Option<Orphans>>,
    /// The order of the databases.
    order: AtomicU64,
    /// There may be strings that memcached clients have stored.
    items: AtomicBool,
    swaps: AtomicU64,
    /// The store refused the last change.
    refused: AtomicBool,
    /// The last attempt to make changes durable failed.
    unsettled: AtomicBool,
    /// The error after which the pool takes no more writes until it is opened again.
    io_error: OnceLock<String>,
    /// How often commands found the key that they read.
    pub lookups: Lookups,
    pub(crate) locks: Locks,
    /// Scripts that are known, and those that run.
    pub(crate) scripts: Scripts,
    /// Listeners to changes of keys.
    pub watchers: Arc<Watchers>,
    /// Clients that wait for keys.
    pub(crate) waiting: Waiting<Box<dyn Take>>,
    next_id: AtomicU64,
    cursors: Mutex<Cursors>,
}

/// How often reading commands found their keys.
#[derive(Debug, Default)]
pub struct Lookups {
    /// The key was there.
    pub hits: AtomicU64,
    /// It was not.
    pub misses: AtomicU64,
}

impl Lookups {
    /// Counts a hit as a miss after all: the value has expired.
    pub(crate) fn take_back(&self) {
        // ORDERING: Relaxed; shown only.
        self.hits.fetch_sub(1, Ordering::Relaxed);
        // ORDERING: Relaxed; as above.
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back keys that were counted, as those of a command that is executed again.
    pub(crate) fn subtract(&self, hits: u64, misses: u64) {
        for (counter, by) in [(&self.hits, hits), (&self.misses, misses)] {
            if by > 0 {
                // ORDERING: Relaxed; shown only.
                counter.fetch_sub(by, Ordering::Relaxed);
            }
        }
    }

    /// Counts keys that were there, and others.
    pub(crate) fn note(&self, hits: u64, misses: u64) {
        for (counter, by) in [(&self.hits, hits), (&self.misses, misses)] {
            if by > 0 {
                // ORDERING: Relaxed; shown only.
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }
}

/// The state that a reading command sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The durable state: the reply can be sent at once.
    Durable,
    /// The applied state, which includes this connection's own writes: the reply waits until that
    /// is durable.
    Applied,
}

impl Data {
    /// Opens the databases of a store. Creates keyspaces that are missing.
    ///
    /// # Errors
    /// [`DataError`]
    pub fn open(store: Store<Auto>) -> Result<Self, DataError> {
        if let Some(orders) = store.find_keyspace(spaces::ORDER_KEYSPACE) {
            let record = store.get(&orders, spaces::FORMAT_KEY);
            spaces::check_format(record.map_err(WriteError::from)?.as_deref())?;
        }
        let databases: Result<Vec<_>, _> = (0..DATABASES)
            .map(|number| store.keyspace(&number.to_string()))
            .collect();
        let [elements, expiries, garbage, orders] =
            ["elements", "expiries", "garbage", spaces::ORDER_KEYSPACE]
                .map(|name| store.keyspace(name));
        let (elements, garbage, orders) = (elements?, garbage?, orders?);
        let order = Order::load(&store, &orders).map_err(WriteError::from)?;
        let items = store.find_keyspace(spaces::ITEMS_STATE).is_some();
        let snapshot = store.snapshot();
        let last = |space| last_id(&snapshot, space).map_err(WriteError::from);
        let last = last(&elements)?.max(last(&garbage)?);
        let spaces = Keyspaces {
            databases: databases?,
            expiries: expiries?,
            elements,
            garbage,
            orders,
        };
        let data = Self {
            deferring: store.deferring(),
            all_spaces: boxcar::vec![spaces],
            current_spaces: AtomicUsize::new(0),
            unswept: AtomicBool::new(false),
            orphans: Mutex::default(),
            refused: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            io_error: OnceLock::new(),
            lookups: Lookups::default(),
            order: AtomicU64::new(order.bits()),
            items: AtomicBool::new(items),
            swaps: AtomicU64::new(0),
            locks: Locks::new(),
            scripts: Scripts::default(),
            watchers: Arc::default(),
            waiting: Waiting::default(),
            next_id: AtomicU64::new(last + 1),
            cursors: Mutex::default(),
            store,
        };
        let unswept = data.needs_sweep().map_err(WriteError::from)?;
        // ORDERING: Relaxed; no other thread has a reference yet.
        data.unswept.store(unswept, Ordering::Relaxed);
        Ok(data)
    }

    /// Returns false only if no string has an item's head.
    pub(crate) fn any_items(&self) -> bool {
        // ORDERING: Relaxed; it is set before there are any.
        self.items.load(Ordering::Relaxed)
    }

    /// Notes that memcached clients may store strings: the keyspace of their state is there.
    pub(crate) fn expect_items(&self) {
        // ORDERING: Relaxed; as in `any_items`.
        self.items.store(true, Ordering::Relaxed);
    }

    pub(crate) fn spaces(&self) -> &Keyspaces {
        // ORDERING: Acquire; pairs with the Release of `use_spaces`.
        &self.all_spaces[self.current_spaces.load(Ordering::Acquire)]
    }

    /// Returns the store. Its reads see what is durable.
    #[must_use]
    pub fn store(&self) -> &Store<Auto> {
        &self.store
    }

    /// Closes the store, with everything durable.
    ///
    /// # Errors
    /// [`CloseError`]. After [`InUse`](CloseError::InUse) the store is closed when its last user
    /// drops it.
    pub fn close(self: Arc<Self>) -> Result<(), CloseError> {
        let store = self.store.clone();
        drop(self);
        store.close().map_err(|(_, e)| e)
    }

    /// Returns an id that no collection has.
    pub fn new_id(&self) -> u64 {
        // ORDERING: Relaxed; the ids only have to differ.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns false only if no large collection can exist.
    #[must_use]
    pub fn any_large(&self) -> bool {
        // ORDERING: Relaxed; the caller holds the lock of its key, and so did the writer that gave
        // the key's value an id.
        self.next_id.load(Ordering::Relaxed) > 1
    }

    /// Returns the number of keys of a database. Expired keys count until they are deleted.
    #[must_use]
    pub fn len(&self, db: usize) -> u64 {
        self.store.len(self.keyspace(Space::Keys(db), self.order()))
    }

    /// Waits until the keys are counted, which takes long after a crash.
    pub(crate) fn count_keys(&self) {
        // Whichever it is: all are counted together.
        let _ = self.len(0);
    }

    /// Locks all keys.
    pub(crate) fn lock_everything(&self) -> Held<'_> {
        // Clearing needs the numbers of keys, and nobody is to wait for them at these locks.
        self.count_keys();
        self.locks.all()
    }

    /// Returns the cursors of `SCAN`.
    pub(crate) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the length of a key's record in bytes, if the key exists.
    ///
    /// # Errors
    /// Those of a read.
    pub fn record_bytes(&self, db: usize, key: &[u8]) -> Result<Option<usize>, ReadError> {
        let bytes = |entry: bristlecone_store::Entry<'_>| entry.value.len() as u64;
        let keyspace = self.keyspace(Space::Keys(db), self.order());
        // The length of a long one is known without reading it.
        let found = (self.store).get_within(keyspace, key, SHORT_WORK as u64, bytes)?;
        Ok(found.map(|read| read.unwrap_or_else(|longer| longer.len) as usize))
    }

    pub(crate) fn keyspace(&self, space: Space, order: Order) -> &Keyspace {
        self.spaces().of(space, order)
    }

    /// Returns the time stamp up to which all commits are applied. A reply that rests on them waits
    /// for it with [`settle`](Self::settle).
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.deferring.applied()
    }

    /// Waits until all commits up to that time stamp are durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]: they are not, and replies that rest on them must not be sent.
    pub fn settle(&self, ts: u64) -> Result<(), WriteError> {
        let settled = self.store.make_durable(ts);
        set(&self.unsettled, settled.is_err());
        if let Err(e) = &settled {
            self.note_error(e);
        }
        settled
    }

    /// Notes an error after which nothing can be written any more, and logs the first one.
    fn note_error(&self, error: &WriteError) {
        if let WriteError::Commit(e @ CommitError::Failed { .. }) = error
            && self.io_error.set(e.to_string()).is_ok()
        {
            tracing::error!(error = %e, "the pool takes no more writes: restart the server once the disk is well");
        }
    }

    /// Returns the error after which the pool takes no more writes until it is opened again, if
    /// there was one.
    #[must_use]
    pub fn io_error(&self) -> Option<&str> {
        self.io_error.get().map(String::as_str)
    }

    /// Returns false if the last change was refused, as by a full pool, or could not be made
    /// durable.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        // ORDERING: Relaxed; shown only.
        !self.refused.load(Ordering::Relaxed) && !self.unsettled.load(Ordering::Relaxed)
    }

    /// Notes whether the store accepted a change.
    pub(crate) fn note_write<T>(&self, done: &Result<T, WriteError>) {
        match done {
            Ok(_) => set(&self.refused, false),
            Err(WriteError::Space(_) | WriteError::Commit(_) | WriteError::ReadOnly) => {
                set(&self.refused, true);
            }
            // The client's mistake, or damage of that key's page: others can be written.
            Err(_) => {}
        }
        if let Err(e) = done {
            self.note_error(e);
        }
    }

    /// Tries to write, after a write was refused: nobody may be left who would find out that there
    /// is room again.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) fn try_to_write(&self) -> Result<(), WriteError> {
        let orders = &self.spaces().orders;
        let written = (self.writer().put(orders, b"probe", b""))
            .and_then(|()| self.writer().delete(orders, b"probe").map(drop));
        self.note_write(&written);
        written?;
        self.settle(self.applied())
    }

    /// Prefetches the records that commands on these keys are going to read.
    pub fn prefetch(&self, db: usize, keys: &[&[u8]]) {
        let keyspace = self.keyspace(Space::Keys(db), self.order());
        self.store.prefetch(keyspace, keys);
    }

    /// Returns the store that reads of this kind use.
    pub(crate) fn reader(&self, reads: Reads) -> &Store<Auto> {
        match reads {
            Reads::Durable => &self.store,
            Reads::Applied => &self.deferring,
        }
    }

    /// Returns the store that writes use: they are applied when it returns, and durable after
    /// [`settle`](Self::settle).
    pub(crate) fn writer(&self) -> &Store<Auto> {
        &self.deferring
    }
}

/// Sets a flag that nearly always has the value already. Writing only a change leaves the cache
/// line shared.
fn set(flag: &AtomicBool, to: bool) {
    // ORDERING: Relaxed; shown only.
    if flag.load(Ordering::Relaxed) != to {
        // ORDERING: Relaxed; as above.
        flag.store(to, Ordering::Relaxed);
    }
}

/// Returns the highest id at the start of a keyspace's keys; 0 if it is empty.
fn last_id(snapshot: &Snapshot<Auto>, keyspace: &Keyspace) -> Result<u64, ReadError> {
    let mut last = 0;
    let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
    snapshot.scan_reverse::<&[u8]>(keyspace, all, |key, _| {
        if let Some(id) = key.first_chunk() {
            last = u64::from_be_bytes(*id);
        }
        ControlFlow::Break(())
    })?;
    Ok(last)
}
