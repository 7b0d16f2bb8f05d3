//! Scans in both directions, with a snapshot of each leaf.
//!
//! A scan goes from leaf to leaf through the inner index, by the ends of their ranges. It takes
//! only those keys of a leaf that lie in the range that led there. Therefore keys come in strict
//! order whatever is split or unlinked meanwhile.

use super::LsTree;
use crate::index::Direction;
use crate::inner::Ranged;
use crate::range::{has_none_below, is_after};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 64;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Reads the leaf's keys and values. Returns false if the leaf changed or is not the right one.
    fn snapshot(&self, ranged: &Ranged<K>, words: &mut Vec<(u64, u64)>) -> bool {
        let lnid = ranged.located.leaf;
        let version = self.locks.read(lnid);
        if !self.inner.validate(&ranged.located) {
            return false;
        }
        self.contents(self.table.entry(lnid), lnid, words);
        self.locks.validate(lnid, version)
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let start = |guard: &Guard| match range.start_bound() {
            Bound::Included(key) | Bound::Excluded(key) => self.inner.find_range(key, guard),
            Bound::Unbounded => self.inner.find_first(guard),
        };
        let beyond = |high: &K| is_after(high, range.end_bound());
        self.walk(
            Direction::Up,
            start,
            beyond,
            |key| range.contains(key),
            visit,
        );
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let start = |guard: &Guard| match range.end_bound() {
            Bound::Included(end) => self.inner.find_range(end, guard),
            Bound::Excluded(end) => self.inner.find_below(end, guard),
            Bound::Unbounded => self.inner.find_last(guard),
        };
        let beyond = |low: &K| has_none_below(low, range.start_bound());
        self.walk(
            Direction::Down,
            start,
            beyond,
            |key| range.contains(key),
            visit,
        );
    }

    /// Visits leaf after leaf from `start` on, until the end of a leaf's range is `beyond` the
    /// scan's range.
    fn walk(
        &self,
        direction: Direction,
        start: impl Fn(&Guard) -> Ranged<K>,
        beyond: impl Fn(&K) -> bool,
        wanted: impl Fn(&K) -> bool,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Vec::with_capacity(2 * self.shape.entries);
        // Everything up to this key (exclusive upwards, inclusive downwards) has been visited.
        let mut done: Option<K::Owned> = None;
        let mut ranged = start(&guard);
        let mut leaves = 0;
        loop {
            self.pm().interleave();
            while !self.snapshot(&ranged, &mut words) {
                ranged = self.resume(direction, done.as_ref(), &start, &guard);
            }
            let step = self.visit_leaf(
                direction,
                &ranged,
                done.as_ref(),
                &words,
                &wanted,
                &mut visit,
            );
            if step.is_break() {
                return;
            }
            let near = match direction {
                Direction::Up => self.inner.next_in_node(&ranged, &guard),
                Direction::Down => self.inner.previous_in_node(&ranged, &guard),
            };
            let end = match direction {
                Direction::Up => ranged.high,
                Direction::Down => ranged.low,
            };
            let Some(end) = end else { return };
            if beyond(end.borrow()) {
                return;
            }
            done = Some(end);
            leaves += 1;
            ranged = if leaves % LEAVES_PER_PIN == 0 {
                guard.repin();
                self.resume(direction, done.as_ref(), &start, &guard)
            } else {
                near.unwrap_or_else(|| self.resume(direction, done.as_ref(), &start, &guard))
            };
        }
    }

    /// Returns the leaf with which a scan continues after everything up to `done`.
    fn resume(
        &self,
        direction: Direction,
        done: Option<&K::Owned>,
        start: impl Fn(&Guard) -> Ranged<K>,
        guard: &Guard,
    ) -> Ranged<K> {
        match (direction, done) {
            (_, None) => start(guard),
            (Direction::Up, Some(done)) => self.inner.find_range(done.borrow(), guard),
            (Direction::Down, Some(done)) => self.inner.find_below(done.borrow(), guard),
        }
    }

    fn visit_leaf(
        &self,
        direction: Direction,
        ranged: &Ranged<K>,
        done: Option<&K::Owned>,
        words: &[(u64, u64)],
        wanted: impl Fn(&K) -> bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // The leaf may hold keys outside the range that led to it.
        let (low, high) = match direction {
            Direction::Up => (done, ranged.high.as_ref()),
            Direction::Down => (ranged.low.as_ref(), done),
        };
        let taken = |key: &K| {
            low.is_none_or(|low| key >= low.borrow())
                && high.is_none_or(|high| key < high.borrow())
                && wanted(key)
        };
        let pm = self.pm();
        for i in 0..words.len() {
            let (key, value) = words[match direction {
                Direction::Up => i,
                Direction::Down => words.len() - 1 - i,
            }];
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
}
