//! Failure-atomic shift: the changes of a sorted node.
//!
//! ```text
//! insert at p:  key[n+1] = 0
//!               for i = n-1 .. p:    key[i+1] = key[i]         entry i+1 is a duplicate now, i+2 counts
//!                                    value[i+1] = value[i]     into an entry that does not count
//!               key[p] = key[p-1]                              entry p is a duplicate now, p+1 counts
//!               value[p] = value
//!               key[p] = key                                   the insertion counts
//! remove at p:  key[p] = key[p-1]                              the removal counts
//!               for i = p .. n-2:    value[i] = value[i+1]
//!                                    key[i] = key[i+1]         entry i counts, i+1 is a duplicate now
//!               key[n-1] = 0
//! ```
//! At p = 0 and p = 1, `hidden` is set in place of the copy of a left neighbour's key, and cleared
//! at the end. Entries of 16 bytes are in its line there.
//!
//! Each store is ordered behind the one before: inside a line by total store order or a store
//! fence, and from line to line by a flush and a fence of the complete line. So a crash leaves the
//! node as after some prefix of the stores.

use super::{META, NUMBERED, Node, order};
use crate::repr::Word;
use bristlecone_pmem::Media;

/// Planted fault: a removal flushes lines where an insertion does.
const WRONG_WAY: &str = "fastfair-wrong-way";
/// Planted fault: an insertion gives the new key to the old value.
const KEY_FIRST: &str = "fastfair-key-first";

impl<A: Word, B: Word> Node<'_, A, B> {
    /// Makes entry `n + 1` end a node of `n` entries, before entry `n` is stored.
    #[inline(always)]
    fn end_behind<M: Media>(self, pm: &M, n: usize) {
        let end = n + 1;
        if end < self.slots() && self.key(pm, end) != A::default() {
            self.set_key(pm, end, A::default());
            if Self::line(end) == Self::line(n) {
                order(pm);
            } else {
                // PERSIST: the new end, before the entry that has been the end counts.
                self.persist_line(pm, end);
            }
        }
    }

    /// FAST insertion at place `at` of a locked node of `n` entries that has room. `fenced` is true
    /// if nothing that the entry leads to is still to be fenced.
    #[inline]
    pub fn insert<M: Media>(self, pm: &M, n: usize, at: usize, (key, value): (A, B), fenced: bool) {
        debug_assert!(
            at <= n && n < self.slots(),
            "the caller saw that there is room"
        );
        if !fenced {
            // PERSIST: the pair's records, before an entry leads to them.
            pm.fence();
        }
        self.end_behind(pm, n);
        for i in (at..n).rev() {
            self.set_key(pm, i + 1, self.key(pm, i));
            order(pm);
            self.set_value(pm, i + 1, self.value(pm, i));
            if Self::line(i) == Self::line(i + 1) {
                order(pm);
            } else {
                // PERSIST: the complete line, before the original of its first entry is
                // overwritten.
                self.persist_line(pm, i + 1);
            }
        }
        if pm.planted(KEY_FIRST) {
            self.set_key(pm, at, key);
            order(pm);
        }
        if at < n {
            if self.is_hidden_afar(pm, at) {
                // PERSIST: the copy of the entry, before the entry is hidden.
                self.persist_line(pm, at + 1);
            }
            self.mask(pm, at);
            order(pm);
        }
        self.set_value(pm, at, value);
        if at < NUMBERED && self.hidden(pm) == at + 1 {
            self.set_key(pm, at, key);
            if Self::NEAR || at == 0 {
                order(pm);
                self.hide(pm, 0);
            } else {
                // PERSIST: the entry, before it is visible again.
                self.persist_line(pm, at);
                self.hide(pm, 0);
                // PERSIST: the cleared number; the insertion counts.
                self.persist_hidden(pm);
                return;
            }
        } else {
            order(pm);
            self.set_key(pm, at, key);
        }
        // PERSIST: the last line; the insertion counts.
        self.persist_line(pm, at);
    }

    /// FAST removal of entry `at` of a locked node. Returns how many entries are left.
    #[inline]
    pub fn remove<M: Media>(self, pm: &M, at: usize) -> usize {
        let n = self.count(pm);
        debug_assert!(at < n, "the caller found the entry");
        if at + 1 == n {
            return self.cut(pm, at);
        }
        self.mask(pm, at);
        order(pm);
        self.shift_left(pm, at, n);
        n - 1
    }

    /// Does the second half of a removal: entry `at` does not count, and those behind it, up to
    /// entry `n`, move.
    pub(super) fn shift_left<M: Media>(self, pm: &M, at: usize, n: usize) {
        for i in at..n - 1 {
            self.set_value(pm, i, self.value(pm, i + 1));
            order(pm);
            self.set_key(pm, i, self.key(pm, i + 1));
            if self.hidden(pm) == i + 1 {
                if Self::NEAR || i == 0 {
                    order(pm);
                    self.hide(pm, 0);
                } else {
                    // PERSIST: the entry, before it is visible again; then the cleared number,
                    // before the original is overwritten.
                    self.persist_line(pm, i);
                    self.hide(pm, 0);
                    self.persist_hidden(pm);
                }
            }
            let boundary = if pm.planted(WRONG_WAY) {
                i > 0 && Self::line(i) != Self::line(i - 1)
            } else {
                Self::line(i) != Self::line(i + 1)
            };
            if boundary {
                // PERSIST: the complete line, before the original of its last entry is overwritten.
                self.persist_line(pm, i);
            } else {
                order(pm);
            }
        }
        self.cut(pm, n - 1);
    }

    /// Ends the node at entry `at` by a NAW. Returns the number of entries that are left.
    #[track_caller]
    pub fn cut<M: Media>(self, pm: &M, at: usize) -> usize {
        if at == 0 {
            self.hide(pm, 1);
        } else {
            self.set_key(pm, at, A::default());
        }
        // PERSIST: the new end.
        self.persist_line(pm, at);
        at
    }

    /// Appends entries that do not count yet, because the right sibling has the same ones. Flushes
    /// them and does not fence.
    pub fn append<M: Media>(self, pm: &M, entries: impl Iterator<Item = (A, B)>) {
        let n = self.count(pm);
        let mut end = n;
        for (key, value) in entries.take(self.slots() - n) {
            self.set_key(pm, end, key);
            self.set_value(pm, end, value);
            end += 1;
        }
        if end == n {
            return;
        }
        if end < self.slots() {
            self.set_key(pm, end, A::default());
        }
        if n == 0 {
            order(pm);
            self.hide(pm, 0);
        }
        let first = if n == 0 { META } else { Self::key_at(n) };
        let last = Self::key_at(end) + A::WORDS;
        let words = &self.words[first..last.min(self.words.len())];
        // PERSIST: the entries, fenced before their sibling is unlinked.
        pm.flush_of(words);
    }
}
