//! Workloads: short lists of operations that bring a structure to where its crash states are interesting.

use crate::rng::Rng;
use crate::subject::{Op, Subject};
use std::fmt;

/// Which kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Everything, at random, on a few dozen keys.
    Mixed,
    /// Random new keys only: nodes fill and split.
    Split,
    /// Removals from full nodes, few insertions: nodes empty and go.
    Merge,
    /// Ascending keys.
    Dense,
    /// Everything that is there is removed, in random order, and some of it comes back.
    Drain,
    /// Values are replaced in place.
    Update,
    /// Smallest and largest keys, and neighbours.
    Boundary,
    /// Full nodes split while nodes with one entry go.
    Churn,
    /// Batches, clean closing and reopening, giving space back.
    Upkeep,
    /// Everything, on a handful of keys: what is done after a crash changes what the crash cut short.
    Few,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Mixed,
        Self::Split,
        Self::Merge,
        Self::Dense,
        Self::Drain,
        Self::Update,
        Self::Boundary,
        Self::Churn,
        Self::Upkeep,
        Self::Few,
    ];

    /// The name that the command line uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Split => "split",
            Self::Merge => "merge",
            Self::Dense => "dense",
            Self::Drain => "drain",
            Self::Update => "update",
            Self::Boundary => "boundary",
            Self::Churn => "churn",
            Self::Upkeep => "upkeep",
            Self::Few => "few",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What to do: first `setup`, whose crashes are not looked at, then `ops`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Operations before the explored ones. Empty if creation is explored too.
    pub setup: Vec<Op>,
    /// Operations whose crash points are explored.
    pub ops: Vec<Op>,
    /// Whether crashes while the structure is being created are explored.
    pub creation: bool,
    /// Whether memory holds garbage before the creation, as a device does.
    pub dirty: bool,
}

/// Keys are this far apart, so that others fit between them.
pub(crate) const STEP: u64 = 16;

impl Workload {
    /// `ops` operations of a kind.
    #[must_use]
    pub fn generate(kind: Kind, ops: usize, seed: u64, subject: &dyn Subject) -> Self {
        let mut rng = Rng::new(seed ^ (kind as u64) << 56);
        let most = subject.max_key();
        let step = if most / STEP < 256 { 1 } else { STEP };
        let range = (most / step).clamp(1, 96);
        let mut w = Self {
            creation: kind == Kind::Upkeep && seed % 2 == 1,
            dirty: kind == Kind::Upkeep && seed % 4 == 3,
            ..Self::default()
        };
        let key = |rng: &mut Rng| rng.below(range) * step + rng.below(2.min(step));
        let value = |rng: &mut Rng| 1 + rng.below(1 << 20);
        match kind {
            Kind::Mixed => {
                for _ in 0..rng.below(50) {
                    w.setup.push(Op::Upsert(key(&mut rng), value(&mut rng)));
                }
                for _ in 0..ops {
                    let (k, v) = (key(&mut rng), value(&mut rng));
                    w.ops.push(match rng.below(20) {
                        0..6 => Op::Insert(k, v),
                        6..11 => Op::Upsert(k, v),
                        11..13 => Op::Update(k, v),
                        13..18 => Op::Remove(k),
                        18 => Op::Batch {
                            first: k,
                            step: step.max(2) / 2,
                            count: (2 + rng.below(6)).min(most.saturating_sub(k).max(1)),
                            value: v,
                        },
                        _ => Op::Get(k),
                    });
                }
            }
            Kind::Split => {
                // Full leaves of one to four blocks, or nearly.
                for i in 0..10 + rng.below(48) {
                    w.setup
                        .push(Op::Upsert((i % range) * step, value(&mut rng)));
                }
                for _ in 0..ops {
                    let k = rng.below(range * step);
                    w.ops.push(Op::Insert(k, value(&mut rng)));
                }
            }
            Kind::Merge => {
                for i in 0..range.min(40 + rng.below(40)) {
                    w.setup.push(Op::Upsert(i * step, value(&mut rng)));
                }
                // A window of keys goes, so that whole leaves do.
                let mut at = rng.below(range);
                for i in 0..ops {
                    if i % 9 == 8 {
                        w.ops.push(Op::Insert(key(&mut rng), value(&mut rng)));
                    } else if seed % 3 == 2 && i % 3 == 2 {
                        // What a merge has moved is changed where it is now.
                        let next = (at + rng.below(8)) % range * step;
                        w.ops.push(Op::Update(next, value(&mut rng)));
                    } else {
                        w.ops.push(Op::Remove(at % range * step));
                        at += 1;
                    }
                }
            }
            Kind::Dense => {
                let start = rng.below(1 << 16);
                for i in 0..ops as u64 {
                    w.ops
                        .push(Op::Insert((start + i).min(most), value(&mut rng)));
                }
            }
            Kind::Drain => {
                // All of a few keys at random, or many neighbours: one leaf after another.
                let neighbours = seed.is_multiple_of(2) && step > 1;
                let n = if neighbours {
                    2 * range
                } else {
                    range.min(ops as u64 * 3 / 4)
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
                    w.setup.push(Op::Upsert(*key, value(&mut rng)));
                }
                if neighbours {
                    keys.rotate_left(rng.below(n) as usize);
                    keys.truncate(ops);
                } else {
                    rng.shuffle(&mut keys);
                }
                w.ops.extend(keys.into_iter().map(Op::Remove));
                while w.ops.len() < ops {
                    w.ops.push(Op::Insert(key(&mut rng), value(&mut rng)));
                }
            }
            Kind::Update => {
                let n = range.min(20 + rng.below(16));
                for i in 0..n {
                    w.setup.push(Op::Upsert(i * step, value(&mut rng)));
                }
                for _ in 0..ops {
                    let k = rng.below(n + 1) * step;
                    w.ops.push(if rng.below(2) == 0 {
                        Op::Update(k.min(most), value(&mut rng))
                    } else {
                        Op::Upsert(k.min(most), value(&mut rng))
                    });
                }
            }
            Kind::Boundary => {
                let ends = [0, 1, 2, most / 2, most - 2, most - 1, most];
                for i in 0..rng.below(20) {
                    w.setup.push(Op::Upsert((i * step).min(most), i));
                }
                for _ in 0..ops {
                    let k = ends[rng.index(ends.len())];
                    let v = [0, 1, value(&mut rng)][rng.index(3)];
                    w.ops.push(match rng.below(8) {
                        0..4 => Op::Upsert(k, v),
                        4 => Op::Insert(key(&mut rng), v),
                        5 => Op::Update(k, v),
                        _ => Op::Remove(k),
                    });
                }
            }
            Kind::Churn => {
                // Ascending insertion leaves half-full nodes; as many keys between fill some of them.
                // Of others all but one key in seven goes.
                let keys: Vec<u64> = (0..range).map(|i| i * step).collect();
                for k in &keys {
                    w.setup.push(Op::Upsert(*k, value(&mut rng)));
                }
                let cut = range / 2;
                let mut single = Vec::new();
                for (i, k) in keys.iter().enumerate() {
                    if (i as u64) < cut {
                        w.setup
                            .push(Op::Upsert(k + 1.min(step - 1), value(&mut rng)));
                    } else if i % 7 == 3 {
                        single.push(*k);
                    } else {
                        w.setup.push(Op::Remove(*k));
                    }
                }
                for i in 0..ops {
                    let n = single.len() as u64;
                    w.ops.push(if i % 2 == 0 || n == 0 {
                        Op::Upsert(rng.below((cut * step).max(1)), value(&mut rng))
                    } else {
                        Op::Remove(single.swap_remove(rng.below(n) as usize))
                    });
                }
            }
            Kind::Upkeep => {
                // Neighbours go one after another, so that leaves do.
                let mut doomed = std::collections::BTreeSet::new();
                if !w.creation {
                    for i in 0..24 + rng.below(2 * range) {
                        let k = i % range * step + i / range % step;
                        w.setup.push(Op::Upsert(k, value(&mut rng)));
                        doomed.insert(k);
                    }
                }
                let mut at = rng.below(range * step);
                // Grows and shrinks by turns, so that what a closing saves differs from one to the next.
                for i in 0..ops {
                    let (k, v) = (key(&mut rng), value(&mut rng));
                    let growing = (i / 9).is_multiple_of(2) == w.setup.is_empty();
                    w.ops.push(match (i + 1) % 9 {
                        0 if (i as u64 / 9 + seed).is_multiple_of(3) => Op::Compact,
                        0 => Op::Reopen,
                        _ if growing && rng.below(2) == 0 => Op::Batch {
                            first: k,
                            step: 1,
                            count: (2 + rng.below(12)).min(most.saturating_sub(k).max(1)),
                            value: v,
                        },
                        _ if growing => Op::Upsert(k, v),
                        _ => {
                            let next = doomed.range(at..).next().or(doomed.first());
                            at = next.map_or(k, |next| next + 1);
                            Op::Remove(at.saturating_sub(1))
                        }
                    });
                }
            }
            Kind::Few => {
                // Of three keys the middle one's node, which the operation after a crash changes, is that of all.
                let only_values = seed % 2 == 1;
                let n = range.min(if only_values { 3 } else { 3 + rng.below(4) });
                // So many that space is being used again.
                for i in 0..n + 120 + rng.below(8) {
                    w.setup.push(Op::Upsert(i % n * step, value(&mut rng)));
                }
                for i in 0..ops {
                    if i % 30 == 29 {
                        w.ops.push(Op::Reopen);
                    }
                    let (k, v) = (rng.below(n) * step, value(&mut rng));
                    w.ops.push(match rng.below(3) {
                        _ if only_values => Op::Upsert(k, v),
                        0 => Op::Insert(k, v),
                        1 => Op::Upsert(k, v),
                        _ => Op::Remove(k),
                    });
                }
            }
        }
        let cannot = |op: &Op| !subject.can(op);
        w.setup.retain(|op| !cannot(op));
        w.ops.retain(|op| !cannot(op));
        w
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Fault, Live, Opened};
    use crate::subjects::batch_keys;

    struct Numbers(u64);

    impl Subject for Numbers {
        fn name(&self) -> String {
            "numbers".into()
        }
        fn create(&self) -> Result<Box<dyn Live>, Fault> {
            unreachable!("only generated for")
        }
        fn open(&self) -> Result<Opened, Fault> {
            unreachable!("only generated for")
        }
        fn can(&self, op: &Op) -> bool {
            !matches!(op, Op::Compact)
        }
        fn max_key(&self) -> u64 {
            self.0
        }
    }

    fn keys(op: &Op) -> Vec<u64> {
        match *op {
            Op::Insert(k, _) | Op::Upsert(k, _) | Op::Update(k, _) | Op::Remove(k) | Op::Get(k) => {
                vec![k]
            }
            Op::Batch {
                first, step, count, ..
            } => batch_keys(first, step, count).collect(),
            Op::Reopen | Op::Compact => Vec::new(),
        }
    }

    #[test]
    fn workloads_are_repeatable_and_keep_to_what_the_subject_can() {
        for most in [15, 300, u64::MAX] {
            let subject = Numbers(most);
            for kind in Kind::ALL {
                let a = Workload::generate(kind, 60, 7, &subject);
                assert_eq!(a, Workload::generate(kind, 60, 7, &subject), "{kind}");
                assert!(a.ops.len() >= 50, "{kind}: {} operations", a.ops.len());
                assert_eq!(Kind::named(kind.name()), Some(kind));
                for op in a.setup.iter().chain(&a.ops) {
                    assert_ne!(*op, Op::Compact);
                    for key in keys(op) {
                        assert!(key <= most, "{kind}: {op:?} above {most}");
                    }
                }
                if most > 15 {
                    assert_ne!(a, Workload::generate(kind, 60, 8, &subject), "{kind}");
                }
            }
        }
    }
}
