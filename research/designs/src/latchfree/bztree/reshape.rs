//! Consolidation and splits (sections 4.3, 4.4, 5.1, 5.2), and the parts that merges share with
//! them.
//!
//! Nothing is reshaped in place: a node is frozen, new ones are made of its records, and one swap
//! puts them into the tree. Each step begins at the root again, with descriptors that were taken
//! before. Any thread that meets a frozen node takes the next step, also after a crash, so that a
//! leaf that was left frozen does no harm.
//!
//! | step | words that change in the tree | memory words |
//! | --- | --- | --- |
//! | freeze | the node's status | |
//! | consolidate N under P | P's child word (N to N'), P's status (version) | |
//! | split N under P under G | P's status (frozen), G's child word (P to P'), G's status (version) | N's (N to N'), O's (0 to O) |
//! | split the root node N | the anchor's child word (N to R), its status (version) | N's own (0 to N'), O's (0 to O) |
//! | thaw N under P | N's status (version), P's status (version) | |
//!
//! The anchor is for the root node what an inner node is for its children.
//!
//! *The version.* In the paper the status of an inner node says only whether it is frozen, and
//! replacing a child leaves it unchanged. Then P' could be made of children of which one is
//! replaced before P is frozen, and would bring that node back into the tree. Here each replaced
//! child changes the version, and so does a thaw. A thread that installs a node expects the version
//! that it read before anything else.
//!
//! *No room.* A thread without room for new nodes thaws its leaf and everything frozen above it,
//! whichever thread froze it, and fails; the paper's allocator never fails. A thaw is repeated if a
//! sibling's change came in between. A node that stays frozen all the same (after a crash, or for
//! want of a descriptor) is thawed by the next operation that meets it and has no room either.
//! Removals and replacements in place then continue.

use super::build::Image;
use super::find::Step;
use super::merge::Merged;
use super::node::{FROZEN, HEADER, Meta, Node, Status, next_version};
use super::room::no_room;
use super::{BzTree, FEW_TURNS, corrupt};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pmwcas::{Descriptor, Policy, WordError};
use bristlecone_pmem::sync::PATIENT_TURNS;
use bristlecone_pmem::{Media, POff, PWord, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

/// Reason for reshaping a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The leaf was found frozen.
    Help,
    /// There is no room for a record of this number of words, metadata included.
    Room(usize),
    /// Much of the leaf is deleted.
    Compact,
    /// Little is left in the leaf.
    Merge,
}

/// How often thawing is tried. Each try thaws something, or another thread makes progress.
const THAWS: u32 = 256;

/// The words that lead to a node.
pub(super) struct Place<'a> {
    pub status: &'a PWord,
    /// The status before anything below was read.
    pub version: u64,
    pub child: &'a PWord,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// The node was replaced, by this thread or another one.
    Finished,
    /// The parent must be split first.
    ParentFull,
}

/// Reserved blocks, which are cancelled unless a swap takes them.
pub(super) struct Reserved<'a, M: Media> {
    blocks: &'a bristlecone_pmem::heap::activated::Activated<M>,
    held: Vec<u64>,
}

impl<M: Media> Reserved<'_, M> {
    pub fn hold(&mut self, made: Result<u64, SpaceError>) -> Result<u64, SpaceError> {
        made.inspect(|block| self.held.push(*block))
    }

    /// Returns the last block that is held.
    pub fn block(&self) -> Option<u64> {
        self.held.last().copied()
    }

    /// Passes the blocks to a swap.
    pub fn pass_on(&mut self) {
        self.held.clear();
    }
}

impl<M: Media> Drop for Reserved<'_, M> {
    fn drop(&mut self) {
        for block in self.held.drain(..) {
            self.blocks.cancel(POff::new(block));
        }
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    pub(super) fn reservation(&self) -> Reserved<'_, M> {
        Reserved {
            blocks: &self.blocks,
            held: Vec::new(),
        }
    }

    /// Returns the words that lead to the node after `path`, or `None` if its parent is frozen.
    pub(super) fn place<'a>(&'a self, path: &[Step<'a, M>]) -> Option<Place<'a>> {
        let (status, child) = match path.last() {
            Some(step) => (step.node.status(), self.child_word(&step.node, step.slot)),
            None => (self.root_status(), self.root_word()),
        };
        let version = self.swaps.read(status);
        (version & FROZEN == 0).then_some(Place {
            status,
            version,
            child,
        })
    }

    pub(super) fn frozen(&self, node: &Node<'_, M>) -> bool {
        self.swaps.read(node.status()) & FROZEN != 0
    }

    /// Reshapes the leaf of `key` as wanted, one step after another.
    ///
    /// # Errors
    /// There is no room for new nodes. The tree is as before, and nothing on the path to the leaf
    /// is frozen unless other threads keep freezing it. Or there are no descriptors, and a frozen
    /// node may stay so.
    pub(super) fn reshape(&self, key: &K, want: Want) -> Result<(), SpaceError> {
        let done = self.reshape_frozen(key, want);
        if let Err(e) = &done
            && no_room(e)
        {
            self.thaw_way(key)?;
        }
        done
    }

    fn reshape_frozen(&self, key: &K, want: Want) -> Result<(), SpaceError> {
        // The level of the next node: a leaf, or an inner node that must be split or merged.
        let mut level = 0;
        let mut merging = want == Want::Merge;
        // The highest level at which a node lost a child here.
        let mut shrunk = 0;
        // The inner node that must be split first.
        let mut full = 0;
        loop {
            // Otherwise blocks would wait in descriptors that no operation happens to take again.
            self.swaps.recycle_ready();
            let turns = match want {
                Want::Help | Want::Room(_) => PATIENT_TURNS,
                Want::Compact | Want::Merge => FEW_TURNS,
            };
            let swaps = self.descriptors(turns)?;
            let _guard = epoch::pin();
            let (path, node) = self.path_to(key, level)?;
            self.in_block(&node)?;
            if let Some(depth) = path.iter().position(|step| self.frozen(&step.node)) {
                let (above, node) = (&path[..depth], path[depth].node);
                let stepped = self.finish(above, &node, 0, swaps.0)?;
                (level, full) = match (stepped, above.last()) {
                    (Stepped::ParentFull, Some(step)) => (step.node.level, step.node.off),
                    _ => (0, 0),
                };
                continue;
            }
            if node.level != level {
                // The tree has become lower.
                if merging {
                    return Ok(());
                }
                level = 0;
                continue;
            }
            if merging && !self.frozen(&node) {
                level = match self.merge(&path, &node, swaps)? {
                    // A node below may have a neighbour now.
                    Merged::Joined => {
                        shrunk = shrunk.max(level + 1);
                        0
                    }
                    Merged::No if level >= shrunk => return Ok(()),
                    Merged::No | Merged::Alone => level + 1,
                };
                continue;
            }
            merging = false;
            let status = self.swaps.read(node.status());
            if status & FROZEN == 0 {
                if !self.wants(&node, status, want, full) {
                    if level == 0 {
                        return Ok(());
                    }
                    level = 0;
                    continue;
                }
                // So that a thread without room seldom freezes anything.
                let probe = self.blocks.reserve(self.sizes.node as u64 * 8)?;
                self.blocks.cancel(probe);
                let mut freeze = swaps.0;
                let word = freeze.add_word(node.status(), status, status | FROZEN);
                if !self.swap_of(word, freeze)? {
                    continue;
                }
            }
            let room = match want {
                Want::Room(words) => words,
                _ => 0,
            };
            match (self.finish(&path, &node, room, swaps.1)?, path.last()) {
                (Stepped::ParentFull, Some(step)) => {
                    (level, full) = (step.node.level, step.node.off);
                }
                _ if level == 0 => return Ok(()),
                _ => level = 0,
            }
        }
    }

    /// Returns true if a node that is not frozen still needs reshaping. `full` is the inner node to
    /// be split.
    fn wants(&self, node: &Node<'_, M>, status: u64, want: Want, full: u64) -> bool {
        if !node.is_leaf() {
            // Any other node in its place is one of its halves, which another thread made.
            return node.off == full && self.splits_inner(node);
        }
        let status = Status(status);
        match want {
            Want::Help => false,
            Want::Room(words) => node.free(status) < words,
            Want::Compact => status.deleted() >= self.sizes.deleted,
            Want::Merge => false,
        }
    }

    /// Returns true for an inner node that is split, and not copied, once it is frozen. This
    /// depends on its content alone, so that all helpers do the same.
    fn splits_inner(&self, node: &Node<'_, M>) -> bool {
        node.sorted >= 4 && node.size > self.sizes.node / 2
    }

    /// Takes the next step for a frozen node: replaces it by new ones.
    fn finish(
        &self,
        path: &[Step<'_, M>],
        node: &Node<'_, M>,
        room: usize,
        mut swap: Descriptor<'_, M>,
    ) -> Result<Stepped, SpaceError> {
        let Some(place) = self.place(path) else {
            return Ok(Stepped::Finished);
        };
        // All of this is read after the version.
        if self.swaps.read(place.child) != node.off || !self.frozen(node) {
            return Ok(Stepped::Finished);
        }
        // A damaged node would fail every swap, or recycle blocks that are not its own.
        self.recyclable(node)?;
        let own = self.swaps.read(node.memory()) == node.off;
        if !own && self.swaps.read(place.status) == place.version {
            return Err(corrupt());
        }
        if let Some(step) = path.last() {
            self.recyclable(&step.node)?;
            self.plausible_children(&step.node)?;
        }
        if !node.is_leaf() {
            self.plausible_children(node)?;
        }
        let mut held = self.reservation();
        let words = if node.is_leaf() {
            let records = self.live_records(node);
            self.plausible(node, records.iter().copied())?;
            let data: usize = records.iter().map(|meta| meta.words() + 1).sum();
            let spare = room.max(self.sizes.free);
            if records.len() < 2 || HEADER + data + spare <= self.sizes.node {
                let size = self.sizes.node.max(HEADER + data + spare);
                let made = self.leaf_image(node, &records, size);
                let new = held.hold(self.seal(made, true));
                self.replace(&place, node, new)
                    .map(|word| self.add_replacement(&mut swap, word))
            } else {
                let at = split_point(&records, data);
                let key = self.separator(node, records[at - 1], records[at])?;
                if self.parent_full(path, &key) {
                    return Ok(Stepped::ParentFull);
                }
                let images = [&records[..at], &records[at..]].map(|part| {
                    let data: usize = part.iter().map(|meta| meta.words() + 1).sum();
                    let size = if HEADER + data <= self.sizes.node {
                        self.sizes.node
                    } else {
                        HEADER + data + spare
                    };
                    self.leaf_image(node, part, size)
                });
                self.add_split(path, &place, node, &key, images, &mut held, &mut swap)
            }
        } else if self.splits_inner(node) {
            let at = node.sorted / 2;
            let Some(key) = self.with_key(node, node.fixed_meta(at), ToOwned::to_owned) else {
                return Err(corrupt());
            };
            if self.parent_full(path, &key) {
                return Ok(Stepped::ParentFull);
            }
            let images = [(0, at), (at, node.sorted)].map(|(from, to)| {
                let mut image = Image::new(0, node.level);
                self.copy_children(&mut image, node, from..to);
                image
            });
            self.add_split(path, &place, node, &key, images, &mut held, &mut swap)
        } else {
            let mut image = Image::new(0, node.level);
            self.copy_children(&mut image, node, 0..node.sorted);
            let new = held.hold(self.seal(image, true));
            self.replace(&place, node, new)
                .map(|word| self.add_replacement(&mut swap, word))
        };
        let words = words?;
        // Otherwise the next attempt does it.
        if !swap.is_empty() {
            held.pass_on();
            self.swap_of(words, swap)?;
        }
        Ok(Stepped::Finished)
    }

    /// Checks that records are where a node can have them, and that no more are counted than fit.
    pub(super) fn plausible(
        &self,
        node: &Node<'_, M>,
        mut records: impl Iterator<Item = Meta>,
    ) -> Result<(), SpaceError> {
        let words = records.try_fold(HEADER, |words, meta| {
            node.holds(meta).then_some(words + meta.words() + 1)
        });
        match words {
            Some(words) if words <= node.size => Ok(()),
            _ => Err(corrupt()),
        }
    }

    pub(super) fn plausible_children(&self, node: &Node<'_, M>) -> Result<(), SpaceError> {
        self.plausible(node, (0..node.sorted).map(|slot| node.fixed_meta(slot)))
    }

    /// Adds the words of a consolidation, which replaces `node` by a copy.
    fn replace<'a>(
        &self,
        place: &Place<'a>,
        node: &Node<'_, M>,
        new: Result<u64, SpaceError>,
    ) -> Result<Replacement<'a>, SpaceError> {
        Ok(Replacement {
            child: place.child,
            old: node.off,
            new: new?,
            status: place.status,
            version: place.version,
        })
    }

    fn add_replacement(
        &self,
        swap: &mut Descriptor<'_, M>,
        r: Replacement<'_>,
    ) -> Result<(), WordError> {
        swap.add_word_with(r.child, r.old, r.new, Policy::FreeOne)?;
        swap.add_word(r.status, r.version, next_version(r.version))
    }

    /// Returns true if the parent at the end of `path` must be split before it gets another child.
    fn parent_full(&self, path: &[Step<'_, M>], key: &K::Owned) -> bool {
        path.last().is_some_and(|step| {
            step.node.size + Self::child_words(key.borrow()) > self.sizes.node
                && self.splits_inner(&step.node)
        })
    }

    /// Makes two nodes of a frozen one and a new parent for them, and adds the words that install
    /// them.
    #[allow(clippy::too_many_arguments)] // one split, with everything that it has
    fn add_split(
        &self,
        path: &[Step<'_, M>],
        place: &Place<'_>,
        node: &Node<'_, M>,
        key: &K::Owned,
        [left, right]: [Image; 2],
        held: &mut Reserved<'_, M>,
        swap: &mut Descriptor<'_, M>,
    ) -> Result<Result<(), WordError>, SpaceError> {
        let Some((step, above)) = path.split_last() else {
            let left = held.hold(self.seal(left, false))?;
            let right = held.hold(self.seal(right, false))?;
            let mut root = Image::new(0, node.level.checked_add(1).ok_or_else(corrupt)?);
            self.push_child(&mut root, key.borrow(), left);
            self.push_child(&mut root, key.borrow(), right);
            let root = held.hold(self.seal(root, true))?;
            let (left_node, right_node) = (self.made(left)?, self.made(right)?);
            let mut words = || -> Result<(), WordError> {
                swap.add_word_with(place.child, node.off, root, Policy::FreeOne)?;
                swap.add_word(place.status, place.version, next_version(place.version))?;
                swap.add_word_with(left_node.memory(), 0, left, Policy::FreeNewOnFailure)?;
                swap.add_word_with(right_node.memory(), 0, right, Policy::FreeNewOnFailure)
            };
            return Ok(words());
        };
        let parent = &step.node;
        let Some(over) = self
            .place(above)
            .filter(|over| self.swaps.read(over.child) == parent.off)
        else {
            return Ok(Ok(()));
        };
        let left = held.hold(self.seal(left, true))?;
        let right = held.hold(self.seal(right, false))?;
        let mut image = Image::new(0, parent.level);
        self.copy_children(&mut image, parent, 0..step.slot);
        self.copy_child(&mut image, parent, step.slot, left);
        self.push_child(&mut image, key.borrow(), right);
        self.copy_children(&mut image, parent, step.slot + 1..parent.sorted);
        let new_parent = held.hold(self.seal(image, true))?;
        let right_node = self.made(right)?;
        let mut words = || -> Result<(), WordError> {
            swap.add_word(place.status, place.version, place.version | FROZEN)?;
            swap.add_word_with(over.child, parent.off, new_parent, Policy::FreeOne)?;
            swap.add_word(over.status, over.version, next_version(over.version))?;
            swap.add_word_with(node.memory(), node.off, left, Policy::FreeOne)?;
            swap.add_word_with(right_node.memory(), 0, right, Policy::FreeNewOnFailure)
        };
        Ok(words())
    }

    /// Returns a node that was just made.
    pub(super) fn made(&self, off: u64) -> Result<Node<'_, M>, SpaceError> {
        Node::at(self.pm(), off).ok_or_else(corrupt)
    }

    /// Copies entries of an inner node with their current children.
    pub(super) fn copy_children(
        &self,
        image: &mut Image,
        node: &Node<'_, M>,
        slots: std::ops::Range<usize>,
    ) {
        for slot in slots {
            let child = self.swaps.read(self.child_word(node, slot));
            self.copy_child(image, node, slot, child);
        }
    }

    /// Thaws all frozen nodes on the path to the leaf of `key`, from above, leaf included.
    fn thaw_way(&self, key: &K) -> Result<(), SpaceError> {
        for _ in 0..THAWS {
            let swap = self.descriptor()?;
            let _guard = epoch::pin();
            let (path, leaf) = self.path_to(key, 0)?;
            let nodes = path.iter().map(|step| &step.node).chain([&leaf]);
            let Some((depth, node)) = nodes.enumerate().find(|(_, node)| self.frozen(node)) else {
                return Ok(());
            };
            let Some(place) = self.place(&path[..depth]) else {
                continue;
            };
            if self.swaps.read(place.child) == node.off && self.frozen(node) {
                self.thaw(&place, &[node], swap)?;
            }
        }
        Ok(())
    }

    /// Thaws frozen nodes, if nothing came in between.
    pub(super) fn thaw(
        &self,
        place: &Place<'_>,
        nodes: &[&Node<'_, M>],
        mut swap: Descriptor<'_, M>,
    ) -> Result<(), SpaceError> {
        let mut words = || -> Result<(), WordError> {
            for node in nodes {
                let status = self.swaps.read(node.status());
                let thawed = if node.is_leaf() {
                    Status(status).thawed().0
                } else {
                    next_version(status)
                };
                swap.add_word(node.status(), status, thawed)?;
            }
            swap.add_word(place.status, place.version, next_version(place.version))
        };
        self.swap_of(words(), swap).map(|_| ())
    }

    /// Returns the visible records of a leaf, in the order of keys.
    pub(super) fn live_records(&self, leaf: &Node<'_, M>) -> Vec<Meta> {
        let entries = self.status(leaf).entries().min(leaf.size - HEADER);
        let metas = (0..entries).map(|i| Meta(self.swaps.read(leaf.meta(i))));
        let mut records: Vec<Meta> = metas.filter(|meta| meta.visible()).collect();
        // The sort is stable, and the first records are in order, which merge sort uses as one run.
        records.sort_by(|a, b| {
            self.with_key(leaf, *a, |key| self.compare(leaf, *b, key).reverse())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        records
    }

    pub(super) fn leaf_image(&self, leaf: &Node<'_, M>, records: &[Meta], size: usize) -> Image {
        let mut image = Image::new(size, 0);
        for meta in records {
            self.copy_record(&mut image, leaf, *meta);
        }
        image
    }

    /// Returns a key above `left`'s and not above `right`'s; the shortest one, for byte strings.
    fn separator(
        &self,
        leaf: &Node<'_, M>,
        left: Meta,
        right: Meta,
    ) -> Result<K::Owned, SpaceError> {
        if K::RECORDS {
            let bytes = |meta: Meta| leaf.bytes(meta.offset(), meta.key_bytes());
            let (left, right) = (bytes(left), bytes(right));
            let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
            let key = K::of_byte_string(&right[..(common + 1).min(right.len())]);
            key.map(ToOwned::to_owned).ok_or_else(corrupt)
        } else {
            self.with_key(leaf, right, ToOwned::to_owned)
                .ok_or_else(corrupt)
        }
    }
}

/// The words of a consolidation.
struct Replacement<'a> {
    child: &'a PWord,
    old: u64,
    new: u64,
    status: &'a PWord,
    version: u64,
}

/// Returns how many records go to the left: half of the words, and at least one record on each
/// side.
fn split_point(records: &[Meta], data: usize) -> usize {
    let mut left = 0;
    let at = records.iter().position(|meta| {
        left += meta.words() + 1;
        left * 2 >= data
    });
    (at.unwrap_or(0) + 1).clamp(1, records.len() - 1)
}
