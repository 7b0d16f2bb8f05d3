//! Scans in both directions, with a snapshot of each leaf.
//!
//! A scan goes from leaf to leaf through the inner nodes, by the ends of their ranges. It takes
//! only those keys of a leaf that lie in the range that led there. Therefore keys come in strict
//! order whatever is split or merged meanwhile.
//!
//! If words lead to records, the records of all keys of a leaf are prefetched before the keys are
//! sorted. Values are prefetched some entries ahead.

use super::NvTree;
use super::info::LeafInfo;
use super::inner::Ranged;
use super::leaf::Leaf;
use crate::index::Direction;
use crate::range::{has_none_below, is_after};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 16;

/// Number of entries by which a scan prefetches values ahead.
const AHEAD: usize = 12;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Returns the live keys of a leaf, ascending, with the words of their values.
    fn snapshot(&self, info: &LeafInfo) -> Vec<(u64, u64)> {
        let leaf: Leaf<'_, M> = info.leaf(self.pm());
        // Simulated media have no caches to fill, and the explorer would have to explore each load.
        if K::RECORDS && !M::TRACED {
            let base = self.pm().base();
            for off in (0..info.count()).filter_map(|i| K::block(leaf.key(i))) {
                cpu::prefetch(base.wrapping_add(off as usize), LINE);
            }
        }
        loop {
            let contents = self.contents(&leaf, info.count());
            if info.flags_settled() {
                return contents.live;
            }
        }
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.walk(
            Direction::Up,
            |guard| match range.start_bound() {
                Bound::Included(key) | Bound::Excluded(key) => {
                    self.inner(guard).find_range(key, guard)
                }
                Bound::Unbounded => self.inner(guard).find_first(guard),
            },
            |high| is_after(high, range.end_bound()),
            |key| range.contains(key),
            ahead,
            visit,
        );
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.walk(
            Direction::Down,
            |guard| match range.end_bound() {
                Bound::Included(end) => self.inner(guard).find_range(end, guard),
                Bound::Excluded(end) => self.inner(guard).find_below(end, guard),
                Bound::Unbounded => self.inner(guard).find_last(guard),
            },
            |low| has_none_below(low, range.start_bound()),
            |key| range.contains(key),
            ahead,
            visit,
        );
    }

    /// Visits leaf after leaf from `start` on, until the end of a leaf's range is `beyond` the
    /// scan's range.
    fn walk(
        &self,
        direction: Direction,
        start: impl for<'g> Fn(&'g Guard) -> Ranged<'g, K>,
        beyond: impl Fn(&K) -> bool,
        wanted: impl Fn(&K) -> bool,
        mut ahead: impl FnMut(&V),
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let pm = self.pm();
        let mut guard = epoch::pin();
        // Everything up to this key (exclusive upwards, inclusive downwards) has been visited.
        let mut done: Option<K::Owned> = None;
        let mut leaves = 0;
        loop {
            let ranged = match &done {
                None => start(&guard),
                Some(done) => self.find_from(direction, done.borrow(), &guard),
            };
            pm.interleave();
            let mut words = self.snapshot(ranged.info);
            // The leaf may hold keys outside the range that led to it.
            let (low, high) = match direction {
                Direction::Up => (done.as_ref(), ranged.high.as_ref()),
                Direction::Down => (ranged.low.as_ref(), done.as_ref()),
            };
            let taken = |key: &K| {
                low.is_none_or(|low| key >= low.borrow())
                    && high.is_none_or(|high| key < high.borrow())
                    && wanted(key)
            };
            if direction == Direction::Down {
                words.reverse();
            }
            let mut tell = |value: u64| {
                // Records are not read yet, because their lines may not have arrived.
                if !V::RECORDS {
                    V::read(pm, value, &mut ahead);
                }
            };
            let first = (words.iter()).position(|(key, _)| K::read(pm, *key, taken) == Some(true));
            let words = &words[first.unwrap_or(words.len())..];
            words.iter().take(AHEAD).for_each(|(_, value)| tell(*value));
            for (i, (key, value)) in words.iter().copied().enumerate() {
                if let Some((_, value)) = words.get(i + AHEAD) {
                    tell(*value);
                }
                let step = K::read(pm, key, |key| {
                    if !taken(key) {
                        return ControlFlow::Continue(());
                    }
                    V::read(pm, value, |value| visit(key, value))
                        .unwrap_or(ControlFlow::Continue(()))
                });
                if let Some(ControlFlow::Break(())) = step {
                    return;
                }
            }
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
            if leaves % LEAVES_PER_PIN == 0 {
                guard.repin();
            }
        }
    }

    /// Returns the leaf with which a scan continues after everything up to `end`.
    fn find_from<'g>(&self, direction: Direction, end: &K, guard: &'g Guard) -> Ranged<'g, K> {
        match direction {
            Direction::Up => self.inner(guard).find_range(end, guard),
            Direction::Down => self.inner(guard).find_below(end, guard),
        }
    }
}
