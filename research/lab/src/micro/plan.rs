//! The keys of each phase, which follow from the number of keys, the limit and the seed.
//!
//! ```text
//! record index   0 ........... n | n .... n+e | n+e .... n+2e
//!                load            | insert     | multi_insert
//! lookup, multi_get, scan, update, delete: records 0..n in random orders of their own
//! ```
//!
//! Within a phase no key occurs twice, so that deletes always hit and two threads never share a
//! key. Phases run in the order of [`Op::ALL`]: reads see first values, and deletes come last.

use super::{MicroParams, Op};
use crate::workload::{Keys, Permutation};
use bristlecone_pmem::{Durability, MediumKind};

/// Fewest inserts after the load, which are a tenth of it. A smaller load has as many inserts as
/// keys.
const MIN_INSERTS: u64 = 1_000_000;
/// Largest number of point operations of a phase.
const READS: u64 = 4_000_000;
const WRITES: u64 = 2_000_000;
const SCANS: u64 = 200_000;
/// Largest number of changes of a phase if each waits for a disk.
const SYNCED_WRITES: u64 = 20_000;
/// Keys per commit of a load if each commit waits for a disk.
const SYNCED_LOAD_BATCH: usize = 1_000;

/// The keys of the phases.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    keys: Keys,
    loaded: u64,
    extra: u64,
    seed: u64,
    slices: usize,
    limit: Option<u64>,
    synced: bool,
}

impl Plan {
    pub fn new(params: &MicroParams) -> Self {
        let extra = (params.keys / 10).max(MIN_INSERTS.min(params.keys));
        Self {
            keys: Keys::Random { seed: params.seed },
            loaded: params.keys,
            extra,
            seed: params.seed,
            slices: params.slices,
            limit: params.ops_limit,
            synced: params.medium == MediumKind::Journal
                && params.durability == Durability::Immediate,
        }
    }

    /// Returns the plan limited to `keys` keys and `ops` operations in one slice, for counting.
    pub fn small(&self, keys: u64, ops: u64) -> Self {
        let loaded = self.loaded.min(keys);
        Self {
            loaded,
            extra: self.extra.min(loaded),
            slices: 1,
            limit: Some(self.limit.map_or(ops, |limit| limit.min(ops))),
            synced: false,
            ..self.clone()
        }
    }

    /// Returns the number of loaded keys.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns the keys per call of the load; 1 means one durable call per key.
    pub fn load_batch(&self) -> usize {
        if self.synced { SYNCED_LOAD_BATCH } else { 1 }
    }

    /// Returns the number of slices of the phase of `op`.
    pub fn slices(&self, op: Op) -> usize {
        // No slice is empty unless the phase is.
        self.slices
            .min(usize::try_from(self.ops(op)).unwrap_or(usize::MAX))
            .max(1)
    }

    /// Returns the number of operations of the phase of `op`.
    pub fn ops(&self, op: Op) -> u64 {
        let limit = self.limit.unwrap_or(match op {
            _ if self.synced && op.changes() => SYNCED_WRITES,
            Op::Lookup | Op::MultiGet => READS,
            Op::Scan => SCANS,
            _ => WRITES,
        });
        match op {
            Op::Load => self.loaded,
            Op::Insert | Op::MultiInsert => self.extra.min(limit),
            Op::Lookup | Op::MultiGet | Op::Scan | Op::Update => self.loaded.min(limit),
            // Only a tenth is deleted, so that the tree nearly keeps its size.
            Op::Delete => self
                .loaded
                .div_ceil(10)
                .max(MIN_INSERTS.min(self.loaded))
                .min(limit),
        }
    }

    /// Returns the keys of one slice.
    pub fn keys(&self, op: Op, slice: usize) -> Vec<u64> {
        let (ops, slices) = (u128::from(self.ops(op)), self.slices(op) as u128);
        let bound = |slice: usize| (ops * slice as u128 / slices) as u64;
        let positions = bound(slice)..bound(slice + 1);
        match op {
            Op::Load => positions.map(|i| self.keys.key(i)).collect(),
            Op::Insert => positions.map(|i| self.keys.key(self.loaded + i)).collect(),
            Op::MultiInsert => positions
                .map(|i| self.keys.key(self.loaded + self.extra + i))
                .collect(),
            _ => {
                let order = Permutation::new(self.loaded, self.seed ^ (op as u64 + 1));
                positions.map(|i| self.keys.key(order.at(i))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(keys: u64, limit: Option<u64>) -> Plan {
        Plan::new(&MicroParams {
            keys,
            ops_limit: limit,
            slices: 7,
            ..MicroParams::default()
        })
    }

    fn all(plan: &Plan, op: Op) -> Vec<u64> {
        (0..plan.slices(op))
            .flat_map(|slice| plan.keys(op, slice))
            .collect()
    }

    #[test]
    fn slices_make_up_the_phase_and_no_key_comes_twice() {
        let plan = plan(10_000, None);
        let loaded: BTreeSet<u64> = all(&plan, Op::Load).into_iter().collect();
        assert_eq!(loaded.len(), 10_000);
        for op in Op::ALL {
            let keys = all(&plan, *op);
            assert_eq!(keys.len() as u64, plan.ops(*op), "{op:?}");
            let distinct: BTreeSet<u64> = keys.iter().copied().collect();
            assert_eq!(distinct.len(), keys.len(), "{op:?}");
            let adds = matches!(op, Op::Insert | Op::MultiInsert);
            if *op != Op::Load {
                assert!(
                    keys.iter().all(|key| loaded.contains(key) != adds),
                    "{op:?}"
                );
            }
        }
        let inserted: BTreeSet<u64> = all(&plan, Op::Insert).into_iter().collect();
        assert!(
            all(&plan, Op::MultiInsert)
                .iter()
                .all(|key| !inserted.contains(key))
        );
    }

    #[test]
    fn sizes_follow_the_number_of_keys() {
        let ten_million = plan(10_000_000, None);
        assert_eq!(ten_million.ops(Op::Load), 10_000_000);
        assert_eq!(ten_million.ops(Op::Insert), 1_000_000);
        assert_eq!(ten_million.ops(Op::Lookup), READS);
        assert_eq!(ten_million.ops(Op::Delete), 1_000_000);
        assert_eq!(ten_million.ops(Op::Scan), SCANS);
        let one = plan(1, None);
        for op in Op::ALL {
            assert_eq!((one.ops(*op), one.slices(*op)), (1, 1), "{op:?}");
        }
        let limited = plan(10_000, Some(50));
        assert_eq!(
            (limited.ops(Op::Load), limited.ops(Op::Update)),
            (10_000, 50)
        );
        let small = ten_million.small(1_000, 100);
        assert_eq!(
            (small.loaded(), small.ops(Op::Load), small.ops(Op::Insert)),
            (1_000, 1_000, 100)
        );
    }

    #[test]
    fn where_commits_wait_for_a_disk_the_load_is_batched_and_phases_are_short() {
        let plan = Plan::new(&MicroParams {
            keys: 1_000_000,
            medium: MediumKind::Journal,
            ..MicroParams::default()
        });
        assert_eq!(plan.load_batch(), SYNCED_LOAD_BATCH);
        assert_eq!(plan.ops(Op::Update), SYNCED_WRITES);
        assert_eq!(plan.ops(Op::Lookup), 1_000_000);
        assert_eq!(plan.small(1_000_000, 5).load_batch(), 1);
    }
}
