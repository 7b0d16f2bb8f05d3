//! Dropped keyspaces: one commit takes the name away, and the vacuum what it stood for.
//!
//! ```text
//! drop    all stripes locked: catalogue: name --> nothing (or, to clear it, a new number), at time stamp T; since[number] = T
//! read    at T or later there is nothing; snapshots from before T see all of it until they end
//! write   is refused
//! vacuum  once the horizon has come to T: entries of that number go, a few at a time, with their records
//! open    entries of a number that no name has are what a vacuum had not come to: it goes on
//! ```
//!
//! While a store is open no number is given twice, so a handle of what was dropped never leads to anything else.
//!
//! # Crash states
//! | crash | what it leaves |
//! | --- | --- |
//! | before the NAW of the catalogue's entry | the keyspace, whole |
//! | after it, until the vacuum is done | no such keyspace; entries without a name, none of which anybody reads, as many as the vacuum has left |
//!
//! # Concurrency
//! Writers look at `since` under the lock of their key's stripe. Who drops holds all of them, so every write to the keyspace is before T, and
//! nothing is added once the vacuum begins. Readers look without locks, pinned: T is in the list before it is applied, so
//! who reads at T finds it there.

use crate::clock::Wait;
use crate::commit::Inner;
use crate::error::WriteError;
use crate::horizon::Horizon;
use crate::index::split;
use crate::newest::Newest;
use crate::read::Bounds;
use crate::record;
use crate::vacuum::{AT_A_TIME, VacuumReport};
use bristlecone_index::Direction;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::{self as epoch, Guard};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Entries that are looked for at once.
const AT_ONCE: usize = 256;

/// The numbers that were dropped since the store was opened, ascending, and the time stamp from which on each is.
type Since = Vec<(u32, u64)>;

/// What the vacuum has to take away.
#[derive(Debug)]
struct Remains {
    number: u32,
    since: u64,
    /// All before this index key, and it, are gone.
    after: Option<Vec<u8>>,
}

/// A keyspace was dropped, and since when it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    number: u32,
    since: u64,
}

/// Which keyspaces were dropped, and what is left of them.
#[derive(Default)]
pub(crate) struct Dropped {
    since: epoch::Atomic<Since>,
    /// Held while the vacuum takes them away: before any stripe's lock.
    remains: Mutex<Vec<Remains>>,
}

impl fmt::Debug for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dropped")
            .field("remains", &self.remains)
            .finish_non_exhaustive()
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let since = std::mem::take(&mut self.since);
        // SAFETY: 1. nobody else has it: this is being dropped; 2. it is null or was made from a box by `add`.
        drop(unsafe { since.try_into_owned() });
    }
}

impl Dropped {
    /// From which time stamp on a keyspace is dropped, if it is.
    #[inline]
    pub fn since(&self, number: u32, guard: &Guard) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release of `add`.
        let list = self.since.load(Ordering::Acquire, guard);
        // SAFETY: 1. null, or a list that `add` made, which nobody changes; 2. it is freed once whoever was pinned when
        // another one took its place has left, and `guard` is pinned.
        let list = unsafe { list.as_ref() }?;
        let at = list.binary_search_by_key(&number, |(number, _)| *number);
        at.ok().map(|at| list[at].1)
    }

    /// A keyspace is dropped from `ts` on. One at a time: the caller holds all stripes.
    pub fn add(&self, number: u32, ts: u64) {
        let guard = epoch::pin();
        // ORDERING: Acquire; pairs with the Release below.
        let before = self.since.load(Ordering::Acquire, &guard);
        // SAFETY: as in `since`.
        let mut list = unsafe { before.as_ref() }.cloned().unwrap_or_default();
        let at = list.partition_point(|(other, _)| *other < number);
        list.insert(at, (number, ts));
        // ORDERING: Release; pairs with the Acquire of `since`.
        self.since.store(epoch::Owned::new(list), Ordering::Release);
        if !before.is_null() {
            // SAFETY: 1. made from a box by an earlier call; 2. nobody finds it any more, and each list is let go of once, as
            // calls exclude each other.
            unsafe { guard.defer_destroy(before) };
        }
    }

    /// There may be entries of a number that no name has from `since` on.
    pub fn leave(&self, number: u32, since: u64) {
        lock(&self.remains).push(Remains {
            number,
            since,
            after: None,
        });
    }

    /// The numbers whose entries are still to be taken away.
    pub fn remaining(&self) -> Vec<u32> {
        let remains = lock(&self.remains);
        remains.iter().map(|remains| remains.number).collect()
    }
}

impl<M: Media> Inner<M> {
    /// Whether the keyspace of an index key is there for who reads at `ts`.
    #[inline]
    pub(crate) fn is_there(&self, key: &[u8], ts: u64, guard: &Guard) -> bool {
        let number = split(key).map_or(0, |(number, _)| number);
        let since = self.dropped.since(number, guard);
        since.is_none_or(|since| ts < since)
    }

    /// Whether this index key may be written. The caller holds its stripe.
    ///
    /// # Errors
    /// Its keyspace was dropped: what the caller is to [say](Self::refused), once it holds no locks.
    pub(crate) fn may_write(&self, key: &[u8], guard: &Guard) -> Result<(), Refused> {
        let number = split(key).map_or(0, |(number, _)| number);
        match self.dropped.since(number, guard) {
            None => Ok(()),
            Some(since) => Err(Refused { number, since }),
        }
    }

    /// What is to be said to who may not write: once it can read that, too.
    pub(crate) fn refused(&self, refused: Refused, wait: Wait) -> WriteError {
        match self.settle(refused.since, wait) {
            Ok(()) => WriteError::Dropped {
                keyspace: self.catalogue.name_of(refused.number),
            },
            Err(e) => e,
        }
    }

    /// Whether a keyspace was dropped.
    pub(crate) fn is_dropped(&self, number: u32) -> bool {
        self.dropped.since(number, &epoch::pin()).is_some()
    }

    /// Takes away entries of dropped keyspaces, up to `most`: how many of these were not needed, if there is nothing more to take.
    ///
    /// # Errors
    /// [`WriteError`]; what was taken away stays so.
    pub(crate) fn take_remains(
        &self,
        horizon: Horizon,
        most: usize,
        report: &mut VacuumReport,
    ) -> Result<Option<usize>, WriteError> {
        let mut all = lock(&self.dropped.remains);
        let (mut at, mut left) = (0, most);
        while let Some(remains) = all.get_mut(at) {
            if remains.since > horizon.ts {
                at += 1;
                continue;
            }
            if left == 0 {
                return Ok(None);
            }
            let keys = self.some_entries(remains, left.min(AT_ONCE));
            if keys.is_empty() {
                all.swap_remove(at);
                continue;
            }
            let found = remains.since <= self.clock.floor();
            for key in keys {
                self.take_entry(&key, found, horizon, report)?;
                remains.after = Some(key);
                left -= 1;
            }
        }
        Ok(Some(left))
    }

    /// The next index keys of what is to be taken away, up to `most`.
    fn some_entries(&self, remains: &Remains, most: usize) -> Vec<Vec<u8>> {
        let _guard = epoch::pin();
        let whole = Bounds::new(remains.number, Bound::Unbounded, Bound::Unbounded);
        let (start, end) = whole.range();
        let start = remains.after.as_deref().map_or(start, Bound::Excluded);
        let mut keys = Vec::new();
        self.index
            .scan((start, end), Direction::Up, None, &mut |key, _| {
                keys.push(key.to_vec());
                if keys.len() < most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
        keys
    }

    /// Takes away the entry of a dropped keyspace, with its records; everything there is older than the horizon. What is damaged
    /// stays, for a check to find, so that the rest goes: also one that opening `found` and whose record is not of that key, as perhaps it is the
    /// number that is damaged.
    fn take_entry(
        &self,
        key: &[u8],
        found: bool,
        horizon: Horizon,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        // What was superseded goes first, so that no entry of the queue outlives its record.
        while self.work_off(&mut stripe, horizon, AT_A_TIME, report)?.1 {}
        let newest = match self.newest(key, &epoch::pin()) {
            Newest::None | Newest::Damaged(_) => return Ok(()),
            newest => newest,
        };
        if let Newest::Version(head) = newest
            && found
            && record::check_sum(self.pm(), key, head.off, &head.terms).is_err()
        {
            return Ok(());
        }
        self.remove_entry(key)?;
        if let Newest::Version(head) = newest {
            let number = split(key).map_or(0, |(number, _)| number);
            stripe.counts.was_newest(number, &head.terms);
            self.free_version(&mut stripe, head.off, report)?;
            report.dropped += 1;
        }
        self.bury(&mut stripe, &newest);
        Ok(())
    }
}
