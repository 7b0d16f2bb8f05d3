//! Which descriptors are free, in volatile memory: per-thread sets of bits, changed by single atomic steps; and the
//! counters.
//!
//! ```text
//! free or ready --taken--> in use --ended--> retired --epoch--> once --epoch--> ready (to be recycled, then used)
//! ```
//!
//! What the epochs run moves bits here and touches nothing else: it may come long after the pool was closed.

use super::{Counts, MOST_PER_THREAD};
use crate::sync::worker;
use crossbeam_epoch::Guard;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread's descriptors; bit `i` is its `i`-th one.
#[derive(Debug, Default)]
struct Shard {
    /// Never published since they were recycled.
    free: AtomicU64,
    /// Both grace periods are over; what their policies say is still to be done.
    ready: AtomicU64,
    /// Ended; no grace period begun.
    retired: AtomicU64,
    /// One grace period is over.
    once: AtomicU64,
    /// A panic cut their operations short; they stay so until all is quiet.
    abandoned: AtomicU64,
}

/// All descriptors, by thread.
#[derive(Debug)]
pub(super) struct Lists {
    shards: Box<[CachePadded<Shard>]>,
    per_shard: usize,
}

/// A descriptor that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) number: usize,
    /// It is to be recycled first.
    pub(super) used: bool,
}

/// Takes one bit.
fn take_bit(of: &AtomicU64) -> Option<u32> {
    // ORDERING: Relaxed; a hint.
    let mut seen = of.load(Ordering::Relaxed);
    while seen != 0 {
        // The highest first: recovery must not rely on the first descriptors being used.
        let bit = 63 - seen.leading_zeros();
        // ORDERING: AcqRel; acquires what whoever gave the descriptor back did with it (`give`, `move_on`).
        let before = of.fetch_and(!(1 << bit), Ordering::AcqRel);
        if before & 1 << bit != 0 {
            return Some(bit);
        }
        seen = before & !(1 << bit);
    }
    None
}

impl Lists {
    /// Divides `descriptors` into sets of `per_shard`, at most as many as a word has bits.
    pub(super) fn all_free(descriptors: usize, per_shard: usize) -> Self {
        debug_assert!((1..=MOST_PER_THREAD).contains(&per_shard));
        let shards = descriptors.div_ceil(per_shard);
        let shards = (0..shards).map(|shard| {
            let here = per_shard.min(descriptors - shard * per_shard);
            let free = u64::MAX >> (64 - here);
            CachePadded::new(Shard {
                free: AtomicU64::new(free),
                ..Shard::default()
            })
        });
        Self {
            shards: shards.collect(),
            per_shard,
        }
    }

    /// A descriptor of this thread's, or else of another's. `first`: the thread's set, by its number.
    pub(super) fn take(self: &Arc<Self>, first: usize, guard: &Guard) -> Option<Taken> {
        let shards = self.shards.len();
        self.age(first % shards, self.per_shard as u32 / 4, guard);
        for i in 0..shards {
            let shard = (first + i) % shards;
            let of = &self.shards[shard];
            let found = take_bit(&of.ready)
                .map(|bit| (bit, true))
                .or_else(|| take_bit(&of.free).map(|bit| (bit, false)));
            if let Some((bit, used)) = found {
                let number = shard * self.per_shard + bit as usize;
                return Some(Taken { number, used });
            }
        }
        None
    }

    /// One whose grace periods are over, of any thread's.
    pub(super) fn take_ready(&self) -> Option<usize> {
        let shards = self.shards.iter().enumerate();
        let mut found = shards.filter_map(|(shard, of)| {
            take_bit(&of.ready).map(|bit| shard * self.per_shard + bit as usize)
        });
        found.next()
    }

    /// Begins the grace periods of everything that waits for one.
    pub(super) fn age_all(self: &Arc<Self>, guard: &Guard) {
        for shard in 0..self.shards.len() {
            self.age(shard, 0, guard);
        }
        guard.flush();
    }

    /// Begins grace periods in one set, for more than `most` descriptors together.
    fn age(self: &Arc<Self>, shard: usize, most: u32, guard: &Guard) {
        let of = &self.shards[shard];
        // ORDERING (this load): Relaxed; a hint.
        if most > 0 && of.retired.load(Ordering::Relaxed).count_ones() <= most {
            return;
        }
        let mut any = false;
        // ORDERING (both loads): Relaxed; hints. (both swaps) AcqRel; acquire what those who retired the bits did, for
        // the deferred function to hand on.
        if of.once.load(Ordering::Relaxed) != 0 {
            let once = of.once.swap(0, Ordering::AcqRel);
            self.defer(shard, once, |shard| &shard.ready, guard);
            any = true;
        }
        if of.retired.load(Ordering::Relaxed) != 0 {
            let retired = of.retired.swap(0, Ordering::AcqRel);
            self.defer(shard, retired, |shard| &shard.once, guard);
            any = true;
        }
        if any {
            guard.flush();
        }
    }

    fn defer(
        self: &Arc<Self>,
        shard: usize,
        bits: u64,
        to: fn(&Shard) -> &AtomicU64,
        guard: &Guard,
    ) {
        let lists = Arc::clone(self);
        guard.defer(move || {
            // ORDERING: Release; pairs with the Acquire of whoever takes them from there.
            to(&lists.shards[shard]).fetch_or(bits, Ordering::Release);
        });
    }

    fn set(&self, number: usize, of: impl Fn(&Shard) -> &AtomicU64) {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Release; pairs with the Acquire of whoever takes it from there.
        of(shard).fetch_or(1 << (number % self.per_shard), Ordering::Release);
    }

    /// Gives back a descriptor that no one else has seen.
    pub(super) fn give(&self, number: usize) {
        self.set(number, |shard| &shard.free);
    }

    /// Gives back one whose operation has ended.
    pub(super) fn retire(&self, number: usize) {
        self.set(number, |shard| &shard.retired);
    }

    /// Notes one whose operation a panic cut short.
    pub(super) fn abandon(&self, number: usize) {
        self.set(number, |shard| &shard.abandoned);
    }

    /// True if a panic cut the descriptor's operation short.
    pub(super) fn abandoned(&self, number: usize) -> bool {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Acquire; pairs with the Release of `set`.
        shard.abandoned.load(Ordering::Acquire) & 1 << (number % self.per_shard) != 0
    }

    /// True if the descriptor is not free: in use, or not recycled yet.
    pub(super) fn held(&self, number: usize) -> bool {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Acquire; pairs with the Release of `set`.
        shard.free.load(Ordering::Acquire) & 1 << (number % self.per_shard) == 0
    }
}

const SHARDS: usize = 64;

/// Counters that threads do not share, as far as there are enough.
#[derive(Debug)]
pub(super) struct Counters {
    shards: Box<[CachePadded<[AtomicU64; 5]>]>,
}

/// What is counted: the index of a counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    Attempts,
    Successes,
    Failures,
    Helps,
    Words,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Adds to this thread's line; not in one locked step, which would wait for the operation's flushes.
    #[inline]
    pub(super) fn add(&self, what: Counted, n: u64) {
        let mine = &self.shards[worker() % SHARDS][what as usize];
        // ORDERING (both): Relaxed; a statistic.
        mine.store(mine.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    pub(super) fn sum(&self) -> Counts {
        let sum = |what: Counted| {
            let all = self.shards.iter();
            // ORDERING: Relaxed; a statistic.
            all.map(|of| of[what as usize].load(Ordering::Relaxed))
                .sum()
        };
        Counts {
            attempts: sum(Counted::Attempts),
            successes: sum(Counted::Successes),
            failures: sum(Counted::Failures),
            helps: sum(Counted::Helps),
            words: sum(Counted::Words),
        }
    }
}
