//! Recovery of a leaf (section 4.5): a change that a crash cut short is undone or finished.
//!
//! The counter says n. The null behind the pairs tells how many are there, and a shift under way
//! shows as a duplicate key:
//!
//! | scenario | duplicate key | pairs there | what it was | repair |
//! | --- | --- | --- | --- | --- |
//! | 1 | no | n + 1 | an insertion, whole but for the counter | counter n + 1 |
//! | 1 | no | n - 1 | a removal, whole but for the counter | counter n - 1 |
//! | 2 | yes | n + 1 | an insertion that is shifting | shift down again, counter n |
//! | 3 | yes | n | a removal that is shifting | shift down further, counter n - 1 |
//! | 4 | no | more | a merge that wrote pairs behind n and did not count them, or a split that did not clear what it gave away | nulls behind n |
//!
//! Slot n + 1 is null while one pair is inserted (leaf.rs, invariant 2). This tells scenarios 1 and
//! 2 from 4. In a leaf without pairs (n = 0) nothing counts, whatever slot 0 holds.
//!
//! Of two slots with the same key the upper has the right value, in scenario 2 as in 3, so one rule
//! shifts in both. A removal shifts down too, so a crash during the repair leaves the same
//! scenario, and the repair can be repeated. Copies (COW) need no repair.

use super::leaf::{Head, Leaf, NULL, is_last, terminators_end};
use super::shift::{finish_removal, shift_down};
use bristlecone_pmem::Media;

/// Makes a leaf whole. Returns true if anything was repaired. Repairs are flushed, and not all of
/// them fenced.
///
/// # Errors
/// The fault of the leaf, in words.
pub(super) fn repair<M: Media>(leaf: &Leaf<'_, M>) -> Result<bool, String> {
    let (head, capacity) = (leaf.head(), leaf.capacity());
    let n = head.n;
    if n > capacity {
        return Err(format!("{n} pairs, where {capacity} have room"));
    }
    if n == 0 {
        return Ok(clear_behind(leaf, 1));
    }
    let beyond = n < capacity && leaf.key(n) != NULL;
    if !beyond || n + 1 < capacity && leaf.key(n + 1) != NULL {
        // Scenario 4, if there are pairs behind the last.
        let cleared = clear_behind(leaf, n);
        let there = if n > 1 && leaf.key(n - 1) == NULL {
            n - 1
        } else {
            n
        };
        return Ok(match duplicate(leaf, there) {
            // Scenario 3.
            Some(_) if there < n => return Err("a null and a duplicate key".into()),
            Some(at) => {
                shift_down(leaf, at, n - 1);
                finish_removal(leaf, n - 1);
                true
            }
            // Scenario 1, a removal.
            None if there < n => {
                finish_removal(leaf, there);
                true
            }
            None => cleared,
        });
    }
    match duplicate(leaf, n + 1) {
        // Scenario 2. Shifting back is a removal from n + 1 pairs without the counter.
        Some(at) => {
            shift_down(leaf, at, n);
            leaf.set_key(n, NULL);
            // PERSIST: the pairs as they were; none counts that did not count before.
            leaf.flush_line(n);
        }
        // Scenario 1, an insertion.
        None => {
            leaf.set_head(Head { n: n + 1, ..head });
            // PERSIST: the counter, fenced with all repairs. Its order with the nulls does not
            // matter: without them, the next recovery finds scenario 4.
            leaf.pm.flush_of(leaf.head_word());
            // The pair may have become durable before the nulls behind it.
            clear_behind(leaf, n + 1);
        }
    }
    Ok(true)
}

/// Returns the lower of two neighbouring slots with the same key, among the first `n`.
fn duplicate<M: Media>(leaf: &Leaf<'_, M>, n: usize) -> Option<usize> {
    let mut below = leaf.key(0);
    (1..n).find_map(|slot| {
        let key = leaf.key(slot);
        let same = key == below;
        below = key;
        same.then_some(slot - 1)
    })
}

/// Stores the missing nulls from slot `n` on. Returns true if some were missing.
fn clear_behind<M: Media>(leaf: &Leaf<'_, M>, n: usize) -> bool {
    let end = terminators_end(leaf.n(), leaf.capacity());
    if (n..end).all(|slot| leaf.key(slot) == NULL) {
        return false;
    }
    clear(leaf, n);
    true
}

/// Stores nulls from slot `n` on, over pairs that are not the leaf's (any more). The first null is
/// stored before the others, so that a crash leaves nothing that looks like an insertion. All are
/// flushed, and not all fenced.
pub(super) fn clear<M: Media>(leaf: &Leaf<'_, M>, n: usize) {
    let end = terminators_end(leaf.n(), leaf.capacity());
    leaf.set_key(n, NULL);
    if is_last(n) {
        // PERSIST: the first null, before the one in the next line.
        leaf.flush_line(n);
        leaf.pm.fence();
    } else {
        leaf.then();
    }
    leaf.terminate(n + 1, end);
    // PERSIST: all the nulls; the caller fences them before anything is inserted here.
    leaf.flush_slots(n, end);
}
