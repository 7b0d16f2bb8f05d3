//! Search (Algorithm 1): descend, compare fingerprints, compare keys, validate.

use super::{At, Found, LeafDesign, LeafTree, offset};
use crate::contract::Hint;
use crate::repr::{Stored, StoredKey};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch::{self as epoch, Guard};

/// Keeps records from being reused while a search follows words to them. Trees of numbers need
/// none.
///
/// A search of numbers needs no pin, whose full barrier would keep the cache misses of one search
/// from overlapping with those of the next. Its reads are *type-stable*: memory of inner nodes
/// always holds inner nodes, whose versions never decrease; leaf memory stays mapped (see
/// `Mapping::shrink`) and is only stored to by atomic stores; and no read value is used before the
/// leaf's version, read while the leaf was in the index, has been validated. A record may be freed
/// before that, so following a word to a record needs a pin.
pub(super) struct Pin(Option<Guard>);

impl Pin {
    /// Returns a guard for searching. It must not be used for retiring: without a pin it defers
    /// nothing.
    #[inline(always)]
    pub(super) fn guard(&self) -> &Guard {
        match &self.0 {
            Some(guard) => guard,
            // SAFETY: 1. only searches get the guard, and they do not defer; 2. where keys are
            // numbers, searches follow no pointers, and what they read is type-stable, as this
            // type's head says.
            None => unsafe { epoch::unprotected() },
        }
    }
}

/// A locked leaf, and the place of a key in it.
type LockedAt<'t, L, A, B> = (At<'t, L>, Found<A, B>);

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Pins the thread if the tree has records.
    #[inline(always)]
    pub(super) fn pin() -> Pin {
        Pin(Self::RECORDS.then(epoch::pin))
    }

    /// Reports an access to a leaf's lock.
    #[inline(always)]
    fn report_lock(access: DramAccess, leaf: u32) {
        M::Dram::touch(DramRegion::Locks, access, VersionLocks::place(leaf), 8);
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let pin = Self::pin();
        let word = self.find_word(key, pin.guard())?;
        V::read(self.pm(), word, f)
    }

    /// Returns the value word of `key`.
    #[inline]
    pub(super) fn find_word(&self, key: &K, guard: &Guard) -> Option<V::Word> {
        let hash = key.hash();
        loop {
            let at = self.inner.find(key, guard);
            self.prefetch(at.leaf);
            Self::report_lock(DramAccess::Load, at.leaf);
            self.pm().interleave();
            let version = self.locks.read(at.leaf);
            if !self.inner.validate(&at) {
                continue;
            }
            let found = D::search(self, self.leaf(at.leaf), key, hash);
            if self.locks.validate(at.leaf, version) {
                return found.map(|found| found.value);
            }
        }
    }

    /// Calls `look` with the words of those entries in the leaf of `key` whose fingerprint is that
    /// of `key`, for keys of which several have one fingerprint. What it makes of them, from a
    /// default, is returned once it is known that the leaf did not change meanwhile. The caller is
    /// pinned.
    #[inline]
    pub fn look_at_candidates<T: Default>(
        &self,
        key: &K,
        guard: &Guard,
        mut look: impl FnMut(&mut T, K::Word, V::Word),
    ) -> T {
        let hash = key.hash();
        loop {
            let at = self.inner.find(key, guard);
            self.prefetch(at.leaf);
            let version = self.locks.read(at.leaf);
            if !self.inner.validate(&at) {
                continue;
            }
            let mut made = T::default();
            D::candidates(self, self.leaf(at.leaf), hash, |key, value| {
                look(&mut made, key, value);
            });
            if self.locks.validate(at.leaf, version) {
                return made;
            }
        }
    }

    /// Returns the smallest key that is routed past the leaf of `key`; `None` if that is the last.
    pub fn end_of_leaf(&self, key: &K) -> Option<K::Owned> {
        let guard = &epoch::pin();
        loop {
            let ranged = self.inner.find_range(key, guard);
            if self.inner.validate(&ranged.located) {
                return ranged.high;
            }
        }
    }

    /// Returns the leaf of `key`, locked, and the place of the key in it, if it is present. `hint`
    /// may save the descent.
    #[inline]
    pub(super) fn lock_found(
        &self,
        key: &K,
        hint: Option<&Hint>,
        guard: &Guard,
    ) -> Option<LockedAt<'_, D::Leaf, K::Word, V::Word>> {
        // Another tree's hint is useless here. A leaf without the key is unlocked again.
        let near = hint.filter(|hint| hint.tree == self.number);
        if let Some(Hint { at, hash, .. }) = near
            && let Some(locked) = self.try_lock(at)
        {
            let (handle, leaf) = (at.leaf, self.leaf(at.leaf));
            if let Some(found) = D::search(self, leaf, key, *hash) {
                let at = At {
                    handle,
                    leaf,
                    locked,
                };
                return Some((at, found));
            }
            locked.unlock_unchanged();
        }
        let at = self.lock_leaf(key, guard);
        match D::search(self, at.leaf, key, key.hash()) {
            Some(found) => Some((at, found)),
            None => {
                at.locked.unlock_unchanged();
                None
            }
        }
    }

    /// Returns the leaf of `key`, locked.
    #[inline]
    pub fn lock_leaf(&self, key: &K, guard: &Guard) -> At<'_, D::Leaf> {
        loop {
            let at = self.inner.find(key, guard);
            self.prefetch(at.leaf);
            Self::report_lock(DramAccess::Locked, at.leaf);
            let version = self.locks.read(at.leaf);
            if !self.inner.validate(&at) {
                continue;
            }
            self.pm().interleave();
            if let Some(locked) = self.locks.try_lock_at(at.leaf, version) {
                debug_assert!(
                    offset(at.leaf) < self.pm().len(),
                    "leaf {} is in the pool",
                    at.leaf
                );
                return At {
                    handle: at.leaf,
                    leaf: self.leaf(at.leaf),
                    locked,
                };
            }
        }
    }
}
