//! Checking every invariant, and measuring.

use super::{HEAD, LeafDesign, LeafTree, offset};
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::repr::{Stored, StoredKey};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Checks the invariants of the module's head, the inner index, and that every block that is
    /// live is reached and every block that is reached is live, once.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        self.inner.verify()?;
        let pm = self.pm();
        let mut report = VerifyReport::default();
        let mut routed: Vec<(Option<K::Owned>, u32)> = Vec::new();
        self.inner
            .for_each_leaf(|low, leaf| routed.push((low.map(ToOwned::to_owned), leaf)));
        let mut blocks: HashSet<u64> = HashSet::new();
        // ORDERING: Relaxed; no one writes meanwhile.
        let mut expected = self.root().word(HEAD).load(pm, Ordering::Relaxed);
        for (i, (low, at)) in routed.iter().enumerate() {
            let broken = |what: String| Violation::new(format!("leaf {:#x}: {what}", offset(*at)));
            let leaked = |what: String| Violation::leak(format!("leaf {:#x}: {what}", offset(*at)));
            if offset(*at) != expected {
                return Err(broken(format!(
                    "the chain has leaf {expected:#x} where the inner index has this one"
                )));
            }
            self.heap
                .check(offset(*at), self.design.leaf_bytes())
                .map_err(broken)?;
            if !self.heap.is_live(offset(*at)) || !blocks.insert(offset(*at)) {
                return Err(leaked("free, or in the chain twice".into()));
            }
            let leaf = self.leaf(*at);
            let high = routed.get(i + 1).and_then(|(key, _)| key.as_ref());
            let mut entries = Vec::new();
            D::for_each(self, leaf, |slot, key, value| {
                entries.push((slot, key, value))
            });
            let mut keys: Vec<K::Word> = Vec::new();
            for (slot, key, value) in entries {
                let at_slot = |what: String| format!("{}: {what}", D::place(slot));
                for checked in [K::check(&self.heap, key), V::check(&self.heap, value)] {
                    report.records += checked.map_err(|e| broken(at_slot(e.to_string())))?;
                }
                for record in [K::block(key), V::block(value)].into_iter().flatten() {
                    if !self.heap.is_live(record) || !blocks.insert(record) {
                        return Err(leaked(at_slot(format!(
                            "block {record:#x} is free, or reached twice"
                        ))));
                    }
                }
                let outside = K::read(pm, key, |key| {
                    low.as_ref().is_some_and(|low| key < low.borrow())
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
            report.entries += keys.len() as u64;
            keys.sort_unstable_by(|a, b| self.compare_words(*a, *b));
            if keys
                .windows(2)
                .any(|pair| self.compare_words(pair[0], pair[1]).is_eq())
            {
                return Err(broken("the same key twice".into()));
            }
            expected = D::next(self, leaf);
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
        if live != reached {
            return Err(Violation::leak(format!(
                "{live} blocks are in use but {reached} are reached: {} leaked",
                live.abs_diff(reached)
            )));
        }
        Ok(report)
    }

    pub(super) fn measure(&self) -> IndexStats {
        let mut guard = crossbeam_epoch::pin();
        let (mut entries, mut leaves) = (0, 0);
        // From range to range, since others may write meanwhile.
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
