//! Checking a tree, and measuring it.

use super::order::TailOrder;
use super::part::Part;
use super::place::Base;
use super::stored::Reference;
use super::table::{Kind, Table, Word};
use super::tail::Seen;
use super::upper::Known;
use super::{ClusteredTree, Handle};
use crate::contract::{IndexStats, VerifyReport, Violation};
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

/// A leaf page that is sound.
struct CheckedLeaf {
    entries: u64,
    /// The page to the right, or 0.
    next: u32,
}

/// The outer values that pages know of.
#[derive(Default)]
struct Values {
    reached: BTreeMap<u32, Reference>,
    /// Identities of those that a crash may have left.
    dropped: BTreeSet<[u64; 2]>,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// As [`OrderedIndex::verify`](crate::OrderedIndex::verify).
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let broken = |what: String| Violation::new(what);
        self.inner.verify()?;
        let mut report = VerifyReport::default();
        let mut reached = BTreeSet::new();
        // Pages below the inner pages, by their low fences: of each level.
        let mut values = Values::default();
        let mut below: Vec<BTreeMap<Vec<u8>, u32>> =
            vec![self.check_leaves(&mut report, &mut reached, &mut values)?];
        let upper = lock(&self.upper);
        for (i, level) in upper.levels.iter().enumerate() {
            let mut pages = BTreeMap::new();
            for (low, known) in level {
                let children = self.check_upper(low, known).map_err(|what| {
                    broken(format!(
                        "inner page {} of level {}: {what}",
                        known.id,
                        i + 1
                    ))
                })?;
                for (key, child) in children {
                    let low = if key == Self::lowest() {
                        Vec::new()
                    } else {
                        key
                    };
                    if below[i].get(&low) != Some(&child) {
                        return Err(broken(format!(
                            "inner page {} leads to page {child}, whose low fence is not {low:?}",
                            known.id
                        )));
                    }
                }
                reached.insert(known.id);
                pages.insert(low.clone(), known.id);
            }
            below.push(pages);
        }
        let top = below
            .last()
            .and_then(|pages| pages.values().next().copied());
        if below.last().map(BTreeMap::len) != Some(1) || top != Some(Table::FIRST_ID) {
            return Err(broken(format!("the root is not page 1 alone: {top:?}")));
        }
        self.check_table(&reached, &values)?;
        Ok(report)
    }

    /// Finds the page at `at` again.
    fn again(&self, at: &Ranged<K>, guard: &Guard) -> Ranged<K> {
        match &at.low {
            Some(low) => self.inner.find_range(low.borrow(), guard),
            None => self.inner.find_first(guard),
        }
    }

    /// Checks all leaf pages; returns them by their low fences.
    fn check_leaves(
        &self,
        report: &mut VerifyReport,
        reached: &mut BTreeSet<u32>,
        values: &mut Values,
    ) -> Result<BTreeMap<Vec<u8>, u32>, Violation> {
        let guard = epoch::pin();
        let mut leaves = BTreeMap::new();
        let mut at = self.inner.find_first(&guard);
        let mut promised: Option<u32> = None;
        loop {
            // Within a section: what is touched under that lock gives no memory back itself.
            let storing = self.storing();
            let parts_stay = self.memory.as_ref().map(super::memory::Memory::hold);
            if !self.inner.validate(&at.located) {
                at = self.again(&at, &guard);
            }
            let Handle::Part(slot) = Handle::decode(at.located.leaf) else {
                // It has left memory since it was loaded.
                drop((parts_stay, storing));
                let loaded = self.load_at(&at, &guard);
                loaded.map_err(|e| Violation::new(e.to_string()))?;
                at = self.again(&at, &guard);
                continue;
            };
            let part = self.part(slot);
            let id = part.id();
            let of_page = |what: String| Violation::new(format!("page {id}: {what}"));
            if promised.is_some_and(|promised| promised != id) {
                return Err(of_page(format!("the page before it leads to {promised:?}")));
            }
            let fence = |key: &Option<K::Owned>| {
                let key = key.as_ref().map(Borrow::borrow);
                key.map(|key: &K| key.with_bytes(<[u8]>::to_vec))
            };
            let (low, high) = (fence(&at.low), fence(&at.high));
            let fences = (low.as_deref(), high.as_deref());
            let checked = self.check_leaf(part, fences, values).map_err(of_page)?;
            report.entries += checked.entries;
            if !Self::NUMBERS {
                // Each lies under the sum of its group or of a part of the base.
                report.records += checked.entries;
            }
            report.leaves += 1;
            reached.insert(id);
            leaves.insert(low.unwrap_or_default(), id);
            promised = Some(checked.next);
            let Some(high) = &at.high else {
                break;
            };
            at = self.inner.find_range(high.borrow(), &guard);
        }
        if promised != Some(0) {
            return Err(Violation::new(format!(
                "the last page leads to {promised:?}"
            )));
        }
        Ok(leaves)
    }

    /// Checks a leaf page that the inner index has between these fences.
    fn check_leaf(
        &self,
        part: &Part,
        (low, high): (Option<&[u8]>, Option<&[u8]>),
        values: &mut Values,
    ) -> Result<CheckedLeaf, String> {
        let page = self.page_of(part);
        let (header, seed) = page.header(self.salt)?;
        page.check_base(&header, seed)?;
        if page.low(&header) != low || page.high(&header) != high {
            return Err(format!("its fences are not {low:?} and {high:?}"));
        }
        if part.live() as u64 != self.entries_of(part)? {
            return Err(format!("its part counts {} keys", part.live()));
        }
        let generation = part.generation();
        if header.id != part.id() || header.level != 0 || header.generation != generation {
            return Err("its header and its part differ".into());
        }
        let mut places = Vec::new();
        let counts = |seen: &Seen| self.group_counts(page, &header, seen);
        let tail = page.tail(&header, seed, counts, |place, _| places.push(place))?;
        let known: Vec<_> = (0..part.count()).map(|i| part.place(i)).collect();
        if places != known || tail.end != part.end() {
            return Err(format!(
                "its tail has {} records and ends at {}, its part says {} and {}",
                places.len(),
                tail.end,
                known.len(),
                part.end()
            ));
        }
        let expected = TailOrder::of(page, &Base::of(&header), places.iter().copied());
        let mut order = TailOrder::default();
        let ordered = part.order(page, part.version.read(), &mut order);
        if ordered.is_none() || order.records != expected.records {
            return Err("its part has the tail in another order".into());
        }
        if self.read_only {
            // Nothing is cleared then.
            values.dropped.extend(page.dropped(&header));
        }
        for one in self.references(page, &header, places.iter().copied()) {
            self.check_outer(&one)?;
            if values.reached.insert(one.id(), one).is_some() {
                return Err(format!("another record leads to value {}", one.id()));
            }
        }
        let entries = super::replace::entries_at(page, &header, places);
        for i in 0..entries.len() {
            let key = entries.key(i);
            let ascends = i == 0 || entries.key(i - 1) < key;
            let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            if !ascends || !inside {
                return Err(format!("key {key:?} is out of order"));
            }
        }
        Ok(CheckedLeaf {
            entries: entries.len() as u64,
            next: header.next,
        })
    }

    /// The children of an inner page.
    pub(super) fn check_upper(
        &self,
        low: &[u8],
        known: &Known,
    ) -> Result<Vec<(Vec<u8>, u32)>, String> {
        let page = self.page(known.block, known.words);
        let (header, _) = page.header(self.salt)?;
        if header.id != known.id || header.generation != known.generation {
            return Err("its header is another page's".into());
        }
        if page.low(&header).unwrap_or(&[]) != low {
            return Err(format!("its low fence is not {low:?}"));
        }
        let mut found = *known;
        let children = self.children(page, &mut found)?;
        if (found.count, found.end) != (known.count, known.end) {
            return Err(format!(
                "its tail has {} records and ends at {}, not {} and {}",
                found.count, found.end, known.count, known.end
            ));
        }
        Ok(children)
    }

    /// Checks that the table names the pages and values that were reached, and nothing else, and
    /// the heap their blocks.
    fn check_table(&self, reached: &BTreeSet<u32>, values: &Values) -> Result<(), Violation> {
        let mut blocks: BTreeMap<u64, String> = BTreeMap::new();
        for (block, _) in self.table.blocks() {
            blocks.insert(block, "the page table".into());
        }
        if let Some(log) = &self.log {
            blocks.insert(log.offset(), "the log".into());
        }
        blocks.insert(self.slots.block(), "the commit slots".into());
        for block in lock(&self.spare).iter() {
            blocks.insert(*block, "the reserve".into());
        }
        for block in self.versions.blocks() {
            blocks.insert(block, "history".into());
        }
        for id in Table::FIRST_ID..self.table.end() {
            let word = self.table.read(self.pm(), id).map_err(Violation::new)?;
            let Some(word) = word else {
                if reached.contains(&id) {
                    return Err(Violation::new(format!("page {id} is not in the table")));
                }
                continue;
            };
            let (what, is_reached) = match word.kind {
                Kind::Page => ("page", reached.contains(&id)),
                Kind::Outer => ("value", self.is_known(id, word, values)),
            };
            if !is_reached {
                return Err(Violation::leak(format!("nothing leads to {what} {id}")));
            }
            if word.newborn {
                return Err(Violation::new(format!("{what} {id} is still newborn")));
            }
            if let Some(other) = blocks.insert(word.block, format!("{what} {id}")) {
                return Err(Violation::leak(format!(
                    "the block at {:#x} is that of {what} {id} and that of {other}",
                    word.block
                )));
            }
        }
        for (block, owner) in &blocks {
            if !self.heap.is_live(*block) {
                return Err(Violation::leak(format!("the block of {owner} is free")));
            }
        }
        let live = self.heap.live_blocks();
        if live != blocks.len() as u64 {
            return Err(Violation::leak(format!(
                "{live} blocks are in use, {} are reached",
                blocks.len()
            )));
        }
        Ok(())
    }

    fn is_known(&self, id: u32, word: Word, values: &Values) -> bool {
        values.reached.contains_key(&id) || values.dropped.contains(&self.identity_at(word.block))
    }

    /// Keys of a leaf page.
    pub(super) fn entries_of(&self, part: &Part) -> Result<u64, String> {
        let page = self.page_of(part);
        let (header, _) = page.header(self.salt)?;
        let places = (0..part.count()).map(|i| part.place(i));
        Ok(super::replace::entries_at(page, &header, places).len() as u64)
    }

    /// As [`OrderedIndex::stats`](crate::OrderedIndex::stats).
    pub(super) fn measure(&self) -> IndexStats {
        let inner = self.inner.stats();
        let guard = epoch::pin();
        let (mut entries, mut leaves, mut used, mut words) = (0, 0, 0, 0);
        let mut at = self.inner.find_first(&guard);
        loop {
            if let Handle::Part(slot) = Handle::decode(at.located.leaf) {
                let part = self.part(slot);
                entries += part.live() as u64;
                used += part.end() as u64;
                words += part.block_and_words().1 as u64;
                leaves += 1;
            }
            let Some(high) = &at.high else {
                break;
            };
            at = self.inner.find_range(high.borrow(), &guard);
        }
        let (_, parts) = self.parts.usage();
        let heap = self.heap.stats();
        IndexStats {
            entries,
            depth: inner.depth + 1,
            leaves,
            inner_nodes: inner.nodes,
            leaf_fill: used as f64 / words.max(1) as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: inner.bytes + heap.dram_bytes + parts + self.versions.bytes() as u64,
        }
    }
}
