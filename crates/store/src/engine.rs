//! The interface that the store's handles use: an engine keeps the keys and their versions.
//!
//! Other crates of the project can have engines of their own: a [`StoreFormat`] makes and opens
//! them, and [`Store::create_as`](crate::Store::create_as),
//! [`Store::open_with`](crate::Store::open_with),
//! [`Store::salvage_with`](crate::Store::salvage_with) and
//! [`Store::restore_as`](crate::Store::restore_as) take formats. Handles, transactions, snapshots,
//! change feeds and backups work on any engine. This module has all that such an engine uses; it is
//! hidden from the documentation, since semantic versioning does not cover it.
//!
//! Keys are [index keys](IndexKey): the keyspace's number, then the key. Handles check that a
//! keyspace is of this store, and the lengths of keys. Engines check the lengths of values.
//!
//! # Promises
//! 1. Commits have ascending timestamps, and each of them is seen completely or not at all.
//! 2. `durable() <= applied()`. What a read at the durable watermark sees outlives a crash.
//! 3. An engine fills the [catalogue](Shares::catalogue) when it is opened. The handles change it
//!    afterwards.
//! 4. Subscribers to the [feed](Shares::feed) are told of a change once it is durable, in the order
//!    of timestamps.
//! 5. Dropping an engine, in this order: stops its thread; makes durable what is applied and tells
//!    subscribers; closes the feed; writes what the next opening relies on.

pub use crate::bounds::Bounds;
pub use crate::catalogue::{Catalogue, Known, parse as parse_name};
pub use crate::control::Control;
pub use crate::dropped::{Dropped, DroppedAt};
pub use crate::entry::{expires_at, expiry};
pub use crate::error::OtherStore;
pub use crate::feed::Feed;
pub use crate::format::{NV_STORE, StoreFormat};
pub use crate::key::{CATALOGUE, IndexKey, IndexKeys, PREFIX, split};
pub use crate::reads::ReadSet;
pub use crate::report::MAX_REPORTED;
pub use crate::root::{
    StoreRoot, WORD_OPEN, WORD_OWN, create as create_root, index_root, publish as publish_root,
    word as root_word,
};
pub use crate::streams::{slice, whole};
pub use crate::sync::wait;
pub use crate::write::{check_key, check_value, retry_for_space};

use crate::archive::ArchiveStats;
use crate::catalogue::Keyspace;
use crate::entries::Entries;
use crate::entry::{Entry, Longer, Update};
use crate::error::{ArchiveError, DamagedRecord, ReadError, WriteError};
use crate::feed::{Watch, WatchLimits};
use crate::pinned::PinnedValue;
use crate::report::{CheckReport, ScrubStats, StoreRecovery, StoreStats, VacuumReport};
use crate::write::Step;
use bristlecone_index::engine::Range;
use bristlecone_index::{Direction, IndexStats, Violation};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{CommitError, Media, Pool};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The state that an operation waits for before it returns. It reads at the watermark of the same
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Every handle that [defers](crate::Store::deferring) sees it.
    Applied,
    /// It is durable.
    Durable,
}

/// A registered snapshot, which has to be [left](StorageEngine::leave).
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Timestamp of the last commit that it sees.
    pub ts: u64,
    /// The time in ms by which it reads expiries.
    pub now: u64,
    /// Where the engine has it.
    pub shard: usize,
}

/// State that a store's handles share with its engine.
#[derive(Clone)]
pub struct Shares {
    /// The names and numbers of the keyspaces.
    pub catalogue: Arc<Catalogue>,
    /// The subscribers to changes.
    pub feed: Arc<Feed>,
}

impl Default for Shares {
    /// Those of a store that is being made or opened.
    fn default() -> Self {
        Self {
            catalogue: Arc::new(Catalogue::new()),
            feed: Arc::default(),
        }
    }
}

/// When a read takes place.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// At the watermark.
    Latest(Wait),
    /// In a snapshot.
    Snapshot(Ticket),
}

/// A change of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyWrite<'a> {
    /// The index key.
    pub key: &'a [u8],
    /// The new value; `None` for a deletion.
    pub value: Option<&'a [u8]>,
    /// When it expires, in ms since 1970; 0 for never.
    pub expiry: u64,
}

/// Visits index keys with their values until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], Entry<'_>) -> ControlFlow<()> + 'a;

/// As [`Visit`]; with what a value is that is longer than the scan takes.
pub type VisitWithin<'a> = dyn FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> + 'a;

/// See the module's head. Keys that were deleted, have expired, or are of a dropped keyspace read
/// as absent.
pub trait StorageEngine<M: Media>: Send + Sync {
    /// Returns the pool that the store is in.
    fn pool(&self) -> &Arc<Pool<M>>;

    /// Returns the store's root.
    fn root(&self) -> &Root<M>;

    /// Returns the design of the index, and the bytes of one of its leaves or pages.
    fn design(&self) -> (&str, u32);

    /// Returns what opening found and did.
    fn recovery(&self) -> &StoreRecovery;

    /// Returns the timestamp up to which every commit is visible to those who wait for
    /// [`Wait::Applied`].
    fn applied(&self) -> u64;

    /// Returns the timestamp up to which every commit is durable and visible to all.
    fn durable(&self) -> u64;

    /// Waits until every commit up to `ts` is applied, or makes them durable and tells the feed.
    ///
    /// # Errors
    /// [`CommitError`]; the durable timestamp stays where it was.
    fn wait_for(&self, ts: u64, wait: Wait) -> Result<(), CommitError>;

    /// Registers a snapshot at the watermark of `wait`. What it reads is kept until it is removed.
    fn enter(&self, wait: Wait) -> Ticket;

    /// Registers another snapshot of the same state.
    fn enter_again(&self, ticket: Ticket) -> Ticket;

    /// Removes a snapshot, once.
    fn leave(&self, ticket: Ticket);

    /// Calls `f` with the value of a key, once, if it has one.
    ///
    /// # Errors
    /// [`ReadError`]
    fn get(&self, at: At, key: &[u8], f: &mut dyn FnMut(Entry<'_>)) -> Result<(), ReadError>;

    /// As [`get`](Self::get), if the value has at most `most` bytes. Returns what a longer one is;
    /// an engine that can tells it without reading the value.
    ///
    /// # Errors
    /// [`ReadError`]
    fn get_within(
        &self,
        at: At,
        key: &[u8],
        most: u64,
        f: &mut dyn FnMut(Entry<'_>),
    ) -> Result<Option<Longer>, ReadError> {
        let mut longer = None;
        self.get(at, key, &mut |entry| {
            let (len, expires_at) = (entry.value.len() as u64, entry.expires_at);
            if len > most {
                longer = Some(Longer { len, expires_at });
            } else {
                f(entry);
            }
        })?;
        Ok(longer)
    }

    /// Adds the bytes of a range of a value to `into`, as far as it has them. Returns the value's
    /// length, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]
    fn get_range(
        &self,
        at: At,
        key: &[u8],
        range: std::ops::Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError>;

    /// Returns the value of a key, in place: it stays readable while what is returned exists.
    ///
    /// # Errors
    /// [`ReadError`]
    fn get_pinned(&self, at: At, key: &[u8]) -> Result<Option<PinnedValue<'_>>, ReadError>;

    /// Calls `f` with the value of each key in order, until it breaks, or one is longer than `most`
    /// bytes. See [`Store::multi_get`](crate::Store::multi_get).
    ///
    /// # Errors
    /// [`ReadError`]
    fn multi_get(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        most: u64,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError>;

    /// Returns where the keys end that a removal had better take together with this one; `None` if
    /// it does not matter. It may change at any time.
    fn together_until(&self, _key: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Prefetches what reading or changing these keys will touch.
    fn prefetch(&self, keys: &[&[u8]]);

    /// Visits the keys of a range of one keyspace in a snapshot with their values, until `visit`
    /// breaks.
    ///
    /// # Errors
    /// [`ReadError`]; the keys before the one that cannot be read were visited.
    fn scan(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReadError>;

    /// As [`scan`](Self::scan), with what a value of more than `most` bytes is in its place; an
    /// engine that can finds that out without reading the value.
    ///
    /// # Errors
    /// [`ReadError`]
    fn scan_within(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        most: u64,
        visit: &mut VisitWithin<'_>,
    ) -> Result<(), ReadError> {
        self.scan(at, range, direction, &mut |key, entry| {
            let (len, expires_at) = (entry.value.len() as u64, entry.expires_at);
            let is_longer = len > most;
            visit(
                key,
                if is_longer {
                    Err(Longer { len, expires_at })
                } else {
                    Ok(entry)
                },
            )
        })
    }

    /// Adds the entries of a range of one keyspace, as [`scan`](Self::scan) visits them, until
    /// there is no room for more: keys without the keyspace's number.
    ///
    /// # Errors
    /// As there.
    fn read(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        into: &mut Entries,
    ) -> Result<(), ReadError> {
        self.scan(at, range, direction, &mut |key, entry| {
            into.push(&key[PREFIX..], entry.value)
        })
    }

    /// As [`scan`](Self::scan), upwards and without the values.
    ///
    /// # Errors
    /// As there.
    fn scan_keys(
        &self,
        at: Ticket,
        range: Range<'_>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError>;

    /// Puts a value with its expiry, 0 for none, and waits as `wait` says. If there is no space,
    /// frees what can be freed and tries once more, as all writes do except for
    /// [`execute`](Self::execute).
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`]: the change is
    /// applied, and may become durable.
    fn put(&self, key: &[u8], value: &[u8], expiry: u64, wait: Wait) -> Result<(), WriteError>;

    /// As [`put`](Self::put), of the value that a stream gives. Returns its length.
    ///
    /// # Errors
    /// As of [`put`](Self::put), and [`WriteError::Source`]; nothing has changed then.
    fn put_from(
        &self,
        key: &[u8],
        from: &mut dyn std::io::Read,
        expiry: u64,
        wait: Wait,
    ) -> Result<u64, WriteError>;

    /// Deletes a key. Returns whether it had a value.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn delete(&self, key: &[u8], wait: Wait) -> Result<bool, WriteError>;

    /// Changes a key to what `f` makes of its value. `f` may be called again; its last answer
    /// counts. See [`Store::update`](crate::Store::update).
    ///
    /// # Errors
    /// As of [`put`](Self::put), and those of `f`, after which nothing has changed.
    fn update(
        &self,
        key: &[u8],
        wait: Wait,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<(), WriteError>;

    /// Commits changes to keys, ascending, each of which occurs once: all of them, or none. With
    /// `since`, a version newer than that snapshot is a conflict; with `reads`, so is a change
    /// of what was read. Returns the timestamp, 0 if nothing was to be changed.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn commit(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError>;

    /// Executes steps of one keyspace. See
    /// [`Store::execute_batch`](crate::Store::execute_batch); there is no second attempt for want
    /// of space.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn execute(
        &self,
        steps: &[(&[u8], Step<'_>)],
        wait: Wait,
        each: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError>;

    /// Frees what can be freed, after a lack of space, and waits a moment for readers of it. Errors
    /// are left to the write that is tried again.
    fn reclaim_space(&self);

    /// Gives keyspace `number` the name `to`, in place of `from` if it has one, in one commit.
    /// Returns the timestamp, which may not be durable.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn name_keyspace(&self, number: u32, from: Option<&str>, to: &str) -> Result<u64, WriteError>;

    /// With all writers kept out: drops keyspace `number`, whose name goes, or becomes that of
    /// number `empty`. Tells the feed. Returns the timestamp, which may not be durable.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn drop_keyspace(&self, name: &str, number: u32, empty: Option<u32>)
    -> Result<u64, WriteError>;

    /// Returns how many keys a keyspace has; 0 if it was dropped.
    fn len(&self, number: u32) -> u64;

    /// Subscribes to the changes of the keys of a keyspace that begin with `prefix`.
    ///
    /// # Errors
    /// [`WriteError`]
    fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError>;

    /// Frees up to `most` versions, or keys that expired or were dropped, that no snapshot can read
    /// any more.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed by then stays so.
    fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError>;

    /// As [`vacuum`](Self::vacuum), all of them.
    ///
    /// # Errors
    /// As of [`vacuum`](Self::vacuum).
    fn vacuum_all(&self) -> Result<VacuumReport, WriteError>;

    /// Moves what is live, so that the pool can become smaller.
    ///
    /// # Errors
    /// [`WriteError`]: something is damaged; the rest was moved.
    fn compact(&self) -> Result<(), WriteError>;

    /// Returns the error of the thread that vacuums, and forgets it.
    fn take_failure(&self) -> Option<WriteError>;

    /// Returns the store's statistics.
    fn stats(&self) -> StoreStats;

    /// Returns shape and size of the index. Walks all of it.
    fn index_stats(&self) -> IndexStats;

    /// Checks everything, while nobody writes or vacuums. The engine's own thread waits meanwhile.
    ///
    /// # Errors
    /// The first [`Violation`] found, or all damage.
    fn check(&self) -> Result<CheckReport, Violation>;

    /// Returns all damage. Reads the whole store, under the conditions of [`check`](Self::check).
    fn find_damage(&self) -> Vec<DamagedRecord>;

    /// Compares all pages and values with their sums while others go on, and returns the first
    /// damage. Nothing where the engine cannot.
    ///
    /// # Errors
    /// [`ReadError`]: the rest was not looked at.
    fn scrub(&self) -> Result<Vec<DamagedRecord>, ReadError> {
        Ok(Vec::new())
    }

    /// Returns whether the keys are counted, or will have been counted at once.
    fn is_counted(&self) -> bool {
        true
    }

    /// Returns what scrubbing has done.
    fn scrub_stats(&self) -> ScrubStats {
        ScrubStats::default()
    }

    /// Returns what was archived; `None` if nothing is to be.
    fn archive_stats(&self) -> Option<ArchiveStats> {
        None
    }

    /// Writes the commits that are durable to the archive that there is.
    ///
    /// # Errors
    /// [`ArchiveError`]; they wait for another attempt.
    fn archive_now(&self) -> Result<(), ArchiveError> {
        Ok(())
    }

    /// Returns the first damage that scrubbing has found.
    fn scrub_findings(&self) -> Vec<DamagedRecord> {
        Vec::new()
    }
}
