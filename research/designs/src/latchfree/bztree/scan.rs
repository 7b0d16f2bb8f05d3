//! Scans (section 4.2.6): leaf by leaf, with a snapshot of each.
//!
//! A scan descends from the root to the leaf of its bound and visits the records that are visible
//! there *at one moment*. It continues with the bound that the separators on the path set for the
//! leaf (the paper takes the largest key that it saw, which an emptied leaf does not have). So it
//! visits each range of keys once, as one leaf held it at one time: a leaf that was split or merged
//! meanwhile counts with the range that it had when the scan came to it. A key that is present for
//! the whole scan is visited once. Of changes in different leaves, a later one may be seen and an
//! earlier one not.
//!
//! *The moment.* Metadata only move forward, and a replacement in place changes the status. So if
//! two reads are equal, with the status read first and last, the whole was there in between. The
//! scan reads until they are equal.

use super::BzTree;
use super::node::{Form, HEADER, Meta, Node};
use crate::range::{borrowed, is_after, is_before};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// A record of a snapshot.
#[derive(Clone, Copy, Debug)]
struct Seen {
    meta: Meta,
    /// The value's word, if it has one that changes.
    word: u64,
}

/// A leaf with its range: from the first key, to below the second; `None` is unbounded.
pub(super) struct Ranged<'a, M, K> {
    pub leaf: Node<'a, M>,
    low: Option<K>,
    pub high: Option<K>,
    /// Number of nodes on the path, itself included.
    pub depth: u32,
    /// Number of inner nodes on the path whose first leaf it is.
    pub first_of: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Returns the leaf in which a scan from `bound` begins; a downward scan if `down`.
    pub(super) fn leaf_from(
        &self,
        bound: Bound<&K>,
        down: bool,
    ) -> Option<Ranged<'_, M, K::Owned>> {
        let mut node = Node::at(self.pm(), self.root_node())?;
        let (mut low, mut high) = (None, None);
        let (mut depth, mut first_of) = (1, 0);
        while !node.is_leaf() {
            let slot = match bound {
                Bound::Unbounded if down => node.sorted.checked_sub(1)?,
                Bound::Unbounded => 0,
                Bound::Excluded(key) if down => {
                    let slot = self.child_of(&node, key);
                    // If the separator is the key, smaller keys are in the child before.
                    let exact = slot > 0 && self.compare(&node, node.fixed_meta(slot), key).is_eq();
                    slot - usize::from(exact)
                }
                Bound::Included(key) | Bound::Excluded(key) => self.child_of(&node, key),
            };
            depth += 1;
            first_of += 1;
            if slot > 0 {
                low = Some((node, slot));
                first_of = 0;
            }
            if slot + 1 < node.sorted {
                high = Some((node, slot + 1));
            }
            node = self.child_at(&node, slot)?;
        }
        let key = |at: Option<(Node<'_, M>, usize)>| {
            at.and_then(|(node, slot)| {
                self.with_key(&node, node.fixed_meta(slot), ToOwned::to_owned)
            })
        };
        Some(Ranged {
            leaf: node,
            low: key(low),
            high: key(high),
            depth,
            first_of,
        })
    }

    /// Reads the visible records of a leaf at one moment, in the order of keys.
    fn snapshot(&self, leaf: &Node<'_, M>, all: &mut Vec<u64>, seen: &mut Vec<Seen>) {
        loop {
            let status = self.status(leaf);
            let entries = status.entries().min(leaf.size - HEADER);
            all.clear();
            seen.clear();
            for entry in 0..entries {
                let meta = Meta(self.swaps.read(leaf.meta(entry)));
                all.push(meta.0);
                if meta.visible() {
                    let word = match meta.form() {
                        Form::Inline => 0,
                        Form::Word | Form::Block => self.swaps.read(leaf.word(meta.value_at())),
                    };
                    seen.push(Seen { meta, word });
                }
            }
            let mut again = (0..entries).map(|entry| self.swaps.read(leaf.meta(entry)));
            if all.iter().all(|meta| again.next() == Some(*meta)) && self.status(leaf) == status {
                break;
            }
        }
        seen.sort_by(|a, b| {
            self.with_key(leaf, a.meta, |key| {
                self.compare(leaf, b.meta, key).reverse()
            })
            .unwrap_or(std::cmp::Ordering::Equal)
        });
    }

    /// Visits a record of a snapshot if it is in the range.
    fn visit(
        &self,
        leaf: &Node<'_, M>,
        seen: &Seen,
        within: (Bound<&K>, Bound<&K>),
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let meta = seen.meta;
        let visited = self.with_key(leaf, meta, |key| {
            if is_before(key, within.0) || is_after(key, within.1) {
                return None;
            }
            match meta.form() {
                Form::Inline => self.with_value(leaf, meta, |value| visit(key, value)),
                // The value at the moment of the snapshot, since when this thread has been pinned.
                form @ (Form::Word | Form::Block) => {
                    self.with_word(form, seen.word, |value| visit(key, value))
                }
            }
        });
        visited.flatten().unwrap_or(ControlFlow::Continue(()))
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut from = range.start_bound().map(ToOwned::to_owned);
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        let mut guard = epoch::pin();
        while let Some(at) = self.leaf_from(borrowed::<K>(&from), false) {
            self.snapshot(&at.leaf, &mut all, &mut seen);
            let within = (borrowed::<K>(&from), range.end_bound());
            for seen in &seen {
                if self.visit(&at.leaf, seen, within, &mut visit).is_break() {
                    return;
                }
            }
            match at.high {
                Some(high) if !is_after(high.borrow(), range.end_bound()) => {
                    // In a damaged pool separators may lead back.
                    let on: bool = match &from {
                        Bound::Unbounded => true,
                        Bound::Included(at) | Bound::Excluded(at) => {
                            Borrow::<K>::borrow(at) < high.borrow()
                        }
                    };
                    if !on {
                        return;
                    }
                    from = Bound::Included(high);
                }
                _ => return,
            }
            guard.repin();
        }
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut to = range.end_bound().map(ToOwned::to_owned);
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        let mut guard = epoch::pin();
        while let Some(at) = self.leaf_from(borrowed::<K>(&to), true) {
            self.snapshot(&at.leaf, &mut all, &mut seen);
            let within = (range.start_bound(), borrowed::<K>(&to));
            for seen in seen.iter().rev() {
                if self.visit(&at.leaf, seen, within, &mut visit).is_break() {
                    return;
                }
            }
            match at.low {
                Some(low) if !is_before(low.borrow(), range.start_bound()) => {
                    let on = match &to {
                        Bound::Unbounded => true,
                        Bound::Included(at) => Borrow::<K>::borrow(at) >= low.borrow(),
                        Bound::Excluded(at) => Borrow::<K>::borrow(at) > low.borrow(),
                    };
                    if !on {
                        return;
                    }
                    to = Bound::Excluded(low);
                }
                _ => return,
            }
            guard.repin();
        }
    }
}
