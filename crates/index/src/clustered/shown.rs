//! The mark below which all changes have been shown to readers.
//!
//! A change takes its stamp once it holds the locks of its pages, and shows its records in one page
//! after another. So stamps become visible out of their order. A ring of words says which have: the
//! word of a stamp holds the last one, of all that share the word, whose change has been shown.
//!
//! # Concurrency
//! A change whose word is still that of an older change in flight waits for it. A thread that
//! has a stamp which is not shown has all its page locks, and waits for older stamps, and for locks
//! whose holders take no stamp and wait for no page.

use crate::sync::{AtomicU64, wait};
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

/// Words of the ring: more than changes are mostly in flight.
const WORDS: u64 = 1024;
/// Words of a line.
const LINE: u64 = 8;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Shown<const RING: u64 = WORDS> {
    /// The first stamp that could be given.
    first: u64,
    /// Of each word, the next stamp to be shown.
    next: Box<[AtomicU64]>,
    /// All stamps below this one have been shown.
    mark: AtomicU64,
}

impl<const RING: u64> Shown<RING> {
    /// The word of a stamp. Consecutive ones lie in different lines.
    #[inline(always)]
    fn word(stamp: u64) -> usize {
        let i = stamp % RING;
        (i % (RING / LINE) * LINE + i / (RING / LINE)) as usize
    }

    /// Nothing below `first`, the next stamp to be given, is in flight.
    pub(super) fn new(first: u64) -> Self {
        let mut next: Vec<AtomicU64> = (0..RING).map(|_| AtomicU64::new(0)).collect();
        for stamp in first..first + RING {
            next[Self::word(stamp)] = AtomicU64::new(stamp);
        }
        Self {
            first,
            next: next.into(),
            mark: AtomicU64::new(first),
        }
    }

    /// The first stamp that could be given.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// A time below which all changes have been shown, found without waiting.
    pub(super) fn mark(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `wait_for`.
        self.mark.load(Ordering::Acquire)
    }

    /// Notes that the change of `stamp` has been shown, in all its pages, or never will be.
    #[inline(always)]
    pub(super) fn show(&self, stamp: u64) {
        let cell = &self.next[Self::word(stamp)];
        // ORDERING: Acquire; pairs with the Release below, of the older change of this word: who
        // sees this stamp shown sees that one's records too.
        if cell.load(Ordering::Acquire) != stamp {
            self.wait_until(cell, stamp);
        }
        // ORDERING: Release; pairs with the Acquire of `wait_for`, which sees the change's records,
        // and with that of the word's next change above: so who sees a stamp shown sees all older
        // ones of its word.
        cell.store(stamp + RING, Ordering::Release);
    }

    #[cold]
    fn wait_until(&self, cell: &AtomicU64, next: u64) {
        let backoff = Backoff::new();
        // ORDERING: Acquire; as in `show`.
        while cell.load(Ordering::Acquire) < next {
            wait(&backoff);
        }
    }

    /// Waits until all stamps below `end`, which have been given, have been shown.
    pub(super) fn wait_for(&self, end: u64) {
        // ORDERING: Acquire; pairs with the Release below: what another thread has seen shown.
        let marked = self.mark.load(Ordering::Acquire);
        // A word moves on only when all older stamps of that word have been shown, so the last lap
        // of the ring tells about all of them.
        let from = marked.max(end.saturating_sub(RING));
        for stamp in from..end {
            self.wait_until(&self.next[Self::word(stamp)], stamp + 1);
        }
        if end > marked {
            // ORDERING: Release; pairs with the Acquire above. A lower mark of another thread may
            // be stored later, and costs time only.
            self.mark.store(end, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{explore, unexplored};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64 as Plain;

    #[test]
    fn what_is_waited_for_has_been_shown() {
        let shown = Shown::<8>::new(7);
        shown.wait_for(7);
        for stamp in [8, 7, 10] {
            shown.show(stamp);
        }
        shown.wait_for(9);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shown.wait_for(11));
            std::thread::sleep(std::time::Duration::from_millis(20));
            let waited = !waiting.is_finished();
            shown.show(9);
            assert!(waited, "9 was in flight");
        });
    }

    /// Threads write a word each, at a stamp; another one looks whether all that was given has been
    /// written. The ring is lapped several times.
    #[test]
    fn whoever_waits_sees_all_changes() {
        const STAMPS: u64 = 12;
        const FIRST: u64 = 3;
        struct State {
            shown: Shown<8>,
            given: Plain,
            written: [Plain; STAMPS as usize],
        }
        explore(400, || {
            let state = Arc::new(State {
                shown: unexplored(|| Shown::new(FIRST)),
                given: Plain::new(FIRST),
                written: std::array::from_fn(|_| Plain::new(0)),
            });
            let mut threads: Vec<_> = (0..3)
                .map(|_| {
                    let state = Arc::clone(&state);
                    shuttle::thread::spawn(move || {
                        for _ in 0..STAMPS / 3 {
                            let stamp = state.given.fetch_add(1, Ordering::SeqCst);
                            shuttle::thread::yield_now();
                            let word = &state.written[(stamp - FIRST) as usize];
                            word.store(stamp, Ordering::Relaxed);
                            state.shown.show(stamp);
                        }
                    })
                })
                .collect();
            threads.push(shuttle::thread::spawn(move || {
                for _ in 0..4 {
                    let end = state.given.load(Ordering::SeqCst);
                    state.shown.wait_for(end);
                    for stamp in FIRST..end {
                        let word = &state.written[(stamp - FIRST) as usize];
                        assert_eq!(word.load(Ordering::Relaxed), stamp);
                    }
                }
            }));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
