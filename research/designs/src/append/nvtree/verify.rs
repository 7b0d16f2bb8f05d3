//! Checks of every invariant, and measurements.

use super::{HEAD, NvTree};
use crate::common::check_leaks;
use crate::damage;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::info::LeafInfo;

/// A leaf, and the smallest key routed to it.
type Routed<'g, K> = (Option<<K as ToOwned>::Owned>, &'g LeafInfo);

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Checks the invariants of the module's head and the inner nodes. Also checks that every live
    /// block is reached exactly once, and no other block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let guard = crossbeam_epoch::pin();
        let inner = self.inner(&guard);
        inner.verify().map_err(Violation::new)?;
        let mut routed: Vec<Routed<'_, K>> = Vec::new();
        inner.for_each(|_, low, info| {
            // SAFETY: 1. the thread is pinned; 2. no thread writes meanwhile, so the key stays in
            // its node.
            let low = low.map(|low| unsafe { K::view(&low) }.to_owned());
            routed.push((low, info));
        });
        let mut report = VerifyReport::default();
        let mut blocks: HashSet<u64> = lock(&self.spare).iter().copied().collect();
        // ORDERING (both): Relaxed; no thread writes meanwhile.
        let head = self.root().word(HEAD).load(self.pm(), Ordering::Relaxed);
        let mut expected = link::checked(head).map_err(Violation::new)?;
        let leaves = self.leaves.load(Ordering::Relaxed);
        if leaves != routed.len() as u64 {
            return Err(Violation::new(format!(
                "{leaves} leaves are counted, PLNs lead to {}",
                routed.len()
            )));
        }
        for (i, (low, info)) in routed.iter().enumerate() {
            if info.off != expected {
                return Err(Violation::new(format!(
                    "the list has leaf {expected:#x} where PLNs lead to {:#x}",
                    info.off
                )));
            }
            let high = routed.get(i + 1).and_then(|(low, _)| low.as_ref());
            self.check_leaf(info, low.as_ref(), high, &mut blocks, &mut report)
                .or_else(|violation| damage::note(info.off, violation))?;
            expected = info.leaf(self.pm()).next_offset();
        }
        if expected != 0 {
            return Err(Violation::new(format!(
                "the list goes on at leaf {expected:#x} where the PLNs end"
            )));
        }
        let (live, reached) = (self.heap.live_blocks(), blocks.len() as u64);
        // Damaged leaves were not followed to everything that they lead to.
        if !damage::any() {
            check_leaks(live, reached)?;
        }
        Ok(report)
    }

    fn check_leaf(
        &self,
        info: &LeafInfo,
        low: Option<&K::Owned>,
        high: Option<&K::Owned>,
        blocks: &mut HashSet<u64>,
        report: &mut VerifyReport,
    ) -> Result<(), Violation> {
        let pm = self.pm();
        let broken = |what: String| Violation::new(format!("leaf {:#x}: {what}", info.off));
        let leaked = |what: String| Violation::leak(format!("leaf {:#x}: {what}", info.off));
        let bytes = u64::from(info.shape.lines) * 64;
        self.heap.check(info.off, bytes).map_err(broken)?;
        if !self.heap.is_live(info.off) || !blocks.insert(info.off) {
            return Err(leaked("free, or in the list twice".into()));
        }
        if info.lock.is_busy_or_obsolete() {
            return Err(broken("its lock is held, or it is out of the list".into()));
        }
        let leaf = info.leaf(pm);
        leaf.sound().map_err(broken)?;
        let (counter, n) = (leaf.counter(), info.elements());
        if counter.elements as usize != n
            || counter.lines != info.shape.lines
            || counter.elements > info.shape.capacity
        {
            return Err(broken(format!(
                "its counter is {counter:?} where {n} elements in {} lines are expected",
                info.shape.lines
            )));
        }
        // Keys first, since they must be readable before they are compared.
        let mut words: Vec<u64> = (0..n).map(|i| leaf.key(i)).collect();
        words.sort_unstable();
        words.dedup();
        for word in &words {
            report.records += K::check(&self.heap, *word).map_err(broken)?;
        }
        if (words.iter()).any(|word| K::read(pm, *word, |_| ()).is_none()) {
            // Such words must not be compared, so the newest values are not known.
            for i in (0..n).filter(|i| !leaf.is_negative(*i)) {
                V::check(&self.heap, leaf.value(i)).map_err(broken)?;
            }
            return Err(broken("an element has no key".into()));
        }
        let contents = self.contents(&leaf, n);
        // Values first, so that each damaged one is noted while damage is collected.
        for (_, value) in &contents.live {
            report.records += V::check(&self.heap, *value).map_err(broken)?;
        }
        report.entries += contents.live.len() as u64;
        if contents.live.len() != info.live() as usize {
            return Err(broken(format!(
                "{} keys are there, {} are counted",
                contents.live.len(),
                info.live()
            )));
        }
        let live_keys = contents.live.iter().map(|(key, _)| *key);
        let keys = live_keys.chain(contents.dead.iter().copied()).map(K::block);
        let values = contents.live.iter().map(|(_, value)| V::block(*value));
        for record in keys.chain(values).flatten() {
            if !self.heap.is_live(record) || !blocks.insert(record) {
                return Err(leaked(format!(
                    "block {record:#x} is free, or reached twice"
                )));
            }
        }
        for (key, _) in &contents.live {
            let inside = K::read(pm, *key, |key| {
                low.is_none_or(|low| key >= low.borrow())
                    && high.is_none_or(|high| key < high.borrow())
            });
            if inside != Some(true) {
                return Err(broken(format!("key {key:#x} outside the leaf's range")));
            }
        }
        report.leaves += 1;
        Ok(())
    }

    pub(super) fn measure(&self) -> IndexStats {
        let guard = crossbeam_epoch::pin();
        let (mut entries, mut leaves, mut slots) = (0, 0, 0);
        self.each_leaf(&guard, |info| {
            entries += u64::from(info.live());
            leaves += 1;
            slots += u64::from(info.shape.capacity);
        });
        let inner = self.inner(&guard);
        let (levels, nodes) = inner.size();
        let heap = self.heap.stats();
        let infos = leaves * size_of::<LeafInfo>() as u64;
        IndexStats {
            entries,
            depth: levels + 1,
            leaves,
            inner_nodes: nodes,
            leaf_fill: entries as f64 / slots.max(1) as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: inner.bytes() + infos + heap.dram_bytes,
        }
    }
}
