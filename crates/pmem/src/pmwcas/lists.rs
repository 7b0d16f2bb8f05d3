//! Free descriptors, in volatile memory: sets of bits, changed by single atomic steps; and
//! counters.
//!
//! ```text
//! free or due --taken--> in use --ended--> retired, in a turn --three turns end--> due (to be recycled, then used)
//! ```
//!
//! *Turns* belong to the pool. One is under way at a time, and ends when every thread that was
//! pinned at its beginning has left. A descriptor records how many turns had ended when its
//! operation did. The next turn to end may have begun before that; the one after it and the third
//! are the two grace periods that the descriptor waits for. So a descriptor becomes due by itself:
//! any thread takes any descriptor that is due.
//!
//! A thread that begins or ends a turn is pinned meanwhile. If it is stopped there, it keeps
//! descriptors from coming back, as any pinned thread does. The function deferred to the epochs
//! counts turns and touches nothing else, so it may run long after the pool was closed.
//!
//! A thread begins with a set of its own, and continues with others' sets when its own has no free
//! or due descriptor. So a few threads share all descriptors.

use super::encoding::MAX_PER_THREAD;
use crate::sync::worker;
use crossbeam_epoch::Guard;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Number of turns that have to end after a descriptor's operation.
const GRACE: u64 = 3;
/// A turn is begun after this many descriptors of a set, or after half of a small set's. A smaller
/// number costs more time, a larger one more descriptors.
const TURN_EVERY: usize = 8;

/// Turns of the epochs.
#[derive(Debug, Default)]
struct Turns {
    ended: CachePadded<AtomicU64>,
    under_way: CachePadded<AtomicBool>,
}

impl Turns {
    /// Begins a turn if none is under way, and moves the epochs on.
    fn ask(self: &Arc<Self>, guard: &Guard) {
        // ORDERING: Relaxed; a hint. Acquire: pairs with the Release in `end`: this turn begins
        // after the one before has ended.
        if !self.under_way.load(Ordering::Relaxed) && !self.under_way.swap(true, Ordering::Acquire)
        {
            let turns = Arc::clone(self);
            guard.defer(move || turns.end());
        }
        guard.flush();
    }

    fn end(&self) {
        // ORDERING: SeqCst; pairs with the load in `retire`, and as a Release with the Acquire in
        // `take_due`: the actions of threads that were pinned come before a descriptor is used
        // again.
        self.ended.fetch_add(1, Ordering::SeqCst);
        // ORDERING: Release; pairs with the Acquire in `ask`.
        self.under_way.store(false, Ordering::Release);
    }
}

/// One set of descriptors; bit `i` is its `i`-th one.
#[derive(Debug, Default)]
struct Shard {
    /// Descriptors that have not been published since they were recycled.
    free: AtomicU64,
    /// Descriptors whose operations have ended; their policies are still to be executed.
    retired: AtomicU64,
    /// Descriptors whose last operation has a policy; each bit belongs to its descriptor's owner.
    policies: AtomicU64,
    /// Descriptors whose operations a panic cut short; they stay so until all is quiet.
    abandoned: AtomicU64,
    /// The last bit that was taken from the retired ones: those below it have waited longest, then
    /// those above.
    last: AtomicU32,
}

/// All descriptors.
#[derive(Debug)]
pub(super) struct Lists {
    shards: Box<[CachePadded<Shard>]>,
    per_shard: usize,
    /// By descriptor: the turns that had ended when its last operation had.
    since: Box<[AtomicU64]>,
    turns: Arc<Turns>,
}

/// A descriptor that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) number: usize,
    /// True if it must be recycled first.
    pub(super) used: bool,
}

/// Takes one bit.
fn take_bit(of: &AtomicU64) -> Option<u32> {
    // ORDERING: Relaxed; a hint.
    let mut seen = of.load(Ordering::Relaxed);
    while seen != 0 {
        // The highest first: recovery must not rely on the first descriptors being used.
        let bit = 63 - seen.leading_zeros();
        // ORDERING: AcqRel; acquires the last owner's accesses to the descriptor (`set`).
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
        debug_assert!((1..=MAX_PER_THREAD).contains(&per_shard));
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
            since: (0..descriptors).map(|_| AtomicU64::new(0)).collect(),
            turns: Arc::default(),
        }
    }

    /// Takes a descriptor of this thread's set, or of another one. `thread` is the thread's number.
    pub(super) fn take(&self, thread: usize) -> Option<Taken> {
        let shards = self.shards.len();
        // Few threads have sets far from each other, so that each may use those behind its own too.
        let first = thread % shards * ((shards * 5 / 8) | 1);
        for i in 0..shards {
            let shard = (first + i) % shards;
            let free =
                take_bit(&self.shards[shard].free).map(|bit| shard * self.per_shard + bit as usize);
            if let Some(number) = free {
                return Some(Taken {
                    number,
                    used: false,
                });
            }
            if let Some(number) = self.take_due(shard, u64::MAX) {
                let bit = (number % self.per_shard) as u32;
                // ORDERING: Relaxed; a hint.
                self.shards[shard].last.store(bit, Ordering::Relaxed);
                return Some(Taken { number, used: true });
            }
        }
        None
    }

    /// Takes a due descriptor with a policy, of any set.
    pub(super) fn take_with_policy(&self) -> Option<usize> {
        let mut shards = self.shards.iter().enumerate();
        // ORDERING: Relaxed; a hint.
        shards.find_map(|(shard, of)| self.take_due(shard, of.policies.load(Ordering::Relaxed)))
    }

    /// Takes a due descriptor of a set, among those in `among`: the one that has waited longest, as
    /// far as that is known.
    fn take_due(&self, shard: usize, among: u64) -> Option<usize> {
        let of = &self.shards[shard];
        // ORDERING: Acquire; pairs with `Turns::end`.
        let ended = self.turns.ended.load(Ordering::Acquire);
        // ORDERING (both): Relaxed; hints.
        let last = of.last.load(Ordering::Relaxed);
        let mut seen = of.retired.load(Ordering::Relaxed) & among;
        while seen != 0 {
            // Downwards from the one behind the last.
            let bit = (last + 63 - seen.rotate_right(last).leading_zeros()) % 64;
            let number = shard * self.per_shard + bit as usize;
            // ORDERING: Relaxed; a hint, until the descriptor is taken.
            let due = || self.since[number].load(Ordering::Relaxed) + GRACE <= ended;
            if !due() {
                return None;
            }
            // ORDERING: AcqRel; acquires what was done with the descriptor before it was retired.
            let before = of.retired.fetch_and(!(1 << bit), Ordering::AcqRel);
            if before & 1 << bit != 0 {
                if due() {
                    return Some(number);
                }
                // It was taken and retired again in between.
                // ORDERING: Release; as in `set`.
                of.retired.fetch_or(1 << bit, Ordering::Release);
            }
            seen &= before & !(1 << bit);
        }
        None
    }

    /// Moves the epochs on. After a few calls, unless a thread stays pinned, retired descriptors
    /// are due.
    pub(super) fn turn(&self, guard: &Guard) {
        self.turns.ask(guard);
    }

    fn set(&self, number: usize, of: impl Fn(&Shard) -> &AtomicU64) {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Release; pairs with the Acquire of the thread that takes it from there.
        of(shard).fetch_or(1 << (number % self.per_shard), Ordering::Release);
    }

    /// Frees a descriptor that no other thread has seen.
    pub(super) fn give(&self, number: usize) {
        self.set(number, |shard| &shard.free);
    }

    /// Retires a descriptor whose operation has ended, with a policy or without.
    pub(super) fn retire(&self, number: usize, policy: bool, guard: &Guard) {
        // ORDERING: SeqCst; pairs with `Turns::end`. The swaps that ended the operation, SeqCst
        // too, come before this load in the order of all of those, and a turn that it does not
        // count after it: so of the turns to come all but the next begin when the operation has
        // ended.
        let ended = self.turns.ended.load(Ordering::SeqCst);
        // ORDERING: Relaxed; published with the bit.
        self.since[number].store(ended, Ordering::Relaxed);
        let (shard, bit) = (number / self.per_shard, number % self.per_shard);
        let policies = &self.shards[shard].policies;
        // ORDERING (both): Relaxed; this bit is the descriptor's owner's, and otherwise a hint.
        if (policies.load(Ordering::Relaxed) & 1 << bit != 0) != policy {
            policies.fetch_xor(1 << bit, Ordering::Relaxed);
        }
        self.set(number, |shard| &shard.retired);
        if bit.is_multiple_of((self.per_shard / 2).clamp(1, TURN_EVERY)) {
            self.turn(guard);
        }
    }

    /// Notes a descriptor whose operation a panic cut short.
    pub(super) fn abandon(&self, number: usize) {
        self.set(number, |shard| &shard.abandoned);
    }

    /// Returns true if a panic cut the descriptor's operation short.
    pub(super) fn abandoned(&self, number: usize) -> bool {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Acquire; pairs with the Release of `set`.
        shard.abandoned.load(Ordering::Acquire) & 1 << (number % self.per_shard) != 0
    }

    /// Returns true if the descriptor is not free: in use, or not recycled yet.
    pub(super) fn held(&self, number: usize) -> bool {
        let shard = &self.shards[number / self.per_shard];
        // ORDERING: Acquire; pairs with the Release of `set`.
        shard.free.load(Ordering::Acquire) & 1 << (number % self.per_shard) == 0
    }
}

/// Operations since the pool was opened. Threads that share a counter may lose some counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations executed.
    pub attempts: u64,
    /// Those that succeeded.
    pub successes: u64,
    /// Those that failed.
    pub failures: u64,
    /// Times that a thread helped another one's operation.
    pub helps: u64,
    /// Words of the operations executed.
    pub words: u64,
}

const SHARDS: usize = 64;

/// Counters that threads do not share, as far as there are enough.
#[derive(Debug)]
pub(super) struct Counters {
    shards: Box<[CachePadded<[AtomicU64; 5]>]>,
}

/// The index of a counter.
#[derive(Clone, Copy, Debug)]
enum Counted {
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

    /// Returns this thread's line and a function that adds to a counter in it. It does not use one
    /// locked step, which would wait for the operation's flushes.
    #[inline]
    fn mine(&self) -> impl Fn(Counted, u64) {
        let mine = &self.shards[worker() % SHARDS];
        move |what, n| {
            let counter = &mine[what as usize];
            // ORDERING (both): Relaxed; a statistic.
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    /// Counts an ended operation with that many words.
    #[inline]
    pub(super) fn executed(&self, words: usize, done: bool) {
        let add = self.mine();
        add(Counted::Attempts, 1);
        add(Counted::Words, words as u64);
        let ended = if done {
            Counted::Successes
        } else {
            Counted::Failures
        };
        add(ended, 1);
    }

    /// Counts help for an operation of another thread.
    #[inline]
    pub(super) fn helped(&self) {
        self.mine()(Counted::Helps, 1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_epoch as epoch;

    /// Takes all descriptors, as thread 0.
    fn drain(lists: &Lists) -> Vec<usize> {
        std::iter::from_fn(|| lists.take(0).map(|taken| taken.number)).collect()
    }

    #[test]
    fn what_was_retired_is_due_after_three_turns_in_whatever_set_it_is() {
        let lists = Lists::all_free(30, 8);
        let all = drain(&lists);
        assert_eq!(all.len(), 30, "the last set is smaller");
        // Keeps turns that are begun from ending.
        let guard = epoch::pin();
        let (first, second) = all.split_at(20);
        first.iter().for_each(|n| lists.retire(*n, false, &guard));
        lists.turns.end();
        second.iter().for_each(|n| lists.retire(*n, false, &guard));
        for _ in 1..GRACE {
            assert!(lists.take(0).is_none() && lists.take(1).is_none());
            lists.turns.end();
        }
        let mut due = drain(&lists);
        due.sort_unstable();
        let mut first = first.to_vec();
        first.sort_unstable();
        assert_eq!(due, first);
        lists.turns.end();
        assert_eq!(drain(&lists).len(), second.len());
    }

    #[test]
    fn what_has_a_policy_is_found_in_any_set_once_it_is_due() {
        let lists = Lists::all_free(32, 8);
        let all = drain(&lists);
        let guard = epoch::pin();
        let policy = |number: usize| number.is_multiple_of(5);
        all.iter()
            .for_each(|n| lists.retire(*n, policy(*n), &guard));
        (1..GRACE).for_each(|_| lists.turns.end());
        assert_eq!(lists.take_with_policy(), None);
        lists.turns.end();
        let with = std::iter::from_fn(|| lists.take_with_policy());
        let mut with: Vec<usize> = with.collect();
        with.sort_unstable();
        assert_eq!(with, [0, 5, 10, 15, 20, 25, 30]);
        // The next use has none.
        with.iter().for_each(|n| lists.retire(*n, false, &guard));
        (0..GRACE).for_each(|_| lists.turns.end());
        assert_eq!(lists.take_with_policy(), None);
        assert_eq!(drain(&lists).len(), 32);
    }

    #[test]
    fn turns_end_when_those_have_left_who_were_pinned() {
        let lists = Lists::all_free(8, 8);
        let all = drain(&lists);
        {
            let guard = epoch::pin();
            all.iter().for_each(|n| lists.retire(*n, false, &guard));
            (0..100).for_each(|_| lists.turn(&guard));
            assert!(lists.take(0).is_none(), "this thread may look at them");
        }
        let mut back = 0;
        while back < all.len() {
            // Threads of other tests may be pinned for a while.
            lists.turn(&epoch::pin());
            std::thread::yield_now();
            back += drain(&lists).len();
        }
        assert_eq!(back, 8);
    }
}
