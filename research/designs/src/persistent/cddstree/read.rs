//! Search: from the root down; each node's version is read before its parent's is validated.

use super::node::Node;
use super::{CddsTree, ROOT_LOCK};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, cpu};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// The leaf to find.
pub(super) enum Seek<'k, K: ?Sized> {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// The leaf that holds the key if any does.
    At(&'k K),
    /// The leaf that holds the largest key below.
    Below(&'k K),
}

impl<K: ?Sized> Clone for Seek<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Seek<'_, K> {}

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;

/// A node, at last the leaf, as a reader found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub leaf: u32,
    /// The version that validates what has been read of it.
    pub version: u64,
}

/// The keys that are routed to a leaf: from `low` (included) to `high` (excluded); `None` is
/// unbounded.
pub(super) struct Range<K: ToOwned + ?Sized> {
    pub low: Option<K::Owned>,
    pub high: Option<K::Owned>,
}

/// The node changed while it was read.
pub(super) struct Changed;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Returns the slot of the child that leads to `seek`. The inner `None` means that there is no
    /// child, which a valid node excludes (invariant 4).
    #[inline]
    pub(super) fn route(
        &self,
        node: Node<'_>,
        seek: Seek<'_, K>,
        valid: impl Fn() -> bool,
    ) -> Result<Option<usize>, Changed> {
        let pm = self.pm();
        let end = match seek {
            Seek::First => return Ok(node.live_from(pm, 0)),
            Seek::Last => node.used(pm),
            Seek::At(key) => node.bound(pm, key, true, valid).ok_or(Changed)?,
            Seek::Below(key) => node.bound(pm, key, false, valid).ok_or(Changed)?,
        };
        // Invariant 3.
        Ok(node
            .live_before(pm, end)
            .or_else(|| node.live_from(pm, end)))
    }

    /// Returns a node's version. Waits for its writer.
    #[inline]
    fn version(&self, handle: u32) -> u64 {
        M::Dram::touch(
            DramRegion::Locks,
            DramAccess::Load,
            VersionLocks::place(handle),
            8,
        );
        self.locks.read(handle)
    }

    /// Descends to the leaf that `seek` names, and notes the range that leads there if asked for.
    /// The inner `None` means that the pool is corrupt.
    #[inline]
    fn try_descend(
        &self,
        seek: Seek<'_, K>,
        mut range: Option<&mut Range<K>>,
    ) -> Result<Option<Found>, Changed> {
        let pm = self.pm();
        let mut parent = (ROOT_LOCK, self.version(ROOT_LOCK));
        let top = self.top();
        let mut handle = top.handle;
        for level in (0..=top.level).rev() {
            pm.interleave();
            let version = self.version(handle);
            if !self.locks.validate(parent.0, parent.1) {
                return Err(Changed);
            }
            if level == 0 {
                let leaf = handle;
                return Ok(Some(Found { leaf, version }));
            }
            let node = self.node(handle);
            let valid = || self.locks.validate(handle, version);
            let Some(slot) = self.route(node, seek, valid)? else {
                return if valid() { Ok(None) } else { Err(Changed) };
            };
            // ORDERING: Relaxed; ordered by the node's version lock.
            let child = node.slots[slot].value.load(pm, Ordering::Relaxed);
            if let Some(range) = range.as_deref_mut() {
                let separator = |slot: usize| {
                    // ORDERING: Relaxed; as above.
                    let word = node.slots[slot].key.load(pm, Ordering::Relaxed);
                    if K::RECORDS && !valid() {
                        return Err(Changed);
                    }
                    Ok(K::read(pm, word, ToOwned::to_owned))
                };
                // The first entry's separator counts as below all keys (invariant 3).
                if node.live_before(pm, slot).is_some() {
                    range.low = separator(slot)?;
                }
                if let Some(next) = node.live_from(pm, slot + 1) {
                    range.high = separator(next)?;
                }
            }
            if !valid() {
                return Err(Changed);
            }
            parent = (handle, version);
            let Some(child) = self.child(child) else {
                return Ok(None);
            };
            handle = child;
        }
        Ok(None)
    }

    /// Returns the leaf that `seek` names, or `None` if the pool is corrupt. The caller is pinned.
    #[inline]
    pub(super) fn descend(&self, seek: Seek<'_, K>) -> Option<Found> {
        loop {
            if let Ok(found) = self.try_descend(seek, None) {
                return found;
            }
        }
    }

    /// Returns the same with the range of keys that leads there.
    pub(super) fn descend_ranged(&self, seek: Seek<'_, K>) -> Option<(Found, Range<K>)> {
        loop {
            let mut range = Range {
                low: None,
                high: None,
            };
            if let Ok(found) = self.try_descend(seek, Some(&mut range)) {
                return found.map(|found| (found, range));
            }
        }
    }

    /// Returns the value word of `key` from the leaf at `at`. The outer `None` means that the leaf
    /// changed meanwhile.
    #[inline]
    fn try_find_word(&self, key: &K, at: Found) -> Option<Option<u64>> {
        let node = self.node(at.leaf);
        let valid = || self.locks.validate(at.leaf, at.version);
        let slot = node.find(self.pm(), key, valid)?;
        // ORDERING: Relaxed; ordered by the node's version lock.
        let word = slot.map(|slot| node.slots[slot].value.load(self.pm(), Ordering::Relaxed));
        valid().then_some(word)
    }

    /// Returns the value word of `key`. The caller is pinned.
    #[inline]
    pub(super) fn find_word(&self, key: &K) -> Option<u64> {
        loop {
            let at = self.descend(Seek::At(key))?;
            if let Some(word) = self.try_find_word(key, at) {
                return word;
            }
        }
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let _guard = epoch::pin();
        let word = self.find_word(key)?;
        V::read(self.pm(), word, f)
    }

    /// Looks up a batch. All keys descend level by level, so that their cache misses overlap.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        let mut located = [None; TOGETHER];
        for keys in keys.chunks(TOGETHER) {
            let _guard = epoch::pin();
            let located = &mut located[..keys.len()];
            self.descend_together(keys, located);
            out.extend(keys.iter().zip(located).map(|(key, at)| {
                let key = key.borrow();
                let together = at.and_then(|at| self.try_find_word(key, at));
                let word = together.unwrap_or_else(|| self.find_word(key))?;
                V::read(self.pm(), word, ToOwned::to_owned)
            }));
        }
    }

    /// Returns the leaves of `keys`: `None` where another thread was in the way or the pool is
    /// corrupt.
    fn descend_together<Q: Borrow<K>>(&self, keys: &[Q], located: &mut [Option<Found>]) {
        let version = self.version(ROOT_LOCK);
        let top = self.top();
        let first = Found {
            leaf: top.handle,
            version: self.version(top.handle),
        };
        located.fill((self.locks.validate(ROOT_LOCK, version)).then_some(first));
        for _ in 0..top.level {
            for (key, at) in keys.iter().zip(&mut *located) {
                *at = at.and_then(|at| self.child_of(at, key.borrow()));
            }
        }
    }

    /// Returns the child of an inner node for `key`, and prefetches it.
    fn child_of(&self, at: Found, key: &K) -> Option<Found> {
        let node = self.node(at.leaf);
        let valid = || self.locks.validate(at.leaf, at.version);
        let slot = self.route(node, Seek::At(key), valid).ok()??;
        // ORDERING: Relaxed; ordered by the node's version lock.
        let word = node.slots[slot].value.load(self.pm(), Ordering::Relaxed);
        let leaf = self.child(word)?;
        let version = self.locks.try_read(leaf)?;
        if !valid() {
            return None;
        }
        // The place where a binary search begins.
        let slots = self.node(leaf).slots;
        for quarter in [slots.len() / 2, slots.len() / 4, slots.len() / 4 * 3] {
            cpu::prefetch(slots[quarter].key.addr(), 1);
        }
        Some(Found { leaf, version })
    }
}
