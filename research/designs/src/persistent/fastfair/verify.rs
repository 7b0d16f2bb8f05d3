//! Checks of every invariant, and measurements.

use super::FastFair;
use super::read::Goal;
use super::recovery::Reached;
use crate::common::check_leaks;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::repr::{Stored, StoredKey};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// State of a check.
#[derive(Default)]
struct Seen {
    blocks: HashSet<u64>,
    leak: bool,
    records: u64,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    /// Checks every invariant, and that every live block is reached exactly once, and no other
    /// block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let seen = Mutex::new(Seen::default());
        let walked = self.walk(1, false, |reached| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let block = match reached {
                Reached::Node(off) => {
                    self.heap.check(off, self.node_bytes())?;
                    Some(off)
                }
                Reached::Key(word) => {
                    seen.records += K::check(&self.heap, word)?;
                    K::block(word)
                }
                Reached::Value(word) => {
                    seen.records += V::check(&self.heap, word)?;
                    V::block(word)
                }
            };
            let Some(block) = block else { return Ok(()) };
            if !self.heap.is_live(block) || !seen.blocks.insert(block) {
                seen.leak = true;
                return Err(format!("block {block:#x} is free, or reached twice"));
            }
            Ok(())
        });
        let Seen {
            blocks,
            leak,
            records,
        } = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        let walked = walked.map_err(|what| Violation { what, leak })?;
        let (live, reached) = (self.heap.live_blocks(), blocks.len() as u64);
        check_leaks(live, reached)?;
        Ok(VerifyReport {
            entries: walked.entries,
            leaves: walked.leaves,
            records,
        })
    }

    pub(super) fn measure(&self) -> IndexStats {
        // Pinned, so that everything reached is a node, even if it may have left the tree.
        let _pin = epoch::pin();
        let pm = self.pm();
        let heap = self.heap.stats();
        let mut stats = IndexStats {
            pm_bytes: heap.chunk_bytes,
            dram_bytes: heap.dram_bytes + VersionLocks::BYTES,
            ..IndexStats::default()
        };
        let most = pm.len() / self.node_bytes();
        // The first node of each level. Levels may come and go meanwhile.
        let Ok(path) = self.path_to(Goal::First) else {
            return stats;
        };
        for level in (0..).take_while(|level| path.at_level(*level).is_some()) {
            stats.depth += 1;
            let mut at = path.at_level(level).map(|step| step.at);
            let mut nodes = 0;
            while let Some(node) = at.filter(|_| nodes < most).map(|at| self.node(at)) {
                nodes += 1;
                if level == 0 {
                    stats.entries += node.count(pm) as u64;
                }
                at = self.handle(node.next(pm));
            }
            match level {
                0 => stats.leaves = nodes,
                _ => stats.inner_nodes += nodes,
            }
        }
        let slots = stats.leaves.max(1) * self.capacity as u64;
        stats.leaf_fill = stats.entries as f64 / slots as f64;
        stats
    }
}
