//! Split: the live entries of a full node are copied into two new ones, and the parent's entry for it
//! ends where two others begin. What is full on the way up splits likewise, under one version.
//!
//! ```text
//! before v     parent | .. | k -> old [s, LIVE) | .. |
//! under v      parent | .. | k -> old [s, v) | k -> left [v, LIVE) | m -> right [v, LIVE) | .. |
//! ```
//!
//! Where the parent splits too, its first right entry's separator moves up, as in any B+-tree; a first entry
//! needs none (invariant 3).

use super::insert::{Change, Path};
use super::node::{Entry, Node};
use super::{CddsTree, Held, LEVELS, ROOT_LOCK, RootNode, Writer, corrupt};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Splits a full leaf, with the change that there is no room for, and commits its version.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for the new nodes; nothing has changed then.
    pub(super) fn split(
        &self,
        writer: &mut Writer,
        path: &Path,
        change: Change,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let pm = self.pm();
        let v = change.entry.start;
        let mut entries = Vec::with_capacity(self.slots() + 1);
        let mut added = Some(change.entry);
        for (slot, entry) in self.node(path.nodes[0]).live(pm) {
            if slot >= change.place {
                entries.extend(added.take());
            }
            if Some(slot) != change.old {
                entries.push(entry);
            }
        }
        entries.extend(added);

        // Everything that can be refused, before anything is changed.
        let splits = 1
            + (1..=path.top)
                .take_while(|&level| !self.node(path.nodes[level]).has_room(pm, v, 2))
                .count();
        let new_root = splits == path.top + 1;
        if new_root && splits == LEVELS {
            return Err(SpaceError::Capacity {
                wanted: LEVELS as u64 + 1,
                capacity: LEVELS as u64,
            });
        }
        let middle = entries.len().div_ceil(2);
        // A leaf of which nothing is live is full in a corrupt pool only.
        let upper = entries.get(middle).ok_or_else(corrupt)?;
        let separator = K::read(pm, upper.key, |key| key.make(&self.heap));
        let separator = separator.ok_or_else(corrupt)??;
        let new = self.new_nodes(2 * splits + usize::from(new_root));
        let new = new.inspect_err(|_| K::discard(&self.heap, separator))?;

        let mut held = Held::new(&self.locks);
        for node in &path.nodes[..splits] {
            held.lock(*node);
        }
        held.lock(if new_root {
            ROOT_LOCK
        } else {
            path.nodes[splits]
        });

        let mut separator = separator;
        let mut unneeded = Vec::new();
        for level in 0..splits {
            let (left, right) = (new[2 * level], new[2 * level + 1]);
            let middle = entries.len().div_ceil(2);
            if level > 0 {
                separator = std::mem::take(&mut entries[middle].key);
            }
            // PERSIST: (in `fill`) both, flushed; fenced before the version is committed.
            self.node(left).fill(pm, &entries[..middle]);
            self.node(right).fill(pm, &entries[middle..]);
            let mut low = 0;
            if level < path.top {
                let parent = self.node(path.nodes[level + 1]);
                let slot = usize::from(path.slots[level + 1]);
                low = parent.entry(pm, slot).key;
                if parent.live_before(pm, slot).is_none() {
                    // The first of its node: no separator (its key may even be above the new one).
                    unneeded.push(std::mem::take(&mut low));
                }
            }
            let two = [
                Entry::live(low, super::offset(left), v),
                Entry::live(separator, super::offset(right), v),
            ];
            if level + 1 < splits {
                let slot = usize::from(path.slots[level + 1]);
                let parent = self.node(path.nodes[level + 1]);
                entries.clear();
                for (i, entry) in parent.live(pm) {
                    if i == slot {
                        entries.extend(two);
                    } else {
                        entries.push(entry);
                    }
                }
            } else if new_root {
                let root = new[2 * splits];
                self.node(root).fill(pm, &two);
                let top = RootNode {
                    handle: root,
                    level: splits as u8,
                };
                self.prepare_root(writer, top, v);
                // ORDERING: Relaxed; readers validate the root's lock.
                self.top.store(top.word(), Ordering::Relaxed);
                // PERSIST: all new nodes and the separators, before the version is committed.
                pm.fence();
            } else {
                let slot = usize::from(path.slots[splits]);
                self.replace_child(self.node(path.nodes[splits]), slot, two, v);
            }
        }
        self.commit_version(writer, v);
        drop(held);
        pm.interleave();
        for node in &path.nodes[..splits] {
            self.retire_node(*node, guard);
        }
        for word in unneeded {
            self.retire_separator(word, guard);
        }
        writer.leaves += 1;
        writer.inner_nodes += splits as u64 - 1 + u64::from(new_root);
        Ok(())
    }

    /// Ends the entry in `slot` at `v` and puts two others beside it; fenced. There is room.
    fn replace_child(&self, node: Node<'_>, slot: usize, two: [Entry; 2], v: u64) {
        let pm = self.pm();
        // ORDERING: Relaxed; readers validate the node's version.
        node.slots[slot].end.store(pm, v, Ordering::Relaxed);
        // PERSIST: the end of the old entry, fenced before the version is committed.
        pm.flush_of(&node.slots[slot].end);
        for entry in two {
            // The first entry's separator may lead nowhere: it comes first.
            let place = K::read(pm, entry.key, |key| node.bound(pm, key, true, || true));
            let Some(room) = node.room(pm, place.flatten().unwrap_or(0), v) else {
                debug_assert!(false, "the caller looked for room");
                continue;
            };
            let at = node.make_room(pm, room);
            node.put(pm, at, entry);
            // PERSIST: the new entry, before room is made for the next: what that moves may have been
            // moved just now, and an entry must not stand in three slots; nor may a slot behind an
            // unused one become durable. The second: with the new nodes and the separators, before the
            // version is committed.
            pm.persist(&node.slots[at]);
        }
    }
}
