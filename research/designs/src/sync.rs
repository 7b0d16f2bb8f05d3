//! The atomics of this crate's concurrent code. They are the standard ones, except in this crate's
//! own tests, where each access is also a scheduling point of the model checker.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use bristlecone_schedules::{AtomicPtr, AtomicU32, AtomicU64, explore, unexplored};

pub(crate) use bristlecone_index::sync::{Retired, wait_for_readers};
use crossbeam_utils::Backoff;

/// Takes one turn of a loop that waits for another thread: spins first, then yields.
#[inline]
pub(crate) fn wait(backoff: &Backoff) {
    #[cfg(test)]
    if bristlecone_schedules::give_way() {
        return;
    }
    bristlecone_index::sync::wait(backoff);
}
