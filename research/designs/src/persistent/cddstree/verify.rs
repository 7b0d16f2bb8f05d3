//! Checks of every invariant, and measurements.

use super::recovery::{Below, compare_words};
use super::{CddsTree, Writer, offset};
use crate::common::check_leaks;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// State of a check.
#[derive(Default)]
struct Seen {
    report: VerifyReport,
    inner_nodes: u64,
    blocks: HashSet<u64>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Checks the invariants of the module's head. Also checks that every live block is reached
    /// exactly once, and no other block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        // Writers wait for this lock, so the tree does not change.
        let writer = &*lock(&self.writer);
        let committed = self.root().word(super::VERSION);
        // ORDERING: Relaxed; no thread writes meanwhile.
        let committed = link::checked(committed.load(self.pm(), Ordering::Relaxed));
        let committed = committed.map_err(Violation::new)?;
        if committed != writer.version {
            return Err(Violation::new(format!(
                "version {committed} is committed, {} is the last",
                writer.version
            )));
        }
        let top = self.top();
        let mut seen = Seen::default();
        let below = Below {
            node: offset(top.handle),
            level: top.level,
            low: None,
            high: None,
        };
        self.check_node(&below, true, writer, &mut seen)?;
        let found = (seen.report.entries, seen.report.leaves, seen.inner_nodes);
        let counted = (writer.entries, writer.leaves, writer.inner_nodes);
        if found != counted {
            return Err(Violation::new(format!(
                "entries, leaves, inner nodes: {found:?} are there, {counted:?} were counted"
            )));
        }
        let (live, reached) = (self.heap.live_blocks(), seen.blocks.len() as u64);
        check_leaks(live, reached)?;
        Ok(seen.report)
    }

    fn check_node(
        &self,
        below: &Below,
        is_root: bool,
        writer: &Writer,
        seen: &mut Seen,
    ) -> Result<(), Violation> {
        let pm = self.pm();
        let place = format!("node {:#x} of level {}", below.node, below.level);
        let broken = |what: String| Violation::new(format!("{place}: {what}"));
        let handle = self
            .child(below.node)
            .ok_or_else(|| broken("no node can be there".into()))?;
        self.heap
            .check(below.node, self.node_bytes.into())
            .map_err(broken)?;
        self.reach(below.node, seen, &place)?;
        let node = self.node(handle);
        let mut entries = Vec::new();
        let mut unused = false;
        let mut last = None;
        for i in 0..node.slots.len() {
            node.sound(pm, i).map_err(broken)?;
            let entry = node.entry(pm, i);
            if entry.is_unused() {
                unused = true;
                continue;
            }
            let wrong = |what: &str| broken(format!("slot {i} {entry:x?}: {what}"));
            if unused {
                return Err(wrong("in use behind one that is not"));
            }
            if entry.start == 0 {
                continue;
            }
            let ended = !entry.is_live();
            if entry.start > writer.version || ended && entry.end > writer.version {
                return Err(wrong("a version that is not committed"));
            }
            if entry.end <= entry.start {
                return Err(wrong("ends before it starts"));
            }
            if !K::RECORDS {
                if last.is_some_and(|last| compare_words::<K, M>(pm, last, entry.key).is_gt()) {
                    return Err(wrong("out of order"));
                }
                last = Some(entry.key);
            }
            if !ended {
                entries.push(entry);
            }
        }
        for (n, entry) in entries.iter().enumerate() {
            let wrong = |e| broken(format!("{entry:x?}: {e}"));
            if !(below.level > 0 && n == 0 && entry.key == 0) {
                seen.report.records += K::check(&self.heap, entry.key).map_err(wrong)?;
                if let Some(record) = K::block(entry.key) {
                    self.reach(record, seen, &place)?;
                }
            }
            if below.level == 0 {
                seen.report.records += V::check(&self.heap, entry.value).map_err(wrong)?;
                if let Some(record) = V::block(entry.value) {
                    self.reach(record, seen, &place)?;
                }
            }
        }
        let children = self.children(below, is_root, &entries).map_err(broken)?;
        if below.level == 0 {
            seen.report.leaves += 1;
            seen.report.entries += entries.len() as u64;
        } else {
            seen.inner_nodes += 1;
        }
        for child in &children {
            self.check_node(child, false, writer, seen)?;
        }
        Ok(())
    }

    /// Notes that `place` reaches a block.
    fn reach(&self, block: u64, seen: &mut Seen, place: &str) -> Result<(), Violation> {
        if self.heap.is_live(block) && seen.blocks.insert(block) {
            return Ok(());
        }
        Err(Violation::leak(format!(
            "{place}: block {block:#x} is free, or reached twice"
        )))
    }

    pub(super) fn measure(&self) -> IndexStats {
        let writer = *lock(&self.writer);
        let heap = self.heap.stats();
        // ORDERING: Relaxed; a figure of some moment.
        let level = self.top.load(Ordering::Relaxed) % super::UNIT;
        IndexStats {
            entries: writer.entries,
            depth: level as u32 + 1,
            leaves: writer.leaves,
            inner_nodes: writer.inner_nodes,
            leaf_fill: writer.entries as f64 / (writer.leaves.max(1) * self.slots() as u64) as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: heap.dram_bytes + VersionLocks::BYTES,
        }
    }
}
