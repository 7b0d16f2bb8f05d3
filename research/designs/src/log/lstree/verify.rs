//! Checks of every invariant, and measurements.

use super::log::LOGS;
use super::recovery::{Chain, chains};
use super::table::Entry;
use super::{DIRECTORY_WORD, LsTree};
use crate::common::check_leaks;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The blocks that were reached.
struct Blocks(HashSet<u64>);

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    fn reach(&self, blocks: &mut Blocks, off: u64, what: &str) -> Result<(), Violation> {
        if self.heap.is_live(off) && blocks.0.insert(off) {
            return Ok(());
        }
        Err(Violation::leak(format!(
            "block {off:#x} ({what}) is free, or reached twice"
        )))
    }

    /// Replays the logs and compares the mapping table with what a crash now would find. Checks the
    /// leaves, and that every live block is reached exactly once, and no other block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        self.inner.verify()?;
        let mut report = VerifyReport::default();
        let mut blocks = Blocks(HashSet::new());
        // ORDERING: Relaxed; no thread writes meanwhile.
        let directory = self
            .root()
            .word(DIRECTORY_WORD)
            .load(self.pm(), Ordering::Relaxed);
        let directory = link::checked(directory).map_err(Violation::new)?;
        if directory != self.logs.directory {
            return Err(Violation::new(format!(
                "the root's directory is {directory:#x}, the logs' is {:#x}",
                self.logs.directory
            )));
        }
        self.reach(&mut blocks, directory, "the logs' directory")?;
        let mut replayed = Vec::with_capacity(LOGS);
        for log in 0..LOGS {
            let check = |off| self.heap.check(off, self.shape.segment);
            let found = self
                .logs
                .replay(log, false, check)
                .map_err(Violation::new)?;
            let state = lock(&self.logs.log(log).state);
            let offsets = |segment: &super::log::Segment| (segment.off, segment.used);
            if !found
                .segments
                .iter()
                .map(offsets)
                .eq(state.segments.iter().map(offsets))
            {
                return Err(Violation::new(format!(
                    "log {log} has segments {:x?}, it should have {:x?}",
                    found.segments, state.segments
                )));
            }
            for segment in &found.segments {
                self.reach(&mut blocks, segment.off, "a segment")?;
                report.records += segment.records;
            }
            replayed.push(found);
        }
        for spare in lock(&self.logs.spares).all() {
            self.reach(&mut blocks, spare, "a spare segment")?;
        }
        let chains = chains(&replayed, (1, 0), true).map_err(Violation::new)?;
        let mut by_leaf = HashSet::with_capacity(chains.len());
        for chain in &chains {
            let entry = self.table.entry(chain.lnid);
            self.check_entry(entry, chain)?;
            if entry.counts().live > 0 {
                by_leaf.insert(chain.lnid);
            }
        }
        self.check_leaves(&mut by_leaf, &mut blocks, &mut report)?;
        if let Some(lnid) = by_leaf.iter().next() {
            return Err(Violation::new(format!(
                "leaf {lnid} has keys, but nothing leads to it"
            )));
        }
        let (live, reached) = (self.heap.live_blocks(), blocks.0.len() as u64);
        check_leaks(live, reached)?;
        Ok(report)
    }

    /// Compares the records that count by the logs with those that count by the mapping table.
    fn check_entry(&self, entry: Entry<'_, M::Dram>, chain: &Chain) -> Result<(), Violation> {
        let broken = |what: String| Violation::new(format!("leaf {}: {what}", chain.lnid));
        let known: Vec<u64> = entry.places().map(|place| place.off()).collect();
        let found: Vec<u64> = std::iter::once(&chain.base)
            .chain(&chain.deltas)
            .map(|part| part.off)
            .collect();
        // An empty base that no other record needs may be forgotten already, and a record that was
        // being moved is there twice.
        let forgotten = known.is_empty() && found.len() == 1;
        if known.len() != found.len() && !forgotten {
            return Err(broken(format!(
                "the table has records {known:x?}, the logs say {found:x?}"
            )));
        }
        let reader = self.reader();
        for (known, found) in known.iter().zip(&found) {
            let of = |off: u64| reader.record(off).map(|record| record.sequence);
            if known != found && of(*known) != of(*found) {
                return Err(broken(format!(
                    "the table has a record at {known:#x}, the logs say {found:#x}"
                )));
            }
        }
        if entry.sequence() < chain.sequence() || entry.records() != chain.records {
            return Err(broken(format!(
                "number {} and {} records in the table, {} and {} in the logs",
                entry.sequence(),
                entry.records(),
                chain.sequence(),
                chain.records
            )));
        }
        Ok(())
    }

    fn check_leaves(
        &self,
        by_leaf: &mut HashSet<u32>,
        blocks: &mut Blocks,
        report: &mut VerifyReport,
    ) -> Result<(), Violation> {
        let mut routed: Vec<(Option<K::Owned>, u32)> = Vec::new();
        self.inner
            .for_each_leaf(|low, leaf| routed.push((low.map(ToOwned::to_owned), leaf)));
        let free: HashSet<u32> = self.table.free().into_iter().collect();
        let mut words = Vec::new();
        for (i, (low, lnid)) in routed.iter().enumerate() {
            let broken = |what: String| Violation::new(format!("leaf {lnid}: {what}"));
            if free.contains(lnid) || *lnid >= self.table.used() {
                return Err(broken("its number is free".into()));
            }
            let entry = self.table.entry(*lnid);
            self.contents(entry, *lnid, &mut words);
            let counts = entry.counts();
            if counts.live != words.len() {
                return Err(broken(format!(
                    "{} keys, where {} are counted",
                    words.len(),
                    counts.live
                )));
            }
            report.leaves += 1;
            report.entries += words.len() as u64;
            if words.is_empty() {
                if routed.len() > 1 {
                    return Err(broken("empty, and not the only one".into()));
                }
                continue;
            }
            if !by_leaf.remove(lnid) {
                return Err(broken("it is led to twice, or is in no log".into()));
            }
            let high = routed.get(i + 1).and_then(|(key, _)| key.as_ref());
            for (key, value) in &words {
                let outside = K::read(self.pm(), *key, |key| {
                    low.as_ref().is_some_and(|low| key < low.borrow())
                        || high.is_some_and(|high| key >= high.borrow())
                });
                if outside != Some(false) {
                    return Err(broken(format!("key {key:#x} is outside its range")));
                }
                self.check_long::<K>(*key, entry, blocks, report)?;
                self.check_long::<V>(*value, entry, blocks, report)?;
            }
            let ascend = |pair: &[(u64, u64)]| self.compare_words(pair[0].0, pair[1].0).is_lt();
            if !words.windows(2).all(ascend) {
                return Err(broken("its keys do not ascend".into()));
            }
        }
        Ok(())
    }

    /// Checks the block of a word, if the word leads to one.
    fn check_long<T: Repr + ?Sized>(
        &self,
        word: u64,
        entry: Entry<'_, M::Dram>,
        blocks: &mut Blocks,
        report: &mut VerifyReport,
    ) -> Result<(), Violation> {
        if !T::RECORDS || self.is_in_chain::<T>(word, entry) {
            return Ok(());
        }
        let broken = |what: String| Violation::new(format!("word {word:#x}: {what}"));
        report.records += T::check(&self.heap, word).map_err(broken)?;
        match T::block(word) {
            Some(off) => self.reach(blocks, off, "a string"),
            None => Ok(()),
        }
    }

    pub(super) fn measure(&self) -> IndexStats {
        let mut guard = crossbeam_epoch::pin();
        let (mut entries, mut leaves) = (0, 0);
        // By ranges, since other threads may write meanwhile.
        let mut ranged = self.inner.find_first(&guard);
        loop {
            leaves += 1;
            entries += self.table.entry(ranged.located.leaf).counts().live as u64;
            let Some(high) = ranged.high else { break };
            guard.repin();
            ranged = self.inner.find_range(high.borrow(), &guard);
        }
        let inner = self.inner.stats();
        let heap = self.heap.stats();
        let slots = leaves * self.shape.entries as u64;
        IndexStats {
            entries,
            depth: inner.depth + 1,
            leaves,
            inner_nodes: inner.nodes,
            leaf_fill: entries as f64 / slots as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: inner.bytes + heap.dram_bytes + self.table.bytes() + VersionLocks::BYTES,
        }
    }
}
