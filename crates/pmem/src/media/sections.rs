//! `Sections`: which threads are storing, for a medium that gives memory back meanwhile.
//!
//! A page of a private mapping can be dropped, and read again from its file, if the file has all
//! that was stored to it. The medium knows what was fenced, and not what is being stored. So
//! threads say so: they *enter* before the first store of an operation, and leave when all of its
//! stores are fenced. To drop pages the medium *closes* the sections, which waits until nobody is
//! in one, and opens them again soon.
//!
//! # Concurrency
//! 1. *Entering* is a store to the thread's own counter, and then a load of `closed`; *closing* a
//!    store to `closed`, and then loads of all counters, all of them SeqCst. So either the thread
//!    finds the sections closed, and steps back, or who closes finds the thread inside.
//! 2. A thread enters before it takes any lock that is held in a section, and inside a section it
//!    may enter again. So no thread inside waits for one outside, and closing ends.
//! 3. If it does not end soon all the same (a thread inside waits for a disk), closing is given up.

use crate::sync::{lock, worker};
use crossbeam_utils::CachePadded;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Number of counters. Threads may share one.
const COUNTERS: usize = 64;

thread_local! {
    /// The sections that this thread is in, by their addresses, and how often it entered each.
    static INSIDE: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// See the module's head.
#[derive(Debug)]
pub struct Sections {
    counters: Box<[CachePadded<AtomicUsize>]>,
    closed: AtomicBool,
    /// Held by who has closed them.
    closing: Mutex<()>,
    /// For threads that wait until the sections are open.
    gate: Mutex<()>,
    opened: Condvar,
}

impl Default for Sections {
    fn default() -> Self {
        Self {
            counters: (0..COUNTERS).map(|_| CachePadded::default()).collect(),
            closed: AtomicBool::new(false),
            closing: Mutex::new(()),
            gate: Mutex::new(()),
            opened: Condvar::new(),
        }
    }
}

/// A thread's stay in a section. Dropping it leaves.
#[derive(Debug)]
pub struct Section<'s> {
    /// `None` on media that have no sections.
    sections: Option<&'s Sections>,
    /// It is of the thread that made it.
    thread: PhantomData<*const ()>,
}

impl<'s> Section<'s> {
    /// Enters a section, where the medium has them.
    #[inline]
    #[must_use]
    pub fn enter(sections: Option<&'s Sections>) -> Self {
        if let Some(sections) = sections {
            sections.enter();
        }
        Self {
            sections,
            thread: PhantomData,
        }
    }
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(sections) = self.sections {
            sections.leave();
        }
    }
}

/// Closed sections. Dropping it opens them.
#[derive(Debug)]
pub(crate) struct Closed<'s> {
    sections: &'s Sections,
    _closing: MutexGuard<'s, ()>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _gate = lock(&self.sections.gate);
        // ORDERING: SeqCst; as in `enter`.
        self.sections.closed.store(false, Ordering::SeqCst);
        self.sections.opened.notify_all();
    }
}

impl Sections {
    fn counter(&self) -> &AtomicUsize {
        &self.counters[worker() % COUNTERS]
    }

    fn enter(&self) {
        let address = std::ptr::from_ref(self).addr();
        let is_outer = INSIDE.with_borrow_mut(|inside| {
            match inside.iter_mut().find(|(at, _)| *at == address) {
                Some((_, times)) => {
                    *times += 1;
                    false
                }
                None => {
                    inside.push((address, 1));
                    true
                }
            }
        });
        if !is_outer {
            return;
        }
        loop {
            // ORDERING: SeqCst (both); pairs with the store and the loads in `close`.
            self.counter().fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return;
            }
            // ORDERING: Release; pairs with the loads in `close`.
            self.counter().fetch_sub(1, Ordering::Release);
            let mut gate = lock(&self.gate);
            while self.closed.load(Ordering::SeqCst) {
                gate = (self.opened.wait(gate)).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Returns whether this thread is in one.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        let address = std::ptr::from_ref(self).addr();
        INSIDE.with_borrow(|inside| inside.iter().any(|(at, _)| *at == address))
    }

    fn leave(&self) {
        let address = std::ptr::from_ref(self).addr();
        let is_outer = INSIDE.with_borrow_mut(|inside| {
            let at = inside.iter().position(|(at, _)| *at == address);
            let Some(at) = at else {
                return false;
            };
            inside[at].1 -= 1;
            let left = inside[at].1 == 0;
            if left {
                inside.swap_remove(at);
            }
            left
        });
        if is_outer {
            // ORDERING: Release; pairs with the loads in `close`, which then see its stores.
            self.counter().fetch_sub(1, Ordering::Release);
        }
    }

    /// Closes the sections, if nobody is inside within `patience`, and no other thread has closed
    /// them.
    pub(crate) fn close(&self, patience: Duration) -> Option<Closed<'_>> {
        let _closing = match self.closing.try_lock() {
            Ok(closing) => closing,
            Err(TryLockError::Poisoned(closing)) => closing.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // ORDERING: SeqCst (with the loads below); pairs with `enter`.
        self.closed.store(true, Ordering::SeqCst);
        let closed = Closed {
            sections: self,
            _closing,
        };
        let begun = Instant::now();
        for counter in &self.counters {
            while counter.load(Ordering::SeqCst) > 0 {
                if begun.elapsed() > patience {
                    return None;
                }
                std::thread::yield_now();
            }
        }
        Some(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn nobody_is_inside_while_they_are_closed_and_nobody_is_kept_out_after() {
        let sections = Arc::new(Sections::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let entered = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (sections, inside) = (Arc::clone(&sections), Arc::clone(&inside));
                let (entered, stop) = (Arc::clone(&entered), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _outer = Section::enter(Some(&sections));
                        inside.fetch_add(1, Ordering::Relaxed);
                        {
                            let _inner = Section::enter(Some(&sections));
                            entered.fetch_add(1, Ordering::Relaxed);
                        }
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut times = 0;
        // A thread may start late.
        while times < 300 || entered.load(Ordering::Relaxed) == 0 {
            if let Some(closed) = sections.close(Duration::from_secs(10)) {
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                assert!(sections.close(Duration::ZERO).is_none(), "they are closed");
                std::thread::yield_now();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                drop(closed);
                times += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn closing_is_given_up_where_a_thread_stays() {
        let sections = Sections::default();
        let inside = Section::enter(Some(&sections));
        assert!(sections.is_inside());
        assert!(sections.close(Duration::from_millis(5)).is_none());
        // They are open again: another thread gets in.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(Section::enter(Some(&sections))));
        });
        drop(inside);
        assert!(!sections.is_inside());
        assert!(sections.close(Duration::from_millis(5)).is_some());
        drop(Section::enter(None));
    }
}
