//! Insertion, replacement and removal, and the towers that follow them.
//!
//! Persist cost, in lines and fences: insert 2 and 2 (the node; the link to it), update 1 and 1,
//! remove 1 and 1. Records add their own lines. An update with a record adds a fence, before the
//! word that leads to it. A node's 32 bytes may lie in two lines where towers are in the pool.

use super::node::{LEFT, MAX_HEIGHT, has_left, shape, target};
use super::search::{Near, Path};
use super::{SkipList, Towers, handle};
use crate::index::{IfPresent, InsertError, RemoveError, UpdateError};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::media::DramAccess;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering;

/// A node that nothing leads to yet, without the value's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub node: u64,
    pub key: u64,
    pub height: usize,
}

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Returns a height: one node in four is a level higher than the others.
    pub(super) fn next_height(&self) -> usize {
        // ORDERING: Relaxed; any distinct numbers will do.
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        // SplitMix64's mixing. The heights of a list depend only on the order of the insertions,
        // and not on the keys.
        let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (1 + z.trailing_zeros() as usize / 2).min(MAX_HEIGHT)
    }

    /// Allocates a node and makes the key's word. If this fails, nothing stays allocated.
    pub(super) fn draft(&self, key: &K) -> Result<Draft, SpaceError> {
        let height = self.next_height();
        let node = self.heap.alloc(T::node_bytes(height))?;
        let key = key.make(&self.heap).inspect_err(|_| self.heap.free(node))?;
        Ok(Draft {
            node: node.get(),
            key,
            height,
        })
    }

    pub(super) fn drop_draft(&self, draft: Draft) {
        K::discard(&self.heap, draft.key);
        self.heap.free(POff::new(draft.node));
    }

    /// Writes a node that nothing leads to yet. Does not flush.
    pub(super) fn write_node(&self, node: u64, key: u64, value: u64, next: u64, height: usize) {
        let (pm, node) = (self.pm(), self.nodes.at(node));
        // ORDERING: Relaxed (all four); the store that links the node is a Release.
        node.key.store(pm, key, Ordering::Relaxed);
        node.value.store(pm, value, Ordering::Relaxed);
        node.next.store(pm, link::word(next), Ordering::Relaxed);
        let shape = shape(key, height as u64);
        node.shape.store(pm, shape, Ordering::Relaxed);
    }

    /// Inserts, or acts as `present` says, and commits. Returns true if the key was present.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        let mut path = self.path();
        // Made when first needed, so not for a key that is present and must not be.
        let mut word: Option<u64> = None;
        let mut draft: Option<Draft> = None;
        let discard = |word: Option<u64>, draft: Option<Draft>| {
            if let Some(word) = word {
                V::discard(&self.heap, word);
            }
            if let Some(draft) = draft {
                self.drop_draft(draft);
            }
        };
        loop {
            let near = self.locate(key, &mut path);
            if near.found.is_some() && present == IfPresent::Refuse {
                discard(word, draft);
                return Err(InsertError::KeyExists);
            }
            let value_word = match word {
                Some(word) => word,
                None => value
                    .make(&self.heap)
                    .inspect_err(|_| discard(None, draft))?,
            };
            word = Some(value_word);
            if near.found.is_some() {
                if self.swap_value(&near, value_word, guard) {
                    discard(None, draft);
                    self.pm().commit()?;
                    return Ok(true);
                }
                continue;
            }
            let new = match draft {
                Some(draft) => draft,
                None => self.draft(key).inspect_err(|_| discard(word, None))?,
            };
            draft = Some(new);
            if self.link(&near, new, value_word) {
                self.raise(new, key, &mut path);
                self.pm().commit()?;
                return Ok(false);
            }
        }
    }

    /// Puts a node into the bottom list at `near`. Returns false if that is no longer its place.
    fn link(&self, near: &Near, new: Draft, value: u64) -> bool {
        let pm = self.pm();
        self.write_node(new.node, new.key, value, near.next, new.height);
        // PERSIST: the node, with the records that it leads to under the same fence, before the
        // link that makes it count (crash state 1).
        pm.flush_of(self.nodes.at(new.node));
        pm.fence();
        Self::report_lock(DramAccess::Locked, near.pred);
        Self::report_lock(DramAccess::Locked, new.node);
        pm.interleave();
        // The new node's lock is taken too: other threads may reach the node at once, and must not
        // build on it before its link is durable.
        let locks = self.locks.lock_two(handle(near.pred), handle(new.node));
        if self.nodes.next(near.pred) != near.next {
            locks.unlock_unchanged();
            return false;
        }
        // PERSIST: (in `publish`) the link; the insertion counts.
        self.nodes
            .at(near.pred)
            .next
            .publish(pm, link::word(new.node));
        // After the fence, so that others see only what survives a crash.
        locks.unlock();
        true
    }

    /// Replaces the value word of the node that `near` found (crash state 2). Returns false if that
    /// is no longer its place.
    fn swap_value(&self, near: &Near, word: u64, guard: &Guard) -> bool {
        let pm = self.pm();
        if V::RECORDS {
            // PERSIST: the new value's record, before the word that leads to it.
            pm.fence();
        }
        Self::report_lock(DramAccess::Locked, near.pred);
        pm.interleave();
        let Some(locked) = self.locks.try_lock_at(handle(near.pred), near.version) else {
            return false;
        };
        let old = self.nodes.value(near.next);
        // PERSIST: (in `publish`) the new value.
        self.nodes.at(near.next).value.publish(pm, word);
        locked.unlock();
        V::retire(&self.heap, old, guard);
        true
    }

    /// Replaces the value of a key that is present.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        let guard = &epoch::pin();
        let mut path = self.path();
        let mut word: Option<u64> = None;
        loop {
            let near = self.locate(key, &mut path);
            if near.found.is_none() {
                if let Some(word) = word {
                    V::discard(&self.heap, word);
                }
                return Err(UpdateError::NotFound);
            }
            let value_word = match word {
                Some(word) => word,
                None => value.make(&self.heap)?,
            };
            word = Some(value_word);
            if self.swap_value(&near, value_word, guard) {
                self.pm().commit()?;
                return Ok(());
            }
        }
    }

    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let guard = &epoch::pin();
        let mut path = self.path();
        loop {
            let near = self.locate(key, &mut path);
            if near.found.is_none() {
                return Ok(false);
            }
            let Some(value) = self.unlink(&near) else {
                continue;
            };
            let node = near.next;
            self.lower(node, key, &mut path, guard);
            // Durably, nothing leads to the node any more.
            K::retire(&self.heap, self.nodes.key(node), guard);
            V::retire(&self.heap, value, guard);
            self.heap.retire(POff::new(node), guard);
            self.pm().commit()?;
            return Ok(true);
        }
    }

    /// Removes the node that `near` found from the bottom list (crash state 3). Returns its value
    /// word, or `None` if `near` is no longer its place.
    fn unlink(&self, near: &Near) -> Option<u64> {
        let (pm, node) = (self.pm(), near.next);
        Self::report_lock(DramAccess::Locked, near.pred);
        Self::report_lock(DramAccess::Locked, node);
        pm.interleave();
        let locks = self.locks.lock_two(handle(near.pred), handle(node));
        if self.nodes.next(near.pred) != node {
            locks.unlock_unchanged();
            return None;
        }
        let value = self.nodes.value(node);
        let after = self.nodes.next(node);
        // PERSIST: (in `publish`) the link past the node; the removal counts.
        self.nodes.at(near.pred).next.publish(pm, link::word(after));
        // The mark comes after the fence, so that no crash finds one in the list, and need not be
        // durable. ORDERING: Release; pairs with the Acquire load in `next`, like every store of a
        // link.
        self.nodes
            .at(node)
            .next
            .store(pm, link::word(after) | LEFT, Ordering::Release);
        locks.unlock();
        Some(value)
    }

    /// Links a node's tower, upwards. Other threads may remove the node meanwhile.
    fn raise(&self, new: Draft, key: &K, path: &mut Path) {
        if new.height == 1 {
            return;
        }
        // ORDERING: Relaxed; a search that does not see it begins one level below.
        self.highest.fetch_max(new.height - 1, Ordering::Relaxed);
        let tower = self.towers.make(new.node, new.key, new.height);
        for level in 1..new.height {
            if !self.raise_to(level, tower, new.node, key, path) {
                if level == 1 {
                    self.towers.discard(tower);
                }
                return;
            }
        }
    }

    /// Returns the last tower before `key`, from `at` on, and the link to the next one without its
    /// mark.
    fn along(&self, level: usize, mut at: u64, key: &K) -> (u64, u64) {
        loop {
            let next = target(self.towers.link(&self.nodes, at, level));
            if next == 0
                || self
                    .compare(self.towers.key(&self.nodes, next), key)
                    .is_ge()
            {
                return (at, next);
            }
            at = next;
        }
    }

    /// Links a tower on one level. Returns false, and the tower stays at its height, if the node
    /// has been removed meanwhile, or if another tower of the same key is still on the level. (Each
    /// level has at most one tower of a key, so that `lower` can tell what it finds.)
    fn raise_to(&self, level: usize, tower: u64, node: u64, key: &K, path: &mut Path) -> bool {
        let (towers, nodes) = (&self.towers, &self.nodes);
        loop {
            let (pred, next) = self.along(level, path[level], key);
            if next != 0 && self.compare(towers.key(nodes, next), key).is_eq() {
                return false;
            }
            let owner = towers.node(pred);
            Self::report_lock(DramAccess::Locked, owner);
            Self::report_lock(DramAccess::Locked, node);
            self.pm().interleave();
            let locks = self.locks.lock_two(handle(owner), handle(node));
            if has_left(nodes.next(node)) {
                locks.unlock_unchanged();
                return false;
            }
            let there = towers.link(nodes, pred, level);
            if there == next {
                towers.set_link(nodes, tower, level, next);
                towers.set_link(nodes, pred, level, tower);
                // Versions are those of the bottom list, which has not changed.
                locks.unlock_unchanged();
                return true;
            }
            locks.unlock_unchanged();
            if has_left(there) {
                self.descend(path, level, |word| self.compare(word, key).is_lt());
            }
        }
    }

    /// Unlinks and frees the tower of a node that has left the bottom list, downwards. No level
    /// gains the node after that.
    fn lower(&self, node: u64, key: &K, path: &mut Path, guard: &Guard) {
        let height = self.nodes.height(node) as usize;
        let mut tower = None;
        for level in (1..height).rev() {
            tower = self.lower_from(level, node, key, path).or(tower);
        }
        if let Some(tower) = tower {
            self.towers.retire(tower, guard);
        }
    }

    /// Unlinks a node's tower from one level. Returns `None` if it is not there.
    fn lower_from(&self, level: usize, node: u64, key: &K, path: &mut Path) -> Option<u64> {
        let (towers, nodes) = (&self.towers, &self.nodes);
        loop {
            let (pred, next) = self.along(level, path[level], key);
            let owner = towers.node(pred);
            Self::report_lock(DramAccess::Locked, owner);
            Self::report_lock(DramAccess::Locked, node);
            self.pm().interleave();
            let locks = self.locks.lock_two(handle(owner), handle(node));
            let there = towers.link(nodes, pred, level);
            if there == next {
                let mine = next != 0 && towers.node(next) == node;
                if mine {
                    let after = target(towers.link(nodes, next, level));
                    towers.set_link(nodes, pred, level, after);
                    towers.set_link(nodes, next, level, after | LEFT);
                }
                locks.unlock_unchanged();
                return mine.then_some(next);
            }
            locks.unlock_unchanged();
            if has_left(there) {
                self.descend(path, level, |word| self.compare(word, key).is_lt());
            }
        }
    }

    /// Frees a node that was never reachable, and its records.
    pub(super) fn discard_node(&self, node: u64) {
        K::discard(&self.heap, self.nodes.key(node));
        V::discard(&self.heap, self.nodes.value(node));
        self.heap.free(POff::new(node));
    }
}
