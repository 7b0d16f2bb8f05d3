//! The threads' operations, one after the other, as the workload says.
//!
//! ```text
//! record 0 .......... n | n ............ n + ops
//!        loaded         | new: operation i inserts record n + i
//! ```
//!
//! Operation `i` is thread `i % threads`'s, so what a thread does depends on nothing but the seed.

use super::{ModelError, RunSpec, Workload};
use crate::workload::{Keys, Permutation, Random};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Insert { key: u64 },
    Lookup { key: u64 },
    Update { key: u64, value: u64 },
    Remove { key: u64 },
}

/// What one thread does next.
#[derive(Clone, Debug)]
struct Lane {
    /// Number of the operation.
    next: u64,
    random: Random,
    /// The key at the hot spot.
    hot: u64,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    workload: Workload,
    keys: Keys,
    loaded: u64,
    ops: u64,
    lanes: Vec<Lane>,
    order: Permutation,
}

impl Source {
    /// `sorted` holds the keys that are loaded.
    ///
    /// # Errors
    /// [`ModelError::Lab`] if a dense workload's hot spots have no room for so many keys.
    pub(crate) fn new(spec: &RunSpec, keys: Keys, sorted: &[u64]) -> Result<Self, ModelError> {
        let threads = spec.threads;
        let lane = |t: usize| {
            let hot = if spec.workload == Workload::DenseInsert {
                let room = spec.ops.div_ceil(threads as u64);
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
            workload: spec.workload,
            keys,
            loaded: spec.keys,
            ops: spec.ops,
            lanes: (0..threads).map(lane).collect::<Result<_, ModelError>>()?,
            order: Permutation::new(spec.keys, spec.seed ^ 0x6f72_6465),
        })
    }

    /// The next operation of thread `t`.
    pub(crate) fn next(&mut self, t: usize) -> Option<Op> {
        let threads = self.lanes.len() as u64;
        let lane = &mut self.lanes[t];
        let i = lane.next;
        if i >= self.ops {
            return None;
        }
        lane.next += threads;
        let fresh = Op::Insert {
            key: self.keys.key(self.loaded + i),
        };
        let mut any = || self.keys.key(lane.random.below(self.loaded));
        Some(match self.workload {
            Workload::Insert => fresh,
            Workload::DenseInsert => {
                lane.hot += 1;
                Op::Insert { key: lane.hot }
            }
            Workload::Lookup => Op::Lookup { key: any() },
            Workload::Update => Op::Update {
                key: any(),
                value: i,
            },
            Workload::Remove => Op::Remove {
                key: self.keys.key(self.order.at(i)),
            },
            Workload::Mixed { lookups } => {
                let key = any();
                if lane.random.below(100) < u64::from(lookups) {
                    Op::Lookup { key }
                } else {
                    fresh
                }
            }
        })
    }
}

/// A loaded key with room for `room` new ones behind it: number `rank` (from 1), or the first one
/// with room before that.
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

    fn source(workload: Workload, threads: usize) -> (Source, Vec<u64>) {
        let spec = RunSpec {
            index: "lbtree".into(),
            node_bytes: Some(256),
            device: Device::load("dram").unwrap(),
            workload,
            threads,
            keys: 1000,
            ops: 900,
            fill: 1.0,
            seed: 3,
        };
        let keys = Keys::Random { seed: 3 };
        let mut sorted: Vec<u64> = (0..1000).map(|i| keys.key(i)).collect();
        sorted.sort_unstable();
        let source = Source::new(&spec, keys, &sorted).unwrap();
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
    fn a_hot_spot_without_room_moves_to_the_key_before() {
        assert_eq!(hot_spot(&[10, 100, 105], 2, 5), Some(10));
        assert_eq!(hot_spot(&[10, 100, 105], 2, 4), Some(100));
        assert_eq!(hot_spot(&[u64::MAX - 3], 1, 3), None);
    }
}
