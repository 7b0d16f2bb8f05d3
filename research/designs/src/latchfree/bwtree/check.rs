//! Walks through the whole tree: measurements, verification, and freeing its memory.

use super::BwTree;
use super::page::{self, Kind, Node};
use super::table::PageId;
use crate::btree::node::compare_words;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::collections::HashSet;

/// Returns the bytes of a chain's nodes.
fn chain_bytes(mut node: Node<'_>) -> u64 {
    let mut bytes = 0;
    loop {
        bytes += match node.kind() {
            Kind::Base => return bytes + node.base().bytes() as u64,
            Kind::Insert | Kind::Update | Kind::Delete => size_of::<page::LeafDelta>() as u64,
            Kind::IndexInsert | Kind::IndexDelete => size_of::<page::IndexDelta>() as u64,
            Kind::Split => size_of::<page::SplitDelta>() as u64,
            Kind::Merge => {
                size_of::<page::MergeDelta>() as u64 + node.merge().from().bytes() as u64
            }
            Kind::Remove => size_of::<page::RemoveDelta>() as u64,
        };
        node = node.below();
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Returns the head of a page. For a caller that has the tree alone.
    ///
    /// # Safety
    /// No other thread can be at the page, and the caller is done with the node before it frees it.
    pub(super) unsafe fn alone<'a>(&self, page: PageId) -> Node<'a> {
        // SAFETY: 1. the caller promises that no other thread is at the page; 2. it is done with
        // the node before it frees it.
        unsafe { Node::new(self.table.head(page)) }
    }

    /// Frees all chains and pages, but not the records that chains lead to.
    pub(super) fn free_pages(&mut self) {
        let mut first = Some(self.root().page());
        while let Some(leftmost) = first {
            // SAFETY: the tree is borrowed exclusively.
            let head = unsafe { self.alone(leftmost) };
            first = head.is_inner().then(|| super::find::child(head, |_| false));
            let mut page = leftmost;
            while page != 0 {
                // SAFETY: the tree is borrowed exclusively.
                let head = unsafe { self.alone(page) };
                let right = head.right;
                // SAFETY: 1. the tree is borrowed exclusively, so no other thread is at it; 2. each
                // page is reached once, since the right siblings of a level form one list.
                unsafe { page::free_chain(head.ptr()) };
                self.table.release(page);
                page = right;
            }
        }
    }

    pub(super) fn measure(&self) -> IndexStats {
        let guard = &epoch::pin();
        let root = self.root();
        let mut stats = IndexStats {
            depth: u32::from(root.level()) + 1,
            ..IndexStats::default()
        };
        let heap = self.heap.stats();
        stats.pm_bytes = heap.chunk_bytes;
        stats.dram_bytes = heap.dram_bytes + self.table.bytes();
        for level in (0..=root.level()).rev() {
            let Some(place) = self.descend(level, |_| false, guard) else {
                continue;
            };
            let mut page = place.page;
            while page != 0 {
                let head = self.head(page, guard);
                stats.dram_bytes += chain_bytes(head);
                if level == 0 {
                    stats.leaves += 1;
                    let removed = head.kind() == Kind::Remove;
                    let node = if removed { head.below() } else { head };
                    stats.entries += self.contents(node).len as u64;
                } else {
                    stats.inner_nodes += 1;
                }
                page = head.right;
            }
        }
        let slots = stats.leaves.max(1) * self.most_entries as u64;
        stats.leaf_fill = stats.entries as f64 / slots as f64;
        stats
    }

    /// Checks the invariants of the module's head.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let guard = &epoch::pin();
        let root = self.root();
        let mut report = VerifyReport::default();
        let mut records = HashSet::new();
        // The pages of the level above's entries, with the low ends of their ranges.
        let mut expected: Vec<(u64, PageId)> = vec![(0, root.page())];
        for level in (0..=root.level()).rev() {
            let mut below = Vec::new();
            let mut pages = expected.iter().copied();
            let (mut page, mut low) = (expected[0].1, 0);
            while page != 0 {
                let head = self.head(page, guard);
                let wrong = |what: &str| {
                    Violation::new(format!(
                        "page {page} of level {level}, low end {low:#x}: {what}"
                    ))
                };
                if pages.next() != Some((low, page)) {
                    return Err(wrong("the level above does not lead there"));
                }
                if head.kind() == Kind::Remove {
                    return Err(wrong("its removal was not finished"));
                }
                if head.is_inner() != (level > 0) {
                    return Err(wrong("not of this level"));
                }
                if level == 0 {
                    report.leaves += 1;
                    report.entries += self.check_leaf(head, low).map_err(|e| wrong(&e))?;
                    report.records += self
                        .check_records(head, low, &mut records)
                        .map_err(|e| wrong(&e))?;
                } else {
                    let (keys, children) = self.index_entries(head);
                    if keys[0] != low {
                        return Err(wrong("its first separator is another"));
                    }
                    if keys.len() != head.count() {
                        return Err(wrong("the count of its children is wrong"));
                    }
                    self.check_order(&keys, head, 1).map_err(|e| wrong(&e))?;
                    for (key, child) in keys.iter().zip(&children) {
                        let entry = self.entry(head, self.to_word(*key));
                        if (entry.low, entry.child) != (*key, *child) {
                            return Err(wrong("a delta leads elsewhere than the whole"));
                        }
                    }
                    below.extend(keys.into_iter().zip(children));
                }
                (page, low) = (head.right, head.high);
            }
            if pages.next().is_some() {
                return Err(Violation::new(format!(
                    "level {level} has fewer pages than the level above leads to"
                )));
            }
            expected = below;
        }
        Ok(report)
    }

    /// Checks that the keys from number `first` on ascend strictly and lie below the page's end.
    fn check_order(&self, keys: &[u64], head: Node<'_>, first: usize) -> Result<(), String> {
        let pm = self.pm();
        let keys = keys.get(first..).unwrap_or(&[]);
        let end = (head.right != 0).then_some(head.high);
        let all: Vec<u64> = keys.iter().copied().chain(end).collect();
        let ascends = all.is_sorted_by(|a, b| compare_words::<K, M>(pm, *a, *b).is_lt());
        ascends
            .then_some(())
            .ok_or_else(|| "keys do not ascend".into())
    }

    /// Checks a leaf. Returns its number of entries.
    fn check_leaf(&self, head: Node<'_>, low: u64) -> Result<u64, String> {
        let pm = self.pm();
        let contents = self.contents(head);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        contents.runs(|some, others| {
            keys.extend_from_slice(some);
            values.extend_from_slice(others);
        });
        if keys.len() != contents.len || keys.len() != head.count() {
            let len = keys.len();
            return Err(format!("{len} keys, {} counted", head.count()));
        }
        self.check_order(&keys, head, 0)?;
        if let Some(first) = keys.first()
            && low != 0
            && compare_words::<K, M>(pm, *first, low).is_lt()
        {
            return Err("a key is below its range".into());
        }
        for (key, value) in keys.iter().zip(&values) {
            let found = K::read(pm, *key, |k| self.find(head, k, k.hash())).flatten();
            if found != Some((*key, *value)) {
                return Err(format!("key word {key:#x} is not found"));
            }
        }
        Ok(keys.len() as u64)
    }

    /// Checks the records of a leaf's entries and of its low end. Returns their number.
    fn check_records(
        &self,
        head: Node<'_>,
        low: u64,
        seen: &mut HashSet<u64>,
    ) -> Result<u64, String> {
        let mut records = 0;
        let mut error = Ok(());
        let mut check = |key: Option<u64>, value: Option<u64>| -> Result<(), String> {
            if let Some(word) = key {
                records += K::check(&self.heap, word)?;
            }
            if let Some(word) = value {
                records += V::check(&self.heap, word)?;
            }
            let blocks = [key.and_then(K::block), value.and_then(V::block)];
            match blocks
                .into_iter()
                .flatten()
                .find(|block| !seen.insert(*block))
            {
                Some(block) => Err(format!("record {block:#x} is there twice")),
                None => Ok(()),
            }
        };
        if low != 0 {
            check(Some(low), None)?;
        }
        self.contents(head).runs(|keys, values| {
            for (key, value) in keys.iter().zip(values) {
                if error.is_ok() {
                    error = check(Some(*key), Some(*value));
                }
            }
        });
        error.map(|()| records)
    }
}
