//! Crash-atomic changes of one or several nodes.
//!
//! ```text
//!         | undo                                         | redo (write-ahead)
//! begin   | before-images to a log slot, flush, fence,   |
//!         | head of the slot (NAW)                       |
//! store   | in place; the lines that it touches are noted | into the record, in the log slot
//! commit  | flush of the noted lines, fence,             | flush of the record, fence, head of the slot (NAW);
//!         | head of the slot = 0 (NAW)                   | the words in place, flush of their lines, fence,
//!         |                                              | head of the slot = 0 (NAW)
//! ```
//!
//! The mechanism ([`Protect`]) decides what is logged:
//!
//! | mechanism | a record holds | design |
//! | --- | --- | --- |
//! | [`WholeNodes`] | the original copy of every node that is modified | *LCB+-Tree*, NVT-A |
//! | [`OverwrittenWords`] | the old values of the words to be overwritten | *persistent unsorted*, for structural modifications |
//! | [`NewWords`] | the new values of the words to be overwritten | *btree-WAL* (UCSC-CRSS-20-01, section 3.1) |
//!
//! (NV-Tree paper, section 3.1: "before modifying a node, its original copy is logged and flushed.
//! The modified part of it is then flushed".)
//!
//! Nodes that nothing leads to yet are written and flushed without a log. Under an undo log the
//! change's own fence makes them durable before the change is final. A redo record *is* the change
//! once it counts. Therefore the new nodes, and the records of keys and values, are durable before
//! the record counts: by the fence between the record and its head, or by a fence of its own if the
//! record is so short that it shares the head's line.
//!
//! In a volatile tree nothing is logged or fenced. Nothing is flushed either, unless the tree
//! flushes in groups: then those of the noted lines that have a modified neighbour are flushed
//! (UCSC-CRSS-20-01, section 6.2: "we only perform flushes if two or more cache-lines can be
//! flushed in batch").
//!
//! # Concurrency
//! A change holds the version locks of all nodes that it stores to, from before `begin` until after
//! `commit`. It may wait for a log slot while it holds them; a thread that has a slot waits for
//! nothing.

use super::node::Node;
use crate::repr::Word;
use bristlecone_pmem::log::{NEAR, Range, Slot, image_words};
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Logs, Media};
use std::sync::atomic::Ordering;

/// Maximum number of existing nodes that one change stores to.
pub const MAX_NODES: usize = 2;
/// Maximum number of ranges that one change overwrites.
const MAX_RANGES: usize = 8;

/// Words of a node that a change will overwrite, all of them.
#[derive(Clone, Copy, Debug)]
pub struct Overwritten<'t> {
    pub node: Node<'t>,
    /// Index of the first word.
    pub from: usize,
    /// Number of words.
    pub words: usize,
}

impl Overwritten<'_> {
    fn range(&self) -> Range {
        Range {
            off: self.node.offset() + self.from as u64 * 8,
            bytes: self.words as u64 * 8,
        }
    }
}

/// Kind of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Undo: the content before the change.
    Undo,
    /// Redo: the content after it.
    Redo,
}

/// A mechanism of protection.
pub trait Protect: Send + Sync + 'static {
    /// Kind of log that it writes.
    const LOG: Log;

    /// Returns the payload words of a log slot, for nodes of `words` words.
    fn slot_words(words: usize) -> usize;

    /// Returns the range to log for words that will be overwritten.
    fn image(overwritten: &Overwritten<'_>) -> Range;
}

/// Logs the original copy of every node that is modified (LCB+-Tree).
#[derive(Debug)]
pub struct WholeNodes;

impl Protect for WholeNodes {
    const LOG: Log = Log::Undo;

    fn slot_words(words: usize) -> usize {
        image_words(MAX_NODES, MAX_NODES * words * 8)
    }

    fn image(overwritten: &Overwritten<'_>) -> Range {
        Range {
            off: overwritten.node.offset(),
            bytes: overwritten.node.bytes(),
        }
    }
}

/// Logs the old values of the words that are overwritten (persistent unsorted, for structural
/// modifications).
#[derive(Debug)]
pub struct OverwrittenWords;

impl Protect for OverwrittenWords {
    const LOG: Log = Log::Undo;

    fn slot_words(words: usize) -> usize {
        image_words(MAX_RANGES, MAX_NODES * words * 8)
    }

    fn image(overwritten: &Overwritten<'_>) -> Range {
        overwritten.range()
    }
}

/// Logs the new values of the words that are overwritten (btree-WAL).
#[derive(Debug)]
pub struct NewWords;

impl Protect for NewWords {
    const LOG: Log = Log::Redo;

    fn slot_words(words: usize) -> usize {
        OverwrittenWords::slot_words(words)
    }

    fn image(overwritten: &Overwritten<'_>) -> Range {
        overwritten.range()
    }
}

/// Words of a redo record: words `from..` of a node are the payload words `at..`.
#[derive(Clone, Copy, Debug)]
struct Run<'t> {
    words: Overwritten<'t>,
    at: usize,
}

/// Way of making a change.
#[derive(Debug)]
enum How<'t, M: Media> {
    /// In place, after the before-images were armed.
    Undo(Slot<'t, M>),
    /// In the record.
    Redo(Slot<'t, M>),
    /// In place, in a volatile tree.
    Volatile {
        /// True if neighbouring modified lines are flushed together.
        group_flush: bool,
    },
}

/// Nodes that were stored to, and a bit for each of their modified lines.
#[derive(Debug)]
struct Lines<'t>([(Option<Node<'t>>, u128); MAX_NODES]);

impl<'t> Lines<'t> {
    #[inline]
    fn note(&mut self, node: Node<'t>, word: usize) {
        let line = 1 << (word * 8 / LINE);
        for (noted, lines) in &mut self.0 {
            match noted {
                Some(noted) if noted.at != node.at => {}
                _ => {
                    *noted = Some(node);
                    *lines |= line;
                    return;
                }
            }
        }
        debug_assert!(false, "a change of more than {MAX_NODES} nodes");
    }

    /// Flushes the lines in runs of `least` lines or more, each run together.
    #[track_caller]
    fn flush<M: Media>(&self, pm: &M, least: usize) {
        for (node, mut lines) in self.0 {
            let Some(node) = node else { continue };
            while lines != 0 {
                let first = lines.trailing_zeros() as usize;
                let run = (lines >> first).trailing_ones() as usize;
                if run >= least {
                    // PERSIST: a run of changed lines, not fenced; each caller says what it
                    // precedes.
                    pm.flush(node.words[first * LINE / 8].addr(), run * LINE);
                }
                lines &= (!0u128).checked_shl((first + run) as u32).unwrap_or(0);
            }
        }
    }
}

/// A change in progress. Dropping it half-way (a panic) leaves its record armed.
#[derive(Debug)]
pub struct Change<'t, M: Media> {
    pm: &'t M,
    how: How<'t, M>,
    lines: Lines<'t>,
    /// The words that a redo record covers.
    runs: [Option<Run<'t>>; MAX_RANGES],
    /// Number of payload words used.
    used: usize,
    /// True if the change leads to something that was flushed and not fenced yet.
    leads_on: bool,
}

impl<'t, M: Media> Change<'t, M> {
    fn of(pm: &'t M, how: How<'t, M>) -> Self {
        Self {
            pm,
            how,
            lines: Lines([(None, 0); MAX_NODES]),
            runs: [None; MAX_RANGES],
            used: 0,
            leads_on: false,
        }
    }

    /// Begins a change of exactly the words of `overwritten`. `leads_on` is true if it may lead to
    /// something that was flushed and not fenced yet.
    pub fn begin<P: Protect>(
        pm: &'t M,
        logs: &'t Logs<M>,
        overwritten: &[Overwritten<'t>],
        leads_on: bool,
    ) -> Self {
        let overwritten = overwritten.iter().filter(|words| words.words > 0);
        let mut slot = logs.take();
        match P::LOG {
            Log::Undo => {
                let mut ranges = [Range { off: 0, bytes: 0 }; MAX_RANGES];
                let mut n = 0;
                for words in overwritten {
                    let range = P::image(words);
                    if !ranges[..n].contains(&range) {
                        ranges[n] = range;
                        n += 1;
                    }
                }
                slot.arm_images(&ranges[..n]);
                Self::of(pm, How::Undo(slot))
            }
            Log::Redo => {
                let mut runs = [None; MAX_RANGES];
                let mut used = 0;
                for (run, words) in runs.iter_mut().zip(overwritten) {
                    let range = P::image(words);
                    slot.put(used, range.off);
                    slot.put(used + 1, range.bytes);
                    *run = Some(Run {
                        words: *words,
                        at: used + 2,
                    });
                    used += 2 + words.words;
                }
                Self {
                    runs,
                    used,
                    leads_on,
                    ..Self::of(pm, How::Redo(slot))
                }
            }
        }
    }

    /// Begins a change of a volatile tree: nothing is logged, and lines are flushed only in groups.
    pub fn unprotected(pm: &'t M, group_flush: bool) -> Self {
        Self::of(pm, How::Volatile { group_flush })
    }

    /// Stores a word of a node. Before `commit`, reads of the node may return its old content.
    #[inline]
    #[track_caller]
    pub fn store(&mut self, node: Node<'t>, word: usize, value: u64) {
        match &mut self.how {
            How::Redo(slot) => {
                let within = |run: &&Run<'_>| {
                    run.words.node.at == node.at
                        && (run.words.from..run.words.from + run.words.words).contains(&word)
                };
                match self.runs.iter().flatten().find(within) {
                    Some(run) => slot.put(run.at + word - run.words.from, value),
                    None => debug_assert!(false, "word {word} was not announced"),
                }
            }
            How::Undo(_) | How::Volatile { .. } => {
                // ORDERING: Relaxed; the node is locked, and unlocked with Release.
                node.words[word].store(self.pm, value, Ordering::Relaxed);
                self.lines.note(node, word);
            }
        }
    }

    /// Stores a key or value of a node, whose words begin at `word`.
    #[inline]
    #[track_caller]
    pub fn store_wide<W: Word>(&mut self, node: Node<'t>, word: usize, value: W) {
        let parts = value.parts();
        for (i, part) in parts.into_iter().enumerate().take(W::WORDS) {
            self.store(node, word + i, part);
        }
    }

    /// Makes the change final. On return it is durable, and so is everything that the caller
    /// flushed.
    pub fn commit(mut self) {
        let pm = self.pm;
        match self.how {
            How::Undo(mut slot) => {
                // PERSIST: the changed lines, before the before-images are discarded.
                self.lines.flush(pm, 1);
                // PERSIST: the changed lines, and the nodes and records that the change leads to.
                pm.fence();
                slot.disarm();
            }
            How::Redo(mut slot) => {
                if self.leads_on && self.used <= NEAR {
                    // PERSIST: what the record leads to, before the record counts; a longer record
                    // is fenced before its head.
                    pm.fence();
                }
                slot.arm_put(self.used);
                for run in self.runs.iter().flatten() {
                    let Overwritten { node, from, words } = run.words;
                    for i in 0..words {
                        // ORDERING: Relaxed; the node is locked, and unlocked with Release.
                        node.words[from + i].store(pm, slot.get(run.at + i), Ordering::Relaxed);
                        self.lines.note(node, from + i);
                    }
                }
                // PERSIST: the words in place, before the record with their values is discarded.
                self.lines.flush(pm, 1);
                pm.fence();
                slot.disarm();
            }
            How::Volatile { group_flush } => {
                if group_flush {
                    // PERSIST: nothing; neighbouring lines reach the device together, so that it
                    // writes a media line once.
                    self.lines.flush(pm, 2);
                }
            }
        }
    }
}
