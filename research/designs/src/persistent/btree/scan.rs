//! Scans in both directions, with a snapshot of each leaf.
//!
//! Upwards, a scan follows the leaves' `next`. It descends again to the key after the last one if
//! the leaf has changed before the next leaf's version was read. Downwards, it descends again for
//! each leaf, to the one below the smallest separator above. In both directions it takes only keys
//! beyond the last one, so that keys come in strict order.

use super::BTree;
use super::find::{Goal, Step};
use super::kind::{Kind, Leaf};
use super::node::{compare_to_word, sort_words};
use crate::common::visit_pair;
use crate::range::has_none_below;
use crate::repr::{PairOf, Stored, StoredKey};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 64;

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Reads a leaf's entries in key order. Returns the offset of the next leaf, or `None` if the
    /// leaf changed meanwhile.
    fn snapshot(&self, leaf: &Step, out: &mut Vec<PairOf<K, V>>) -> Option<u64> {
        let pm = self.pm();
        let node = self.node(leaf.at);
        D::Leaf::entries(node, pm, out);
        let next = node.next(pm);
        if !self.locks.validate(leaf.at, leaf.version) {
            return None;
        }
        if !D::Leaf::SORTED {
            sort_words::<K, V, M>(pm, out);
        }
        Some(next)
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let pm = self.pm();
        let mut guard = epoch::pin();
        let mut entries = Vec::new();
        // The largest key visited or skipped.
        let mut done: Option<K::Owned> = None;
        // The leaf that a link leads to.
        let mut linked: Option<Step> = None;
        let mut leaves = 0u32;
        loop {
            let by_link = linked.is_some();
            let leaf = match linked.take() {
                Some(leaf) => leaf,
                None => {
                    let goal = match (&done, range.start_bound()) {
                        (Some(done), _) => Goal::Key(done.borrow()),
                        (None, Bound::Included(key) | Bound::Excluded(key)) => Goal::Key(key),
                        (None, Bound::Unbounded) => Goal::First,
                    };
                    let Ok(leaf) = self.leaf_of(&goal) else {
                        return;
                    };
                    leaf
                }
            };
            let Some(next) = self.snapshot(&leaf, &mut entries) else {
                continue;
            };
            // Before the entries are shown, which may take long.
            let following = self.handle(next).map(|at| Step {
                at,
                version: self.version(at),
                child: 0,
            });
            if !self.locks.validate(leaf.at, leaf.version) {
                continue;
            }
            let first = match &done {
                Some(done) => entries
                    .partition_point(|(key, _)| compare_to_word(pm, done.borrow(), *key).is_ge()),
                None => {
                    match range.start_bound() {
                        Bound::Included(start) => entries
                            .partition_point(|(key, _)| compare_to_word(pm, start, *key).is_gt()),
                        Bound::Excluded(start) => entries
                            .partition_point(|(key, _)| compare_to_word(pm, start, *key).is_ge()),
                        Bound::Unbounded => 0,
                    }
                }
            };
            for pair in &entries[first..] {
                let beyond = match range.end_bound() {
                    Bound::Included(end) => compare_to_word(pm, end, pair.0).is_lt(),
                    Bound::Excluded(end) => compare_to_word(pm, end, pair.0).is_le(),
                    Bound::Unbounded => false,
                };
                if beyond || visit_pair::<K, V, M>(pm, *pair, &mut visit).is_break() {
                    return;
                }
            }
            let further = entries[first..].last().and_then(|(last, _)| {
                let beyond = |last: &K| done.as_ref().is_none_or(|done| done.borrow() < last);
                K::read(pm, *last, |last| beyond(last).then(|| last.to_owned())).flatten()
            });
            if further.is_some() {
                done = further;
            } else if by_link {
                return; // a link backwards, in a corrupt pool
            }
            leaves += 1;
            if leaves.is_multiple_of(LEAVES_PER_PIN) {
                // The version tells whether the next leaf still is one.
                guard.repin();
            }
            match following {
                Some(following) => linked = Some(following),
                None => return,
            }
        }
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let pm = self.pm();
        let mut guard = epoch::pin();
        let mut entries = Vec::new();
        // All keys from here on have been visited or skipped.
        let mut done: Option<K::Owned> = None;
        loop {
            let goal = match (&done, range.end_bound()) {
                (Some(done), _) => Goal::Below(done.borrow()),
                (None, Bound::Included(end)) => Goal::Key(end),
                (None, Bound::Excluded(end)) => Goal::Below(end),
                (None, Bound::Unbounded) => Goal::Last,
            };
            let Ok((leaf, low)) = self.leaf_and_low(&goal) else {
                return;
            };
            if self.snapshot(&leaf, &mut entries).is_none() {
                continue;
            }
            for pair in entries.iter().rev() {
                let above = match (&done, range.end_bound()) {
                    (Some(done), _) => compare_to_word(pm, done.borrow(), pair.0).is_le(),
                    (None, Bound::Included(end)) => compare_to_word(pm, end, pair.0).is_lt(),
                    (None, Bound::Excluded(end)) => compare_to_word(pm, end, pair.0).is_le(),
                    (None, Bound::Unbounded) => false,
                };
                if above {
                    continue;
                }
                let below = match range.start_bound() {
                    Bound::Included(start) => compare_to_word(pm, start, pair.0).is_gt(),
                    Bound::Excluded(start) => compare_to_word(pm, start, pair.0).is_ge(),
                    Bound::Unbounded => false,
                };
                if below || visit_pair::<K, V, M>(pm, *pair, &mut visit).is_break() {
                    return;
                }
            }
            let Some(low) = low else { return };
            let beyond = has_none_below(low.borrow(), range.start_bound());
            // Only a corrupt pool has a separator that does not lead downwards.
            if beyond || done.as_ref().is_some_and(|done| low >= *done) {
                return;
            }
            done = Some(low);
            guard.repin();
        }
    }
}
