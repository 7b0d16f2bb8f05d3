//! Opening. After a crash, unfinished changes are undone or redone, depending on the design's log.
//! Then a walk tells the allocator which blocks are in use. After a clean close, the allocator's
//! saved marks are read instead.
//!
//! The walk checks everything before it follows it: nodes and records must be blocks of this root
//! that nothing else reached, levels must descend, and keys must ascend. So a corrupt pool ends in
//! an error and not in a loop.

use super::change::{Log, Protect};
use super::kind::Kind;
use super::node::Node;
use super::walk::Reached;
use super::{BTree, BTreeOptions, LOGS, MARKS, ROOT, TreeError, VOLATILE};
use crate::index::RecoveryReport;
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::saved;
use bristlecone_pmem::log::{Range, Record};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Logs, Media};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Opens a published root.
    pub(super) fn recover(
        root: Root<M>,
        words: usize,
        options: &BTreeOptions,
    ) -> Result<Self, TreeError> {
        let started = Instant::now();
        let heap = root.heap();
        heap.begin_recovery();
        // ORDERING: Relaxed; the tree is being opened.
        let word = |i: usize| root.word(i).load(root.pool().pm(), Ordering::Relaxed);
        let link = |i| link::checked(word(i)).map_err(TreeError::Corrupt);
        let (top, logs) = (link(ROOT)?, link(LOGS)?);
        if word(VOLATILE) != 0 {
            return Err(TreeError::Volatile);
        }
        let logs =
            Logs::open(&heap, logs, D::Protect::slot_words(words)).map_err(TreeError::Corrupt)?;
        heap.check(top, words as u64 * 8)
            .map_err(|e| TreeError::Corrupt(format!("root node: {e}")))?;
        let clean = saved::load_marks::<M, 0>(&root, &heap, MARKS).is_some();
        let mut tree = Self::assemble(root, heap, logs, words, options);
        match tree.rebuild(top, clean, options.recovery_threads.max(1)) {
            Ok(report) => {
                tree.report = report;
                tree.report.elapsed = started.elapsed();
                tree.commit()?;
                Ok(tree)
            }
            Err(what) => {
                // This tree is not whole, so nothing of it may be saved.
                tree.abandon();
                Err(TreeError::Corrupt(what))
            }
        }
    }

    /// Closes the tree without saving anything: there is no tree, or it is corrupt.
    pub(super) fn abandon(&mut self) {
        self.root = None;
    }

    fn rebuild(&mut self, top: u64, clean: bool, threads: usize) -> Result<RecoveryReport, String> {
        self.top = self
            .handle(top)
            .ok_or_else(|| format!("no root node can be at {top:#x}"))?;
        // Unfinished changes first, since a walk would meet them.
        let repaired = self
            .logs
            .recover(|record| match (record, D::Protect::LOG) {
                (Record::Undo(ranges), Log::Undo) => ranges
                    .iter()
                    .try_for_each(|range| self.check_range(range).map(|_| ())),
                (Record::Redo(words), Log::Redo) => self.redo(words),
                _ => Err("a record of another kind than this design's".into()),
            })?;
        let mut report = RecoveryReport {
            clean,
            repaired,
            threads: 1,
            ..RecoveryReport::default()
        };
        if !clean {
            self.logs.mark(&self.heap, &epoch::pin())?;
            let counts = self.walk(threads, |reached| {
                let guard = epoch::pin();
                match reached {
                    Reached::Node(off) => self.heap.mark(off, self.node_bytes(), &guard),
                    Reached::Key(word) => K::mark(&self.heap, word, &guard),
                    Reached::Value(word) => V::mark(&self.heap, word, &guard),
                }
            })?;
            report.threads = threads;
            report.leaves_scanned = counts.leaves;
            report.entries = counts.entries;
        }
        self.heap.finish_recovery();
        Ok(report)
    }

    /// Accepts a range of a record that lies in a block as long as a node. Returns the node and the
    /// range's first word.
    fn check_range(&self, range: &Range) -> Result<(Node<'_>, usize), String> {
        // Nodes are aligned to their size, which is a power of two.
        let off = range.off & !(self.node_bytes() - 1);
        let inside = range.off.is_multiple_of(8)
            && range.bytes.is_multiple_of(8)
            && range
                .off
                .checked_add(range.bytes)
                .is_some_and(|end| end <= off.saturating_add(self.node_bytes()));
        // For the heap, the log's block is a block like any other.
        let node = self
            .handle(off)
            .filter(|_| inside && off != self.logs.offset());
        let Some(at) = node else {
            return Err(format!("{range:x?} is of no node"));
        };
        self.heap.check(off, self.node_bytes())?;
        Ok((self.node(at), (range.off - off) as usize / 8))
    }

    /// Stores the words of a redo record, once all of it is plausible. They may have been stored
    /// before, in part or whole.
    fn redo(&self, record: &[u64]) -> Result<(), String> {
        let mut runs = Vec::new();
        let mut rest = record;
        while let [off, bytes, after @ ..] = rest {
            let range = Range {
                off: *off,
                bytes: *bytes,
            };
            let (node, from) = self.check_range(&range)?;
            let new = after
                .split_at_checked((range.bytes / 8) as usize)
                .filter(|(new, _)| !new.is_empty());
            let Some((new, after)) = new else {
                return Err(format!("{range:x?} is longer than its record, or empty"));
            };
            runs.push((node, from, new));
            rest = after;
        }
        if !rest.is_empty() || runs.is_empty() {
            return Err(format!("{} words are no changes", record.len()));
        }
        let pm = self.pm();
        for (node, from, new) in runs {
            for (word, value) in node.words[from..].iter().zip(new) {
                // ORDERING: Relaxed; the tree is being opened.
                word.store(pm, *value, Ordering::Relaxed);
            }
            // PERSIST: the record's words in place; the log fences them before it disarms the
            // record.
            pm.flush(node.words[from].addr(), new.len() * 8);
        }
        Ok(())
    }

    /// Saves the allocator's marks. If there is no room for them, the next opening walks.
    pub(super) fn save_marks(&self, root: &Root<M>) {
        saved::save_marks(root, &self.heap, MARKS, &[]);
    }
}
