//! The store on a clustered tree: keys, values and their versions in its pages.
//!
//! ```text
//! clustered tree     (keyspace, key) --> value       old versions in DRAM, while somebody reads them
//! root of the store  format | a restore is unfinished
//! ```
//!
//! The tree gives the store its time stamps, snapshots, transactions, and the durable mark. What
//! the store adds:
//!
//! | file | holds |
//! | --- | --- |
//! | `engine` | what all engines of a store can do |
//! | `open` | making, opening and closing |
//! | `reads`, `writes` | operations on keys |
//! | `value`, `pack` | values with expiries; compressing them |
//! | `long`, `parts` | keys and values that are too long for the tree |
//! | `names` | names of keyspaces |
//! | `counts`, `ledger` | keys of each keyspace; how they outlive the process |
//! | `gate` | keeping writers out, to drop a keyspace or to begin a watch |
//! | `sweep` | removing what has expired or was dropped |
//! | `memory` | keeping the process within its memory |
//! | `check`, `scrub` | looking at everything, at once and bit by bit |
//! | `salvage` | reading what a damaged store has |
//! | `archive`, `replay` | writing commits and states to an archive; putting them into a new store |
//!
//! # Crash states
//! A change of one key, and a commit of many, are there or not (the tree's promise). A dropped
//! keyspace is one change of the catalogue, which says so until the sweep has removed all keys.

mod archive;
mod check;
mod compact;
mod counts;
mod engine;
mod gate;
mod ledger;
mod long;
mod memory;
mod names;
mod open;
mod pack;
mod parts;
mod reads;
mod replay;
mod salvage;
mod scrub;
mod streams;
mod sweep;
mod value;
mod writes;

use crate::catalogue::Catalogue;
use crate::control::Control;
use crate::engine::{Ticket, Wait};
use crate::error::{Damage, ReadError, WriteError};
use crate::feed::Feed;
use crate::key::split;
use crate::options::Compression;
use crate::report::StoreRecovery;
use crate::wall::WallClock;
use archive::Archiving;
use bristlecone_index::clustered::{self, ChangeError, HostedTree, When};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{CommitError, Media};
use compact::Compaction;
use counts::Counts;
use crossbeam_epoch as epoch;
use gate::Gate;
use ledger::Ledger;
use scrub::Scrub;
use std::borrow::Borrow;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use sweep::Sweep;

pub(crate) use open::{Clustered, DESIGN};
pub(crate) use replay::Replayed;

/// An open store on a tree.
pub(crate) struct TreeEngine<M: Media> {
    core: Arc<Core<M>>,
    /// The threads of the sweep, of the memory, of scrubbing and of the archive.
    threads: Vec<JoinHandle<()>>,
    recovery: StoreRecovery,
    page_bytes: u32,
}

/// What the engine shares with its thread.
pub(crate) struct Core<M: Media> {
    tree: HostedTree<M>,
    counts: Arc<Counts>,
    ledger: Ledger,
    gate: Gate,
    sweep: Sweep,
    compaction: Compaction,
    scrub: Scrub,
    archiving: Option<Archiving>,
    control: Control,
    catalogue: Arc<Catalogue>,
    feed: Arc<Feed>,
    wall: WallClock,
    /// How long values are written.
    compression: Compression,
    /// The latest time in ms that a snapshot was given. It never goes back, even if the wall clock
    /// does.
    now: AtomicU64,
    // Dropped after the tree.
    root: Root<M>,
}

impl<M: Media> Deref for TreeEngine<M> {
    type Target = Core<M>;

    fn deref(&self) -> &Core<M> {
        &self.core
    }
}

/// Every key of the tree.
const ALL: clustered::KeyRange<'static> = (Bound::Unbounded, Bound::Unbounded);

/// The time that shows all changes up to this time stamp.
fn time_of(ts: u64) -> u64 {
    ts + 1
}

impl<M: Media> Core<M> {
    fn pm(&self) -> &M {
        self.tree.pool().pm()
    }

    /// Returns the timestamp up to which every change is visible.
    fn applied(&self) -> u64 {
        self.tree.applied() - 1
    }

    /// Returns the timestamp up to which every change is durable.
    fn durable(&self) -> u64 {
        self.tree.durable() - 1
    }

    /// Makes every change up to `ts` durable, and says so to whoever watches.
    fn make_durable(&self, ts: u64) -> Result<(), CommitError> {
        let made = self.tree.make_durable(ts);
        if self.feed.is_watched() {
            let failed = self.tree.sound().err();
            self.feed.advance(self.durable(), failed.as_ref());
        }
        made
    }

    /// Waits until the change of that timestamp, and all before it, are applied or durable.
    fn wait_for(&self, ts: u64, wait: Wait) -> Result<(), CommitError> {
        match wait {
            Wait::Applied => {
                self.tree.wait_shown(ts);
                Ok(())
            }
            Wait::Durable => self.make_durable(ts),
        }
    }

    /// Checks that no commit has failed, and tells subscribers if one has.
    fn sound(&self) -> Result<(), CommitError> {
        let sound = self.tree.sound();
        if let Err(e) = &sound
            && self.feed.is_watched()
        {
            self.feed.advance(self.durable(), Some(e));
        }
        sound
    }

    fn enter(&self, wait: Wait) -> Ticket {
        let time = self.tree.begin(wait == Wait::Durable);
        let wall = self.wall.now();
        // ORDERING: Acquire and AcqRel; pair with the AcqRel here: a snapshot that begins later has
        // no earlier time.
        let last = self.now.load(Ordering::Acquire);
        let now = if last < wall {
            self.now.fetch_max(wall, Ordering::AcqRel).max(wall)
        } else {
            last
        };
        Ticket {
            ts: time - 1,
            now,
            shard: 0,
        }
    }

    fn enter_again(&self, ticket: Ticket) -> Ticket {
        self.tree.begin_again(time_of(ticket.ts));
        ticket
    }

    fn leave(&self, ticket: Ticket) {
        self.tree.end(time_of(ticket.ts));
    }

    /// Returns when a keyspace was dropped, if it was.
    #[inline]
    fn dropped_at(&self, number: u32) -> Option<u64> {
        let dropped = &self.counts.dropped;
        let may_be = !dropped.is_empty();
        may_be.then(|| dropped.since(number, &epoch::pin()))?
    }

    /// Returns whether the keyspace of an index key was dropped at or before `ts`.
    #[inline]
    fn is_dropped_by(&self, key: &[u8], ts: impl FnOnce() -> u64) -> bool {
        let since = split(key).and_then(|(number, _)| self.dropped_at(number));
        since.is_some_and(|since| since <= ts())
    }
}

/// When reads that wait like this take place.
fn when(wait: Wait) -> When {
    match wait {
        Wait::Applied => When::Now,
        Wait::Durable => When::Durable,
    }
}

/// A value that is damaged, as the tree says it.
fn damaged(e: Damage) -> clustered::ReadError {
    clustered::ReadError::Value(e.0)
}

/// The store's error for a page or a value that could not be read, for this index key.
fn read_error(key: Option<&[u8]>, e: impl Borrow<clustered::ReadError>) -> ReadError {
    match e.borrow() {
        clustered::ReadError::Space(e) => ReadError::Memory {
            what: e.to_string(),
        },
        e => {
            let damage = Damage::new(e.to_string());
            ReadError::Damaged(match (key, e) {
                (Some(key), clustered::ReadError::Damaged(_)) => Damage::of_page(key, &damage),
                (Some(key), _) => Damage::of_key(key, &damage),
                (None, _) => damage,
            })
        }
    }
}

/// The store's error for a change of this index key.
fn write_error(key: Option<&[u8]>, e: ChangeError) -> WriteError {
    match e {
        ChangeError::Page(clustered::ReadError::Space(e)) => e.into(),
        ChangeError::Page(e) => read_error(key, e).into(),
        ChangeError::TooLong {
            key: true,
            len,
            most,
        } => WriteError::KeyTooLong { len, most },
        ChangeError::TooLong { len, most, .. } => WriteError::ValueTooLong { len, most },
        e => WriteError::Damaged(Damage::new(e.to_string())),
    }
}
