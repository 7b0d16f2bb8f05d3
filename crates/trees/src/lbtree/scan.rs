//! Scans in both directions, a snapshot per leaf.
//!
//! A scan goes from leaf to leaf through the inner index, by the ends of their ranges, rather than by
//! sibling pointers: both directions work alike, the leaves to come can be prefetched, and a corrupt
//! pointer cannot lead it astray. Keys come in strict order: of each leaf only keys of the range that
//! led there are taken.

use super::LbTree;
use super::leaf::slots;
use crate::inner::{Located, Ranged};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Leaves prefetched ahead of a scan.
const AHEAD: usize = 8;

/// Key and value words of a leaf's entries.
type Words = Vec<(u64, u64)>;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> LbTree<K, V, M, B> {
    /// Copies a leaf's words into `out`; false if the leaf changed or was not the one to read.
    fn snapshot_leaf(&self, at: &Located, out: &mut Words) -> bool {
        let version = self.locks.read(at.leaf);
        if !self.inner.validate(at) {
            return false;
        }
        let (pm, leaf) = (self.pm(), self.leaf(at.leaf));
        out.clear();
        let first = leaf.first_header(pm);
        for (b, block) in leaf.blocks.iter().enumerate() {
            let header = block.header(pm, first.place(b));
            out.extend(slots(header.bitmap()).map(|slot| block.entry(pm, slot)));
        }
        self.locks.validate(at.leaf, version)
    }

    /// A snapshot of the leaf that `find` leads to.
    fn ranged_snapshot(&self, find: impl Fn() -> Ranged<K>, out: &mut Words) -> Ranged<K> {
        loop {
            let ranged = find();
            self.prefetch(ranged.located.leaf);
            if self.snapshot_leaf(&ranged.located, out) {
                return ranged;
            }
        }
    }

    /// Visits the words of one leaf whose keys are in all of the ranges, in order.
    fn visit_leaf(
        &self,
        words: &mut Words,
        reverse: bool,
        taken: impl Fn(&K) -> bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let pm = self.pm();
        words.sort_unstable_by(|a, b| self.compare_words(a.0, b.0));
        let n = words.len();
        for i in 0..n {
            let (key, value) = words[if reverse { n - 1 - i } else { i }];
            let step = K::read(pm, key, |key| {
                if !taken(key) {
                    return ControlFlow::Continue(());
                }
                V::read(pm, value, |value| visit(key, value)).unwrap_or(ControlFlow::Continue(()))
            });
            if let Some(ControlFlow::Break(())) = step {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Words::with_capacity(Self::CAPACITY);
        let mut from: Option<K::Owned> = match range.start_bound() {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_owned()),
            Bound::Unbounded => None,
        };
        let mut ahead = Ahead::default();
        loop {
            let ranged = self.ranged_snapshot(
                || match &from {
                    Some(key) => self.inner.find_range(key.borrow(), &guard),
                    None => self.inner.find_first(&guard),
                },
                &mut words,
            );
            if let Some(key) = &from {
                ahead.prefetch(self, key.borrow(), &guard);
            }
            let taken = |key: &K| {
                range.contains(key)
                    && from.as_ref().is_none_or(|from| key >= from.borrow())
                    && ranged.high.as_ref().is_none_or(|high| key < high.borrow())
            };
            if self
                .visit_leaf(&mut words, false, taken, &mut visit)
                .is_break()
            {
                return;
            }
            let Some(high) = ranged.high else { return };
            let beyond = match range.end_bound() {
                Bound::Included(end) => high.borrow() > end,
                Bound::Excluded(end) => high.borrow() >= end,
                Bound::Unbounded => false,
            };
            if beyond {
                return;
            }
            from = Some(high);
            ahead.step(&mut guard);
        }
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Words::with_capacity(Self::CAPACITY);
        let mut first = true;
        // Everything from here on (exclusive) has been visited.
        let mut below: Option<K::Owned> = None;
        loop {
            let ranged = self.ranged_snapshot(
                || match (&below, range.end_bound()) {
                    (Some(key), _) => self.inner.find_below(key.borrow(), &guard),
                    (None, Bound::Included(end)) => self.inner.find_range(end, &guard),
                    (None, Bound::Excluded(end)) => self.inner.find_below(end, &guard),
                    (None, Bound::Unbounded) => self.inner.find_last(&guard),
                },
                &mut words,
            );
            let taken = |key: &K| {
                range.contains(key)
                    && below.as_ref().is_none_or(|below| key < below.borrow())
                    && ranged.low.as_ref().is_none_or(|low| key >= low.borrow())
            };
            if self
                .visit_leaf(&mut words, true, taken, &mut visit)
                .is_break()
            {
                return;
            }
            let Some(low) = ranged.low else { return };
            let beyond = match range.start_bound() {
                Bound::Included(start) | Bound::Excluded(start) => low.borrow() <= start,
                Bound::Unbounded => false,
            };
            if beyond {
                return;
            }
            below = Some(low);
            if !std::mem::take(&mut first) {
                guard.repin();
            }
        }
    }
}

/// Which leaves have been asked for ahead of an upward scan.
#[derive(Default)]
struct Ahead {
    leaves_left: usize,
    leaves: u64,
}

impl Ahead {
    /// Asks for the next leaves when those asked for last are used up.
    fn prefetch<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>(
        &mut self,
        tree: &LbTree<K, V, M, B>,
        key: &K,
        guard: &Guard,
    ) {
        if self.leaves_left > 0 {
            return;
        }
        let mut next = [0; AHEAD];
        let n = tree.inner.upcoming(key, &mut next, guard);
        for leaf in next.iter().take(n).skip(1) {
            tree.prefetch(*leaf);
        }
        self.leaves_left = n.max(1);
    }

    /// One leaf on; lets memory be reclaimed now and then.
    fn step(&mut self, guard: &mut Guard) {
        self.leaves_left = self.leaves_left.saturating_sub(1);
        self.leaves += 1;
        if self.leaves.is_multiple_of(64) {
            guard.repin();
        }
    }
}
