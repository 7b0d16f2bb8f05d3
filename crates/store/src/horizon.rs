//! Which snapshots are being read, and the *horizon*: what is older than the newest version at or below it is garbage.
//!
//! # Concurrency
//! A snapshot reads a watermark and is entered under its shard's lock. The horizon is the durable watermark, read first, or the lowest
//! snapshot that the shards then have. A snapshot that the horizon overlooked was entered after its shard had been looked at, so it
//! saw that watermark or a later one (the applied one is never below it).
//!
//! Single reads are not entered. They take the version that is newest at the watermark; one that finds
//! something newer has to go along versions that may be cut off meanwhile, and reads again if the horizon has passed it.

use crate::clock::{Clock, Wait};
use bristlecone_pmem::sync::{lock, worker};
use crossbeam_utils::CachePadded;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// Time stamp of a snapshot, and the time in ms that it reads expiries by.
type Entry = (u64, u64);

/// How many snapshots there are of each kind.
type Shard = Mutex<BTreeMap<Entry, u32>>;

#[derive(Debug)]
pub(crate) struct Snapshots {
    shards: Box<[CachePadded<Shard>]>,
    horizon: AtomicU64,
    /// The latest time in ms that any of them was given: it does not go back, whatever the clock on the wall does.
    now: AtomicU64,
}

/// A snapshot that is entered. It has to be [left](Snapshots::leave).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub ts: u64,
    pub now: u64,
    shard: usize,
}

/// What nobody reads any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon {
    /// Versions that a version at or below this has superseded.
    pub ts: u64,
    /// Values that have expired by then.
    pub now: u64,
}

impl Snapshots {
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            horizon: AtomicU64::new(0),
            now: AtomicU64::new(0),
        }
    }

    /// `now`, or the latest time before it that was later.
    fn not_before(&self, now: u64) -> u64 {
        // ORDERING: AcqRel; pairs with itself: what expires by a horizon's time is no later for who enters afterwards.
        self.now.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// Enters a snapshot at the watermark that `wait` stands for, which reads expiries at `now`.
    pub fn enter(&self, clock: &Clock, wait: Wait, now: impl FnOnce() -> u64) -> Ticket {
        let shard = worker() % SHARDS;
        let mut entries = lock(&self.shards[shard]);
        let (ts, now) = (wait.watermark(clock), self.not_before(now()));
        *entries.entry((ts, now)).or_insert(0) += 1;
        Ticket { ts, now, shard }
    }

    /// Enters another one at the same place.
    pub fn enter_again(&self, ticket: Ticket) -> Ticket {
        *lock(&self.shards[ticket.shard])
            .entry((ticket.ts, ticket.now))
            .or_insert(0) += 1;
        ticket
    }

    pub fn leave(&self, ticket: Ticket) {
        let mut entries = lock(&self.shards[ticket.shard]);
        let key = (ticket.ts, ticket.now);
        if let Some(count) = entries.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                entries.remove(&key);
            }
        }
    }

    /// The lowest snapshot, if there is one, and how many there are.
    pub fn oldest(&self) -> (Option<u64>, u64) {
        let mut all = 0;
        let mut oldest: Option<u64> = None;
        for shard in &self.shards {
            let entries = lock(shard);
            all += entries.values().map(|n| u64::from(*n)).sum::<u64>();
            let first = entries.keys().next().map(|(ts, _)| *ts);
            oldest = match (oldest, first) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        (oldest, all)
    }

    /// Moves the horizon as far as it may go, and gives it. Whatever is cut off by it is cut off afterwards.
    pub fn advance(&self, clock: &Clock, now: u64) -> Horizon {
        let mut ts = clock.durable();
        let mut least = self.not_before(now);
        for shard in &self.shards {
            for (at, read) in lock(shard).keys() {
                ts = ts.min(*at);
                least = least.min(*read);
            }
        }
        // ORDERING: AcqRel; pairs with the Acquire of `passed`: who sees what was cut off sees this. It never goes back:
        // a snapshot that was entered since is above it.
        let before = self.horizon.fetch_max(ts, Ordering::AcqRel);
        Horizon {
            ts: ts.max(before),
            now: least,
        }
    }

    /// The horizon as it was moved last.
    pub fn horizon(&self) -> u64 {
        // ORDERING: Acquire; pairs with `advance`: what is cut off by it is cut off afterwards.
        self.horizon.load(Ordering::Acquire)
    }

    /// Whether versions that a read at `ts` needs may have been cut off.
    pub fn passed(&self, ts: u64) -> bool {
        self.horizon() > ts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::media::Dram;
    use bristlecone_pmem::{Pool, PoolOptions};

    #[test]
    fn the_horizon_stays_at_the_oldest_snapshot() {
        let clock = Clock::after(5, 8);
        let snapshots = Snapshots::new();
        let old = snapshots.enter(&clock, Wait::Durable, || 100);
        let taken = clock.take().unwrap();
        let ts = taken.ts;
        drop(taken);
        let deferring = snapshots.enter(&clock, Wait::Applied, || 150);
        assert_eq!((deferring.ts, snapshots.advance(&clock, 150).ts), (6, 5));
        snapshots.leave(deferring);
        let pool = Pool::<Dram>::create("horizon".as_ref(), &PoolOptions::default()).unwrap();
        clock.make_durable(pool.pm(), ts).unwrap();
        let new = snapshots.enter(&clock, Wait::Durable, || 200);
        assert_eq!((old.ts, new.ts), (5, 6));
        assert_eq!(snapshots.oldest(), (Some(5), 2));
        let horizon = snapshots.advance(&clock, 300);
        assert_eq!((horizon.ts, horizon.now), (5, 100));
        let again = snapshots.enter_again(old);
        snapshots.leave(old);
        assert_eq!(snapshots.advance(&clock, 300).ts, 5);
        snapshots.leave(again);
        let horizon = snapshots.advance(&clock, 300);
        assert_eq!((horizon.ts, horizon.now), (6, 200));
        assert!(snapshots.passed(5) && !snapshots.passed(6));
        snapshots.leave(new);
        assert_eq!(snapshots.oldest(), (None, 0));
    }
}
