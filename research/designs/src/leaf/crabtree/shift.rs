//! Shifting in place (SIP): Algorithm 1, lines 22 to 33, and its reverse (section 4.4).
//!
//! ```text
//! insert 25:  10 20 30 40 --  n=4     remove 20:  10 20 30 40 --  n=4
//!             10 20 30 40 40                      10 30 30 40 --
//!             10 20 30 30 40                      10 30 40 40 --
//!             10 20 25 30 40                      10 30 40 -- --
//!             10 20 25 30 40  n=5                 10 30 40 -- --  n=3
//! ```
//!
//! # Crash states
//! Stores become durable in the order in which they are made: inside a line by the processor's
//! order (total store order) or by store fences, from line to line by a flush and a fence.
//! Therefore an image holds a prefix of them. It is one of the rows above or lies between two of
//! them, where one pair is half stored beside a slot with the same key and its right value.
//! [`super::repair`] tells the images apart by the counter, the null behind the pairs and the
//! duplicate key.
//!
//! The counter's line and the line of the last stored pair share a fence (lines 31 and 33 have one
//! each). If a crash keeps the counter and not the pairs, an insertion looks like a removal that is
//! shifting. Recovery finishes that removal, so the insertion, which was in flight, is gone. In the
//! same way a removal looks like an insertion. Recovery undoes it from one pair fewer, so that the
//! removal is made, or from as many, so that it is not.
//!
//! The paper stores key and value in the opposite order where it shifts down and for the new pair,
//! since its landmark is the duplicate *value*.
//!
//! # Persist cost
//! Each line from the slot to the end of the pairs and the header line is written back, with a
//! fence for each line that is crossed and one more. An insertion that begins a new line writes
//! back two more lines (the terminators) under the same fences.

use super::leaf::{Head, Leaf, NULL, is_first, is_last, line_of, terminators_end};
use bristlecone_pmem::Media;

/// Inserts a pair into slot `at` of a leaf that has room. If `fenced` is false, the pair's records
/// are flushed and not fenced yet.
pub(super) fn insert<M: Media>(leaf: &Leaf<'_, M>, at: usize, pair: (u64, u64), mut fenced: bool) {
    let (pm, head) = (leaf.pm, leaf.head());
    let n = head.n;
    debug_assert!(at <= n && n < leaf.capacity(), "{at} of {n}");
    let end = terminators_end(n + 1, leaf.capacity());
    if is_last(n) && n + 2 < end {
        // Slot n + 1 is null already. The other terminators of a leaf with one more pair follow.
        leaf.terminate(n + 2, end);
        // PERSIST: the nulls that the next insertion relies on, under this insertion's fences.
        leaf.flush_slots(n + 2, end);
    }
    for slot in (at + 1..=n).rev() {
        leaf.raise(slot, leaf.pair(slot - 1));
        if is_first(slot) {
            // PERSIST: this line, before the line below overwrites the pairs that were copied here.
            leaf.flush_line(slot);
            pm.fence();
            fenced = true;
        }
    }
    if !fenced {
        // PERSIST: the pair's records, before a key leads there.
        pm.fence();
    }
    leaf.raise(at, pair);
    if line_of(at) > 0 {
        // PERSIST: the new pair, under the counter's fence. If a crash keeps only one of the two,
        // recovery finds an insertion or a removal that is shifting.
        leaf.flush_line(at);
    }
    leaf.publish_head(Head { n: n + 1, ..head });
}

/// Removes the pair in slot `at`. Returns how many pairs are left.
pub(super) fn remove<M: Media>(leaf: &Leaf<'_, M>, at: usize) -> usize {
    let n = leaf.head().n.min(leaf.capacity());
    debug_assert!(at < n, "{at} of {n}");
    shift_down(leaf, at, n - 1);
    finish_removal(leaf, n - 1);
    n - 1
}

/// Copies the pair of each slot above to the slots `from..to`.
pub(super) fn shift_down<M: Media>(leaf: &Leaf<'_, M>, from: usize, to: usize) {
    for slot in from..to {
        leaf.lower(slot, leaf.pair(slot + 1));
        if is_last(slot) {
            // PERSIST: this line, before the line above overwrites the pairs that were copied here.
            leaf.flush_line(slot);
            leaf.pm.fence();
        }
    }
}

/// Ends a removal that leaves `n` pairs: clears the last slot, whose pair is also below, and
/// counts.
pub(super) fn finish_removal<M: Media>(leaf: &Leaf<'_, M>, n: usize) {
    if n > 0 {
        leaf.set_key(n, NULL);
        if line_of(n) > 0 {
            // PERSIST: the null and the pairs shifted within its line, under the counter's fence.
            // If a crash keeps only one of the two, recovery finds a removal or an insertion that
            // is shifting.
            leaf.flush_line(n);
        }
    }
    leaf.publish_head(Head { n, ..leaf.head() });
}
