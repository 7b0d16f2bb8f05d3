//! The gate between changes of PLNs and rebuilding: many changes may be inside at once, or one
//! thread closes it.
//!
//! Searches and plain appends never pass here.

use crate::sync::{AtomicU64, wait};
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

/// Bit 63: the gate is closed, or about to be. The other bits count the threads inside.
const CLOSED: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Gate(AtomicU64);

/// A thread's presence inside the gate; dropping it leaves.
#[must_use = "dropping it leaves"]
#[derive(Debug)]
pub(super) struct Inside<'g>(&'g Gate);

/// The gate is closed and no thread is inside; dropping this opens it.
#[must_use = "dropping it opens the gate"]
#[derive(Debug)]
pub(super) struct Closed<'g>(&'g Gate);

impl Gate {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn change(&self, from: u64, to: u64) -> bool {
        // ORDERING: AcqRel; a thread that passes sees what was done by those that left or opened
        // before.
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn state(&self) -> u64 {
        // ORDERING: Relaxed; a first guess for `change`.
        self.0.load(Ordering::Relaxed)
    }

    /// Enters; waits while the gate is closed.
    pub(super) fn enter(&self) -> Inside<'_> {
        let backoff = Backoff::new();
        loop {
            let state = self.state();
            if state & CLOSED == 0 && self.change(state, state + 1) {
                return Inside(self);
            }
            wait(&backoff);
        }
    }

    /// Closes the gate and waits for the threads inside. The caller must not be one of them.
    pub(super) fn close(&self) -> Closed<'_> {
        let backoff = Backoff::new();
        loop {
            let state = self.state();
            if state & CLOSED == 0 && self.change(state, state | CLOSED) {
                break;
            }
            wait(&backoff);
        }
        let backoff = Backoff::new();
        while !self.change(CLOSED, CLOSED) {
            wait(&backoff);
        }
        Closed(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        loop {
            let state = self.0.state();
            if self.0.change(state, state - 1) {
                return;
            }
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let open = self.0.change(CLOSED, 0);
        debug_assert!(open, "only the closer opens");
    }
}

impl Gate {
    #[cfg(test)]
    fn is_open(&self) -> bool {
        self.state() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64 as Cell, explore};
    use std::sync::Arc;

    /// While the gate is closed no thread is inside, and no two threads close it at once.
    #[test]
    fn schedules() {
        explore(500, || {
            let gate = Arc::new(Gate::new());
            let inside = Arc::new(Cell::new(0));
            let threads: Vec<_> = (0..4)
                .map(|i| {
                    let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                    shuttle::thread::spawn(move || {
                        if i < 2 {
                            let _inside = gate.enter();
                            let n = inside.load(Ordering::Relaxed);
                            assert!(n < 100, "closed");
                        } else {
                            let _closed = gate.close();
                            assert_eq!(inside.load(Ordering::Relaxed), 0);
                            inside.store(100, Ordering::Relaxed);
                            inside.store(0, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(gate.is_open());
        });
    }
}
