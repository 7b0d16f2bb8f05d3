//! Estimate of the number of concurrent writers, for group flushing ([`GroupFlush::UnderLoad`]).
//!
//! ```text
//! thread a:  w w w w w w w w | judges    "since my last judgement I made 256 writes; so did b, and c made 20:
//! thread b:  w w w w w w w w |            2.08 of us write"
//! thread c:      w           |
//! ```
//!
//! A thread counts its writes in a cell that only it stores to. After every [`EVERY`] writes it
//! reads all cells. So writers share lines only when they judge, no clock is read, and repeated
//! runs decide alike. Threads whose numbers fall on one cell ([`CELLS`]) count and judge as one.

use super::GroupFlush;
use bristlecone_pmem::sync::worker;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const CELLS: usize = 64;
/// Number of writes of a thread between two judgements.
pub(super) const EVERY: u64 = 256;

/// Cell of one thread.
#[derive(Debug, Default)]
struct Cell {
    /// Number of writes that it made.
    writes: AtomicU64,
    /// Writes of all cells at its last judgement.
    seen: Seen,
    /// Result of that judgement.
    high: AtomicBool,
}

#[derive(Debug)]
struct Seen([AtomicU64; CELLS]);

impl Default for Seen {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[derive(Debug)]
struct Judging {
    writers: u64,
    cells: [CachePadded<Cell>; CELLS],
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Load {
    /// Result if nothing has to be judged.
    always: bool,
    judging: Option<Box<Judging>>,
}

impl Load {
    pub fn new(when: GroupFlush) -> Self {
        Self {
            always: when == GroupFlush::On,
            judging: match when {
                GroupFlush::Off | GroupFlush::On => None,
                GroupFlush::UnderLoad { writers } => Some(Box::new(Judging {
                    writers: writers.into(),
                    cells: std::array::from_fn(|_| CachePadded::default()),
                })),
            },
        }
    }

    /// Counts a write of this thread. Returns true if it should flush in groups.
    #[inline]
    pub fn write(&self) -> bool {
        match &self.judging {
            None => self.always,
            Some(judging) => judging.write(),
        }
    }

    /// Returns true if this thread flushes in groups, by its last judgement.
    #[inline]
    pub fn is_high(&self) -> bool {
        match &self.judging {
            None => self.always,
            // ORDERING: Relaxed; advice.
            Some(judging) => judging.mine().high.load(Ordering::Relaxed),
        }
    }
}

impl Judging {
    #[inline]
    fn mine(&self) -> &Cell {
        &self.cells[worker() % CELLS]
    }

    #[inline]
    fn write(&self) -> bool {
        let mine = self.mine();
        // ORDERING (all, here and below): Relaxed; they are counts, and their result is advice. A
        // count that is lost between two threads of one cell does no harm either.
        let writes = mine.writes.load(Ordering::Relaxed) + 1;
        if writes == 1 {
            // Writes of other threads before this point do not count.
            self.others(mine);
        }
        mine.writes.store(writes, Ordering::Relaxed);
        if writes.is_multiple_of(EVERY) {
            self.judge(mine);
        }
        mine.high.load(Ordering::Relaxed)
    }

    #[cold]
    fn judge(&self, mine: &Cell) {
        let writers = (self.others(mine) + EVERY / 2) / EVERY;
        mine.high.store(writers >= self.writers, Ordering::Relaxed);
    }

    /// Returns the writes of all cells since this cell's last judgement, at most [`EVERY`] of each:
    /// a faster writer is still one writer.
    fn others(&self, mine: &Cell) -> u64 {
        let cells = self.cells.iter().zip(&mine.seen.0);
        let since = cells.map(|(cell, seen)| {
            let writes = cell.writes.load(Ordering::Relaxed);
            let before = seen.load(Ordering::Relaxed);
            seen.store(writes, Ordering::Relaxed);
            writes.saturating_sub(before).min(EVERY)
        });
        since.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::sync::set_worker;

    /// Returns how many of `each` writes of each of these workers, taking turns, are to flush.
    fn flushed(load: &Load, workers: usize, each: u64) -> u64 {
        let mut flushed = 0;
        for _ in 0..each {
            for worker in 0..workers {
                set_worker(worker);
                flushed += u64::from(load.write());
            }
        }
        flushed
    }

    #[test]
    fn off_and_on_do_not_look() {
        assert_eq!(flushed(&Load::new(GroupFlush::Off), 40, 1000), 0);
        assert_eq!(flushed(&Load::new(GroupFlush::On), 1, 1000), 1000);
    }

    #[test]
    fn under_load_follows_the_number_of_writers() {
        let load = Load::new(GroupFlush::UNDER_LOAD);
        let each = 10 * EVERY;
        assert_eq!(flushed(&load, 1, each), 0, "one thread alone");
        assert_eq!(flushed(&load, 15, each), 0, "one too few");
        // All judge the load high at the end of their first 256 writes, or of the period before.
        let all = 16 * each;
        let under = flushed(&load, 16, each);
        assert!(
            under >= all - 16 * 2 * EVERY && under <= all,
            "{under} of {all}"
        );
        assert!(flushed(&load, 48, each) >= 48 * each - 48 * 2 * EVERY);
        // The load falls: each thread's next judgement is the last to see the others.
        let after = flushed(&load, 3, each);
        assert!(after <= 3 * 2 * EVERY, "{after}");
        assert_eq!(flushed(&load, 3, each), 0);
        assert!(!load.is_high());
    }

    #[test]
    fn a_slow_writer_is_no_load_and_sees_none_in_a_fast_one() {
        let load = Load::new(GroupFlush::UnderLoad { writers: 3 });
        let mut slow = 0;
        for _ in 0..10 * EVERY {
            set_worker(0);
            slow += u64::from(load.write());
            for _ in 0..50 {
                set_worker(1);
                assert!(!load.write());
            }
        }
        assert_eq!(slow, 0);
    }
}
