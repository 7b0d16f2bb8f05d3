//! Merges (section 5.3), of leaves and of inner nodes, under one parent.
//!
//! | step | words that change in the tree | memory words |
//! | --- | --- | --- |
//! | freeze | L's status, N's status | |
//! | merge L and N under P under G | P's status (frozen), G's child word (P to P'), G's status (version) | L's (L to L'), N's (N to 0) |
//! | the same, if P is the root node and has no other child | P's status (frozen), the anchor's child word (P to L'), its status (version) | L's (L to 0), N's (N to 0) |
//! | the root node P with one child | P's status (frozen), the anchor's child word (P to the child), its status (version) | |
//!
//! If something comes in between after the first step, L and N stay frozen until a thread meets
//! them and consolidates each by itself.

use super::BzTree;
use super::build::Image;
use super::find::Step;
use super::node::{FROZEN, HEADER, MAX_WORDS, Node, Status, next_version};
use super::reshape::Place;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pmwcas::{Descriptor, Policy, WordError};
use bristlecone_pmem::{Media, SpaceError};

/// The fate of a small node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// It stays as it is.
    No,
    /// It has no neighbour under its parent, which may have one itself.
    Alone,
    /// It was merged, and its parent has one child fewer.
    Joined,
}

impl Merged {
    fn of(swapped: bool) -> Self {
        if swapped { Self::Joined } else { Self::No }
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Returns the words of records and metadata that count.
    fn live_words(&self, node: &Node<'_, M>, status: u64) -> usize {
        if !node.is_leaf() {
            return node.size - HEADER;
        }
        let status = Status(status);
        (status.entries() + status.records()).saturating_sub(status.deleted())
    }

    /// Merges a small node with a neighbour that has room for it, if there is one.
    pub(super) fn merge(
        &self,
        path: &[Step<'_, M>],
        node: &Node<'_, M>,
        swaps: (Descriptor<'_, M>, Descriptor<'_, M>),
    ) -> Result<Merged, SpaceError> {
        let Some((step, above)) = path.split_last() else {
            return self.lower(node, swaps.0);
        };
        let parent = &step.node;
        let (Some(place), Some(over)) = (self.place(path), self.place(above)) else {
            return Ok(Merged::No);
        };
        self.in_block(parent)?;
        self.in_block(node)?;
        if self.swaps.read(over.child) != parent.off || self.swaps.read(place.child) != node.off {
            return Ok(Merged::No);
        }
        let status = self.swaps.read(node.status());
        let live = self.live_words(node, status);
        // Two long separators may fill much of a node.
        let little = live < self.sizes.merge || !node.is_leaf() && node.sorted <= 2;
        if !little || status & FROZEN != 0 {
            return Ok(Merged::No);
        }
        if parent.sorted == 1 {
            // No neighbour; the parent may have one.
            return Ok(Merged::Alone);
        }
        let neighbours = [step.slot.checked_sub(1), Some(step.slot + 1)];
        for slot in neighbours.into_iter().flatten() {
            let Some(other) = self.child_at(parent, slot) else {
                continue;
            };
            self.in_block(&other)?;
            let other_status = self.swaps.read(other.status());
            let spare = if node.is_leaf() {
                self.sizes.free
            } else {
                // The separator moves down.
                parent.fixed_meta(slot.max(step.slot)).words() + 1
            };
            let both = HEADER + live + self.live_words(&other, other_status) + spare;
            // As in splits, a node may be larger where separators are long: if it would not be
            // split again, or if an only child could never be merged otherwise.
            let few = !node.is_leaf()
                && (node.sorted + other.sorted < 4 || node.sorted.min(other.sorted) == 1)
                && both <= MAX_WORDS;
            if other_status & FROZEN != 0 || both > self.sizes.node && !few {
                continue;
            }
            let mut freeze = swaps.0;
            let mut words = || -> Result<(), WordError> {
                freeze.add_word(node.status(), status, status | FROZEN)?;
                freeze.add_word(other.status(), other_status, other_status | FROZEN)
            };
            if !self.swap_of(words(), freeze)? {
                return Ok(Merged::No);
            }
            let right = slot.max(step.slot);
            let pair = if slot < step.slot {
                [&other, node]
            } else {
                [node, &other]
            };
            return self.join(parent, right, &place, &over, path.len() == 1, pair, swaps.1);
        }
        Ok(Merged::No)
    }

    /// Replaces two frozen nodes, `right` and the one before it, by one node.
    #[allow(clippy::too_many_arguments)] // one replacement, with everything that a merge has
    fn join(
        &self,
        parent: &Node<'_, M>,
        right: usize,
        place: &Place<'_>,
        over: &Place<'_>,
        root: bool,
        [l, n]: [&Node<'_, M>; 2],
        mut swap: Descriptor<'_, M>,
    ) -> Result<Merged, SpaceError> {
        let mut held = self.reservation();
        let mut make = || -> Result<(u64, u64), SpaceError> {
            for gone in [l, n, parent] {
                self.recyclable(gone)?;
            }
            self.plausible_children(parent)?;
            let mut image = if l.is_leaf() {
                Image::new(self.sizes.node, 0)
            } else {
                Image::new(0, l.level)
            };
            if l.is_leaf() {
                for leaf in [l, n] {
                    let records = self.live_records(leaf);
                    self.plausible(leaf, records.iter().copied())?;
                    for meta in records {
                        self.copy_record(&mut image, leaf, meta);
                    }
                }
            } else {
                self.plausible_children(l)?;
                self.plausible_children(n)?;
                self.copy_children(&mut image, l, 0..l.sorted);
                // The separator moves down from the parent to N's first child, which has none.
                let first = self.swaps.read(self.child_word(n, 0));
                self.copy_child(&mut image, parent, right, first);
                self.copy_children(&mut image, n, 1..n.sorted);
            }
            let merged = held.hold(self.seal(image, true))?;
            if root && parent.sorted == 2 {
                return Ok((merged, 0));
            }
            let mut image = Image::new(0, parent.level);
            self.copy_children(&mut image, parent, 0..right - 1);
            self.copy_child(&mut image, parent, right - 1, merged);
            self.copy_children(&mut image, parent, right + 1..parent.sorted);
            let new_parent = held.hold(self.seal(image, true))?;
            Ok((merged, new_parent))
        };
        let (merged, new_parent) = match make() {
            Ok(made) => made,
            Err(e) => {
                // If this fails, the next thread that meets one of the two replaces it, or thaws it
                // by itself.
                self.thaw(place, &[l, n], swap)?;
                return Err(e);
            }
        };
        let mut words = || -> Result<(), WordError> {
            swap.add_word(place.status, place.version, place.version | FROZEN)?;
            let (child, own) = match new_parent {
                0 => (merged, (0, Policy::FreeOldOnSuccess)),
                parent => (parent, (merged, Policy::FreeOne)),
            };
            swap.add_word_with(over.child, parent.off, child, Policy::FreeOne)?;
            swap.add_word(over.status, over.version, next_version(over.version))?;
            swap.add_word_with(l.memory(), l.off, own.0, own.1)?;
            swap.add_word_with(n.memory(), n.off, 0, Policy::FreeOldOnSuccess)
        };
        let words = words();
        held.pass_on();
        self.swap_of(words, swap).map(Merged::of)
    }

    /// Makes the only child of a root node the root node.
    fn lower(&self, root: &Node<'_, M>, mut swap: Descriptor<'_, M>) -> Result<Merged, SpaceError> {
        let Some(place) = self.place(&[]) else {
            return Ok(Merged::No);
        };
        let version = self.swaps.read(root.status());
        if root.is_leaf()
            || root.sorted != 1
            || version & FROZEN != 0
            || self.swaps.read(place.child) != root.off
        {
            return Ok(Merged::No);
        }
        self.recyclable(root)?;
        let child = self.swaps.read(self.child_word(root, 0));
        let mut words = || -> Result<(), WordError> {
            swap.add_word(root.status(), version, version | FROZEN)?;
            swap.add_word_with(place.child, root.off, child, Policy::FreeOldOnSuccess)?;
            swap.add_word(place.status, place.version, next_version(place.version))
        };
        self.swap_of(words(), swap).map(Merged::of)
    }
}
