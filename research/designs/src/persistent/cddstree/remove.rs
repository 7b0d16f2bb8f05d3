//! Removal: an end version in place. When the last entry of a node ends, the node's own entry in
//! its parent ends instead.

use super::insert::Path;
use super::node::end_word;
use super::{CddsTree, Held, ROOT_LOCK, RootNode, Writer};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Removes `key`. Returns true if it was present. The caller commits what was fenced to the
    /// medium.
    pub(super) fn take_out(&self, key: &K) -> bool {
        let guard = &epoch::pin();
        let pm = self.pm();
        let writer = &mut *lock(&self.writer);
        // Nothing can be removed from a corrupt pool.
        let Ok(path) = self.path(key) else {
            return false;
        };
        let leaf = self.node(path.nodes[0]);
        let Some(slot) = leaf.find(pm, key, || true).flatten() else {
            return false;
        };
        let entry = leaf.entry(pm, slot);
        let last = leaf.live_before(pm, slot).is_none() && leaf.live_from(pm, slot + 1).is_none();
        if last && path.top > 0 {
            self.take_out_leaf(writer, &path, guard);
        } else {
            let v = writer.version + 1;
            let locked = self.locks.lock(path.nodes[0]);
            // ORDERING: Relaxed; readers validate the node's version.
            leaf.slots[slot]
                .end
                .store(pm, end_word(v), Ordering::Relaxed);
            // PERSIST: the end, which the version's fence covers. If a crash keeps the version
            // without it, nothing was removed, and the removal had not returned.
            pm.flush_of(&leaf.slots[slot].end);
            self.commit_version(writer, v);
            // After the fence, so that others see only what survives a crash.
            locked.unlock();
        }
        // A corrupt pool may have more entries than were counted.
        writer.entries = writer.entries.saturating_sub(1);
        K::retire(&self.heap, entry.key, guard);
        V::retire(&self.heap, entry.value, guard);
        true
    }

    /// Removes the leaf at the end of `path` and the inner nodes whose only child it was.
    fn take_out_leaf(&self, writer: &mut Writer, path: &Path, guard: &Guard) {
        let pm = self.pm();
        let v = writer.version + 1;
        // The lowest node with another child. The root has one (invariant 4).
        let keeps = |&level: &usize| {
            let slot = usize::from(path.slots[level]);
            let node = self.node(path.nodes[level]);
            node.live_before(pm, slot).is_some() || node.live_from(pm, slot + 1).is_some()
        };
        let level = (1..path.top).find(keeps).unwrap_or(path.top);
        let (node, slot) = (self.node(path.nodes[level]), usize::from(path.slots[level]));

        let mut held = Held::new(&self.locks);
        let mut gone = path.nodes[..level].to_vec();
        // A root's only child becomes the root.
        let mut top = None;
        if level == path.top {
            let mut others = node.live(pm).filter(|(i, _)| *i != slot);
            let mut only = others.next().filter(|_| others.next().is_none());
            let mut at = path.nodes[level];
            for below in (0..level).rev() {
                let Some(child) = only.and_then(|(_, entry)| self.child(entry.value)) else {
                    break;
                };
                gone.push(at);
                top = Some(RootNode {
                    handle: child,
                    level: below as u8,
                });
                at = child;
                let mut children = self.node(child).live(pm);
                only = children.next().filter(|_| children.next().is_none());
            }
        }
        for node in &gone {
            held.lock(*node);
        }
        match top {
            Some(top) => {
                held.lock(ROOT_LOCK);
                self.prepare_root(writer, top, v);
                // ORDERING: Relaxed; readers validate the root's lock.
                self.top.store(top.word(), Ordering::Relaxed);
                // The root and the version share a line, but they are two stores.
                pm.store_fence();
            }
            None => {
                held.lock(path.nodes[level]);
                // ORDERING: Relaxed; readers validate the node's version.
                node.slots[slot]
                    .end
                    .store(pm, end_word(v), Ordering::Relaxed);
                // PERSIST: the end, which the version's fence covers, as in `take_out`.
                pm.flush_of(&node.slots[slot].end);
            }
        }
        self.commit_version(writer, v);
        drop(held);
        pm.interleave();

        // The separators that are freed: those on the path, and that of a root's only child.
        let mut separators = vec![node.entry(pm, slot).key];
        for lower in 1..level {
            let slot = usize::from(path.slots[lower]);
            separators.push(self.node(path.nodes[lower]).entry(pm, slot).key);
        }
        for old_root in &gone[level..] {
            separators.extend(
                self.node(*old_root)
                    .live(pm)
                    .filter(|(i, _)| *old_root != path.nodes[level] || *i != slot)
                    .map(|(_, entry)| entry.key),
            );
        }
        for separator in separators {
            self.retire_separator(separator, guard);
        }
        writer.leaves = writer.leaves.saturating_sub(1);
        writer.inner_nodes = (writer.inner_nodes).saturating_sub(gone.len() as u64 - 1);
        for node in gone {
            self.retire_node(node, guard);
        }
    }
}
