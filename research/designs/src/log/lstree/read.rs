//! Searching a chain: deltas from the newest to the oldest, then the base.

use super::LsTree;
use super::record::{Kind, Pairs};
use super::table::Entry;
use crate::inner::Located;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;

/// Keeps strings from being reused while a search follows words to them. Searches of numbers are
/// not pinned: their reads are type-stable, and not used before the leaf's version has been
/// validated (ADR 5).
pub(super) struct Pin(Option<Guard>);

impl Pin {
    /// Returns a guard for searching. It must not be used for retiring: without a pin it defers
    /// nothing.
    #[inline(always)]
    pub(super) fn guard(&self) -> &Guard {
        match &self.0 {
            Some(guard) => guard,
            // SAFETY: 1. only searches get the guard, and they do not defer; 2. where keys and
            // values are numbers, searches follow no pointers, and what they read is type-stable,
            // as this type's head says.
            None => unsafe { epoch::unprotected() },
        }
    }
}

/// A key that is present: its word and its value's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) key: u64,
    pub(super) value: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Pins the thread if there are strings.
    #[inline(always)]
    pub(super) fn pin() -> Pin {
        Pin(Self::RECORDS.then(epoch::pin))
    }

    #[inline(always)]
    pub(super) fn report_lock(access: DramAccess, lnid: u32) {
        M::Dram::touch(DramRegion::Locks, access, VersionLocks::place(lnid), 8);
    }

    /// Searches a chain for a key. If another thread changes the chain meanwhile, the result is
    /// arbitrary and does not validate.
    #[inline]
    pub(super) fn search(
        &self,
        entry: Entry<'_, M::Dram>,
        lnid: u32,
        key: &K,
        hash: u32,
    ) -> Option<Found> {
        let (pm, reader) = (self.pm(), self.reader());
        let deltas = entry.counts().deltas.min(entry.room());
        if !self.options.tags {
            self.prefetch_deltas(entry, deltas);
        }
        for i in (0..deltas).rev() {
            let place = entry.delta(i);
            if self.options.tags && !place.may_be(hash) {
                continue;
            }
            let record = reader.record(place.off())?;
            let pairs = reader.pairs(&record, lnid)?;
            let word = reader.key::<K>(&pairs, 0);
            if key.is_at(hash, pm, word) {
                return (record.kind == Kind::Put).then(|| Found {
                    key: word,
                    value: reader.value::<V>(&pairs, 0),
                });
            }
        }
        let base = entry.base();
        if base.is_none() {
            return None;
        }
        let record = reader.record(base.off())?;
        let pairs = reader.pairs(&record, lnid)?;
        let i = self.search_base(&pairs, key, hash)?;
        Some(Found {
            key: reader.key::<K>(&pairs, i),
            value: reader.value::<V>(&pairs, i),
        })
    }

    #[inline]
    fn search_base(&self, pairs: &Pairs, key: &K, hash: u32) -> Option<u64> {
        let (pm, reader) = (self.pm(), self.reader());
        if K::RECORDS {
            // The tag in the word excludes most strings before they are read.
            return (0..pairs.n).find(|i| key.is_at(hash, pm, reader.key::<K>(pairs, *i)));
        }
        let (mut low, mut high) = (0, pairs.n);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare_to_word(key, reader.key::<K>(pairs, middle)) {
                Order::Less => high = middle,
                Order::Equal => return Some(middle),
                Order::Greater => low = middle + 1,
            }
        }
        None
    }

    /// Prefetches the records of a chain.
    #[inline]
    fn prefetch_deltas(&self, entry: Entry<'_, M::Dram>, deltas: usize) {
        for i in 0..deltas {
            self.prefetch(entry.delta(i).off(), 64);
        }
    }

    #[inline]
    fn prefetch(&self, off: u64, bytes: usize) {
        cpu::prefetch(self.pm().base().wrapping_add(off as usize), bytes);
        M::Dram::touch(DramRegion::Pool, DramAccess::Prefetch, off, bytes as u64);
    }

    /// Prefetches what a search for a key with this hash will read.
    #[inline]
    fn prefetch_chain(&self, entry: Entry<'_, M::Dram>, hash: u32) {
        let deltas = entry.counts().deltas.min(entry.room());
        for place in (0..deltas).map(|i| entry.delta(i)) {
            if !self.options.tags || place.may_be(hash) {
                self.prefetch(place.off(), 64);
            }
        }
        let base = entry.base();
        if !base.is_none() {
            self.prefetch(base.off(), 256);
        }
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let pin = Self::pin();
        let word = self.find_word(key, pin.guard())?;
        V::read(self.pm(), word, f)
    }

    #[inline]
    fn find_word(&self, key: &K, guard: &Guard) -> Option<u64> {
        let hash = key.hash();
        loop {
            let at = self.inner.find(key, guard);
            Self::report_lock(DramAccess::Load, at.leaf);
            self.pm().interleave();
            let version = self.locks.read(at.leaf);
            if !self.inner.validate(&at) {
                continue;
            }
            let found = self.search(self.table.entry(at.leaf), at.leaf, key, hash);
            if self.locks.validate(at.leaf, version) {
                return found.map(|found| found.value);
            }
        }
    }

    /// Returns the leaf of `key`, locked.
    #[inline]
    pub(super) fn lock_leaf(&self, key: &K, guard: &Guard) -> (u32, Locked<'_>) {
        loop {
            let at = self.inner.find(key, guard);
            Self::report_lock(DramAccess::Locked, at.leaf);
            let version = self.locks.read(at.leaf);
            if !self.inner.validate(&at) {
                continue;
            }
            self.pm().interleave();
            if let Some(locked) = self.locks.try_lock_at(at.leaf, version) {
                return (at.leaf, locked);
            }
        }
    }

    /// Looks up a batch: all keys descend together, then prefetch their entries, then their
    /// records.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        let mut located = [Located::default(); TOGETHER];
        for keys in keys.chunks(TOGETHER) {
            let guard = epoch::pin();
            let located = &mut located[..keys.len()];
            self.inner.find_batch(keys, located, &guard);
            for at in located.iter() {
                self.locks.prefetch(at.leaf);
                if self.inner.validate(at) {
                    self.table.entry(at.leaf).prefetch();
                }
            }
            for (key, at) in keys.iter().zip(located.iter()) {
                if self.inner.validate(at) {
                    self.prefetch_chain(self.table.entry(at.leaf), key.borrow().hash());
                }
            }
            for (key, at) in keys.iter().zip(located.iter()) {
                let word = self.try_find_word(key.borrow(), at, &guard);
                out.push(word.and_then(|word| V::read(self.pm(), word, ToOwned::to_owned)));
            }
        }
    }

    /// Returns the value word of `key`, from the leaf at `at` if that is still the right one.
    #[inline]
    fn try_find_word(&self, key: &K, at: &Located, guard: &Guard) -> Option<u64> {
        if let Some(version) = self.locks.try_read(at.leaf)
            && self.inner.validate(at)
        {
            let found = self.search(self.table.entry(at.leaf), at.leaf, key, key.hash());
            if self.locks.validate(at.leaf, version) {
                return found.map(|found| found.value);
            }
        }
        self.find_word(key, guard)
    }

    /// Appends the keys of a leaf, ascending, with their values' words. If another thread changes
    /// the leaf meanwhile, the result is arbitrary and does not validate.
    pub(super) fn contents(&self, entry: Entry<'_, M::Dram>, lnid: u32, all: &mut Vec<(u64, u64)>) {
        let reader = self.reader();
        let deltas = entry.counts().deltas.min(entry.room());
        self.prefetch_deltas(entry, deltas);
        all.clear();
        let base = entry.base();
        let record = (!base.is_none())
            .then(|| reader.record(base.off()))
            .flatten();
        if let Some(record) = record
            && let Some(pairs) = reader.pairs(&record, lnid)
        {
            let pair = |i| (reader.key::<K>(&pairs, i), reader.value::<V>(&pairs, i));
            all.extend((0..pairs.n).map(pair));
        }
        for i in 0..deltas {
            let Some(record) = reader.record(entry.delta(i).off()) else {
                return;
            };
            let Some(pairs) = reader.pairs(&record, lnid) else {
                return;
            };
            let word = reader.key::<K>(&pairs, 0);
            let at = all.binary_search_by(|(key, _)| self.compare_words(*key, word));
            match (at, record.kind) {
                (Ok(at), Kind::Put) => all[at].1 = reader.value::<V>(&pairs, 0),
                (Ok(at), _) => drop(all.remove(at)),
                (Err(at), Kind::Put) => all.insert(at, (word, reader.value::<V>(&pairs, 0))),
                (Err(_), _) => {}
            }
        }
    }

    /// Returns the order of two key words.
    pub(super) fn compare_words(&self, a: u64, b: u64) -> Order {
        // A word that leads nowhere (a corrupt pool) sorts first.
        K::read(self.pm(), a, |a| self.compare_to_word(a, b)).unwrap_or(Order::Less)
    }

    /// Returns the order of a key and a key word.
    #[inline(always)]
    pub(super) fn compare_to_word(&self, key: &K, word: u64) -> Order {
        K::read(self.pm(), word, |other| key.cmp(other)).unwrap_or(Order::Greater)
    }
}
