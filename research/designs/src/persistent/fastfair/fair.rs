//! *Failure-atomic in-place rebalance* (FAIR): splits, and merges of emptied nodes. There is no
//! log: at each moment every level is a list by `next` that holds all keys, and that list also
//! reaches nodes that no parent has.
//!
//! ```text
//! split of n:   the upper half as a new node u, durable
//!               n.next = u          (NAW)   what n has from u's low on does not count any more
//!               end of n            (NAW)   and is cut off
//!               u into the parent   (FAST)
//! merge of m, y:  y out of the parent (FAST)
//!                 y's entries behind those of m       which do not count as long as y is the next
//!                 m.next = y.next     (NAW)   y is gone, its entries are m's
//! ```
//! A root that splits gets a new root above it; a root with one child is removed.
//!
//! A node is merged if it is an emptied leaf, or an inner node that is a quarter full or has one
//! child. It is merged with a neighbour under the same parent, if both fit into one node. Always
//! the right one of the two is removed: so the first child of a node stays, and with it the low key
//! of both.
//!
//! Persist cost. Split: the lines of the new node and 1 fence; 1 and 1 for the link; 1 and 1 for
//! the cut; the insertion into the parent. A split of the root adds the new root's line, and 1 and
//! 1 for the root word. Merge: the removal from the parent; the lines of appended entries and 1
//! fence, if there are any; 1 and 1 for the link.

use super::node::{NodeOf, to_child};
use super::read::{Changed, Corrupt, Goal, Step};
use super::{FastFair, offset};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, WordOf};
use crate::version_lock::LockedAll;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::Guard;

/// Planted fault: a split cuts the left node before the right one is linked in.
const CUT_FIRST: &str = "fastfair-cut-first";
/// Planted fault: a split links a node in that is not durable.
const LINK_FIRST: &str = "fastfair-link-first";
/// Planted fault: a split gives the parent a child that is not a sibling yet.
const PARENT_FIRST: &str = "fastfair-parent-first";
/// Planted fault: a root leads to a node that its left neighbour does not lead to.
const ROOT_FIRST: &str = "fastfair-root-first";

/// Result of an attempt to merge.
enum Merge {
    Done,
    /// Another thread changed one of the nodes.
    Again,
    /// There is nothing to merge, or no neighbour to merge it with.
    No,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    /// Locks these nodes at the versions that a descent read, without waiting. Returns `None` if
    /// one has changed.
    fn lock_all(&self, steps: &[Step]) -> Option<LockedAll<'_>> {
        self.pm().interleave();
        self.locks
            .try_lock_all(steps.iter().map(|step| (step.at, step.version)))
    }

    /// Makes room in the full leaf `full` that `key` belongs to: splits the highest node of the run
    /// of full ones above it, or the leaf itself. The caller tries again, until the leaf itself is
    /// split.
    pub(super) fn make_room(&self, key: &K, full: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let path = self.path_to(Goal::Key(key)).map_err(Corrupt::into_error)?;
        let mut child = path.leaf();
        if child.at != full.at || child.version != full.version {
            return Ok(()); // another thread has split it
        }
        for parent in path.inner().iter().rev() {
            if self.node(parent.at).count(pm) < self.capacity {
                return self.split_child(*parent, child);
            }
            child = *parent;
        }
        self.split_root(child)
    }

    /// Copies the upper half of a full node to a new one, which is written and flushed. Returns the
    /// new node, its low word, and how many entries the old one keeps.
    fn upper_half(&self, node: NodeOf<'_, K, V>) -> Result<(u32, WordOf<K>, usize), SpaceError> {
        let pm = self.pm();
        let upper = self.new_node()?;
        let level = node.level(pm);
        let mut entries = Vec::with_capacity(self.capacity);
        node.entries(pm, &mut entries);
        let kept = entries.len() / 2;
        // An inner node's low key shares the record of its first leaf.
        let low = match level {
            0 => self.copy_key(entries[kept].0),
            _ => Ok(entries[kept].0),
        };
        let low = low.inspect_err(|_| self.free_node(upper))?;
        self.fill_new(upper, level, node.next(pm), low, &entries[kept..]);
        Ok((upper, low, kept))
    }

    /// Writes a new node and flushes the used lines.
    pub(super) fn fill_new(
        &self,
        at: u32,
        level: usize,
        next: u64,
        low: K::Word,
        entries: &[PairOf<K, V>],
    ) {
        let (pm, node) = (self.pm(), self.node(at));
        node.fill(pm, level, next, low, entries.iter().copied());
        node.flush_new(pm);
    }

    /// Makes `upper` the right sibling of `node`, which keeps its first `kept` entries.
    fn link_upper(&self, node: NodeOf<'_, K, V>, upper: u32, kept: usize) {
        let pm = self.pm();
        if pm.planted(LINK_FIRST) {
            node.link().publish(pm, link::word(offset(upper)));
        }
        // PERSIST: the new node (or nodes) and the record of its low key, before the link to it.
        pm.fence();
        if pm.planted(CUT_FIRST) {
            node.cut(pm, kept);
        }
        // PERSIST: (in `publish`) the link; the upper half is the sibling's, before it is cut off
        // here.
        node.link().publish(pm, link::word(offset(upper)));
        // PERSIST: (in `cut`) the cut, before an insertion comes.
        node.cut(pm, kept);
    }

    /// Splits a full node whose parent has room.
    fn split_child(&self, parent: Step, child: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let Some(held) = self.lock_all(&[parent, child]) else {
            return Ok(());
        };
        let (above, node) = (self.node(parent.at), self.node(child.at));
        let (upper, low, kept) = match self.upper_half(node) {
            Ok(halved) => halved,
            Err(e) => {
                held.unlock_unchanged();
                return Err(e);
            }
        };
        let (entry, n) = ((low, to_child(offset(upper))), above.count(pm));
        if pm.planted(PARENT_FIRST) {
            above.insert(pm, n, parent.child + 1, entry, false);
            self.link_upper(node, upper, kept);
        } else {
            self.link_upper(node, upper, kept);
            above.insert(pm, n, parent.child + 1, entry, true);
        }
        held.unlock();
        pm.interleave();
        Ok(())
    }

    /// Splits a full root and makes a new one above both halves.
    fn split_root(&self, top: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let Some(held) = self.lock_all(&[top]) else {
            return Ok(());
        };
        let node = self.node(top.at);
        let made = self.new_node().and_then(|root| {
            let upper = self.upper_half(node);
            upper
                .map(|upper| (root, upper))
                .inspect_err(|_| self.free_node(root))
        });
        let (root, (upper, low, kept)) = match made {
            Ok(made) => made,
            Err(e) => {
                held.unlock_unchanged();
                return Err(e);
            }
        };
        let first = (K::Word::default(), to_child(offset(top.at)));
        let children = [first, (low, to_child(offset(upper)))];
        // PERSIST: (in `fill_new`) the new root, which `link_upper` fences together with the upper
        // half.
        self.fill_new(root, node.level(pm) + 1, 0, first.0, &children);
        if pm.planted(ROOT_FIRST) {
            pm.fence();
            self.publish_top(root);
        }
        self.link_upper(node, upper, kept);
        self.publish_top(root);
        held.unlock();
        pm.interleave();
        Ok(())
    }

    /// Returns true if a node of level `level` with `n` entries is to be merged.
    fn is_light(&self, level: usize, n: usize) -> bool {
        match level {
            0 => n == 0,
            _ => n == 1 || n * 4 <= self.capacity,
        }
    }

    /// Merges emptied nodes on the path to `goal`.
    pub(super) fn shrink(&self, goal: Goal<'_, K>, guard: &Guard) -> Result<(), Corrupt> {
        let mut level = 0;
        loop {
            let path = self.path_to(goal)?;
            let Some(node) = path.at_level(level) else {
                return Ok(());
            };
            let Some(parent) = path.at_level(level + 1) else {
                return self.collapse(guard);
            };
            match self.merge(parent, node, level, guard)? {
                // The leaf may have a neighbour under the same parent now.
                Merge::Done => level = 0,
                Merge::Again => {}
                Merge::No => level += 1,
            }
        }
    }

    /// Merges a node of level `level` with a neighbour under its parent, if it is light and both
    /// fit into one.
    fn merge(
        &self,
        parent: Step,
        node: Step,
        level: usize,
        guard: &Guard,
    ) -> Result<Merge, Corrupt> {
        let pm = self.pm();
        let above = self.node(parent.at);
        let n = self.node(node.at).count(pm);
        if !self.is_light(level, n) {
            return Ok(Merge::No);
        }
        let (slot, children) = (parent.child, above.count(pm));
        // The left neighbour first, then the right one.
        for right in [slot, slot + 1] {
            if right == 0 || right >= children {
                continue;
            }
            let mut step = parent;
            step.child = if right == slot { slot - 1 } else { slot + 1 };
            let other = match self.go_down(&step, level + 1)? {
                Ok(other) => other,
                Err(Changed) => return Ok(Merge::Again),
            };
            if n + self.node(other.at).count(pm) > self.capacity {
                continue;
            }
            let (left, gone) = if right == slot {
                (other, node)
            } else {
                (node, other)
            };
            // If the locks are taken at the versions that came first, everything that was read is
            // right.
            let Some(held) = self.lock_all(&[parent, left, gone]) else {
                return Ok(Merge::Again);
            };
            let (left, right_node) = (self.node(left.at), self.node(gone.at));
            if left.next(pm) != offset(gone.at) {
                held.unlock_unchanged();
                return Err(Corrupt);
            }
            let mut entries = Vec::new();
            right_node.entries(pm, &mut entries);
            // Before anything else changes, the sibling is no longer a child.
            above.remove(pm, right);
            if !entries.is_empty() {
                left.append(pm, entries.into_iter());
                // PERSIST: the appended entries, before they count.
                pm.fence();
            }
            // PERSIST: (in `publish`) the link past the right node.
            left.link().publish(pm, link::word(right_node.next(pm)));
            let low = right_node.low(pm);
            held.unlock();
            pm.interleave();
            self.retire_node(gone.at, level, low, guard);
            return Ok(Merge::Done);
        }
        Ok(Merge::No)
    }

    /// Frees a node that nothing durable leads to any more, and a leaf's low key.
    pub(super) fn retire_node(&self, at: u32, level: usize, low: K::Word, guard: &Guard) {
        self.heap.retire(POff::new(offset(at)), guard);
        if level == 0 && low != K::Word::default() {
            K::retire(&self.heap, low, guard);
        }
    }

    /// While the root has a single child, makes that child the root.
    pub(super) fn collapse(&self, guard: &Guard) -> Result<(), Corrupt> {
        let pm = self.pm();
        loop {
            let (top, level) = self.start()?;
            let node = self.node(top.at);
            if level == 0 || node.count(pm) > 1 {
                if self.locks.validate(top.at, top.version) {
                    return Ok(());
                }
                continue;
            }
            let Ok(child) = self.go_down(&top, level)? else {
                continue;
            };
            let Some(held) = self.lock_all(&[top, child]) else {
                continue;
            };
            if self.node(child.at).next(pm) != 0 {
                held.unlock_unchanged();
                return Err(Corrupt);
            }
            self.publish_top(child.at);
            held.unlock();
            pm.interleave();
            self.retire_node(top.at, level, K::Word::default(), guard);
        }
    }
}
