//! The registered snapshots, and the *horizon*: versions older than the newest one at or below it
//! are garbage.
//!
//! # Concurrency
//! A snapshot loads a watermark and registers under its shard's lock. The horizon is the durable
//! watermark, loaded first, or the lowest snapshot that the shards then have. A snapshot that the
//! horizon misses registered after its shard was visited, so it saw that watermark or a later one.
//! (The applied watermark is never below the durable one.)
//!
//! Single reads are not registered. They take the version that is newest at the watermark. A read
//! that finds a newer one first follows versions that may be unlinked meanwhile, and reads again if
//! the horizon has passed its watermark.

use crate::clock::Clock;
use bristlecone_pmem::sync::{lock, worker};
use bristlecone_store::engine::{Ticket, Wait};
use crossbeam_utils::CachePadded;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// Timestamp of a snapshot, and the time in ms by which it reads expiries.
type Entry = (u64, u64);

/// How many snapshots there are at each timestamp and time.
type Shard = Mutex<BTreeMap<Entry, u32>>;

#[derive(Debug)]
pub(crate) struct Snapshots {
    shards: Box<[CachePadded<Shard>]>,
    horizon: AtomicU64,
    /// The latest time in ms that a snapshot was given. It never goes back, even if the wall clock
    /// does.
    now: AtomicU64,
}

/// The versions and values that no snapshot reads any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon {
    /// Versions that were superseded at or below this timestamp.
    pub ts: u64,
    /// Values that had expired by this time in ms.
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

    /// Returns `now`, or the latest time given before if that was later.
    fn not_before(&self, now: u64) -> u64 {
        // ORDERING: AcqRel; pairs with itself: a snapshot that registers after a horizon was
        // computed has no earlier time.
        self.now.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// Registers a snapshot at the watermark of `wait`. It reads expiries at `now`.
    pub fn enter(&self, clock: &Clock, wait: Wait, now: impl FnOnce() -> u64) -> Ticket {
        let shard = worker() % SHARDS;
        let mut entries = lock(&self.shards[shard]);
        let (ts, now) = (clock.watermark(wait), self.not_before(now()));
        *entries.entry((ts, now)).or_insert(0) += 1;
        Ticket { ts, now, shard }
    }

    /// Registers another snapshot at the same timestamp and time.
    pub fn enter_again(&self, ticket: Ticket) -> Ticket {
        *lock(&self.shards[ticket.shard])
            .entry((ticket.ts, ticket.now))
            .or_insert(0) += 1;
        ticket
    }

    /// Removes a snapshot.
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

    /// Returns the timestamp of the oldest snapshot, if there is one, and the number of snapshots.
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

    /// Advances the horizon as far as snapshots allow, and returns it. Versions are unlinked only
    /// afterwards.
    pub fn advance(&self, clock: &Clock, now: u64) -> Horizon {
        let mut ts = clock.durable();
        let mut least = self.not_before(now);
        for shard in &self.shards {
            for (at, read) in lock(shard).keys() {
                ts = ts.min(*at);
                least = least.min(*read);
            }
        }
        // ORDERING: AcqRel; pairs with the Acquire of `horizon`: a reader that sees a version
        // unlinked sees this. It never goes back: a snapshot that registered since is above it.
        let before = self.horizon.fetch_max(ts, Ordering::AcqRel);
        Horizon {
            ts: ts.max(before),
            now: least,
        }
    }

    /// Returns the horizon as it was advanced last.
    pub fn horizon(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `advance`: versions are unlinked after that.
        self.horizon.load(Ordering::Acquire)
    }

    /// Returns whether versions that a read at `ts` needs may have been unlinked.
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
