//! The atomics that concurrent code in this crate uses: the standard ones, except in this crate's
//! own tests, where each access is also a scheduling point of the model checker
//! (`research/schedules`); and waiting for others.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use bristlecone_schedules::{AtomicPtr, AtomicU32, AtomicU64, explore, unexplored};

use bristlecone_pmem::sync::lock;
pub use bristlecone_pmem::sync::wait_for_readers;
use crossbeam_utils::Backoff;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One turn of a loop that waits for another thread: spins first, then gives way.
#[inline]
pub fn wait(backoff: &Backoff) {
    #[cfg(test)]
    if bristlecone_schedules::give_way() {
        return;
    }
    if bristlecone_pmem::sync::give_way() {
        return; // a simulated thread lets the others run
    }
    backoff.snooze();
}

/// Whether anything was retired that may only wait for readers to leave.
#[derive(Debug, Default)]
pub struct Retired {
    some: AtomicBool,
    /// How often readers were waited for.
    waits: AtomicUsize,
    turn: Mutex<()>,
}

impl Retired {
    /// Notes that something was.
    #[inline]
    pub fn note(&self) {
        // ORDERING: Relaxed (both); a hint. Stored to but once, so that threads do not meet here.
        if !self.some.load(Ordering::Relaxed) {
            self.some.store(true, Ordering::Relaxed);
        }
    }

    /// Where space was refused: sees that what was retired is free, if readers leave soon, or waits
    /// for another thread that is seeing to that. False if there is nothing. The caller holds no
    /// lock.
    pub fn wait(&self) -> bool {
        // ORDERING: Relaxed (all); another thread's wait is seen once its turn is over, by the
        // lock.
        let before = self.waits.load(Ordering::Relaxed);
        let _turn = lock(&self.turn);
        if self.waits.load(Ordering::Relaxed) != before {
            return true;
        }
        let some = self.some.swap(false, Ordering::Relaxed);
        if some {
            wait_for_readers();
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        some
    }
}
