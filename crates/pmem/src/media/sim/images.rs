//! Crash images, one at a time, as patches on a base that are decided when they are read.
//!
//! Memory holds what is durable at the crash point. For every word with pending stores it is open
//! which of them the crash kept; the first load of such a word decides (or a store to it, or
//! [`Images::decide_rest`]). So words that recovery never reads cost nothing, and one run stands
//! for all images that agree in what it read. Decisions are taken depth-first and replayed, so that
//! going through all of them visits every distinguishable image once.
//!
//! # Invariants
//! 1. `mask` has a word's bit iff the word is open.
//! 2. An open word's memory holds its durable value.
//! 3. For decided words a, b of one domain: epoch(last store of a that was kept) <= epoch(first
//!    store of b that was lost). `floor` is the greatest of the former, `ceiling` the least of the
//!    latter.
//! 4. Every change to memory, to the length and to the open words is in the undo log, while that is
//!    on.
//! 5. `written` has the page of every word that was ever changed.

use super::buffer::Written;
use super::persistency::{Pending, PendingStore, line_of};
use crate::sync::lock;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// How open words are decided.
#[derive(Clone, Debug)]
pub enum Strategy {
    /// Through all possibilities, one run each.
    DepthFirst,
    /// The crash lost everything that it could.
    Oldest,
    /// The crash lost nothing.
    Newest,
    /// The crash kept all of one domain (by its number) and lost the rest.
    Alone(u32),
    /// At random, from this state on.
    Random(u64),
}

/// A word that was decided: which of its pending stores the crash kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The word (byte offset / 8).
    pub word: u32,
    /// Number of its pending stores, oldest first, that were kept.
    pub kept: u16,
    /// Number of its pending stores.
    pub of: u16,
}

#[derive(Clone, Copy, Debug)]
struct Domain {
    floor: u32,
    ceiling: u32,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    value: u64,
    epoch: u32,
    pair: u32,
    seq: u32,
}

#[derive(Clone, Debug)]
struct Open {
    word: u32,
    domain: u32,
    versions: Range<u32>,
    /// Number of stores kept, once decided.
    kept: u16,
    has_pairs: bool,
    /// The entry that this one hides while it is there (a crash in recovery).
    hides: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Undo {
    Word(u32, u64),
    Decided { open: u32, domain: Domain },
    Length(u64),
}

/// A point to roll back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    undo: usize,
    decided: usize,
}

/// The open words, how they are decided, and how all of it is undone.
#[derive(Debug)]
pub(super) struct Images {
    /// Per line: bits of its open words.
    mask: Vec<u8>,
    index: FxHashMap<u32, u32>,
    open: Vec<Open>,
    versions: Vec<Version>,
    domains: Vec<Domain>,
    /// The stores of a domain, word by word; used while they are opened.
    in_words: Vec<u32>,
    undo: Vec<Undo>,
    pub(super) written: Written,
    pub(super) recording_undo: bool,
    /// The decisions, in order; another thread (a watchdog) may read them.
    pub(super) decided: Arc<Mutex<Vec<Decision>>>,
    strategy: Strategy,
    /// Depth-first: word, choice taken and number of choices, per decision.
    stack: Vec<(u32, u16, u16)>,
    depth: usize,
    /// Depth-first: true if a run did not decide as the one before it had.
    diverged: bool,
}

/// Raw access to the words of a simulation's buffer.
pub(super) trait Memory {
    fn get(&self, word: u32) -> u64;
    fn set(&self, word: u32, value: u64);
}

impl Images {
    pub(super) fn new(words: usize) -> Self {
        Self {
            mask: vec![0; words.div_ceil(8)],
            index: FxHashMap::default(),
            open: Vec::new(),
            versions: Vec::new(),
            domains: Vec::new(),
            in_words: Vec::new(),
            undo: Vec::new(),
            written: Written::new(words),
            recording_undo: false,
            decided: Arc::default(),
            strategy: Strategy::DepthFirst,
            stack: Vec::new(),
            depth: 0,
            diverged: false,
        }
    }

    /// Notes what a word held before it is changed.
    #[inline]
    pub(super) fn log_word(&mut self, word: u32, old: u64) {
        self.written.add(word);
        if self.recording_undo {
            self.undo.push(Undo::Word(word, old));
        }
    }

    pub(super) fn log_length(&mut self, len: u64) {
        if self.recording_undo {
            self.undo.push(Undo::Length(len));
        }
    }

    /// Decides the open words of a range that is about to be accessed.
    #[inline]
    pub(super) fn touch(&mut self, memory: &impl Memory, at: u64, bytes: u64) {
        if self.open.is_empty() || bytes == 0 {
            return;
        }
        let (first, last) = ((at / 8) as u32, ((at + bytes - 1) / 8) as u32);
        for line in line_of(first)..=line_of(last) {
            if self.mask.get(line as usize).is_some_and(|mask| *mask != 0) {
                self.decide_line(memory, first.max(line * 8), last.min(line * 8 + 7));
            }
        }
    }

    #[inline(never)]
    fn decide_line(&mut self, memory: &impl Memory, first: u32, last: u32) {
        for word in first..=last {
            self.decide(memory, word);
        }
    }

    #[inline]
    fn is_open(&self, word: u32) -> bool {
        self.mask[line_of(word) as usize] & 1 << (word % 8) != 0
    }

    fn decide(&mut self, memory: &impl Memory, word: u32) {
        if !self.is_open(word) {
            return;
        }
        let Some(&open) = self.index.get(&word) else {
            return;
        };
        let this = &self.open[open as usize];
        let partner = if this.has_pairs {
            self.index.get(&(word ^ 1)).copied()
        } else {
            None
        };
        let n = this.versions.len() as u16;
        let domain = self.domains[this.domain as usize];
        let candidates: Vec<u16> = (0..=n)
            .filter(|&kept| {
                let (last, first) = self.bounds(open, kept);
                last <= domain.ceiling
                    && first >= domain.floor
                    && partner.is_none_or(|other| {
                        self.is_open(word ^ 1)
                            || self.pairs_agree(open, kept, other, self.open[other as usize].kept)
                    })
            })
            .collect();
        debug_assert!(!candidates.is_empty(), "some prefix is always possible");
        let chosen = self.choose(open, candidates.len() as u16);
        let kept = candidates.get(usize::from(chosen)).copied().unwrap_or(0);
        self.settle(memory, open, kept);
        if partner.is_some() {
            // The other half is bound by this one; decide it while that is known.
            self.decide(memory, word ^ 1);
        }
    }

    /// Returns the epoch of the last store kept (0: none) and of the first one lost (the greatest:
    /// none).
    fn bounds(&self, open: u32, kept: u16) -> (u32, u32) {
        let versions = &self.versions[self.range(open)];
        let last = match kept {
            0 => 0,
            kept => versions[usize::from(kept) - 1].epoch,
        };
        let first = versions
            .get(usize::from(kept))
            .map_or(u32::MAX, |v| v.epoch);
        (last, first)
    }

    fn range(&self, open: u32) -> Range<usize> {
        let range = &self.open[open as usize].versions;
        range.start as usize..range.end as usize
    }

    fn pairs_agree(&self, a: u32, kept_a: u16, b: u32, kept_b: u16) -> bool {
        let other = &self.versions[self.range(b)];
        self.versions[self.range(a)]
            .iter()
            .enumerate()
            .filter(|(_, version)| version.pair != 0)
            .all(|(i, version)| {
                other
                    .iter()
                    .position(|v| v.pair == version.pair)
                    .is_none_or(|j| (i < usize::from(kept_a)) == (j < usize::from(kept_b)))
            })
    }

    fn settle(&mut self, memory: &impl Memory, open: u32, kept: u16) {
        let (last, first) = self.bounds(open, kept);
        let Open { word, domain, .. } = self.open[open as usize];
        let before = self.domains[domain as usize];
        self.undo.push(Undo::Decided {
            open,
            domain: before,
        });
        self.domains[domain as usize] = Domain {
            floor: before.floor.max(last),
            ceiling: before.ceiling.min(first),
        };
        self.mask[line_of(word) as usize] &= !(1 << (word % 8));
        self.open[open as usize].kept = kept;
        lock(&self.decided).push(Decision {
            word,
            kept,
            of: self.range(open).len() as u16,
        });
        if kept > 0 {
            let value = self.versions[self.range(open)][usize::from(kept) - 1].value;
            self.written.add(word);
            self.undo.push(Undo::Word(word, memory.get(word)));
            memory.set(word, value);
        }
    }

    fn choose(&mut self, open: u32, choices: u16) -> u16 {
        match &mut self.strategy {
            Strategy::DepthFirst => {
                let word = self.open[open as usize].word;
                let planned = self.stack.get(self.depth).copied();
                let taken = match planned {
                    Some((of, taken, n)) if (of, n) == (word, choices) => taken,
                    _ => {
                        // The plan does not fit a run that went another way.
                        self.diverged |= planned.is_some();
                        self.stack.truncate(self.depth);
                        self.stack.push((word, 0, choices));
                        0
                    }
                };
                self.depth += 1;
                taken
            }
            Strategy::Oldest => 0,
            Strategy::Newest => choices - 1,
            Strategy::Alone(domain) => {
                if self.open[open as usize].domain == *domain {
                    choices - 1
                } else {
                    0
                }
            }
            Strategy::Random(state) => {
                // xorshift64*
                *state ^= *state >> 12;
                *state ^= *state << 25;
                *state ^= *state >> 27;
                ((state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % u64::from(choices)) as u16
            }
        }
    }

    /// Decides every word that is still open.
    pub(super) fn decide_rest(&mut self, memory: &impl Memory) {
        for i in 0..self.open.len() {
            let word = self.open[i].word;
            self.decide(memory, word);
        }
    }

    /// Opens the words of `pending`; those opened before stay open. If `newest` is the number of a
    /// store, only images that kept it are meant. Returns the argument for `close`.
    pub(super) fn expose(
        &mut self,
        memory: &impl Memory,
        pending: &Pending,
        newest: Option<u32>,
    ) -> usize {
        let from = self.open.len();
        let mut forced = None;
        for stores in pending.domains() {
            let domain = self.domains.len() as u32;
            self.domains.push(Domain {
                floor: 0,
                ceiling: u32::MAX,
            });
            self.in_words.clear();
            self.in_words.extend(0..stores.len() as u32);
            // Stable: the stores of a word keep their order.
            self.in_words
                .sort_by_key(|store| stores[*store as usize].word);
            let mut rest = self.in_words.as_slice();
            while let Some(&first) = rest.first() {
                let word = stores[first as usize].word;
                let n = rest.partition_point(|store| stores[*store as usize].word == word);
                let (of_word, later) = rest.split_at(n);
                rest = later;
                let start = self.versions.len() as u32;
                self.versions.extend(of_word.iter().map(|store| {
                    let store: &PendingStore = &stores[*store as usize];
                    Version {
                        value: store.value,
                        epoch: store.epoch,
                        pair: store.pair,
                        seq: store.seq,
                    }
                }));
                let versions = start..self.versions.len() as u32;
                let open = self.open.len() as u32;
                let has_pairs = self.versions[start as usize..].iter().any(|v| v.pair != 0);
                if newest.is_some() && self.versions.last().map(|v| v.seq) == newest {
                    forced = Some((open, versions.len() as u16));
                }
                let hides = self.index.insert(word, open);
                self.open.push(Open {
                    word,
                    domain,
                    versions,
                    kept: 0,
                    has_pairs,
                    hides,
                });
                self.mask[line_of(word) as usize] |= 1 << (word % 8);
            }
        }
        if let Some((open, kept)) = forced {
            self.settle(memory, open, kept);
        }
        from
    }

    /// Forgets what was exposed since; everything since must have been rolled back.
    pub(super) fn close(&mut self, from: usize) {
        while self.open.len() > from {
            let Some(open) = self.open.pop() else { break };
            let line = line_of(open.word) as usize;
            self.mask[line] &= !(1 << (open.word % 8));
            match open.hides {
                Some(hidden) => {
                    self.index.insert(open.word, hidden);
                }
                None => {
                    self.index.remove(&open.word);
                }
            }
            self.versions.truncate(open.versions.start as usize);
            self.domains.truncate(open.domain as usize);
        }
        if from == 0 {
            self.domains.clear();
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            undo: self.undo.len(),
            decided: lock(&self.decided).len(),
        }
    }

    /// Restores memory and the open words to `mark`. Returns the length to restore, if it changed.
    pub(super) fn roll_back(&mut self, memory: &impl Memory, mark: Mark) -> Option<u64> {
        let mut length = None;
        while self.undo.len() > mark.undo {
            match self.undo.pop() {
                Some(Undo::Word(word, old)) => memory.set(word, old),
                Some(Undo::Decided { open, domain }) => {
                    let Open {
                        word, domain: of, ..
                    } = self.open[open as usize];
                    self.domains[of as usize] = domain;
                    self.mask[line_of(word) as usize] |= 1 << (word % 8);
                }
                Some(Undo::Length(len)) => length = Some(len),
                None => break,
            }
        }
        lock(&self.decided).truncate(mark.decided);
        length
    }

    /// Returns the decisions since `mark`, in order.
    pub(super) fn decisions(&self, mark: Mark) -> Vec<Decision> {
        lock(&self.decided)[mark.decided..].to_vec()
    }

    /// Decides words as they were decided before; words that are decided already stay so. Returns
    /// false if some word has nothing to decide, or fewer stores: the decisions are another
    /// image's, and the rest was left.
    pub(super) fn impose(&mut self, memory: &impl Memory, decisions: &[Decision]) -> bool {
        decisions.iter().all(|decision| {
            let Some(&open) = self.index.get(&decision.word) else {
                return false;
            };
            if self.is_open(decision.word) {
                if usize::from(decision.kept) > self.range(open).len() {
                    return false;
                }
                self.settle(memory, open, decision.kept);
            }
            true
        })
    }

    pub(super) fn set_strategy(&mut self, strategy: Strategy) {
        self.strategy = strategy;
        self.stack.clear();
        self.depth = 0;
        self.diverged = false;
    }

    /// Depth-first: returns the number of decisions taken so far, which a deeper exploration leaves
    /// alone.
    pub(super) fn depth(&self) -> usize {
        self.stack.len()
    }

    /// Depth-first: returns true if some run read otherwise than the one before it under the same
    /// decisions, so that not all images were visited.
    pub(super) fn diverged(&self) -> bool {
        self.diverged
    }

    /// Depth-first: begins a run whose first `base` decisions are imposed already.
    pub(super) fn begin(&mut self, base: usize) {
        self.depth = base;
    }

    /// Depth-first: forgets the choices below the first `base` decisions.
    pub(super) fn forget_below(&mut self, base: usize) {
        self.stack.truncate(base);
        self.depth = base;
    }

    /// Depth-first: turns to the next image. Returns false if there is none.
    pub(super) fn advance(&mut self, base: usize) -> bool {
        // A run that ended early (a violation) leaves nothing deeper than it went.
        self.stack.truncate(self.depth.max(base));
        while self.stack.len() > base {
            let top = self.stack.len() - 1;
            let (_, taken, of) = &mut self.stack[top];
            *taken += 1;
            if *taken < *of {
                return true;
            }
            self.stack.pop();
        }
        false
    }
}
