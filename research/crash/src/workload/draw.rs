//! The operations of each kind of workload, drawn from its seed.
//!
//! Each function draws its random numbers in a fixed order: replay tokens name a workload by its
//! kind, length and seed only, so another order would make old tokens name other operations.

use super::{Kind, STEP};
use crate::rng::Rng;
use crate::subject::Op;
use std::collections::BTreeSet;

/// Operations of the set-up, and those whose crash points are explored.
pub(super) type Lists = (Vec<Op>, Vec<Op>);

/// Draws the keys and values of one workload.
pub(super) struct Draw {
    rng: Rng,
    seed: u64,
    /// Explored operations to make.
    ops: usize,
    /// Largest key that the subject takes.
    max_key: u64,
    /// Distance between the keys `0`, `step`, `2 * step`, ...
    step: u64,
    /// Number of these keys.
    range: u64,
}

impl Draw {
    pub(super) fn new(kind: Kind, ops: usize, seed: u64, max_key: u64) -> Self {
        let step = if max_key / STEP < 256 { 1 } else { STEP };
        Self {
            rng: Rng::new(seed ^ (kind as u64) << 56),
            seed,
            ops,
            max_key,
            step,
            range: (max_key / step).clamp(1, 96),
        }
    }

    /// Returns a key of the range, or its right neighbour.
    fn key(&mut self) -> u64 {
        self.rng.below(self.range) * self.step + self.rng.below(2.min(self.step))
    }

    fn value(&mut self) -> u64 {
        1 + self.rng.below(1 << 20)
    }

    /// Returns `count`, or less if the keys from `first` on end before.
    fn fitting(&self, first: u64, count: u64) -> u64 {
        count.min(self.max_key.saturating_sub(first).max(1))
    }

    pub(super) fn mixed(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        for _ in 0..self.rng.below(50) {
            setup.push(Op::Upsert(self.key(), self.value()));
        }
        for _ in 0..self.ops {
            let (k, v) = (self.key(), self.value());
            ops.push(match self.rng.below(20) {
                0..6 => Op::Insert(k, v),
                6..11 => Op::Upsert(k, v),
                11..13 => Op::Update(k, v),
                13..18 => Op::Remove(k),
                18 => {
                    let count = 2 + self.rng.below(6);
                    Op::Batch {
                        first: k,
                        step: self.step.max(2) / 2,
                        count: self.fitting(k, count),
                        value: v,
                    }
                }
                _ => Op::Get(k),
            });
        }
        (setup, ops)
    }

    pub(super) fn split(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        // Leaves of one to four blocks are full afterwards, or nearly.
        for i in 0..10 + self.rng.below(48) {
            setup.push(Op::Upsert((i % self.range) * self.step, self.value()));
        }
        for _ in 0..self.ops {
            let k = self.rng.below(self.range * self.step);
            ops.push(Op::Insert(k, self.value()));
        }
        (setup, ops)
    }

    pub(super) fn merge(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        for i in 0..self.range.min(40 + self.rng.below(40)) {
            setup.push(Op::Upsert(i * self.step, self.value()));
        }
        // Removing a window of neighbours empties whole leaves.
        let mut at = self.rng.below(self.range);
        for i in 0..self.ops {
            if i % 9 == 8 {
                ops.push(Op::Insert(self.key(), self.value()));
            } else if self.seed % 3 == 2 && i % 3 == 2 {
                // Changes entries at the place that a merge has moved them to.
                let next = (at + self.rng.below(8)) % self.range * self.step;
                ops.push(Op::Update(next, self.value()));
            } else {
                ops.push(Op::Remove(at % self.range * self.step));
                at += 1;
            }
        }
        (setup, ops)
    }

    pub(super) fn dense(&mut self) -> Lists {
        let mut ops = Vec::new();
        let start = self.rng.below(1 << 16);
        for i in 0..self.ops as u64 {
            ops.push(Op::Insert((start + i).min(self.max_key), self.value()));
        }
        (Vec::new(), ops)
    }

    /// Removes a few keys at random, or many neighbours, which empties one leaf after another.
    pub(super) fn drain(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let step = self.step;
        let neighbours = self.seed.is_multiple_of(2) && step > 1;
        let n = if neighbours {
            2 * self.range
        } else {
            self.range.min(self.ops as u64 * 3 / 4)
        };
        let nth = |i: u64| {
            if neighbours {
                i / 2 * step + i % 2
            } else {
                i * step
            }
        };
        let mut keys: Vec<u64> = (0..n).map(nth).collect();
        for key in &keys {
            setup.push(Op::Upsert(*key, self.value()));
        }
        if neighbours {
            keys.rotate_left(self.rng.below(n) as usize);
            keys.truncate(self.ops);
        } else {
            self.rng.shuffle(&mut keys);
        }
        ops.extend(keys.into_iter().map(Op::Remove));
        while ops.len() < self.ops {
            ops.push(Op::Insert(self.key(), self.value()));
        }
        (setup, ops)
    }

    pub(super) fn update(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let n = self.range.min(20 + self.rng.below(16));
        for i in 0..n {
            setup.push(Op::Upsert(i * self.step, self.value()));
        }
        for _ in 0..self.ops {
            let k = (self.rng.below(n + 1) * self.step).min(self.max_key);
            ops.push(if self.rng.below(2) == 0 {
                Op::Update(k, self.value())
            } else {
                Op::Upsert(k, self.value())
            });
        }
        (setup, ops)
    }

    pub(super) fn boundary(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let most = self.max_key;
        let ends = [0, 1, 2, most / 2, most - 2, most - 1, most];
        for i in 0..self.rng.below(20) {
            setup.push(Op::Upsert((i * self.step).min(most), i));
        }
        for _ in 0..self.ops {
            let k = ends[self.rng.index(ends.len())];
            let v = [0, 1, self.value()][self.rng.index(3)];
            ops.push(match self.rng.below(8) {
                0..4 => Op::Upsert(k, v),
                4 => Op::Insert(self.key(), v),
                5 => Op::Update(k, v),
                _ => Op::Remove(k),
            });
        }
        (setup, ops)
    }

    /// Ascending insertion leaves half-full nodes. In the lower half of the range, as many keys in
    /// between fill some of them; in the upper half, only every seventh key stays.
    pub(super) fn churn(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let step = self.step;
        let keys: Vec<u64> = (0..self.range).map(|i| i * step).collect();
        for k in &keys {
            setup.push(Op::Upsert(*k, self.value()));
        }
        let cut = self.range / 2;
        let mut single = Vec::new();
        for (i, k) in keys.iter().enumerate() {
            if (i as u64) < cut {
                setup.push(Op::Upsert(k + 1.min(step - 1), self.value()));
            } else if i % 7 == 3 {
                single.push(*k);
            } else {
                setup.push(Op::Remove(*k));
            }
        }
        for i in 0..self.ops {
            let n = single.len() as u64;
            ops.push(if i % 2 == 0 || n == 0 {
                Op::Upsert(self.rng.below((cut * step).max(1)), self.value())
            } else {
                Op::Remove(single.swap_remove(self.rng.below(n) as usize))
            });
        }
        (setup, ops)
    }

    /// Without a set-up if the creation is explored too.
    pub(super) fn upkeep(&mut self, creation: bool) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let (step, range) = (self.step, self.range);
        let mut doomed = BTreeSet::new();
        if !creation {
            for i in 0..24 + self.rng.below(2 * range) {
                let k = i % range * step + i / range % step;
                setup.push(Op::Upsert(k, self.value()));
                doomed.insert(k);
            }
        }
        // Removing neighbours one after another empties leaves.
        let mut at = self.rng.below(range * step);
        // The map grows and shrinks by turns, so that each clean close saves something else.
        for i in 0..self.ops {
            let (k, v) = (self.key(), self.value());
            let growing = (i / 9).is_multiple_of(2) == setup.is_empty();
            ops.push(match (i + 1) % 9 {
                0 if (i as u64 / 9 + self.seed).is_multiple_of(3) => Op::Compact,
                0 => Op::Reopen,
                _ if growing && self.rng.below(2) == 0 => {
                    let count = 2 + self.rng.below(12);
                    Op::Batch {
                        first: k,
                        step: 1,
                        count: self.fitting(k, count),
                        value: v,
                    }
                }
                _ if growing => Op::Upsert(k, v),
                _ => {
                    let next = doomed.range(at..).next().or(doomed.first());
                    at = next.map_or(k, |next| next + 1);
                    Op::Remove(at.saturating_sub(1))
                }
            });
        }
        (setup, ops)
    }

    pub(super) fn bulk(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        for _ in 0..24 + self.rng.below(self.range) {
            setup.push(Op::Upsert(self.key(), self.value()));
        }
        let mut brought = Vec::new();
        for _ in 0..self.ops {
            let (first, value) = (self.key(), self.value());
            let some = self.rng.below(brought.len().max(1) as u64) as usize;
            ops.push(match self.rng.below(16) {
                0..6 => {
                    let count = 3 + self.rng.below(12);
                    let count = self.fitting(first, count);
                    brought.extend(first..first + count);
                    Op::Batch {
                        first,
                        step: 1,
                        count,
                        value,
                    }
                }
                6..12 if !brought.is_empty() => Op::Remove(brought.swap_remove(some)),
                12..14 => Op::Compact,
                _ => Op::Upsert(first, value),
            });
        }
        (setup, ops)
    }

    /// With three keys, the node of the middle one holds all of them, and the operation after a
    /// crash changes that node.
    pub(super) fn few(&mut self) -> Lists {
        let (mut setup, mut ops) = Lists::default();
        let only_values = self.seed % 2 == 1;
        let n = self.range.min(if only_values {
            3
        } else {
            3 + self.rng.below(4)
        });
        // The set-up is long enough for space to be used again.
        for i in 0..n + 120 + self.rng.below(8) {
            setup.push(Op::Upsert(i % n * self.step, self.value()));
        }
        for i in 0..self.ops {
            if i % 30 == 29 {
                ops.push(Op::Reopen);
            }
            let (k, v) = (self.rng.below(n) * self.step, self.value());
            ops.push(match self.rng.below(3) {
                _ if only_values => Op::Upsert(k, v),
                0 => Op::Insert(k, v),
                1 => Op::Upsert(k, v),
                _ => Op::Remove(k),
            });
        }
        (setup, ops)
    }
}
