//! Insertion, replacement and removal, and the towers that follow them.
//!
//! Persist cost, in lines and fences: insert 2 and 2 (the node; the link to it), update 1 and 1, remove 1
//! and 1. Records add their own lines; a value's record also a fence to an update, before the word that
//! leads to it. A node's 32 bytes may lie in two lines where towers are in the pool.

use super::node::{LEFT, MAX_HEIGHT, has_left, target};
use super::search::{Near, Path};
use super::{SkipList, Towers, handle};
use crate::index::{InsertError, RemoveError, UpdateError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::media::DramAccess;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering;

/// What to do with a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfPresent {
    /// Report [`InsertError::KeyExists`].
    Refuse,
    /// Put the new value in its place.
    Replace,
}

/// A node that nothing leads to yet. The value's word is not its part.
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
    /// A height: one node in four is a level higher than the others.
    pub(super) fn next_height(&self) -> usize {
        // ORDERING: Relaxed; any numbers will do that differ.
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        // SplitMix64's mixing, so that the heights of a list do not depend on the keys, nor on anything
        // but the order in which they come.
        let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (1 + z.trailing_zeros() as usize / 2).min(MAX_HEIGHT)
    }

    /// Allocates a node and makes the key's word; nothing is allocated if it fails.
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

    /// Writes a node that nothing leads to yet; nothing is flushed.
    pub(super) fn write_node(&self, node: u64, key: u64, value: u64, next: u64, height: usize) {
        let (pm, node) = (self.pm(), self.nodes.at(node));
        // ORDERING: Relaxed (all four); the store that links the node is a Release.
        node.key.store(pm, key, Ordering::Relaxed);
        node.value.store(pm, value, Ordering::Relaxed);
        node.next.store(pm, next, Ordering::Relaxed);
        node.height.store(pm, height as u64, Ordering::Relaxed);
    }

    /// Inserts, or does as `present` says, and commits. True if the key was there.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        let mut path = self.path();
        // Made when they are first needed: not for a key that is there and must not be.
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

    /// Puts a node into the bottom list where `near` says; false if that is no longer its place.
    fn link(&self, near: &Near, new: Draft, value: u64) -> bool {
        let pm = self.pm();
        self.write_node(new.node, new.key, value, near.next, new.height);
        // PERSIST: the node, and with the same fence the records it leads to, before the link that makes
        // it count (crash state 1).
        pm.flush_of(self.nodes.at(new.node));
        pm.fence();
        Self::report_lock(DramAccess::Locked, near.pred);
        Self::report_lock(DramAccess::Locked, new.node);
        pm.interleave();
        // The new node's lock too: others may come to the node at once, and must not build on it before
        // its link is durable.
        let locks = self.locks.lock_two(handle(near.pred), handle(new.node));
        if self.nodes.next(near.pred) != near.next {
            locks.unlock_unchanged();
            return false;
        }
        // PERSIST: (in `publish`) the NAW that makes the insert count.
        self.nodes.at(near.pred).next.publish(pm, new.node);
        // After the fence: what others see now, a crash keeps.
        locks.unlock();
        true
    }

    /// Stores a value word over that of the node that `near` found: crash state 2. False if that is no
    /// longer its place.
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
        // PERSIST: (in `publish`) the new value counts.
        self.nodes.at(near.next).value.publish(pm, word);
        locked.unlock();
        V::retire(&self.heap, old, guard);
        true
    }

    /// Replaces the value of a key that is there.
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

    /// Removes `key`; true if it was there.
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
            // Nothing leads to the node any more, durably.
            K::retire(&self.heap, self.nodes.key(node), guard);
            V::retire(&self.heap, value, guard);
            self.heap.retire(POff::new(node), guard);
            self.pm().commit()?;
            return Ok(true);
        }
    }

    /// Takes the node that `near` found out of the bottom list: crash state 3. Its value word; `None` if
    /// `near` is no longer its place.
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
        // PERSIST: (in `publish`) the NAW that makes the removal count.
        self.nodes.at(near.pred).next.publish(pm, after);
        // Only now, so that no crash finds a mark in the list; and it need not be durable.
        // ORDERING: Release; pairs with the Acquire load in `next`, as every store of a link.
        self.nodes
            .at(node)
            .next
            .store(pm, after | LEFT, Ordering::Release);
        locks.unlock();
        Some(value)
    }

    /// Links a node's tower, upwards. Others may take the node out meanwhile.
    fn raise(&self, new: Draft, key: &K, path: &mut Path) {
        if new.height == 1 {
            return;
        }
        // ORDERING: Relaxed; a search that does not see it takes the way one level below.
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

    /// The last tower before `key` from `at` on, and what comes after it, without its mark.
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

    /// Links a tower on one level; false if its node has left the list meanwhile, or if a tower of the
    /// same key has not left the level yet (one of a key at most is on a level, so that `lower` can tell
    /// what it finds). The tower stays as high as it is then.
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
                // Versions are those of the bottom list, which is as it was.
                locks.unlock_unchanged();
                return true;
            }
            locks.unlock_unchanged();
            if has_left(there) {
                self.descend(path, level, |word| self.compare(word, key).is_lt());
            }
        }
    }

    /// Unlinks the tower of a node that has left the bottom list, downwards, and takes it back. After the
    /// node has left, no level gains it.
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

    /// Takes a node's tower off one level; `None` if it is not there.
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

    /// Frees a node that never was reachable, and its records.
    pub(super) fn discard_node(&self, node: u64) {
        K::discard(&self.heap, self.nodes.key(node));
        V::discard(&self.heap, self.nodes.value(node));
        self.heap.free(POff::new(node));
    }
}
