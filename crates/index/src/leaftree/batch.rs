//! Batched lookups: all searches descend together, so that their cache misses overlap.

use super::{LeafDesign, LeafTree};
use crate::contract::Hint;
use crate::inner::Located;
use crate::repr::{Stored, StoredKey};
use crate::version_lock::Locked;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;

/// Keys of a batch that descend together.
pub const TOGETHER: usize = u32::BITS as usize;

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        self.find_each(keys, |_, _| {}, |value, _, _| out.push(value));
    }

    /// As [`OrderedIndex::multi_get_hinted`](crate::OrderedIndex::multi_get_hinted).
    pub(super) fn find_together<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        mut ahead: impl FnMut(&V),
        out: &mut Vec<(Option<V::Owned>, Hint)>,
    ) {
        out.clear();
        out.reserve(keys.len());
        let tree = self.number;
        self.find_each(
            keys,
            |at, hash| self.prefetch_records(at, hash, &mut ahead),
            |value, at, hash| out.push((value, Hint { tree, at, hash })),
        );
    }

    /// Calls `found` with the value, the place and the hash of each key, in order. Before that,
    /// calls `ahead` with places and hashes of the keys that descend together.
    #[inline(always)]
    fn find_each<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        mut ahead: impl FnMut(&Located, u32),
        mut found: impl FnMut(Option<V::Owned>, Located, u32),
    ) {
        let mut located = [Located::default(); TOGETHER];
        let mut hashes = [0; TOGETHER];
        for keys in keys.chunks(TOGETHER) {
            let guard = epoch::pin();
            let located = &mut located[..keys.len()];
            self.locate(keys, located, &guard);
            for ((key, at), hash) in keys.iter().zip(&*located).zip(&mut hashes) {
                *hash = key.borrow().hash();
                ahead(at, *hash);
            }
            for ((key, at), hash) in keys.iter().zip(&*located).zip(hashes) {
                let word = self.try_find_word(key.borrow(), at, hash, &guard);
                let value = word.and_then(|word| V::read(self.pm(), word, ToOwned::to_owned));
                found(value, *at, hash);
            }
        }
    }

    /// Prefetches the records of entries that may have that hash in the leaf at `at`.
    #[inline(always)]
    fn prefetch_records(&self, at: &Located, hash: u32, ahead: &mut impl FnMut(&V)) {
        // A handle read from a node in the middle of a change may be no leaf at all.
        if !self.inner.validate(at) {
            return;
        }
        D::candidates(self, self.leaf(at.leaf), hash, |key, value| {
            if let Some(off) = K::place(key) {
                cpu::prefetch(self.base.wrapping_add(off as usize), LINE);
            }
            self.announce(value, ahead);
        });
    }

    /// Passes a value to `ahead`.
    #[inline(always)]
    pub(super) fn announce(&self, value: V::Word, ahead: &mut impl FnMut(&V)) {
        // Records are not read yet, because their lines may not have arrived.
        if !V::RECORDS {
            V::read(self.pm(), value, ahead);
        }
    }

    /// Finds the leaves of `keys` and prefetches their lines.
    pub fn locate<Q: Borrow<K>>(&self, keys: &[Q], located: &mut [Located], guard: &Guard) {
        self.inner.find_batch(keys, located, guard);
        for at in located {
            self.prefetch(at.leaf);
            self.locks.prefetch(at.leaf);
        }
    }

    /// Returns the value word of `key`, from the leaf at `at` if that is still the right one.
    #[inline(always)]
    fn try_find_word(&self, key: &K, at: &Located, hash: u32, guard: &Guard) -> Option<V::Word> {
        if let Some(version) = self.locks.try_read(at.leaf)
            && self.inner.validate(at)
        {
            let found = D::search(self, self.leaf(at.leaf), key, hash);
            if self.locks.validate(at.leaf, version) {
                return found.map(|found| found.value);
            }
        }
        self.find_word(key, guard)
    }

    /// Returns true if `at` is still where its key belongs. It stays so while the leaf is locked.
    pub fn is_current(&self, at: &Located) -> bool {
        self.inner.validate(at)
    }

    /// Locks the leaf at `at` if its key still belongs there and no other thread holds it.
    pub fn try_lock(&self, at: &Located) -> Option<Locked<'_>> {
        let version = self.locks.try_read(at.leaf)?;
        if !self.is_current(at) {
            return None;
        }
        self.locks.try_lock_at(at.leaf, version)
    }
}
