//! Rebuild-from-PLN (section 4.5): all keys and LN pointers go into a new set of nodes with one
//! leaf in each PLN, so that the next rebuild is as far away as possible.
//!
//! Searches and appends continue with the old nodes, which stay unchanged until the last thread has
//! left them. Changes of PLNs wait at the gate.
//!
//! Hot-write PLNs (section 5.5): of the leaves of a PLN with `nWrites_PLN > nWrites / N_PLN`, those
//! that took more than their share get PLNs twice as long as that one was. All others get the
//! default length, even if they were hot once. Each leaf gets a PLN of its own, so extra length for
//! all of them would be most of the block that a rebuild makes.

use super::adapt::above_average;
use super::info::LeafInfo;
use super::inner::{Entry, Inner};
use super::{Nodes, NvTree, count};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum length of a PLN in units.
const MAX_UNITS: usize = 64;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Rebuilds the inner nodes, unless another thread just has. `full` is true if a PLN is full,
    /// and false if too many are empty. The caller must not be inside the gate.
    pub(super) fn rebuild(&self, full: bool) {
        let guard = epoch::pin();
        let before = std::ptr::from_ref(self.inner(&guard));
        let closed = self.gate.close();
        let old = self.inner(&guard);
        if !std::ptr::eq(before, old) || (!full && !self.too_many_empty(old)) {
            return;
        }
        let started = Instant::now();
        let entries = self.redistribute(old);
        let orphans = old.orphans();
        let new = Box::into_raw(Box::new(Inner::build(self.nodes, entries)));
        // ORDERING: AcqRel; Release pairs with the Acquire of `inner`.
        let old = self.inner.swap(new, Ordering::AcqRel);
        drop(closed);
        // SAFETY: 1. `old` came from `Box::into_raw`, and no thread that is pinned from now on can
        // reach it; 2. the same holds for the keys that no leaf brought along; 3. each is freed
        // once.
        unsafe {
            guard.defer_unchecked(move || {
                drop(Box::from_raw(old));
                for key in orphans {
                    K::free(key);
                }
            });
        }
        count(&self.counters.rebuilds, 1);
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        count(&self.counters.rebuild_nanos, nanos);
    }

    /// Returns the entries of the new nodes.
    fn redistribute(&self, old: &Nodes<K, M>) -> Vec<Entry<K>> {
        // ORDERING: Relaxed; an initial capacity.
        let leaves = self.leaves.load(Ordering::Relaxed) as usize;
        let mut entries: Vec<Entry<K>> = Vec::with_capacity(leaves);
        let writes = self.totals.sum().writes;
        let filled = (old.plns() - old.emptied()) as u64;
        let mut hot_plns = 0;
        for pln in 0..old.plns() {
            let (leaves, units) = old.leaves_of(pln);
            let first = entries.len();
            let mut written = 0;
            for slot in 0..leaves {
                let info = old.leaf_at(pln, slot);
                written += info.traffic().writes;
                entries.push(Entry {
                    low: old.low_at(pln, slot),
                    info: std::ptr::from_ref::<LeafInfo>(info).cast_mut(),
                    units: 1,
                });
            }
            if self.adaptive() && above_average(written, writes, filled) && leaves > 1 {
                hot_plns += 1;
                let longer = (units * 2).min(MAX_UNITS) as u32;
                for (slot, entry) in entries[first..].iter_mut().enumerate() {
                    let mine = old.leaf_at(pln, slot).traffic().writes;
                    if above_average(mine, written, leaves as u64) {
                        entry.units = longer;
                    }
                }
            }
        }
        count(&self.counters.hot_plns, hot_plns);
        entries
    }
}
