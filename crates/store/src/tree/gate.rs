//! The writers' gate: closing it waits for the writers that are inside, and keeps others out.
//!
//! # Concurrency
//! A writer counts itself in and then looks whether the gate is closed; closing says so and then
//! looks at the counts. All four are sequentially consistent, so one of the two sees the other.

use crate::sync::wait;
use bristlecone_pmem::sync::{lock, worker};
use crossbeam_utils::{Backoff, CachePadded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

const SHARDS: usize = 16;

#[derive(Debug)]
pub(super) struct Gate {
    closed: AtomicBool,
    /// Writers inside.
    inside: Box<[CachePadded<AtomicU64>]>,
    closing: Mutex<()>,
}

/// A writer is inside.
#[must_use]
pub(super) struct Inside<'g>(&'g AtomicU64);

/// The gate is closed, and nobody is inside.
#[must_use]
pub(super) struct Closed<'g> {
    gate: &'g Gate,
    _closing: MutexGuard<'g, ()>,
}

impl Gate {
    pub fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            inside: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            closing: Mutex::new(()),
        }
    }

    /// Goes inside. Waits while the gate is closed.
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        let count = &*self.inside[worker() % SHARDS];
        loop {
            // ORDERING: SeqCst (all); pairs with those of `close` (module head).
            count.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return Inside(count);
            }
            count.fetch_sub(1, Ordering::SeqCst);
            let backoff = Backoff::new();
            while self.closed.load(Ordering::SeqCst) {
                wait(&backoff);
            }
        }
    }

    /// Closes the gate, and waits until nobody is inside.
    pub fn close(&self) -> Closed<'_> {
        let closing = lock(&self.closing);
        // ORDERING: SeqCst; pairs with those of `enter` (module head).
        self.closed.store(true, Ordering::SeqCst);
        for count in &self.inside {
            let backoff = Backoff::new();
            while count.load(Ordering::SeqCst) != 0 {
                wait(&backoff);
            }
        }
        Closed {
            gate: self,
            _closing: closing,
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst; as in `enter`: whoever closes sees what was done inside.
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst; as in `enter`: whoever comes in sees what was done while it was closed.
        self.gate.closed.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64 as Plain;

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        let (gate, inside, done) = (Gate::new(), Plain::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let _in = gate.enter();
                        inside.fetch_add(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                let closed = gate.close();
                for _ in 0..50 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0);
                }
                drop(closed);
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
