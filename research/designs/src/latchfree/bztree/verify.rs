//! Checks of every invariant, and measurements. Only these walk the whole tree.

use super::BzTree;
use super::node::{FROZEN, Form, HEADER, Meta, Node};
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::repr::{KeyRepr, Repr, check_record};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Counts of a walk.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    pub depth: u32,
    /// Words of leaves, and of their records that count, without headers.
    words: u64,
    live: u64,
    records: u64,
    /// The blocks that were reached: nodes, values, the anchor.
    pub blocks: BTreeSet<u64>,
    /// The root node.
    pub root: u64,
}

/// The fault, in words.
type Wrong = String;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Walks the tree. If `strict`, no other thread works, so everything must be right.
    pub(super) fn walk(&self, strict: bool) -> Result<Walked, Wrong> {
        let _guard = epoch::pin();
        let mut walked = Walked::default();
        walked.blocks.insert(self.anchor);
        let root = self.root_node();
        let node = Node::at(self.pm(), root).ok_or_else(|| format!("root node {root:#x}: none"))?;
        walked.root = root;
        walked.depth = u32::from(node.level) + 1;
        self.walk_node(&node, None, None, strict, &mut walked)?;
        Ok(walked)
    }

    /// Walks a node and everything below. Its keys are at least `low` and below `high`.
    fn walk_node(
        &self,
        node: &Node<'_, M>,
        low: Option<&K>,
        high: Option<&K>,
        strict: bool,
        walked: &mut Walked,
    ) -> Result<(), Wrong> {
        let wrong = |what: &str| format!("{node:?}: {what}");
        if !walked.blocks.insert(node.off) {
            return Err(wrong("reached twice"));
        }
        if strict {
            self.blocks.check(node.off, node.size as u64 * 8)?;
            if self.swaps.read(node.memory()) != node.off {
                return Err(wrong("its memory word is not its own offset"));
            }
        }
        if strict && !node.is_sound() {
            return Err(wrong("its size, order and level fail their check"));
        }
        if node.is_leaf() {
            return self.walk_leaf(node, low, high, strict, walked);
        }
        walked.inner_nodes += 1;
        if node.sorted == 0 {
            return Err(wrong("an inner node without children"));
        }
        let mut before = low.map(ToOwned::to_owned);
        for slot in 0..node.sorted {
            if strict && !node.record_is_sound(node.fixed_meta(slot)) {
                return Err(wrong(&format!("separator {slot} fails its check")));
            }
            let next = if slot + 1 < node.sorted {
                self.with_key(node, node.fixed_meta(slot + 1), ToOwned::to_owned)
            } else {
                high.map(ToOwned::to_owned)
            };
            let (from, to) = (
                before.as_ref().map(Borrow::borrow),
                next.as_ref().map(Borrow::borrow),
            );
            if let (Some(from), Some(to)) = (from, to)
                && from >= to
            {
                return Err(wrong(&format!(
                    "separators {from:?} and {to:?} in this order"
                )));
            }
            let child = self
                .child_at(node, slot)
                .ok_or_else(|| wrong(&format!("child {slot} leads to no node a level below")))?;
            self.walk_node(&child, from, to, strict, walked)?;
            before = next;
        }
        Ok(())
    }

    fn walk_leaf(
        &self,
        leaf: &Node<'_, M>,
        low: Option<&K>,
        high: Option<&K>,
        strict: bool,
        walked: &mut Walked,
    ) -> Result<(), Wrong> {
        let wrong = |what: String| format!("{leaf:?}: {what}");
        walked.leaves += 1;
        walked.words += (leaf.size - HEADER) as u64;
        let status = self.status(leaf);
        let entries = status.entries();
        if strict && HEADER + entries + status.records() > leaf.size {
            return Err(wrong(format!("more in it than there is room: {status:?}")));
        }
        let mut last: Option<K::Owned> = None;
        for entry in 0..leaf.sorted.min(entries) {
            let meta = Meta(self.swaps.read(leaf.meta(entry)));
            let key = self.with_key(leaf, meta, ToOwned::to_owned);
            if strict && last.is_some() && last >= key {
                return Err(wrong(format!("entry {entry} is not in order")));
            }
            last = key;
        }
        if strict && entries < leaf.sorted {
            return Err(wrong("fewer entries than are sorted".into()));
        }
        let free = HEADER + entries..leaf.size.saturating_sub(status.records());
        if let Some(i) = free.clone().find(|i| strict && leaf.fixed(*i) != 0) {
            return Err(wrong(format!(
                "word {i} is in use, where {free:?} are free"
            )));
        }
        let mut deleted = 0;
        // Since the index was opened no entry was reserved, so none can have its epoch.
        let unused = self.swaps.counts().attempts == 0;
        for entry in 0..entries.min(leaf.size - HEADER) {
            let meta = Meta(self.swaps.read(leaf.meta(entry)));
            if strict && unused && meta == self.reserved() {
                return Err(wrong(format!("entry {entry} is reserved, and no one has")));
            }
            if strict && meta == Meta::FREE {
                return Err(wrong(format!("entry {entry} is free")));
            }
            if strict && !meta.is_of_no_record() && !leaf.record_is_sound(meta) {
                return Err(wrong(format!("record {entry} fails its check")));
            }
            if !meta.visible() {
                deleted += 1 + if entry < leaf.sorted { meta.words() } else { 0 };
                continue;
            }
            if strict && meta.offset() + meta.words() > leaf.size {
                return Err(wrong(format!("record {entry} is not in the node")));
            }
            if strict && meta.offset() < leaf.size - status.records() {
                return Err(wrong(format!("record {entry} is not among the records")));
            }
            if meta.form() != Form::Inline {
                let word = self.swaps.read(leaf.word(meta.value_at()));
                if meta.form() == Form::Block && word != 0 {
                    if !walked.blocks.insert(word) {
                        return Err(wrong(format!("value block {word:#x} is reached twice")));
                    }
                    if strict {
                        self.blocks.check(word, 8).map_err(wrong)?;
                        check_record(self.pm(), word).map_err(wrong)?;
                        walked.records += 1;
                    }
                } else if strict && meta.form() == Form::Block {
                    return Err(wrong(format!("visible record {entry} has no value")));
                }
            }
            if strict && self.with_value(leaf, meta, |_| ()).is_none() {
                return Err(wrong(format!(
                    "record {entry} has a value that cannot be read"
                )));
            }
            walked.entries += 1;
            walked.live += meta.words() as u64 + 1;
            let inside = self.with_key(leaf, meta, |key| {
                low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high)
            });
            if strict && inside != Some(true) {
                return Err(wrong(format!("the key of entry {entry} belongs elsewhere")));
            }
        }
        if strict && status.deleted() > 0 && deleted == 0 {
            return Err(wrong(format!("nothing is deleted, but for {status:?}")));
        }
        let records = self.live_records(leaf);
        let pairs = records.iter().zip(records.iter().skip(1));
        for (a, b) in pairs {
            let twice = self.with_key(leaf, *a, |key| self.compare(leaf, *b, key).is_eq());
            if strict && twice != Some(false) {
                return Err(wrong("a key is visible twice".into()));
            }
        }
        Ok(())
    }

    /// Checks the module's invariants, and that a block is active if and only if the tree leads to
    /// it or a descriptor will recycle it.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        let walked = self.walk(true).map_err(Violation::new)?;
        if self.swaps.read(self.root_status()) & FROZEN != 0 {
            return Err(Violation::new("the anchor is frozen"));
        }
        let held: BTreeSet<u64> = self.swaps.held_blocks().into_iter().collect();
        let active: BTreeSet<u64> = self.blocks.active_blocks().into_iter().collect();
        if let Some(block) = walked.blocks.difference(&active).next() {
            return Err(Violation::leak(format!(
                "block {block:#x} is reached and free"
            )));
        }
        if let Some(block) = walked.blocks.intersection(&held).next() {
            return Err(Violation::leak(format!(
                "block {block:#x} is reached, and a descriptor is to free it"
            )));
        }
        let owned = |block: &&u64| !walked.blocks.contains(block) && !held.contains(block);
        if let Some(block) = active.iter().find(owned) {
            return Err(Violation::leak(format!(
                "block {block:#x} is active, and nothing leads to it"
            )));
        }
        let others = self.heap.live_blocks();
        if others != 1 {
            return Err(Violation::leak(format!(
                "{others} blocks beside the activated ones; the descriptors are one"
            )));
        }
        Ok(VerifyReport {
            entries: walked.entries,
            leaves: walked.leaves,
            records: walked.records,
        })
    }

    /// Counts leaf by leaf, like a scan, so that descriptors come back for threads that write
    /// meanwhile.
    fn count(&self) -> Walked {
        let mut counted = Walked::default();
        let mut from: Option<K::Owned> = None;
        let mut guard = epoch::pin();
        loop {
            let bound =
                (from.as_ref()).map_or(Bound::Unbounded, |key| Bound::Included(key.borrow()));
            let Some(at) = self.leaf_from(bound, false) else {
                return counted;
            };
            counted.depth = counted.depth.max(at.depth);
            counted.inner_nodes += at.first_of;
            counted.leaves += 1;
            counted.words += (at.leaf.size - HEADER) as u64;
            for meta in self.live_records(&at.leaf) {
                counted.entries += 1;
                counted.live += meta.words() as u64 + 1;
            }
            // In a damaged pool separators may lead back.
            if at.high.is_none() || from.is_some() && at.high <= from {
                return counted;
            }
            from = at.high;
            guard.repin();
        }
    }

    pub(super) fn measure(&self) -> IndexStats {
        let walked = self.count();
        let blocks = self.blocks.stats();
        let others = self.heap.stats();
        IndexStats {
            entries: walked.entries,
            depth: walked.depth,
            leaves: walked.leaves,
            inner_nodes: walked.inner_nodes,
            leaf_fill: walked.live as f64 / walked.words.max(1) as f64,
            pm_bytes: blocks.chunk_bytes + others.chunk_bytes,
            dram_bytes: blocks.dram_bytes + others.dram_bytes,
        }
    }
}
