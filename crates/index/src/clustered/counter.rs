//! Numbers that rise and never repeat, also after a crash: generations of pages, and time stamps.
//!
//! A root word holds a ceiling that all numbers stay below. It is raised durably, by a large step,
//! before a number reaches it. A session begins at the ceiling that it finds, so it leaves out the
//! numbers that the session before did not use.

use super::{checked, root};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, PWord, planted};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers between two ceilings.
const STEP: u64 = 1 << 20;
/// Likewise, where rare paths are to be taken often.
const TINY_STEP: u64 = 3;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Counter {
    next: AtomicU64,
    ceiling: AtomicU64,
    raising: Mutex<()>,
    /// The root word of the ceiling.
    word: usize,
}

impl Counter {
    /// A counter whose ceiling is in root word `word`, which is `ceiling` durably.
    pub(super) fn new(word: usize, ceiling: u64) -> Self {
        Self {
            next: AtomicU64::new(ceiling),
            ceiling: AtomicU64::new(ceiling),
            raising: Mutex::new(()),
            word,
        }
    }

    /// A number above all that were given before. `cell`: the root word of the ceiling.
    pub(super) fn next<M: Media>(&self, pm: &M, cell: &PWord) -> u64 {
        // ORDERING: SeqCst; of stamps it pairs with that of `versions`. The use of a number is
        // ordered by the lock of the page that it is for.
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        // ORDERING: Acquire; pairs with the Release of `raise`: the ceiling is durable by then.
        while number >= self.ceiling.load(Ordering::Acquire) {
            self.raise(pm, number, cell);
        }
        number
    }

    /// Gives only numbers above this one from here on, also after a crash.
    pub(super) fn skip<M: Media>(&self, pm: &M, number: u64, cell: &PWord) {
        // ORDERING: SeqCst; like that of `next`.
        self.next.fetch_max(number + 1, Ordering::SeqCst);
        // ORDERING: Acquire; pairs with the Release of `raise`: the ceiling is durable by then.
        while number >= self.ceiling.load(Ordering::Acquire) {
            self.raise(pm, number, cell);
        }
    }

    /// The number that is given next.
    pub(super) fn coming(&self) -> u64 {
        // ORDERING: SeqCst; pairs with that of `next`, for `versions`.
        self.next.load(Ordering::SeqCst)
    }

    /// The number that the next session begins at, unless more are given than the ceiling allows.
    pub(super) fn ceiling(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `raise`.
        self.ceiling.load(Ordering::Acquire)
    }

    #[cold]
    fn raise<M: Media>(&self, pm: &M, number: u64, cell: &PWord) {
        let _raising = lock(&self.raising);
        // ORDERING: Relaxed; changed under the lock only.
        if number < self.ceiling.load(Ordering::Relaxed) {
            return;
        }
        let step = if pm.tiny() { TINY_STEP } else { STEP };
        let ceiling = number + step;
        if !planted!(pm, "clustered-ceiling") {
            // PERSIST: the ceiling, before any number below it is used (`next` waits for it).
            cell.publish(pm, root::word(self.word, ceiling));
        }
        // ORDERING: Release; pairs with the Acquire of `next`.
        self.ceiling.store(ceiling, Ordering::Release);
    }
}

const _: () = assert!(STEP < 1 << checked::PAYLOAD_BITS);
