//! Split: the live entries of a full node are copied into two new ones. In the parent the node's
//! entry ends where two others begin. Full nodes on the path split in the same way, under one
//! version.
//!
//! ```text
//! before v     parent | .. | k -> old [s, LIVE) | .. |
//! under v      parent | .. | k -> old [s, v) | k -> left [v, LIVE) | m -> right [v, LIVE) | .. |
//! ```
//!
//! If the parent splits too, the separator of its first right entry moves up, as in any B+-tree. A
//! first entry needs none (invariant 3).

use super::insert::{Change, Path};
use super::node::{Entry, Node, end_word};
use super::{CddsTree, Held, LEVELS, ROOT_LOCK, RootNode, Writer, corrupt};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering;

/// A split under way.
struct Split<'a> {
    path: &'a Path,
    /// The version that the split commits.
    version: u64,
    /// Number of levels with a node that splits, from the leaf up.
    levels: usize,
    /// New nodes: a left and a right one for each level, then the new root.
    new: Vec<u32>,
    /// Words of separators that the tree no longer needs.
    unneeded: Vec<u64>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Splits a full leaf while making a change that it has no room for, and commits the version.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for the new nodes. Nothing has changed then.
    pub(super) fn split(
        &self,
        writer: &mut Writer,
        path: &Path,
        change: Change,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let pm = self.pm();
        let version = change.entry.start;
        let entries = self.changed_leaf(path.nodes[0], change);

        // Everything that can be refused comes before the first change.
        let (levels, new_root) = self.levels_to_split(path, version)?;
        // Only in a corrupt pool does a full leaf have no live entry.
        let upper = entries.get(upper_half(&entries)).ok_or_else(corrupt)?;
        let separator = K::read(pm, upper.key, |key| key.make(&self.heap));
        let separator = separator.ok_or_else(corrupt)??;
        let new = self.new_nodes(2 * levels + usize::from(new_root));
        let new = new.inspect_err(|_| K::discard(&self.heap, separator))?;

        let mut held = Held::new(&self.locks);
        for node in &path.nodes[..levels] {
            held.lock(*node);
        }
        held.lock(if new_root {
            ROOT_LOCK
        } else {
            path.nodes[levels]
        });
        let mut split = Split {
            path,
            version,
            levels,
            new,
            unneeded: Vec::new(),
        };
        let children = self.split_levels(&mut split, entries, separator);
        if new_root {
            self.install_root(writer, &split, children);
        } else {
            let parent = self.node(path.nodes[levels]);
            self.replace_child(parent, path.slots[levels].into(), children, version);
        }
        self.commit_version(writer, version);
        drop(held);
        pm.interleave();
        for node in &path.nodes[..levels] {
            self.retire_node(*node, guard);
        }
        for word in split.unneeded {
            self.retire_separator(word, guard);
        }
        writer.leaves += 1;
        writer.inner_nodes += levels as u64 - 1 + u64::from(new_root);
        Ok(())
    }

    /// Returns the live entries that a leaf has after a change.
    fn changed_leaf(&self, leaf: u32, change: Change) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.slots() + 1);
        let mut added = Some(change.entry);
        for (slot, entry) in self.node(leaf).live(self.pm()) {
            if slot >= change.place {
                entries.extend(added.take());
            }
            if Some(slot) != change.old {
                entries.push(entry);
            }
        }
        entries.extend(added);
        entries
    }

    /// Returns of how many levels a node splits, and whether the root is among them.
    ///
    /// # Errors
    /// Returns the number of levels with a node that splits, and whether the root is among them.
    fn levels_to_split(&self, path: &Path, version: u64) -> Result<(usize, bool), SpaceError> {
        let full = |&level: &usize| !self.node(path.nodes[level]).has_room(self.pm(), version, 2);
        let levels = 1 + (1..=path.top).take_while(full).count();
        let new_root = levels == path.top + 1;
        if new_root && levels == LEVELS {
            return Err(SpaceError::Capacity {
                wanted: LEVELS as u64 + 1,
                capacity: LEVELS as u64,
            });
        }
        Ok((levels, new_root))
    }

    /// Fills the new nodes of all levels that split. Returns the entries of the topmost two, for
    /// their parent.
    fn split_levels(
        &self,
        split: &mut Split<'_>,
        mut entries: Vec<Entry>,
        separator: u64,
    ) -> [Entry; 2] {
        let mut children = self.fill_halves(split, 0, &entries, separator);
        for level in 1..split.levels {
            let slot = usize::from(split.path.slots[level]);
            entries.clear();
            for (i, entry) in self.node(split.path.nodes[level]).live(self.pm()) {
                if i == slot {
                    entries.extend(children);
                } else {
                    entries.push(entry);
                }
            }
            let middle = upper_half(&entries);
            let separator = std::mem::take(&mut entries[middle].key);
            children = self.fill_halves(split, level, &entries, separator);
        }
        children
    }

    /// Fills the two new nodes of a level. Returns the entries that lead to them.
    fn fill_halves(
        &self,
        split: &mut Split<'_>,
        level: usize,
        entries: &[Entry],
        separator: u64,
    ) -> [Entry; 2] {
        let pm = self.pm();
        let (left, right) = (split.new[2 * level], split.new[2 * level + 1]);
        let (lower, upper) = entries.split_at(upper_half(entries));
        // PERSIST: (in `fill`) both nodes are flushed; a fence comes before the version is
        // committed.
        self.node(left).fill(pm, lower);
        self.node(right).fill(pm, upper);
        let mut low = 0;
        if level < split.path.top {
            let parent = self.node(split.path.nodes[level + 1]);
            let slot = usize::from(split.path.slots[level + 1]);
            low = parent.entry(pm, slot).key;
            if parent.live_before(pm, slot).is_none() {
                // The first entry of a node needs no separator (its key may even be above the new
                // one).
                split.unneeded.push(std::mem::take(&mut low));
            }
        }
        [
            Entry::live(low, super::offset(left), split.version),
            Entry::live(separator, super::offset(right), split.version),
        ]
    }

    /// Fills the new root, whose children are those of `two`, and prepares it to be committed.
    fn install_root(&self, writer: &mut Writer, split: &Split<'_>, two: [Entry; 2]) {
        let pm = self.pm();
        let root = split.new[2 * split.levels];
        self.node(root).fill(pm, &two);
        let top = RootNode {
            handle: root,
            level: split.levels as u8,
        };
        self.prepare_root(writer, top, split.version);
        // ORDERING: Relaxed; readers validate the root's lock.
        self.top.store(top.word(), Ordering::Relaxed);
        // PERSIST: all new nodes and the separators, before the version is committed.
        pm.fence();
    }

    /// Ends the entry in `slot` at `v` and puts two others beside it; all is fenced. The node has
    /// room.
    fn replace_child(&self, node: Node<'_>, slot: usize, two: [Entry; 2], v: u64) {
        let pm = self.pm();
        // ORDERING: Relaxed; readers validate the node's version.
        node.slots[slot]
            .end
            .store(pm, end_word(v), Ordering::Relaxed);
        // PERSIST: the end of the old entry, fenced before the version is committed.
        pm.flush_of(&node.slots[slot].end);
        for entry in two {
            // The first entry may have no separator; then it comes first.
            let place = K::read(pm, entry.key, |key| node.bound(pm, key, true, || true));
            let Some(room) = node.room(pm, place.flatten().unwrap_or(0), v) else {
                debug_assert!(false, "the caller looked for room");
                continue;
            };
            let at = node.make_room(pm, room);
            node.put(pm, at, entry);
            // PERSIST: the new entry, before room is made for the next. Making room may move what
            // was moved just now, and an entry must not stand in three slots; nor may a slot behind
            // an unused one become durable. The second fence also makes the new nodes and
            // separators durable before the version is committed.
            pm.persist(&node.slots[at]);
        }
    }
}

/// Index of the first entry that goes to the right node.
fn upper_half(entries: &[Entry]) -> usize {
    entries.len().div_ceil(2)
}
