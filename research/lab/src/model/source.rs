//! The sequence of the threads' operations.
//!
//! ```text
//! record 0 .......... n | n ............ n + ops
//!        loaded         | new: operation i inserts record n + i
//! ```
//!
//! The records of a phase of inserts count as loaded in the next phase.
//!
//! Operation `i` belongs to thread `i % threads`, so a thread's operations depend only on the seed.

use super::ModelError;
use super::spec::{Phase, RunSpec};
use super::workload::{Op, Workload};
use crate::workload::{Keys, Permutation, Random};

/// The next operation of one thread.
#[derive(Clone, Debug)]
struct Lane {
    /// Number of the operation.
    next: u64,
    random: Random,
    /// The last key at the thread's hot spot.
    hot: u64,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    phase: Phase,
    keys: Keys,
    /// Existing records: those before this one.
    there: u64,
    /// The first record that no phase has used.
    unused: u64,
    /// Number of records that earlier phases have removed, in the order of `order`.
    removed: u64,
    lanes: Vec<Lane>,
    seed: u64,
    order: Permutation,
}

impl Source {
    /// Returns a source. `sorted` holds the loaded keys. [`begin`](Self::begin) must come before
    /// operations.
    ///
    /// # Errors
    /// [`ModelError::Lab`] if the hot spots of a dense workload have no room for all keys.
    pub(crate) fn new(
        spec: &RunSpec,
        phases: &[Phase],
        keys: Keys,
        sorted: &[u64],
    ) -> Result<Self, ModelError> {
        let threads = spec.threads;
        let dense = phases
            .iter()
            .filter(|p| p.workload == Workload::DenseInsert);
        let dense: u64 = dense.map(|p| p.ops.div_ceil(threads as u64)).sum();
        let lane = |t: usize| {
            let hot = if dense > 0 {
                let room = dense;
                let rank = (t + 1) * sorted.len() / threads;
                hot_spot(sorted, rank.max(1), room).ok_or_else(|| {
                    let may_be =
                        "few enough to fit behind a loaded key; take fewer keys or threads";
                    ModelError::parameter("ops", spec.ops, may_be)
                })?
            } else {
                0
            };
            Ok(Lane {
                next: t as u64,
                random: Random::new(spec.seed ^ (t as u64 + 1).wrapping_mul(0x9e37_79b9)),
                hot,
            })
        };
        Ok(Self {
            phase: Phase::of(Workload::Lookup, 0),
            keys,
            there: spec.keys,
            unused: spec.keys,
            removed: 0,
            lanes: (0..threads).map(lane).collect::<Result<_, ModelError>>()?,
            seed: spec.seed ^ 0x6f72_6465,
            order: Permutation::new(spec.keys, spec.seed ^ 0x6f72_6465),
        })
    }

    /// Begins the next phase. After a phase that removes records, phases can only remove more or
    /// insert.
    pub(crate) fn begin(&mut self, phase: &Phase) {
        let before = self.phase;
        match before.workload {
            Workload::Insert => {
                // A phase that inserted only some of its records leaves a gap behind.
                if self.there == self.unused && self.removed == 0 {
                    self.there += before.ops;
                    self.order = Permutation::new(self.there, self.seed);
                }
                self.unused += before.ops;
            }
            Workload::Mixed { .. } | Workload::Described(_) => self.unused += before.ops,
            Workload::Remove => self.removed += before.ops,
            Workload::DenseInsert | Workload::Lookup | Workload::Update | Workload::Scan { .. } => {
            }
        }
        self.phase = *phase;
        for (t, lane) in self.lanes.iter_mut().enumerate() {
            lane.next = t as u64;
        }
    }

    /// Returns the next operation of thread `t`.
    pub(crate) fn next(&mut self, t: usize) -> Option<Op> {
        let threads = self.lanes.len() as u64;
        let lane = &mut self.lanes[t];
        let i = lane.next;
        if i >= self.phase.ops {
            return None;
        }
        lane.next += threads;
        let fresh = Op::Insert {
            key: self.keys.key(self.unused + i),
        };
        let mut any = || self.keys.key(lane.random.below(self.there));
        Some(match self.phase.workload {
            Workload::Insert => fresh,
            Workload::DenseInsert => {
                lane.hot += 1;
                Op::Insert { key: lane.hot }
            }
            Workload::Lookup => Op::Lookup { key: any() },
            Workload::Scan { keys } => Op::Scan { key: any(), keys },
            Workload::Update => Op::Update {
                key: any(),
                value: i,
            },
            Workload::Remove => Op::Remove {
                key: self.keys.key(self.order.at(self.removed + i)),
            },
            Workload::Mixed { lookups } => {
                let key = any();
                if lane.random.below(100) < u64::from(lookups) {
                    Op::Lookup { key }
                } else {
                    fresh
                }
            }
            Workload::Described(mix) => {
                mix.next(&mut lane.random, self.keys, self.there, self.unused + i)
            }
        })
    }
}

/// Returns a loaded key with room for `room` new ones behind it: number `rank` (from 1), or the
/// nearest one before it.
fn hot_spot(sorted: &[u64], rank: usize, room: u64) -> Option<u64> {
    (1..=rank).rev().find_map(|rank| {
        let key = sorted[rank - 1];
        let next = sorted.get(rank).copied().unwrap_or(u64::MAX);
        (next - key > room).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Device;
    use std::collections::BTreeSet;

    fn spec(workload: Workload, threads: usize) -> RunSpec {
        RunSpec {
            index: "lbtree".into(),
            node_bytes: Some(256),
            entry_bytes: 16,
            device: Device::load("dram").unwrap(),
            workload,
            threads,
            keys: 1000,
            ops: 900,
            fill: 1.0,
            seed: 3,
        }
    }

    fn source(workload: Workload, threads: usize) -> (Source, Vec<u64>) {
        let spec = spec(workload, threads);
        let keys = Keys::Random { seed: 3 };
        let mut sorted: Vec<u64> = (0..1000).map(|i| keys.key(i)).collect();
        sorted.sort_unstable();
        let phases = [Phase::of(workload, spec.ops)];
        let mut source = Source::new(&spec, &phases, keys, &sorted).unwrap();
        source.begin(&phases[0]);
        (source, sorted)
    }

    fn all(source: &mut Source) -> Vec<(usize, Op)> {
        let threads = source.lanes.len();
        let mut all = Vec::new();
        for t in 0..threads {
            while let Some(op) = source.next(t) {
                all.push((t, op));
            }
        }
        all
    }

    #[test]
    fn each_operation_is_done_once_and_on_the_keys_that_the_workload_names() {
        for threads in [1, 7] {
            for workload in [
                Workload::Insert,
                Workload::DenseInsert,
                Workload::Lookup,
                Workload::Update,
                Workload::Remove,
                Workload::Scan { keys: 3 },
                Workload::Mixed { lookups: 30 },
            ] {
                let (mut source, sorted) = source(workload, threads);
                let ops = all(&mut source);
                assert_eq!(ops.len(), 900, "{workload}");
                let loaded: BTreeSet<u64> = sorted.into_iter().collect();
                let mut changed = BTreeSet::new();
                let mut lookups = 0;
                for (_, op) in &ops {
                    match *op {
                        Op::Insert { key } => {
                            assert!(!loaded.contains(&key) && changed.insert(key))
                        }
                        Op::Remove { key } => assert!(loaded.contains(&key) && changed.insert(key)),
                        Op::Update { key, .. } => assert!(loaded.contains(&key)),
                        Op::Lookup { key } => {
                            assert!(loaded.contains(&key));
                            lookups += 1;
                        }
                        Op::Scan { key, keys } => assert!(loaded.contains(&key) && keys == 3),
                    }
                }
                let expected = match workload {
                    Workload::Lookup => 900..=900,
                    Workload::Mixed { .. } => 220..=320,
                    _ => 0..=0,
                };
                assert!(expected.contains(&lookups), "{workload}: {lookups}");
            }
        }
    }

    #[test]
    fn dense_inserts_ascend_behind_the_largest_key_or_at_a_spot_for_each_thread() {
        let (mut alone, sorted) = source(Workload::DenseInsert, 1);
        let last = sorted[999];
        let expected: Vec<_> = (1..=900)
            .map(|i| (0, Op::Insert { key: last + i }))
            .collect();
        assert_eq!(all(&mut alone), expected);
        let (mut four, sorted) = source(Workload::DenseInsert, 4);
        let spots: BTreeSet<usize> = all(&mut four)
            .into_iter()
            .map(|(_, op)| match op {
                Op::Insert { key } => sorted.partition_point(|loaded| *loaded < key),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(spots.into_iter().collect::<Vec<_>>(), [250, 500, 750, 1000]);
    }

    #[test]
    fn a_phase_goes_on_from_what_the_one_before_left() {
        let (_, sorted) = source(Workload::Insert, 1);
        let phases = [
            Phase::of(Workload::Insert, 300),
            Phase::of(Workload::DenseInsert, 10),
            Phase::of(Workload::Insert, 200),
            Phase::of(Workload::DenseInsert, 10),
            Phase::of(Workload::Lookup, 5_000),
            Phase::of(Workload::Remove, 700),
            Phase::of(Workload::Remove, 800),
        ];
        let spec = spec(Workload::Insert, 1);
        let keys = Keys::Random { seed: 3 };
        let mut source = Source::new(&spec, &phases, keys, &sorted).unwrap();
        let mut there: BTreeSet<u64> = sorted.iter().copied().collect();
        let mut found = BTreeSet::new();
        for phase in &phases {
            source.begin(phase);
            let ops = all(&mut source);
            assert_eq!(ops.len() as u64, phase.ops);
            for (_, op) in ops {
                match op {
                    Op::Insert { key } => assert!(there.insert(key), "{phase:?}"),
                    Op::Remove { key } => assert!(there.remove(&key), "{phase:?}"),
                    Op::Lookup { key } | Op::Update { key, .. } | Op::Scan { key, .. } => {
                        assert!(there.contains(&key));
                        found.insert(key);
                    }
                }
            }
        }
        // The random insertions were all removed again, and the dense ones are left.
        let left: Vec<u64> = (1..=20).map(|i| sorted[999] + i).collect();
        assert_eq!(there.into_iter().collect::<Vec<_>>(), left);
        assert!(found.len() > 1_300, "keys of all phases are looked up");
    }

    #[test]
    fn a_hot_spot_without_room_moves_to_the_key_before() {
        assert_eq!(hot_spot(&[10, 100, 105], 2, 5), Some(10));
        assert_eq!(hot_spot(&[10, 100, 105], 2, 4), Some(100));
        assert_eq!(hot_spot(&[u64::MAX - 3], 1, 3), None);
    }
}
