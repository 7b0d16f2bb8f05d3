//! What makes a change of one or several nodes crash-atomic.
//!
//! ```text
//! begin   | before-images to a log slot, flush, fence, head of the slot (NAW)        micro-log, undo
//! store   | in place; the lines that it touches are noted
//! commit  | flush of the noted lines, fence, head of the slot = 0 (NAW)
//! ```
//!
//! What goes into the before-images is the mechanism's ([`Protect`]): *LCB+-Tree* logs the original copy of
//! every node that it modifies (NV-Tree paper, section 3.1: "before modifying a node, its original copy
//! is logged and flushed. The modified part of it is then flushed"), so its log is as long as the nodes;
//! *persistent unsorted* logs what a structural modification is going to overwrite. Nodes that
//! nothing leads to yet are written and flushed without a log; the change's own fence makes them durable
//! before it is final.
//!
//! # Concurrency
//! A change holds the version locks of all nodes that it stores to, from before `begin` until after
//! `commit`. It waits for a log slot while it holds them; who has a slot waits for nothing.

use super::node::Node;
use bristlecone_pmem::log::{Range, Slot, image_words};
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Logs, Media};
use std::sync::atomic::Ordering;

/// Most existing nodes that one change stores to.
pub const MOST_NODES: usize = 2;
/// Most ranges that one change overwrites.
const MOST_RANGES: usize = 8;

/// Words of a node that a change is going to overwrite.
#[derive(Clone, Copy, Debug)]
pub struct Overwritten<'t> {
    pub node: Node<'t>,
    /// First word.
    pub from: usize,
    /// How many.
    pub words: usize,
}

/// A mechanism: which before-images it logs.
pub trait Protect: Send + Sync + 'static {
    /// Payload words of a log slot, for nodes of `words` words.
    fn slot_words(words: usize) -> usize;

    /// The range to log for words that are going to be overwritten.
    fn image(overwritten: &Overwritten<'_>) -> Range;
}

/// Logs the original copy of every node that is modified (LCB+-Tree).
#[derive(Debug)]
pub struct WholeNodes;

impl Protect for WholeNodes {
    fn slot_words(words: usize) -> usize {
        image_words(MOST_NODES, MOST_NODES * words * 8)
    }

    fn image(overwritten: &Overwritten<'_>) -> Range {
        Range {
            off: overwritten.node.offset(),
            bytes: overwritten.node.bytes(),
        }
    }
}

/// Logs what is going to be overwritten (persistent unsorted, for structural modifications).
#[derive(Debug)]
pub struct OverwrittenWords;

impl Protect for OverwrittenWords {
    fn slot_words(words: usize) -> usize {
        image_words(MOST_RANGES, MOST_NODES * words * 8)
    }

    fn image(overwritten: &Overwritten<'_>) -> Range {
        Range {
            off: overwritten.node.offset() + overwritten.from as u64 * 8,
            bytes: overwritten.words as u64 * 8,
        }
    }
}

/// A change that is being made. Dropping it half-way (a panic) leaves its record armed.
#[derive(Debug)]
pub struct Change<'t, M: Media> {
    pm: &'t M,
    /// `None` in a volatile tree, which protects nothing.
    slot: Option<Slot<'t, M>>,
    /// Nodes that were stored to, and their lines that were, a bit each.
    lines: [(Option<Node<'t>>, u64); MOST_NODES],
}

impl<'t, M: Media> Change<'t, M> {
    /// Logs the before-images. No word but those of `overwritten` is stored to afterwards.
    pub fn begin<P: Protect>(
        pm: &'t M,
        logs: &'t Logs<M>,
        overwritten: &[Overwritten<'_>],
    ) -> Self {
        let mut ranges = [Range { off: 0, bytes: 0 }; MOST_RANGES];
        let mut n = 0;
        for words in overwritten.iter().filter(|words| words.words > 0) {
            let range = P::image(words);
            if !ranges[..n].contains(&range) {
                ranges[n] = range;
                n += 1;
            }
        }
        let mut slot = logs.take();
        slot.arm_images(&ranges[..n]);
        Self {
            pm,
            slot: Some(slot),
            lines: [(None, 0); MOST_NODES],
        }
    }

    /// A change of a volatile tree: nothing is logged, and nothing will be flushed.
    pub fn unprotected(pm: &'t M) -> Self {
        Self {
            pm,
            slot: None,
            lines: [(None, 0); MOST_NODES],
        }
    }

    /// Stores a word of a node.
    #[inline]
    #[track_caller]
    pub fn store(&mut self, node: Node<'t>, word: usize, value: u64) {
        // ORDERING: Relaxed; the node is locked, and unlocked with Release.
        node.words[word].store(self.pm, value, Ordering::Relaxed);
        let line = 1 << (word * 8 / LINE);
        for (noted, lines) in &mut self.lines {
            match noted {
                Some(noted) if noted.at != node.at => {}
                _ => {
                    *noted = Some(node);
                    *lines |= line;
                    return;
                }
            }
        }
        debug_assert!(false, "a change of more than {MOST_NODES} nodes");
    }

    /// Makes the change final: on return it is durable, and so is everything that the caller flushed.
    pub fn commit(self) {
        let Some(mut slot) = self.slot else { return };
        for (node, mut lines) in self.lines {
            let Some(node) = node else { continue };
            while lines != 0 {
                // Neighbouring lines together.
                let first = lines.trailing_zeros() as usize;
                let run = (lines >> first).trailing_ones() as usize;
                // PERSIST: the lines that were changed, before the before-images are given up.
                self.pm
                    .flush(node.words[first * LINE / 8].addr(), run * LINE);
                lines &= (!0u64).checked_shl((first + run) as u32).unwrap_or(0);
            }
        }
        // PERSIST: those lines, and the nodes and records that the change leads to.
        self.pm.fence();
        slot.disarm();
    }
}
