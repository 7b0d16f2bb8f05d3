//! Scans in both directions, with a snapshot of each node.
//!
//! Upwards, a scan follows the bottom list. Downwards there are no links: the scan divides the list
//! into stretches, each from a tower of level 2 (some 16 nodes) or the head. It reads a stretch
//! upwards and visits it in reverse.

use super::search::{Path, Step};
use super::{SkipList, Towers};
use crate::range::{borrowed, is_after, is_before};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of nodes that a scan visits before it lets memory be reclaimed.
const NODES_PER_PIN: u32 = 512;
/// Level whose towers begin the stretches of a downward scan.
const STRETCH: usize = 2;

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Returns a node in the list before every key that `bound` starts at or ends with, from a
    /// tower of level `lowest` or higher.
    fn seek(&self, bound: Bound<&K>, lowest: usize, path: &mut Path) -> u64 {
        match bound {
            Bound::Included(key) | Bound::Excluded(key) => {
                self.descend(path, lowest, |word| self.compare(word, key).is_lt());
            }
            Bound::Unbounded => {
                self.descend(path, lowest, |_| true);
            }
        }
        self.start(path, lowest)
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut from = range.start_bound().map(ToOwned::to_owned);
        let mut path = self.path();
        loop {
            let mut pred = match borrowed::<K>(&from) {
                Bound::Unbounded => self.head,
                Bound::Included(key) | Bound::Excluded(key) => {
                    self.approach(self.seek(borrowed::<K>(&from), 1, &mut path), key)
                }
            };
            let mut nodes = 0;
            // The key after which the scan continues if it has to find its place again.
            let mut last: Option<u64> = None;
            loop {
                let (node, key, value) = match self.step(pred) {
                    Step::End => return,
                    Step::Left => break,
                    Step::To { node, key, value } => (node, key, value),
                };
                let flow = K::read(self.pm(), key, |key| {
                    if is_after(key, range.end_bound()) {
                        return ControlFlow::Break(());
                    }
                    if is_before(key, borrowed::<K>(&from)) {
                        return ControlFlow::Continue(());
                    }
                    V::read(self.pm(), value, |value| visit(key, value))
                        .unwrap_or(ControlFlow::Continue(()))
                });
                if flow == Some(ControlFlow::Break(())) {
                    return;
                }
                (pred, last) = (node, Some(key));
                nodes += 1;
                if nodes == NODES_PER_PIN {
                    break;
                }
            }
            // Earlier keys have been visited, or lie before the range. Continue after the last one.
            if let Some(key) = last
                && let Some(after) = K::read(self.pm(), key, |key| {
                    (!is_before(key, borrowed::<K>(&from))).then(|| key.to_owned())
                })
                .flatten()
            {
                from = Bound::Excluded(after);
            }
            if nodes == NODES_PER_PIN {
                guard.repin();
            }
        }
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut to = range.end_bound().map(ToOwned::to_owned);
        let mut path = self.path();
        let mut words: Vec<(u64, u64)> = Vec::new();
        loop {
            let start = self.seek(borrowed::<K>(&to), STRETCH, &mut path);
            if !self.read_stretch(start, borrowed::<K>(&to), &mut words) {
                continue;
            }
            for (key, value) in words.iter().rev() {
                let flow = K::read(self.pm(), *key, |key| {
                    if is_before(key, range.start_bound()) {
                        return ControlFlow::Break(());
                    }
                    V::read(self.pm(), *value, |value| visit(key, value))
                        .unwrap_or(ControlFlow::Continue(()))
                });
                if flow == Some(ControlFlow::Break(())) {
                    return;
                }
            }
            if start == self.head {
                return;
            }
            // The first node of this stretch is the last of the next one.
            let Some(end) = K::read(self.pm(), self.nodes.key(start), ToOwned::to_owned) else {
                return;
            };
            if is_before(end.borrow(), range.start_bound()) {
                return;
            }
            to = Bound::Included(end);
            guard.repin();
        }
    }

    /// Reads the words of the nodes after `start` up to `to`, in order. Returns false if one of
    /// them was removed meanwhile.
    fn read_stretch(&self, start: u64, to: Bound<&K>, words: &mut Vec<(u64, u64)>) -> bool {
        words.clear();
        let mut pred = start;
        loop {
            match self.step(pred) {
                Step::Left => return false,
                Step::End => return true,
                Step::To { node, key, value } => {
                    if K::read(self.pm(), key, |key| is_after(key, to)) == Some(true) {
                        return true;
                    }
                    words.push((key, value));
                    pred = node;
                }
            }
        }
    }
}
