//! Search (section 4.3): from the root to the leaf, then its elements from the newest to the
//! oldest.

use super::NvTree;
use super::info::LeafInfo;
use super::leaf::Leaf;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionWord;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;

/// The newest element of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub index: usize,
    pub key: u64,
    pub value: u64,
    pub negative: bool,
}

/// A held lock; dropping it unlocks and raises the version.
#[must_use = "dropping it unlocks"]
#[derive(Debug)]
pub(super) struct Held<'g>(&'g VersionWord);

impl<'g> Held<'g> {
    pub(super) fn lock(word: &'g VersionWord) -> Self {
        word.lock();
        Self(word)
    }

    pub(super) fn try_lock(word: &'g VersionWord) -> Option<Self> {
        // Not `then_some`: it would make a `Held` even without the lock, and dropping that would
        // unlock for the thread that has it.
        word.try_lock().then(|| Self(word))
    }

    /// Locks a leaf. Returns `None` if the leaf is out of the list.
    #[inline(always)]
    pub(super) fn of_leaf(info: &'g LeafInfo) -> Option<Self> {
        if VersionWord::is_obsolete(info.lock.lock()) {
            info.lock.unlock_unchanged();
            return None;
        }
        Some(Self(&info.lock))
    }

    /// Marks the lock obsolete: what it protects is out of the structure from here on.
    pub(super) fn retire(self) {
        self.0.unlock_obsolete();
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Searches the first `n` elements of a leaf, newest first. The first match decides (invariant
    /// 1).
    #[inline(always)]
    pub(super) fn newest(
        &self,
        leaf: &Leaf<'_, M>,
        n: usize,
        key: &K,
        hash: u32,
    ) -> Option<Newest> {
        let pm = self.pm();
        (0..n).rev().find_map(|index| {
            let word = leaf.key(index);
            key.is_at(hash, pm, word).then(|| Newest {
                index,
                key: word,
                value: leaf.value(index),
                negative: leaf.is_negative(index),
            })
        })
    }

    /// Returns the value word of `key` in a leaf that is read without its lock.
    #[inline(always)]
    fn value_in(&self, info: &LeafInfo, key: &K, hash: u32) -> Option<u64> {
        let leaf = info.leaf(self.pm());
        loop {
            let n = info.count();
            let found = self.newest(&leaf, n, key, hash)?;
            if info.flags_settled() {
                return (!found.negative).then_some(found.value);
            }
        }
    }

    #[inline(always)]
    fn count_search(&self, info: &LeafInfo) {
        if self.adaptive() {
            let searches = self.totals.searched(M::TRACED);
            if searches > 0 {
                info.count_reads(searches);
            }
        }
    }

    /// Returns the leaf whose range holds `key`.
    #[inline(always)]
    pub(super) fn find_leaf<'g>(&self, key: &K, guard: &'g Guard) -> &'g LeafInfo {
        let info = self.inner(guard).find(key, guard);
        M::Dram::touch(DramRegion::Locks, DramAccess::Load, info.off, 64);
        info
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = epoch::pin();
        let info = self.find_leaf(key, &guard);
        self.pm().interleave();
        self.count_search(info);
        let word = self.value_in(info, key, key.hash())?;
        V::read(self.pm(), word, f)
    }

    /// Returns true if the key is present. Does not count as a search in the statistics.
    pub(super) fn is_there(&self, key: &K, hash: u32) -> bool {
        let guard = epoch::pin();
        let info = self.find_leaf(key, &guard);
        self.value_in(info, key, hash).is_some()
    }

    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let guard = epoch::pin();
            let mut infos: [Option<&LeafInfo>; TOGETHER] = [None; TOGETHER];
            for (key, info) in keys.iter().zip(&mut infos) {
                let found = self.find_leaf(key.borrow(), &guard);
                found.leaf(self.pm()).prefetch(found.count());
                *info = Some(found);
            }
            for (key, info) in keys.iter().zip(infos) {
                let key = key.borrow();
                let value = info.and_then(|info| {
                    self.count_search(info);
                    let word = self.value_in(info, key, key.hash())?;
                    V::read(self.pm(), word, ToOwned::to_owned)
                });
                out.push(value);
            }
        }
    }

    /// Returns the leaf of `key`, locked.
    #[inline]
    pub(super) fn lock_leaf<'g>(&self, key: &K, guard: &'g Guard) -> (&'g LeafInfo, Held<'g>) {
        loop {
            let info = self.find_leaf(key, guard);
            self.pm().interleave();
            // A leaf that is still in the list is the right one (invariant 2 of `inner`).
            if let Some(held) = Held::of_leaf(info) {
                return (info, held);
            }
        }
    }

    /// Returns the order of two key words. Words that lead nowhere (a corrupt pool) come first.
    pub(super) fn compare_words(&self, a: u64, b: u64) -> Order {
        let pm = self.pm();
        let order = K::read(pm, a, |left| {
            K::read(pm, b, |right| left.cmp(right)).unwrap_or(Order::Greater)
        });
        order.unwrap_or_else(|| match K::read(pm, b, |_| ()) {
            Some(()) => Order::Less,
            None => a.cmp(&b),
        })
    }
}
