//! `Recorder`: the lines that become durable while a pool is being copied.
//!
//! A copy that is taken while other threads write is a mixture of moments. Recording every line
//! that is fenced meanwhile, and applying those lines over the copy, makes it whole, by the
//! argument of the journal's checkpoints: every store in a copied page was made after fences that
//! are all recorded, so the result is an image that a crash at the end of the copying could have
//! left.
//!
//! # Concurrency
//! `note` and `fence` cost one relaxed load while nothing is recorded. [`Recorder::start`] ends
//! with a barrier in every thread, so that a flush that was not recorded was of a store that the
//! copy sees.

use super::LINE;
use super::capture::capture;
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SLOTS: usize = 16;

/// Lines fenced while a copy is taken, each in its last captured state.
pub type Lines = HashMap<u64, [u64; LINE / 8]>;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Recorder {
    active: AtomicBool,
    /// Lines flushed and not yet fenced. Threads may share a slot: capturing a line early is legal.
    noted: [Mutex<Vec<u64>>; SLOTS],
    lines: Mutex<Lines>,
}

fn slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed; any distribution of numbers will do.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
    }
    MINE.with(|mine| *mine)
}

impl Recorder {
    /// Begins recording. Returns false if another copy is being taken.
    pub(crate) fn start(&self) -> bool {
        // ORDERING: SeqCst; the flushing threads pair with the barrier below.
        if self.active.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.noted.iter().for_each(|noted| lock(noted).clear());
        lock(&self.lines).clear();
        barrier_in_all_threads();
        true
    }

    /// Ends recording. Returns the recorded lines.
    pub(crate) fn stop(&self) -> Lines {
        let lines = std::mem::take(&mut *lock(&self.lines));
        // ORDERING: SeqCst; as in `start`.
        self.active.store(false, Ordering::SeqCst);
        lines
    }

    /// Notes the lines of a flush of `pool`, given by its first address and its length.
    #[inline(always)]
    pub(crate) fn note(&self, pool: (*const u8, u64), addr: *const u8, len: usize) {
        // ORDERING: Relaxed; pairs with the barrier in `start`.
        if self.active.load(Ordering::Relaxed) {
            self.note_slowly(pool, addr, len);
        }
    }

    #[cold]
    fn note_slowly(&self, (base, end): (*const u8, u64), addr: *const u8, len: usize) {
        // A cell outside the pool may be flushed too; it is not copied.
        let at = addr.addr().checked_sub(base.addr());
        if len > 0
            && let Some(at) = at.filter(|at| (at + len) as u64 <= end)
        {
            let lines = (at / LINE) as u64..=((at + len - 1) / LINE) as u64;
            lock(&self.noted[slot()]).extend(lines);
        }
    }

    /// Captures the lines that this thread flushed.
    #[inline(always)]
    pub(crate) fn fence(&self, base: *const u8) {
        // ORDERING: Relaxed; pairs with the barrier in `start`.
        if self.active.load(Ordering::Relaxed) {
            self.fence_slowly(base);
        }
    }

    #[cold]
    fn fence_slowly(&self, base: *const u8) {
        let mut noted = lock(&self.noted[slot()]);
        let mut lines = lock(&self.lines);
        // Captured under the lock, so that of two captures of a line the later one stays.
        for line in noted.drain(..) {
            // SAFETY: 1. `base` is the medium's, and the line was inside when it was flushed; a
            // pool is cut off only while nothing is copied (`Pool::compact`); 2. stores are made as
            // `Media` demands.
            lines.insert(line, unsafe { capture(base, line) });
        }
    }
}

/// Returns once every thread of the process has passed a full barrier.
fn barrier_in_all_threads() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes two integers and touches no memory of this process.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // This kernel has no such call. No store buffer stays full for that long.
        std::thread::sleep(Duration::from_millis(20));
    }
}
