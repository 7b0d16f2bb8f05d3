//! What the simulated threads do: random programs on few keys, and the contents they start from.

use crate::rng::Rng;
use crate::subject::{Live, Op, Reply, Subject};
use std::collections::BTreeMap;

/// Most keys that a structure is filled with.
const MOST: usize = 48;
/// Operations that come before a spot, at least.
const FEWEST: usize = 10;

/// How a structure is prepared, and where its threads then meet.
///
/// A random workload is run once to see what each of its operations costs. The structure is then
/// prepared by the operations *before* a dear one: its leaf is about to split, or to be given back. The
/// threads get operations on that one's key and the keys around it. This finds the rare paths of any
/// design without knowing it.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    /// What prepares the structure.
    pub(super) before: Vec<Op>,
    /// The dear operation.
    dear: Op,
    /// Distance of the keys that the structure is filled with, so that others fit in between.
    step: u64,
}

/// Does operations that all have to be done.
///
/// # Errors
/// The operation that was not, with what it gave.
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

/// Inserts, in order or not, then removals of most of it.
pub(super) fn workload(subject: &dyn Subject, rng: &mut Rng) -> Vec<Op> {
    let step = key_step(subject);
    let most = (subject.max_key() / step).clamp(1, MOST as u64) as usize;
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
    (subject.max_key() / (2 * MOST as u64)).clamp(1, 4)
}

impl Spot {
    /// Chooses a dear operation of a workload, of the kind that `number` says: an insert, a removal, or
    /// one of any cost.
    pub(super) fn choose(
        subject: &dyn Subject,
        workload: &[Op],
        costs: &[u64],
        number: u64,
        rng: &mut Rng,
    ) -> Self {
        let mut candidates: Vec<usize> = (FEWEST..workload.len())
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
            // Each path through the code has its own cost.
            let cost = distinct[rng.index(distinct.len())];
            candidates.retain(|&i| costs[i] == cost);
        }
        let at = candidates[rng.index(candidates.len())];
        Self {
            before: workload[..at].to_vec(),
            dear: workload[at],
            step: key_step(subject),
        }
    }

    /// The dear operation's key and a few around it.
    fn keys(&self, subject: &dyn Subject, rng: &mut Rng) -> Vec<u64> {
        let (Op::Insert(hot, _) | Op::Remove(hot)) = self.dear else {
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

    /// The operations of each thread: on few keys, with values that occur once. The dear operation is
    /// mostly one of them.
    pub(super) fn programs(
        &self,
        subject: &dyn Subject,
        threads: usize,
        ops: usize,
        rng: &mut Rng,
    ) -> Vec<Vec<Op>> {
        let mut keys = self.keys(subject, rng);
        // What takes several operations on one key, each at its moment, hardly occurs where there are more.
        let one = rng.index(4) == 0;
        if one {
            keys.truncate(1);
        }
        // Shares of insert, upsert, update, remove; the rest are lookups.
        let shares: [usize; 4] = match (rng.index(4), self.dear) {
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
            programs[rng.index(threads)][rng.index(ops.min(2))] = self.dear;
        }
        programs
    }
}
