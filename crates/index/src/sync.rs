//! The atomics of this crate's concurrent code, and waiting for other threads. The atomics are the
//! standard ones, except in this crate's own tests, where each access is also a scheduling point of
//! the model checker (`research/schedules`).

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use bristlecone_schedules::{AtomicPtr, AtomicU32, AtomicU64, explore, unexplored};

use bristlecone_pmem::sync::lock;
pub use bristlecone_pmem::sync::wait_for_readers;
use crossbeam_utils::Backoff;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Takes one turn of a loop that waits for another thread: spins first, then yields.
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

/// Notes whether anything was retired that may only wait for readers to leave.
#[derive(Debug, Default)]
pub struct Retired {
    some: AtomicBool,
    /// Number of times that a thread waited for readers.
    waits: AtomicUsize,
    turn: Mutex<()>,
}

impl Retired {
    /// Notes that something was retired.
    #[inline]
    pub fn note(&self) {
        // ORDERING: Relaxed (both); a hint. It is stored only once, so that threads do not meet
        // here.
        if !self.some.load(Ordering::Relaxed) {
            self.some.store(true, Ordering::Relaxed);
        }
    }

    /// After space was refused: waits until retired memory is free, if readers leave soon, or for
    /// another thread that does so. Returns false if nothing was retired. The caller holds no lock.
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
