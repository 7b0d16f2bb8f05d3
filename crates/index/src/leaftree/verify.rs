//! Checks of every invariant, and measurements.

use super::{HEAD, LeafDesign, LeafTree, offset};
use crate::common::{check_leaks, sort_by};
use crate::contract::{IndexStats, VerifyReport, Violation};
use crate::damage;
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// A leaf, and the smallest key routed to it.
type Routed<K> = (Option<<K as ToOwned>::Owned>, u32);

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Checks the invariants of the module's head and the inner index. Also checks that every live
    /// block is reached exactly once, and no other block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        self.inner.verify()?;
        let pm = self.pm();
        let mut report = VerifyReport::default();
        let mut routed: Vec<Routed<K>> = Vec::new();
        self.inner
            .for_each_leaf(|low, leaf| routed.push((low.map(ToOwned::to_owned), leaf)));
        let mut blocks: HashSet<u64> = HashSet::new();
        // ORDERING: Relaxed; no thread writes meanwhile.
        let head = self.root().word(HEAD).load(pm, Ordering::Relaxed);
        let mut expected = link::checked(head).map_err(Violation::new)?;
        for (i, (low, at)) in routed.iter().enumerate() {
            let broken = |what: String| Violation::new(format!("leaf {:#x}: {what}", offset(*at)));
            if offset(*at) != expected {
                return Err(broken(format!(
                    "the chain has leaf {expected:#x} where the inner index has this one"
                )));
            }
            self.heap
                .check(offset(*at), self.design.leaf_bytes())
                .map_err(broken)?;
            let high = routed.get(i + 1).and_then(|(key, _)| key.as_ref());
            self.check_leaf(*at, low.as_ref(), high, &mut blocks, &mut report)
                .or_else(|violation| damage::note(offset(*at), violation))?;
            expected = D::next(self, self.leaf(*at));
            report.leaves += 1;
        }
        if expected != 0 {
            return Err(Violation::new(format!(
                "the chain goes on at leaf {expected:#x} where the inner index ends"
            )));
        }
        for block in D::blocks(self) {
            if !self.heap.is_live(block) || !blocks.insert(block) {
                return Err(Violation::leak(format!(
                    "block {block:#x} of the design is free, or reached twice"
                )));
            }
        }
        let (live, reached) = (self.heap.live_blocks(), blocks.len() as u64);
        // Damaged leaves and records were not followed to everything that they lead to.
        if !damage::any() {
            check_leaks(live, reached)?;
        }
        Ok(report)
    }

    /// Checks a leaf, which is a block of the right size, and its records.
    fn check_leaf(
        &self,
        at: u32,
        low: Option<&K::Owned>,
        high: Option<&K::Owned>,
        blocks: &mut HashSet<u64>,
        report: &mut VerifyReport,
    ) -> Result<(), Violation> {
        let pm = self.pm();
        let broken = |what: String| Violation::new(format!("leaf {:#x}: {what}", offset(at)));
        let leaked = |what: String| Violation::leak(format!("leaf {:#x}: {what}", offset(at)));
        if !self.heap.is_live(offset(at)) || !blocks.insert(offset(at)) {
            return Err(leaked("free, or in the chain twice".into()));
        }
        let leaf = self.leaf(at);
        D::sound(self, leaf).map_err(broken)?;
        let mut entries = Vec::new();
        D::for_each(self, leaf, |slot, key, value| {
            entries.push((slot, key, value))
        });
        report.entries += entries.len() as u64;
        // All records first, so that each damaged one is noted while damage is collected.
        let mut checked = Vec::with_capacity(entries.len());
        for (slot, key, value) in entries {
            let at_slot = |what: String| broken(format!("{}: {what}", D::place(slot)));
            let whole_key = K::check(&self.heap, key).map_err(at_slot)?;
            let whole_value = V::check(&self.heap, value).map_err(at_slot)?;
            report.records += whole_key + whole_value;
            checked.push((slot, (key, whole_key), (value, whole_value)));
        }
        let mut keys: Vec<K::Word> = Vec::new();
        for (slot, (key, whole_key), (value, whole_value)) in checked {
            let at_slot = |what: String| format!("{}: {what}", D::place(slot));
            // Damaged ones are noted.
            let key_block = K::block(key).filter(|_| whole_key == 1);
            let value_block = V::block(value).filter(|_| whole_value == 1);
            for record in [key_block, value_block].into_iter().flatten() {
                if !self.heap.is_live(record) || !blocks.insert(record) {
                    return Err(leaked(at_slot(format!(
                        "block {record:#x} is free, or reached twice"
                    ))));
                }
            }
            if K::RECORDS && whole_key == 0 {
                continue;
            }
            let outside = K::read(pm, key, |key| {
                low.is_some_and(|low| key < low.borrow())
                    || high.is_some_and(|high| key >= high.borrow())
            });
            match outside {
                None => return Err(broken(at_slot("no key".into()))),
                Some(true) => {
                    return Err(broken(at_slot(format!(
                        "key outside the leaf's range ({key:#x})"
                    ))));
                }
                Some(false) => keys.push(key),
            }
        }
        D::check(self, leaf).map_err(broken)?;
        sort_by(&mut keys, &mut |a, b| self.compare_words(*a, *b));
        if keys
            .windows(2)
            .any(|pair| self.compare_words(pair[0], pair[1]).is_eq())
        {
            return Err(broken("the same key twice".into()));
        }
        Ok(())
    }

    pub(super) fn measure(&self) -> IndexStats {
        let mut guard = crossbeam_epoch::pin();
        let (mut entries, mut leaves) = (0, 0);
        // By ranges, since other threads may write meanwhile.
        let mut ranged = self.inner.find_first(&guard);
        loop {
            leaves += 1;
            let leaf = self.leaf(ranged.located.leaf);
            entries += D::count(self, leaf) as u64;
            let Some(high) = ranged.high else { break };
            guard.repin();
            ranged = self.inner.find_range(high.borrow(), &guard);
        }
        let inner = self.inner.stats();
        let heap = self.heap.stats();
        IndexStats {
            entries,
            depth: inner.depth + 1,
            leaves,
            inner_nodes: inner.nodes,
            leaf_fill: entries as f64 / (leaves.max(1) * self.design.capacity() as u64) as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: inner.bytes + heap.dram_bytes + VersionLocks::BYTES,
        }
    }
}
