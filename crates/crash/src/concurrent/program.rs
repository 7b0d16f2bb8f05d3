//! What the simulated threads do: random programs on few keys, and the contents they start from.

use crate::subject::{Live, Op, Reply, Subject};
use std::collections::BTreeMap;

/// A small generator (SplitMix64): same seed, same numbers, on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// A generator for one purpose (`stream`) of one thing (`number`).
    pub(super) fn new(seed: u64, stream: u64, number: u64) -> Self {
        let mut rng = Self(seed);
        for part in [stream, number] {
            rng.0 = rng.next() ^ part;
        }
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n.max(1) as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Keys that a structure is filled with, and how far apart they are, so that others fit in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    step: u64,
    count: usize,
}

/// Most keys that a structure is filled with.
const MOST: usize = 48;
/// Fewest.
const FEWEST: usize = 10;

impl Keys {
    fn key(self, i: usize) -> u64 {
        (i as u64 + 1) * self.step
    }

    /// Fills `live`: some states in order, some at random, most with a thinned-out part where leaves
    /// are nearly empty. Returns the keys and the content.
    ///
    /// # Errors
    /// The operation that was not done, with what it gave.
    pub(super) fn fill(
        subject: &dyn Subject,
        live: &dyn Live,
        rng: &mut Rng,
    ) -> Result<(Self, BTreeMap<u64, u64>), String> {
        let step = (subject.max_key() / (2 * MOST as u64)).clamp(1, 4);
        let count = FEWEST + rng.below(MOST - FEWEST + 1);
        let keys = Self { step, count };
        let mut order: Vec<usize> = (0..count).collect();
        if rng.below(2) == 0 {
            rng.shuffle(&mut order);
        }
        let mut content = BTreeMap::new();
        let must = |op: Op| match live.apply(&op) {
            Ok(Reply::Done) => Ok(()),
            Ok(reply) => Err(format!("{op:?} on a new structure gave {reply:?}")),
            Err(fault) => Err(format!("{op:?} on a new structure: {fault}")),
        };
        for i in order {
            let (key, value) = (keys.key(i), 1 + i as u64);
            must(Op::Insert(key, value))?;
            content.insert(key, value);
        }
        if rng.below(4) > 0 && subject.can(&Op::Remove(keys.key(0))) {
            let first = rng.below(count);
            let last = (first + count / 2).min(count);
            for i in (first..last).filter(|i| i % 7 != 3) {
                must(Op::Remove(keys.key(i)))?;
                content.remove(&keys.key(i));
            }
        }
        Ok((keys, content))
    }

    /// A few neighbouring keys, some of them there and some not.
    fn neighbours(self, rng: &mut Rng) -> Vec<u64> {
        let centre = rng.below(self.count + 1);
        let wide = 2 + rng.below(5);
        let mut keys: Vec<u64> = (centre..centre + wide)
            .flat_map(|i| [self.key(i), self.key(i) + self.step / 2])
            .collect();
        keys.dedup();
        rng.shuffle(&mut keys);
        keys.truncate(2 + rng.below(6));
        keys
    }

    /// The operations of each thread: on few keys, with values that occur once.
    pub(super) fn programs(
        self,
        subject: &dyn Subject,
        threads: usize,
        ops: usize,
        rng: &mut Rng,
    ) -> Vec<Vec<Op>> {
        let keys = self.neighbours(rng);
        // Shares of insert, upsert, update, remove; the rest are lookups.
        let shares: [usize; 4] = match rng.below(4) {
            0 => [60, 10, 5, 5],
            1 => [15, 5, 5, 60],
            2 => [15, 15, 15, 15],
            _ => [30, 15, 15, 20],
        };
        let mut value = 1000;
        let mut op = || loop {
            let key = keys[rng.below(keys.len())];
            value += 1;
            let dice = rng.below(100);
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
        (0..threads)
            .map(|_| (0..ops).map(|_| op()).collect())
            .collect()
    }
}
