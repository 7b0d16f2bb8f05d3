//! The sorted keys of a node: a word each, and for byte strings the whole key beside it.

use crate::inner::Separator;
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

/// The keys of an IN or PLN.
pub(super) struct Keys<'b, S: Separator + ?Sized> {
    pub words: &'b [AtomicU64],
    pub slots: &'b [S::Slot],
}

impl<S: Separator + ?Sized> Keys<'_, S> {
    /// Returns key `i`, or `None` for a torn read.
    pub fn load(&self, i: usize) -> Option<S::Full> {
        // ORDERING: Relaxed; INs never change, and readers of a PLN validate its version.
        S::load(self.words[i].load(Ordering::Relaxed), &self.slots[i])
    }

    /// Stores a key that the node then owns.
    pub fn store(&self, i: usize, full: S::Full) {
        // SAFETY: the caller owns `full`, so it is not freed meanwhile.
        let word = unsafe { S::view(&full) }.word(0);
        // ORDERING: Relaxed; as for `load`.
        self.words[i].store(word, Ordering::Relaxed);
        S::store(&self.slots[i], Some(full));
    }

    /// Copies key `from` over key `to`.
    pub fn shift(&self, from: usize, to: usize) {
        // ORDERING: Relaxed; as for `load`.
        let word = self.words[from].load(Ordering::Relaxed);
        let full = S::load(word, &self.slots[from]);
        self.words[to].store(word, Ordering::Relaxed);
        S::store(&self.slots[to], full);
    }

    /// Returns the order of key `i` against `key`, or `None` for a torn read.
    #[inline(always)]
    pub fn compare(&self, i: usize, key: &S, word: u64) -> Option<Order> {
        // ORDERING: Relaxed; as for `load`.
        let mine = self.words[i].load(Ordering::Relaxed);
        if S::EXACT || mine != word {
            return Some(mine.cmp(&word));
        }
        let full = S::load(mine, &self.slots[i])?;
        // SAFETY: 1. the caller is pinned; 2. a key that leaves a node is freed through the epoch.
        Some(unsafe { S::view(&full) }.cmp(key))
    }

    /// Returns how many of the first `n` keys are not above `key` (below it, if `strict`). A torn
    /// read returns any number up to `n`.
    #[inline(always)]
    pub fn rank(&self, n: usize, key: &S, word: u64, strict: bool) -> usize {
        let (mut low, mut len) = (0, n);
        while len > 0 {
            let half = len / 2;
            let order = self
                .compare(low + half, key, word)
                .unwrap_or(Order::Greater);
            if order == Order::Less || (order == Order::Equal && !strict) {
                low += half + 1;
                len -= half + 1;
            } else {
                len = half;
            }
        }
        low
    }
}
