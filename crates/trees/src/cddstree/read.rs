//! Search: from the root down, each node's version read before its parent's is validated.

use super::node::Node;
use super::{CddsTree, ROOT_LOCK, RootNode};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// Which leaf is wanted.
pub(super) enum Seek<'k, K: ?Sized> {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// The one that holds the key if any does.
    At(&'k K),
    /// The one that holds the largest key below.
    Below(&'k K),
}

impl<K: ?Sized> Clone for Seek<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Seek<'_, K> {}

/// A leaf as a reader found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub leaf: u32,
    /// What its version has to be still, once it has been read.
    pub version: u64,
}

/// The keys that were routed to a leaf: from `low` (included) to `high` (excluded); `None` is without end.
pub(super) struct Range<K: ToOwned + ?Sized> {
    pub low: Option<K::Owned>,
    pub high: Option<K::Owned>,
}

/// The node changed while it was read.
pub(super) struct Changed;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// The slot of the child that leads to what is wanted; the inner `None` if there is none, which a
    /// valid node does not show (invariant 4).
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

    /// A node's version; waits for its writer.
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

    /// Goes down to the leaf that `seek` wants and notes the range that led there, if that is asked for. The
    /// inner `None`: the pool is corrupt.
    #[inline]
    fn try_descend(
        &self,
        seek: Seek<'_, K>,
        mut range: Option<&mut Range<K>>,
    ) -> Result<Option<Found>, Changed> {
        let pm = self.pm();
        let mut parent = (ROOT_LOCK, self.version(ROOT_LOCK));
        // ORDERING: Relaxed; ordered by the root's version lock.
        let word = self.top.load(Ordering::Relaxed);
        let top = RootNode {
            handle: (word / super::UNIT) as u32,
            level: (word % super::UNIT) as u8,
        };
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

    /// The leaf that `seek` wants. The caller is pinned. `None`: the pool is corrupt.
    #[inline]
    pub(super) fn descend(&self, seek: Seek<'_, K>) -> Option<Found> {
        loop {
            if let Ok(found) = self.try_descend(seek, None) {
                return found;
            }
        }
    }

    /// The same with the range of keys that led there.
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

    /// The value word of `key`. The caller is pinned.
    #[inline]
    pub(super) fn find_word(&self, key: &K) -> Option<u64> {
        let pm = self.pm();
        loop {
            let Found { leaf, version } = self.descend(Seek::At(key))?;
            let node = self.node(leaf);
            let valid = || self.locks.validate(leaf, version);
            if let Some(slot) = node.find(pm, key, valid) {
                // ORDERING: Relaxed; ordered by the node's version lock.
                let word = slot.map(|slot| node.slots[slot].value.load(pm, Ordering::Relaxed));
                if valid() {
                    return word;
                }
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

    /// Looks up a batch under one pin.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        /// Keys that are looked up before memory may be reclaimed.
        const TOGETHER: usize = 32;
        out.clear();
        out.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let _guard = epoch::pin();
            out.extend(keys.iter().map(|key| {
                let word = self.find_word(key.borrow())?;
                V::read(self.pm(), word, ToOwned::to_owned)
            }));
        }
    }
}
