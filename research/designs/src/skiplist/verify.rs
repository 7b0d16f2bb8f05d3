//! Checks of every invariant, and measurements.

use super::node::{MAX_HEIGHT, has_left, target};
use super::{SkipList, Towers};
use crate::common::check_leaks;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Returns the order of two key words.
    pub(super) fn compare_words(&self, a: u64, b: u64) -> Ordering {
        K::read(self.pm(), a, |a| self.compare(b, a).reverse()).unwrap_or(Ordering::Less)
    }

    /// Checks the invariants of the module's head. Also checks that every live block is reached
    /// exactly once, and no other block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let mut report = VerifyReport::default();
        let mut blocks: HashSet<u64> = HashSet::new();
        // Height and key word of every node.
        let mut heights: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut before: Option<u64> = None;
        let mut at = self.head;
        loop {
            let broken = |what: String| Violation::new(format!("node {at:#x}: {what}"));
            let leaked = |what: String| Violation::leak(format!("node {at:#x}: {what}"));
            self.heap.check(at, T::node_bytes(1)).map_err(broken)?;
            self.nodes.sound(at).map_err(broken)?;
            let height = self.nodes.height(at);
            if !(1..=MAX_HEIGHT as u64).contains(&height) {
                return Err(broken(format!("it has {height} levels")));
            }
            self.heap
                .check(at, T::node_bytes(height as usize))
                .map_err(broken)?;
            if !self.heap.is_live(at) || !blocks.insert(at) {
                return Err(leaked("free, or in the list twice".into()));
            }
            let link = self.nodes.next(at);
            if has_left(link) {
                return Err(broken("in the list, but marked as having left".into()));
            }
            if at != self.head {
                let (key, value) = (self.nodes.key(at), self.nodes.value(at));
                for checked in [K::check(&self.heap, key), V::check(&self.heap, value)] {
                    report.records += checked.map_err(broken)?;
                }
                for record in [K::block(key), V::block(value)].into_iter().flatten() {
                    if !self.heap.is_live(record) || !blocks.insert(record) {
                        return Err(leaked(format!(
                            "block {record:#x} is free, or reached twice"
                        )));
                    }
                }
                if before.is_some_and(|before| self.compare_words(before, key).is_ge()) {
                    return Err(broken("its key does not follow the one before".into()));
                }
                before = Some(key);
                heights.insert(at, (height, key));
                report.entries += 1;
            }
            if link == 0 {
                break;
            }
            at = link;
        }
        // The list counts as leaves of one entry each.
        report.leaves = report.entries;
        self.check_towers(&heights)?;
        let (live, reached) = (self.heap.live_blocks(), blocks.len() as u64);
        check_leaks(live, reached)?;
        Ok(report)
    }

    /// Checks that every level leads, in order, to nodes of the list that are high enough and that
    /// the level below has too.
    fn check_towers(&self, heights: &HashMap<u64, (u64, u64)>) -> Result<(), Violation> {
        let (towers, nodes) = (&self.towers, &self.nodes);
        let mut below: Option<HashSet<u64>> = None;
        for level in 1..MAX_HEIGHT {
            let mut here = HashSet::new();
            let mut at = self.head_tower;
            let mut before: Option<u64> = None;
            loop {
                let link = towers.link(nodes, at, level);
                let broken = |what: &str| {
                    Violation::new(format!("level {level}, link of tower {at:#x}: {what}"))
                };
                if has_left(link) {
                    return Err(broken("marked, but on the level"));
                }
                let next = target(link);
                if next == 0 {
                    break;
                }
                if level > self.top() {
                    return Err(broken("above the highest level"));
                }
                let node = towers.node(next);
                let key = towers.key(nodes, next);
                match heights.get(&node) {
                    None => return Err(broken("leads to what is not in the list")),
                    Some((height, _)) if *height <= level as u64 => {
                        return Err(broken("leads to a node that is lower"));
                    }
                    Some((_, word)) if *word != key => {
                        return Err(broken("leads to a tower with another key than its node's"));
                    }
                    Some(_) => {}
                }
                if below.as_ref().is_some_and(|below| !below.contains(&next)) {
                    return Err(broken(
                        "leads to a tower that the level below does not have",
                    ));
                }
                if before.is_some_and(|before| self.compare_words(before, key).is_ge()) {
                    return Err(broken("leads backwards"));
                }
                here.insert(next);
                before = Some(key);
                at = next;
            }
            if level == 1
                && let (Some(taken), _) = towers.usage()
                && taken < here.len() as u64 + 1
            {
                return Err(Violation::leak(format!(
                    "{} towers are linked, {taken} were handed out",
                    here.len() + 1
                )));
            }
            below = Some(here);
        }
        Ok(())
    }

    /// Returns shape and size: each node counts as a leaf, and each tower as an inner node.
    pub(super) fn measure(&self) -> IndexStats {
        let mut entries = 0;
        self.scan_up(&(..), |_, _| {
            entries += 1;
            std::ops::ControlFlow::Continue(())
        });
        let mut inner_nodes = 0;
        let guard = epoch::pin();
        let mut at = target(self.towers.link(&self.nodes, self.head_tower, 1));
        while at != 0 {
            inner_nodes += 1;
            at = target(self.towers.link(&self.nodes, at, 1));
        }
        drop(guard);
        let heap = self.heap.stats();
        let (_, towers) = self.towers.usage();
        IndexStats {
            entries,
            depth: self.top() as u32 + 1,
            leaves: entries,
            inner_nodes,
            leaf_fill: 1.0,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: towers + heap.dram_bytes + VersionLocks::BYTES,
        }
    }
}
