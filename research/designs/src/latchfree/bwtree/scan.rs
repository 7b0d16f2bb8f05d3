//! Scans in both directions, with a snapshot of each leaf, and batched lookups.
//!
//! Upwards, a scan follows the right siblings; a page that was merged meanwhile still has the
//! entries that it had when the merge began. Downwards, it descends again for each leaf, to the
//! place just before the low end of the last one. A base node without deltas is visited in place;
//! otherwise the chain's content is visited run by run.

use super::BwTree;
use super::find::child;
use super::page::{Kind, Node};
use crate::btree::node::compare_to_word;
use crate::common::visit_pair;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Returns the entries of a leaf from `start` to `end` as two slices. If the base node does not
    /// have them, they are put into `buffer`.
    fn part<'b>(
        &self,
        head: Node<'b>,
        range: &impl RangeBounds<K>,
        buffer: &'b mut (Vec<u64>, Vec<u64>),
    ) -> (&'b [u64], &'b [u64]) {
        let node = if head.kind() == Kind::Remove {
            head.below()
        } else {
            head
        };
        let (keys, values) = if node.kind() == Kind::Base {
            (node.base().keys(), node.base().values())
        } else {
            buffer.0.clear();
            buffer.1.clear();
            self.contents(node).runs(|keys, values| {
                buffer.0.extend_from_slice(keys);
                buffer.1.extend_from_slice(values);
            });
            (buffer.0.as_slice(), buffer.1.as_slice())
        };
        let pm = self.pm();
        let first = match range.start_bound() {
            Bound::Unbounded => 0,
            Bound::Included(key) => keys.partition_point(|w| compare_to_word(pm, key, *w).is_gt()),
            Bound::Excluded(key) => keys.partition_point(|w| compare_to_word(pm, key, *w).is_ge()),
        };
        let last = match range.end_bound() {
            Bound::Unbounded => keys.len(),
            Bound::Included(key) => keys.partition_point(|w| compare_to_word(pm, key, *w).is_ge()),
            Bound::Excluded(key) => keys.partition_point(|w| compare_to_word(pm, key, *w).is_gt()),
        };
        let last = last.max(first);
        (&keys[first..last], &values[first..last])
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let guard = &epoch::pin();
        let pm = self.pm();
        let mut buffer = Default::default();
        let (_, mut head) = match range.start_bound() {
            Bound::Unbounded => self.leaf(|_| false, guard),
            Bound::Included(key) | Bound::Excluded(key) => self.leaf(self.to_key(key), guard),
        };
        loop {
            let next = (head.right != 0).then(|| self.head(head.right, guard));
            let (keys, values) = self.part(head, range, &mut buffer);
            for (key, value) in keys.iter().zip(values) {
                if visit_pair::<K, V, M>(pm, (*key, *value), &mut visit).is_break() {
                    return;
                }
            }
            let Some(next) = next else { return };
            let is_over = match range.end_bound() {
                Bound::Unbounded => false,
                Bound::Included(end) => compare_to_word(pm, end, head.high).is_lt(),
                Bound::Excluded(end) => compare_to_word(pm, end, head.high).is_le(),
            };
            if is_over {
                return;
            }
            head = next;
        }
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let guard = &epoch::pin();
        let pm = self.pm();
        let mut buffer = Default::default();
        let mut place = match range.end_bound() {
            Bound::Unbounded => self.descend(0, |_| true, guard),
            Bound::Included(key) | Bound::Excluded(key) => self.descend(0, self.to_key(key), guard),
        };
        // The low end of the last leaf: keys from there on have been visited.
        let mut done = 0;
        while let Some(leaf) = place {
            let (keys, values) = self.part(leaf.head, range, &mut buffer);
            let to_do = match done {
                0 => keys.len(),
                done => keys.partition_point(|word| self.before(done)(*word)),
            };
            for (key, value) in keys[..to_do].iter().zip(values).rev() {
                if visit_pair::<K, V, M>(pm, (*key, *value), &mut visit).is_break() {
                    return;
                }
            }
            done = leaf.low;
            let is_over = match range.start_bound() {
                Bound::Unbounded => false,
                Bound::Included(key) | Bound::Excluded(key) => {
                    compare_to_word(pm, key, done).is_ge()
                }
            };
            if done == 0 || is_over {
                return;
            }
            place = self.descend(0, self.before(done), guard);
        }
    }

    /// Looks up a batch. All descents advance level by level, so that their misses overlap.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let guard = &epoch::pin();
            let root = self.root();
            let mut pages = [root.page(); TOGETHER];
            let mut heads = [self.head(root.page(), guard); TOGETHER];
            for level in (0..=root.level()).rev() {
                for (i, key) in keys.iter().enumerate() {
                    let probe = self.to_key(key.borrow());
                    // The page is half split: the rest is in the sibling.
                    while heads[i].right != 0 && probe(heads[i].high) {
                        heads[i] = self.head(heads[i].right, guard);
                    }
                    if level > 0 {
                        pages[i] = child(heads[i], probe);
                    }
                }
                if level > 0 {
                    for (head, page) in heads.iter_mut().zip(pages).take(keys.len()) {
                        *head = self.head(page, guard); // This prefetches it.
                    }
                }
            }
            for (head, key) in heads.iter().zip(keys) {
                let key = key.borrow();
                let found = self.find(*head, key, key.hash());
                out.push(found.and_then(|(_, value)| V::read(self.pm(), value, ToOwned::to_owned)));
            }
        }
    }
}
