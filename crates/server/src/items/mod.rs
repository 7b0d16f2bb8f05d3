//! Items of memcached clients: a keyspace of the store, and what is done with its records.
//!
//! ```text
//! keyspace "memcached"         key --> an item; see `record`. Or they are in a database; see `place`
//! keyspace "memcached-state"   "format" --> version of all this (4 bytes)
//!                              "cas"    --> no item has a higher cas (8 bytes)
//!                              "flush"  --> items with a lower cas are flushed (8), when the next flush is due in ms since
//!                                           1970 (8, 0: none), none of those flushed is left (1), what it flushes (1):
//!                                           0 for the keyspace, 1 + N for database N
//! ```
//!
//! All numbers are big-endian.
//!
//! | module | holds |
//! | --- | --- |
//! | `record`, `place` | the record of an item; where it is |
//! | `change` | storing, counting, touching, deleting |
//! | `flush` | `flush_all`, and deleting what it has flushed |
//! | `lru` | eviction under a budget |
//! | `seen`, `counters`, `details` | last uses; statistics, as a whole and by prefix |
//!
//! # Concurrency
//! A change reads and writes its item under the lock of the item's page
//! ([`Store::update`](bristlecone_store::Store::update)), in a database under that of its key.
//! Changes keep flushes off meanwhile. Reads take no lock.
//!
//! # The cas of an item
//! It is unique for as long as the pool exists. A range of numbers is reserved, by a commit, before
//! the first of them is used; after a restart the next range begins.

pub(crate) mod change;
mod counters;
mod details;
mod flush;
mod lru;
mod place;
pub(crate) mod record;
mod seen;

pub use counters::Counters;
pub use details::Details;
pub(crate) use details::Use as DetailUse;
pub use record::Item;
pub use seen::Use;

use crate::config::Settings;
use crate::data::spaces::{DATABASES, ITEMS_STATE, Space};
use crate::data::tx::SHORT_WORK;
use crate::data::{Data, DataError, Reads};
use crate::table::add;
use bristlecone_pmem::VersionError;
use bristlecone_store::{Entry, Keyspace, ReadError, WriteError};
use flush::Flushes;
use lru::Lru;
use place::Place;
use record::Record;
use seen::Seen;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The keyspaces of items and of what the server notes about them.
pub const KEYSPACES: [&str; 2] = ["memcached", ITEMS_STATE];
const FORMAT_KEY: &[u8] = b"format";
const CAS_KEY: &[u8] = b"cas";
/// The version of what is stored: the one that this build writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// Numbers that are reserved at once.
const RANGE: u64 = 1 << 20;
/// Numbers that are left when more are reserved: threads take some before they look again.
const MARGIN: u64 = 1 << 16;
/// Items that are evicted in one step.
const EVICTED_AT_ONCE: usize = 256;

/// The limits of items.
#[derive(Clone, Copy, Debug)]
pub struct ItemLimits {
    /// The largest item in bytes, counted as memcached does.
    pub item: usize,
    /// The longest key in bytes.
    pub key: usize,
    /// The most bytes of all items; 0 for no limit.
    pub memory: usize,
}

/// Why an item could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ItemError {
    /// Reading the store failed.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The store refused a change.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The pool holds a record that is not an item's.
    #[error("the pool is damaged: a record of the keyspace memcached is no item's; check it")]
    Damaged,
    /// The database refused.
    #[error("{0}")]
    Database(String),
}

/// Why an item that has a record is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Expired,
    Flushed,
}

/// The cas numbers.
#[derive(Debug)]
struct Numbers {
    last: AtomicU64,
    reserved: AtomicU64,
    reserving: Mutex<()>,
}

/// The items. See the module's documentation.
#[derive(Debug)]
pub struct Items {
    data: Arc<Data>,
    place: Place,
    state: Keyspace,
    /// The limits.
    pub limits: ItemLimits,
    numbers: Numbers,
    flushes: Flushes,
    seen: Seen,
    lru: Option<Lru>,
    /// Statistics.
    pub counters: Counters,
    /// Statistics by prefix.
    pub details: Details,
    /// `debugtime`: what the clock is moved by, in ms.
    moved: AtomicI64,
}

fn number(record: &[u8]) -> u64 {
    // One that is too short was never written.
    u64::from_be_bytes(record.first_chunk().copied().unwrap_or_default())
}

/// Returns the highest cas of an item anywhere, 0 if there are none.
fn highest_cas(data: &Data, own: &Keyspace) -> Result<u64, ReadError> {
    let mut highest = 0;
    let whole = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
    let snapshot = data.store().snapshot();
    snapshot.scan::<&[u8]>(own, whole, |_, entry| {
        highest = Item::decode(entry).map_or(highest, |item| highest.max(item.cas));
        ControlFlow::Continue(())
    })?;
    for db in 0..DATABASES {
        let keyspace = data.keyspace(Space::Keys(db), data.order());
        snapshot.scan::<&[u8]>(keyspace, whole, |_, entry| {
            highest = highest.max(place::counted_cas(entry));
            ControlFlow::Continue(())
        })?;
    }
    Ok(highest)
}

impl Items {
    /// Opens the items of a store. Creates keyspaces that are missing.
    ///
    /// # Errors
    /// [`DataError`]
    pub fn open(data: Arc<Data>, settings: &Settings) -> Result<Self, DataError> {
        let store = data.store();
        let [keyspace, state] = KEYSPACES.map(|name| store.keyspace(name));
        let (keyspace, state) = (keyspace?, state?);
        let get = |key| store.get(&state, key).map_err(WriteError::from);
        match get(FORMAT_KEY)? {
            Some(record) => {
                let found = u32::from_be_bytes(record.first_chunk().copied().unwrap_or_default());
                let newest = u64::from(FORMAT);
                VersionError::check("memcached", found.into(), newest..=newest)?;
            }
            None => store.put(&state, FORMAT_KEY, &FORMAT.to_be_bytes())?,
        }
        data.expect_items();
        let place = match settings.memcached_database {
            None => Place::Own(keyspace.clone()),
            Some(db) => Place::Database(db),
        };
        let flushes = Flushes::decode(get(flush::FLUSH_KEY)?.as_deref(), &place);
        let reserved = match get(CAS_KEY)? {
            Some(record) => number(&record),
            // There was none yet, or a repair could not save it.
            None => highest_cas(&data, &keyspace).map_err(WriteError::from)?,
        };
        let reserved = reserved.max(flushes.before());
        let memory = settings.memcached_memory.bytes();
        let limits = ItemLimits {
            item: settings.memcached_item_size,
            key: settings.memcached_max_key,
            memory,
        };
        let items = Self {
            place,
            state,
            limits,
            numbers: Numbers {
                last: AtomicU64::new(reserved),
                reserved: AtomicU64::new(reserved),
                reserving: Mutex::default(),
            },
            flushes,
            seen: Seen::new(store.now()),
            lru: (memory > 0).then(|| Lru::new(memory)),
            counters: Counters::default(),
            details: Details::default(),
            moved: AtomicI64::new(0),
            data,
        };
        items.list_all().map_err(WriteError::from)?;
        Ok(items)
    }

    /// Lists all items for eviction, in the order in which they were stored: the last uses before
    /// the start are not known.
    fn list_all(&self) -> Result<(), ReadError> {
        let Some(lru) = &self.lru else {
            return Ok(());
        };
        let mut all: Vec<(Vec<u8>, usize, u64)> = Vec::new();
        let whole = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
        let now = self.now();
        let flushed = self.flushes.before();
        (self.data.store().snapshot()).scan::<&[u8]>(self.keyspace(), whole, |key, entry| {
            if let Ok(Ok(item)) = self.living(entry, now, flushed) {
                all.push((key.to_vec(), entry.value.len(), item.cas));
            }
            ControlFlow::Continue(())
        })?;
        all.sort_unstable_by_key(|(_, _, cas)| *cas);
        lru.stored(all.iter().map(|(key, len, cas)| (&**key, *len, *cas)));
        Ok(())
    }

    /// Returns the time in ms since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        // ORDERING: Relaxed; a number of its own.
        let moved = self.moved.load(Ordering::Relaxed);
        self.data.store().now().saturating_add_signed(moved)
    }

    /// Moves the clock, for tests of expiry.
    pub(crate) fn move_clock(&self, seconds: i64) {
        let by = seconds.saturating_mul(1000);
        // ORDERING: Relaxed; as in `now`.
        let _ = (self.moved).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |moved| {
            Some(moved.saturating_add(by))
        });
    }

    /// Returns the number of items. Those that have expired or were flushed count until they are
    /// deleted.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.data.store().len(self.keyspace())
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all items, where they are counted: under a budget.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lru.as_ref().map_or(0, |lru| lru.bytes() as u64)
    }

    /// Returns when an item was used last.
    pub(crate) fn last_use(&self, key: &[u8]) -> Use {
        self.seen.last(key)
    }

    /// Does what has to come before a command: a flush that is due. In a full pool it is done once
    /// there is room.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn prepare(&self) -> Result<(), ItemError> {
        match self.flush_if_due() {
            Err(ItemError::Write(WriteError::Space(e))) => {
                tracing::error!(error = %e, "a flush of memcached items is due, and waits for room");
                Ok(())
            }
            done => done,
        }
    }

    /// Reserves numbers for the changes that follow, if there are not enough.
    fn reserve(&self) -> Result<(), WriteError> {
        let left = || {
            // ORDERING: Relaxed; the margin is for threads that are late to see the others'
            // numbers.
            let last = self.numbers.last.load(Ordering::Relaxed);
            // ORDERING: Acquire; pairs with the Release below: the reservation was committed.
            let reserved = self.numbers.reserved.load(Ordering::Acquire);
            (reserved.saturating_sub(last), reserved)
        };
        if left().0 >= MARGIN {
            return Ok(());
        }
        let _alone = (self.numbers.reserving.lock()).unwrap_or_else(PoisonError::into_inner);
        let (left, reserved) = left();
        if left >= MARGIN {
            return Ok(());
        }
        let reserved = reserved + RANGE;
        let put = (self.data.writer()).put(&self.state, CAS_KEY, &reserved.to_be_bytes());
        self.data.note_write(&put);
        match put {
            Ok(()) => {
                // ORDERING: Release; pairs with the Acquire above. What is committed after this is
                // durable after it, too.
                self.numbers.reserved.store(reserved, Ordering::Release);
                Ok(())
            }
            // A full pool takes deletions, and what they make room for.
            Err(_) if left >= MARGIN / 2 => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Returns the next cas.
    pub(crate) fn next_cas(&self) -> u64 {
        // ORDERING: Relaxed; the numbers only have to differ.
        self.numbers.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the item of a record, or why it is not there. Items with a lower cas than `flushed`
    /// are flushed.
    fn living<'a>(
        &self,
        entry: Entry<'a>,
        now: u64,
        flushed: u64,
    ) -> Result<Result<Item<'a>, Gone>, ItemError> {
        let item = self.item(entry, now)?;
        Ok(if self.are_apart() && item.cas < flushed {
            Err(Gone::Flushed)
        } else if item.expires_at.is_some_and(|at| at <= now) {
            Err(Gone::Expired)
        } else {
            Ok(item)
        })
    }

    fn count_gone(&self, gone: Option<Gone>) {
        match gone {
            Some(Gone::Expired) => add(&self.counters.get_expired, 1),
            Some(Gone::Flushed) => add(&self.counters.get_flushed, 1),
            None => {}
        }
    }

    /// Calls `f` with the item of a key, if it is there.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn read<R>(
        &self,
        now: u64,
        key: &[u8],
        reads: Reads,
        f: impl FnOnce(&Item<'_>) -> R,
    ) -> Result<Option<R>, ItemError> {
        let Place::Own(keyspace) = &self.place else {
            return self.read_copy(now, key, reads, f);
        };
        let store = self.data.reader(reads);
        let flushed = self.flushes.before_of(reads);
        let mut f = Some(f);
        let mut look = |entry: Entry<'_>| match self.living(entry, now, flushed)? {
            Ok(item) => Ok(f.take().map(|f| f(&item))),
            Err(gone) => {
                self.count_gone(Some(gone));
                Ok(None)
            }
        };
        match store.get_within(keyspace, key, SHORT_WORK as u64, &mut look)? {
            None => Ok(None),
            Some(Ok(found)) => found,
            // A long value is read where other connections do not wait.
            Some(Err(_longer)) => {
                let read = || store.get_with(keyspace, key, look);
                tokio::task::block_in_place(read)?.unwrap_or(Ok(None))
            }
        }
    }

    /// Calls `f` with the item of each key, in order, until `f` breaks or a long value comes, which
    /// has to be [read](Self::read) by itself. The cache misses of the searches overlap. Returns
    /// the number of keys that `f` was called for.
    ///
    /// # Errors
    /// [`ItemError`]; `f` may have been called for some of the keys.
    pub(crate) fn read_many(
        &self,
        now: u64,
        keys: &[&[u8]],
        reads: Reads,
        mut f: impl FnMut(Option<&Item<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, ItemError> {
        let (mut done, mut failed) = (0, None);
        let Place::Own(keyspace) = &self.place else {
            for key in keys {
                let mut reply = None;
                let found = self.read_copy(now, key, reads, |item| f(Some(item)));
                match found {
                    Ok(found) => reply = Some(found.unwrap_or_else(|| f(None))),
                    Err(e) if done == 0 => return Err(e),
                    // The next call begins with it.
                    Err(_) => {}
                }
                done += usize::from(reply.is_some());
                if reply.is_none_or(|reply| reply.is_break()) {
                    break;
                }
            }
            return Ok(done);
        };
        let most = SHORT_WORK as u64;
        let store = self.data.reader(reads);
        let flushed = self.flushes.before_of(reads);
        store.multi_get_within(keyspace, keys, most, |entry| {
            let item = match entry.map(|entry| self.living(entry, now, flushed)) {
                None => None,
                Some(Ok(Ok(item))) => Some(item),
                Some(Ok(Err(gone))) => {
                    self.count_gone(Some(gone));
                    None
                }
                Some(Err(e)) => {
                    failed = Some(e);
                    return ControlFlow::Break(());
                }
            };
            done += 1;
            f(item.as_ref())
        })?;
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Calls `f` with the size of each item, as memcached counts it.
    ///
    /// # Errors
    /// [`ReadError`]
    pub(crate) fn visit(
        &self,
        mut f: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let now = self.now();
        let whole = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
        let snapshot = self.data.store().snapshot();
        let flushed = self.flushes.before();
        snapshot.scan::<&[u8]>(self.keyspace(), whole, |key, entry| {
            match self.living(entry, now, flushed) {
                Ok(Ok(item)) => f(record::size(key.len(), item.flags, item.value.len())),
                _ => ControlFlow::Continue(()),
            }
        })
    }

    /// Notes that items were read: they are evicted later.
    pub(crate) fn note_read(&self, now: u64, keys: &[&[u8]]) {
        for key in keys {
            self.seen.read(key, now);
        }
        if let Some(lru) = &self.lru
            && !keys.is_empty()
        {
            lru.read(keys.iter().copied());
        }
    }

    /// Notes an item that was stored.
    fn note_stored(&self, now: u64, key: &[u8], record: &Record, keeps_use: bool) {
        if !keeps_use {
            self.seen.stored(key, now);
            add(&self.counters.total_items, 1);
        }
        if let Some(lru) = &self.lru {
            lru.stored(std::iter::once((key, record.len, record.cas)));
        }
    }

    /// Evicts the least recently used items while all of them exceed the budget, a bounded number
    /// of them. Evictions are applied when this returns. Returns true if there may be more to
    /// evict, which the sweeper does, and who stores the next item.
    ///
    /// # Errors
    /// [`WriteError`]; an item that could not be deleted stays, and is not evicted later.
    pub(crate) fn make_room(&self) -> Result<bool, WriteError> {
        let Some(lru) = &self.lru else {
            return Ok(false);
        };
        let flushed = self.flushes.before();
        for _ in 0..EVICTED_AT_ONCE {
            let Some((key, cas)) = lru.pop_surplus() else {
                return Ok(false);
            };
            let is_it = Cell::new(false);
            let done = self.data.writer().update(self.keyspace(), &key, |entry| {
                let found = entry.and_then(|entry| Item::decode(entry).ok());
                // Of two stores of a pipeline and another connection the one with the lower number
                // may be the last.
                is_it.set(found.is_some_and(|item| item.cas <= cas));
                let change = if is_it.get() {
                    bristlecone_store::Update::Delete
                } else {
                    bristlecone_store::Update::Keep
                };
                Ok((change, ()))
            });
            self.data.note_write(&done);
            done?;
            if is_it.get() && cas >= flushed {
                add(&self.counters.evictions, 1);
                let unread = u64::from(!self.seen.last(&key).read);
                add(&self.counters.evicted_unfetched, unread);
            }
        }
        Ok(true)
    }
}
