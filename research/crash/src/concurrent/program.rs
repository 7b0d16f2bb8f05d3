//! The programs of the simulated threads: random operations on a few keys, and the contents they
//! start from.

use crate::rng::Rng;
use crate::subject::{Live, Op, Reply, Subject};
use std::collections::BTreeMap;

/// Largest number of keys that a structure is filled with.
const MAX_KEYS: usize = 48;
/// Fewest operations that prepare a structure.
const MIN_PREPARATION: usize = 10;

/// How a structure is prepared, and where its threads then meet.
///
/// A random workload is run once to measure the cost of each operation. The operations *before* an
/// expensive one then prepare the structure: a leaf is about to split, or to be freed. The threads
/// operate on the key of the expensive operation and on the keys around it. This finds the rare
/// paths of any design without knowing the design.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    /// The operations that prepare the structure.
    pub(super) before: Vec<Op>,
    /// The expensive operation.
    expensive: Op,
    /// Distance between the keys that the structure is filled with, which leaves room for others.
    step: u64,
}

/// Does operations that must all succeed, and returns the content that they leave.
///
/// # Errors
/// The first operation that did not succeed, with its reply.
pub(super) fn fill(
    live: &dyn Live,
    ops: &[Op],
    mut each: impl FnMut(&Op),
) -> Result<BTreeMap<u64, u64>, String> {
    let mut content = BTreeMap::new();
    for op in ops {
        match live.apply(op) {
            Ok(Reply::Done) => each(op),
            Ok(reply) => return Err(format!("{op:?} alone gave {reply:?}")),
            Err(fault) => return Err(format!("{op:?} alone: {fault}")),
        }
        match *op {
            Op::Insert(key, value) => content.insert(key, value),
            Op::Remove(key) => content.remove(&key),
            _ => None,
        };
    }
    Ok(content)
}

/// Returns insertions, in order or shuffled, and then removals of most keys.
pub(super) fn workload(subject: &dyn Subject, rng: &mut Rng) -> Vec<Op> {
    let step = key_step(subject);
    let most = (subject.max_key() / step).clamp(1, MAX_KEYS as u64) as usize;
    let mut keys: Vec<u64> = (1..=(most / 2 + rng.index(most / 2 + 1)).max(1) as u64)
        .map(|i| i * step)
        .collect();
    if rng.index(2) == 0 {
        rng.shuffle(&mut keys);
    }
    let mut ops: Vec<Op> = keys.iter().map(|&key| Op::Insert(key, key)).collect();
    match rng.index(4) {
        0 => rng.shuffle(&mut keys),
        1 => keys.reverse(),
        _ => keys.sort_unstable(),
    }
    keys.truncate(keys.len() * 7 / 8);
    let removals = keys.into_iter().map(Op::Remove);
    ops.extend(removals.filter(|op| subject.can(op)));
    ops
}

fn key_step(subject: &dyn Subject) -> u64 {
    (subject.max_key() / (2 * MAX_KEYS as u64)).clamp(1, 4)
}

impl Spot {
    /// Chooses an operation of a workload. `number` says which: an expensive insertion, an
    /// expensive removal, or one of any cost.
    pub(super) fn choose(
        subject: &dyn Subject,
        workload: &[Op],
        costs: &[u64],
        number: u64,
        rng: &mut Rng,
    ) -> Self {
        let mut candidates: Vec<usize> = (MIN_PREPARATION..workload.len())
            .filter(|&i| match number % 3 {
                0 => matches!(workload[i], Op::Insert(..)),
                1 => matches!(workload[i], Op::Remove(_)),
                _ => true,
            })
            .collect();
        if candidates.is_empty() {
            candidates = (0..workload.len()).collect();
        }
        let mut distinct: Vec<u64> = candidates.iter().map(|&i| costs[i]).collect();
        distinct.sort_unstable();
        distinct.dedup();
        if number % 3 < 2 {
            let most = distinct.last().copied().unwrap_or(0);
            candidates.retain(|&i| 5 * costs[i] >= 4 * most);
        } else {
            // Each path through the code has a cost of its own.
            let cost = distinct[rng.index(distinct.len())];
            candidates.retain(|&i| costs[i] == cost);
        }
        let at = candidates[rng.index(candidates.len())];
        Self {
            before: workload[..at].to_vec(),
            expensive: workload[at],
            step: key_step(subject),
        }
    }

    /// Returns the expensive operation's key, and a few keys around it.
    fn keys(&self, subject: &dyn Subject, rng: &mut Rng) -> Vec<u64> {
        let (Op::Insert(hot, _) | Op::Remove(hot)) = self.expensive else {
            return vec![self.step];
        };
        let wide = 1 + rng.index(4) as u64;
        let half = (self.step / 2).max(1);
        let first = hot.saturating_sub(wide * half).max(1);
        let mut keys: Vec<u64> = (0..=2 * wide)
            .map(|i| first + i * half)
            .filter(|key| *key != hot && *key <= subject.max_key())
            .collect();
        rng.shuffle(&mut keys);
        keys.truncate(1 + rng.index(5));
        keys.push(hot);
        keys
    }

    /// Returns the operations of each thread: on few keys, each with a value that occurs once.
    /// Three times of four, the expensive operation is among them.
    pub(super) fn programs(
        &self,
        subject: &dyn Subject,
        threads: usize,
        ops: usize,
        rng: &mut Rng,
    ) -> Vec<Vec<Op>> {
        let mut keys = self.keys(subject, rng);
        // Some faults need several operations on one key at certain moments, which hardly occurs
        // with more keys.
        let one = rng.index(4) == 0;
        if one {
            keys.truncate(1);
        }
        // Shares of insert, upsert, update, remove; the rest are lookups.
        let shares: [usize; 4] = match (rng.index(4), self.expensive) {
            _ if one => [40, 20, 20, 15],
            (0, Op::Remove(_)) => [15, 5, 5, 60],
            (0, _) => [60, 10, 5, 5],
            (1, _) => [15, 15, 15, 15],
            (2, _) => [30, 5, 5, 40],
            _ => [30, 15, 15, 20],
        };
        let mut value = 1000;
        let mut op = |rng: &mut Rng| loop {
            let key = keys[rng.index(keys.len())];
            value += 1;
            let dice = rng.index(100);
            let kind = (0..4).find(|&i| dice < shares[..=i].iter().sum());
            let op = match kind {
                Some(0) => Op::Insert(key, value),
                Some(1) => Op::Upsert(key, value),
                Some(2) => Op::Update(key, value),
                Some(3) => Op::Remove(key),
                _ => Op::Get(key),
            };
            if subject.can(&op) || matches!(op, Op::Get(_)) {
                return op;
            }
        };
        let mut programs: Vec<Vec<Op>> = (0..threads)
            .map(|_| (0..ops).map(|_| op(rng)).collect())
            .collect();
        if rng.index(4) > 0 {
            programs[rng.index(threads)][rng.index(ops.min(2))] = self.expensive;
        }
        programs
    }
}
