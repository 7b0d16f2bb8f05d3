//! Scans in both directions, with a snapshot of each leaf.
//!
//! Nodes have no sibling pointers, since versions would have to cover these too. A scan descends
//! from the root for each leaf, by the end of the range of the one before. It takes only those keys
//! of a leaf that lie in the range. Therefore keys come in strict order whatever other threads do
//! meanwhile.

use super::CddsTree;
use super::node::MAX_SLOTS;
use super::read::{Range, Seek};
use crate::range::{has_none_below, is_after};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 16;

/// Key and value words of a leaf's live entries, in order.
struct Words {
    at: [(u64, u64); MAX_SLOTS],
    len: usize,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Copies the live entries of the leaf that `seek` names. Returns `None` if the pool is
    /// corrupt.
    fn snapshot(&self, seek: Seek<'_, K>, words: &mut Words) -> Option<Range<K>> {
        loop {
            let (found, range) = self.descend_ranged(seek)?;
            words.len = 0;
            for (_, entry) in self.node(found.leaf).live(self.pm()) {
                words.at[words.len] = (entry.key, entry.value);
                words.len += 1;
            }
            if self.locks.validate(found.leaf, found.version) {
                return Some(range);
            }
        }
    }

    /// Visits a pair if its key is `taken`.
    #[inline]
    fn visit_pair(
        &self,
        (key, value): (u64, u64),
        taken: impl Fn(&K) -> bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let pm = self.pm();
        let step = K::read(pm, key, |key| {
            if !taken(key) {
                return None;
            }
            V::read(pm, value, |value| visit(key, value))
        });
        // A word that leads nowhere (a corrupt pool) is skipped.
        step.flatten().unwrap_or(ControlFlow::Continue(()))
    }

    pub(super) fn scan_up(
        &self,
        wanted: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Words {
            at: [(0, 0); MAX_SLOTS],
            len: 0,
        };
        // Everything below this key has been visited.
        let mut done: Option<K::Owned> = None;
        for leaves in 1u32.. {
            let seek = match (&done, wanted.start_bound()) {
                (Some(done), _) => Seek::At(done.borrow()),
                (None, Bound::Included(key) | Bound::Excluded(key)) => Seek::At(key),
                (None, Bound::Unbounded) => Seek::First,
            };
            let Some(range) = self.snapshot(seek, &mut words) else {
                return;
            };
            let taken = |key: &K| {
                done.as_ref().is_none_or(|done| key >= done.borrow())
                    && range.high.as_ref().is_none_or(|high| key < high.borrow())
                    && wanted.contains(key)
            };
            for pair in &words.at[..words.len] {
                if self.visit_pair(*pair, taken, &mut visit).is_break() {
                    return;
                }
            }
            let Some(high) = range.high else { return };
            let beyond = is_after(high.borrow(), wanted.end_bound());
            // In a corrupt pool separators may lead back.
            if beyond || done.as_ref().is_some_and(|done| high <= *done) {
                return;
            }
            done = Some(high);
            if leaves.is_multiple_of(LEAVES_PER_PIN) {
                guard.repin();
            }
        }
    }

    pub(super) fn scan_down(
        &self,
        wanted: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Words {
            at: [(0, 0); MAX_SLOTS],
            len: 0,
        };
        // Everything from this key on has been visited.
        let mut done: Option<K::Owned> = None;
        for leaves in 1u32.. {
            let seek = match (&done, wanted.end_bound()) {
                (Some(done), _) => Seek::Below(done.borrow()),
                (None, Bound::Included(key)) => Seek::At(key),
                (None, Bound::Excluded(key)) => Seek::Below(key),
                (None, Bound::Unbounded) => Seek::Last,
            };
            let Some(range) = self.snapshot(seek, &mut words) else {
                return;
            };
            let taken = |key: &K| {
                done.as_ref().is_none_or(|done| key < done.borrow())
                    && range.low.as_ref().is_none_or(|low| key >= low.borrow())
                    && wanted.contains(key)
            };
            for pair in words.at[..words.len].iter().rev() {
                if self.visit_pair(*pair, taken, &mut visit).is_break() {
                    return;
                }
            }
            let Some(low) = range.low else { return };
            let beyond = has_none_below(low.borrow(), wanted.start_bound());
            // In a corrupt pool separators may lead back.
            if beyond || done.as_ref().is_some_and(|done| low >= *done) {
                return;
            }
            done = Some(low);
            if leaves.is_multiple_of(LEAVES_PER_PIN) {
                guard.repin();
            }
        }
    }
}
