//! The measured workloads, and the calls of each.
//!
//! | workload | a call | keys |
//! | --- | --- | --- |
//! | `load` | puts 1000 new keys in one commit | all keys, in random order |
//! | `scan100-first` | visits 100 entries, after the load and before anything else | each entry about once, ranges in random order |
//! | `get` | reads a key | uniform |
//! | `scan100` | visits 100 entries | uniform |
//! | `update` | replaces a value | each once, in random order |
//! | `ycsb-c` | reads | zipfian |
//! | `ycsb-b` | reads; 5 % update | zipfian |
//! | `ycsb-a` | reads; 50 % update | zipfian |
//! | `ycsb-f` | reads; 50 % read a value and replace it | zipfian |
//! | `insert` | puts a new key | random |
//! | `ycsb-d` | reads; 5 % insert | the latest most often |
//! | `ycsb-e` | visits 1 to 100 entries; 5 % insert | zipfian |
//! | `delete` | removes a key | each of the load once, in random order |
//!
//! The table has the order of a round. Until `insert` all engines hold the same keys; from there on
//! a faster engine holds more, as it has inserted more. YCSB's mixes and distributions are those of
//! its core workloads A to F: skew 0.99, scrambled. Its clients read and replace in two calls
//! (`ycsb-f`), and so does this.
//!
//! Every thread has its own share of a workload's keys. In `ycsb-d` a thread reads its own latest
//! insertions and those of the load, so that no answer depends on how threads interleave.

use crate::LabError;
use crate::workload::{Keys, Permutation, Random, Scrambled, Zipf};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Keys of one commit of `load`.
pub(super) const BATCH: u64 = 1000;
/// Entries that a scan visits.
pub(super) const SCAN: u64 = 100;
/// Share of the changing calls in the YCSB workloads B, D and E.
const FEW: f64 = 0.05;

/// A measured workload. Their order is that of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Puts all keys, 1000 in one commit.
    Load,
    /// Visits 100 entries, each entry about once, right after the load.
    Scan100First,
    /// Reads a key.
    Get,
    /// Visits 100 entries.
    Scan100,
    /// Replaces a value.
    Update,
    /// YCSB's workload C: reads.
    YcsbC,
    /// YCSB's workload B: 95 % reads, 5 % updates.
    YcsbB,
    /// YCSB's workload A: 50 % reads, 50 % updates.
    YcsbA,
    /// YCSB's workload F: 50 % reads, 50 % reads with an update of what was read.
    YcsbF,
    /// Puts a new key.
    Insert,
    /// YCSB's workload D: 95 % reads of the latest, 5 % insertions.
    YcsbD,
    /// YCSB's workload E: 95 % scans of up to 100 entries, 5 % insertions.
    YcsbE,
    /// Removes a key.
    Delete,
}

impl Workload {
    /// All workloads, in the order of a round.
    pub const ALL: [Self; 13] = [
        Self::Load,
        Self::Scan100First,
        Self::Get,
        Self::Scan100,
        Self::Update,
        Self::YcsbC,
        Self::YcsbB,
        Self::YcsbA,
        Self::YcsbF,
        Self::Insert,
        Self::YcsbD,
        Self::YcsbE,
        Self::Delete,
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Scan100First => "scan100-first",
            Self::Get => "get",
            Self::Scan100 => "scan100",
            Self::Update => "update",
            Self::YcsbC => "ycsb-c",
            Self::YcsbB => "ycsb-b",
            Self::YcsbA => "ycsb-a",
            Self::YcsbF => "ycsb-f",
            Self::Insert => "insert",
            Self::YcsbD => "ycsb-d",
            Self::YcsbE => "ycsb-e",
            Self::Delete => "delete",
        }
    }

    /// Returns a description of one call, for a caption.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Load => "1000 keys a commit",
            Self::Scan100First => "100 entries, once",
            Self::Get | Self::Delete => "key that is there",
            Self::Scan100 => "100 entries",
            Self::Update => "new value",
            Self::YcsbC => "zipfian reads",
            Self::YcsbB => "5 % updates",
            Self::YcsbA => "50 % updates",
            Self::YcsbF => "50 % read-modify",
            Self::Insert => "new key",
            Self::YcsbD => "latest, 5 % new",
            Self::YcsbE => "scans, 5 % new",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|w| w.name() == text);
        found.ok_or_else(|| {
            LabError::parameter("workload", text, Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// A call of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Reads the key, which is there.
    Get(u64),
    /// Puts version `version` of the key's value; version 0 is that of a new key.
    Put {
        /// The key.
        key: u64,
        /// Tells the value from other ones of the key.
        version: u64,
    },
    /// Reads the key, and then puts a value.
    Modify {
        /// The key.
        key: u64,
        /// The version that is put.
        version: u64,
    },
    /// Removes the key, which is there.
    Remove(u64),
    /// Visits entries.
    Scan {
        /// The least key.
        from: u64,
        /// How many.
        limit: u64,
    },
}

/// Scans may end early from this key on.
pub(super) const LATE: u64 = u64::MAX / 4 * 3;

/// The calls of one round, which its seed determines.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    keys: Keys,
    /// Number of keys that are loaded: the records 0 to `count`.
    count: u64,
    threads: u64,
    seed: u64,
    order: Permutation,
    popular: Scrambled,
    latest: Zipf,
}

impl Plan {
    pub(super) fn new(count: u64, threads: usize, seed: u64) -> Self {
        Self {
            keys: Keys::Random { seed },
            count,
            threads: threads as u64,
            seed,
            order: Permutation::new(count, seed ^ 0x006f_7264_6572),
            popular: Scrambled::new(count),
            latest: Zipf::new(count, Scrambled::THETA),
        }
    }

    /// Keys that are loaded.
    pub(super) fn keys(&self) -> u64 {
        self.count
    }

    pub(super) fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Returns a thread's batches of the load, each as a range of records.
    pub(super) fn batches(&self, thread: usize) -> impl Iterator<Item = Vec<u64>> + '_ {
        let batches = self.share(self.count.div_ceil(BATCH), thread);
        batches.map(|batch| {
            let records = batch * BATCH..self.count.min((batch + 1) * BATCH);
            records.map(|record| self.keys.key(record)).collect()
        })
    }

    /// Returns a thread's share of `0..total`.
    fn share(&self, total: u64, thread: usize) -> impl Iterator<Item = u64> + use<> {
        (thread as u64..total).step_by(self.threads as usize)
    }

    /// Returns a key that no other workload and no other thread puts.
    fn new_key(&self, workload: Workload, place: u64) -> u64 {
        // The records of a workload follow those of the load and of the ones before it.
        self.keys.key(self.count * (1 + workload as u64) + place)
    }

    fn random(&self, workload: Workload, thread: usize) -> Random {
        let mut seeds = Random::new(self.seed ^ (workload as u64) << 48 ^ (thread as u64) << 32);
        Random::new(seeds.word())
    }

    /// Returns a thread's calls of any workload but the load. There are at most as many as keys.
    pub(super) fn calls(
        &self,
        workload: Workload,
        thread: usize,
    ) -> Box<dyn Iterator<Item = Call> + Send + '_> {
        let mut random = self.random(workload, thread);
        let places = self.share(self.count, thread);
        let shuffled = move |place| self.keys.key(self.order.at(place));
        match workload {
            Workload::Load => Box::new(std::iter::empty()),
            Workload::Scan100First => {
                let ranges = self.count.div_ceil(SCAN);
                let order = Permutation::new(ranges, self.seed);
                let wide = u64::MAX / ranges;
                Box::new(self.share(ranges, thread).map(move |place| Call::Scan {
                    from: wide * order.at(place),
                    limit: SCAN,
                }))
            }
            Workload::Get => Box::new(places.map(move |_| Call::Get(self.uniform(&mut random)))),
            Workload::Scan100 => Box::new(places.map(move |_| {
                loop {
                    let from = self.uniform(&mut random);
                    if from < LATE {
                        break Call::Scan { from, limit: SCAN };
                    }
                }
            })),
            Workload::Update => Box::new(places.map(move |place| Call::Put {
                key: shuffled(place),
                version: 1,
            })),
            Workload::Insert => Box::new(places.map(move |place| Call::Put {
                key: self.new_key(workload, place),
                version: 0,
            })),
            Workload::Delete => Box::new(places.map(move |place| Call::Remove(shuffled(place)))),
            Workload::YcsbA | Workload::YcsbB | Workload::YcsbC | Workload::YcsbF => {
                Box::new(places.map(move |_| self.mixed(workload, &mut random)))
            }
            Workload::YcsbD => {
                let mut own = Vec::new();
                Box::new(places.map(move |place| self.latest(&mut random, place, &mut own)))
            }
            Workload::YcsbE => Box::new(places.map(move |place| {
                if random.unit() < FEW {
                    let key = self.new_key(workload, place);
                    return Call::Put { key, version: 0 };
                }
                let from = self.zipfian(&mut random);
                let limit = 1 + random.below(SCAN);
                Call::Scan { from, limit }
            })),
        }
    }

    /// Returns a loaded key, any with equal probability.
    fn uniform(&self, random: &mut Random) -> u64 {
        self.keys.key(random.below(self.count))
    }

    /// Returns a loaded key, some far more often than others.
    fn zipfian(&self, random: &mut Random) -> u64 {
        self.keys.key(self.popular.index(random))
    }

    /// Returns a call of YCSB's workloads that change only what is there.
    fn mixed(&self, workload: Workload, random: &mut Random) -> Call {
        let changes = match workload {
            Workload::YcsbC => 0.0,
            Workload::YcsbB => FEW,
            _ => 0.5,
        };
        let change = random.unit() < changes;
        let key = self.zipfian(random);
        let version = 2 + workload as u64;
        match (change, workload) {
            (false, _) => Call::Get(key),
            (true, Workload::YcsbF) => Call::Modify { key, version },
            (true, _) => Call::Put { key, version },
        }
    }

    /// Returns a call of YCSB's workload D. `own` has what the thread has inserted.
    fn latest(&self, random: &mut Random, place: u64, own: &mut Vec<u64>) -> Call {
        if random.unit() < FEW {
            let key = self.new_key(Workload::YcsbD, place);
            own.push(key);
            return Call::Put { key, version: 0 };
        }
        let back = self.latest.rank(random) as usize;
        if back < own.len() {
            return Call::Get(own[own.len() - 1 - back]);
        }
        let back = (back - own.len()) as u64;
        Call::Get(self.keys.key(self.count - 1 - back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const COUNT: u64 = 10_000;

    fn calls(workload: Workload, threads: usize) -> Vec<Call> {
        let plan = Plan::new(COUNT, threads, 3);
        let of = |thread| plan.calls(workload, thread).collect::<Vec<_>>();
        (0..threads).flat_map(of).collect()
    }

    fn loaded(threads: usize) -> BTreeSet<u64> {
        let plan = Plan::new(COUNT, threads, 3);
        let of = |thread| plan.batches(thread).flatten().collect::<Vec<_>>();
        (0..threads).flat_map(of).collect()
    }

    #[test]
    fn names_are_read_back_and_are_those_of_json() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>().unwrap(), workload);
            let json = serde_json::to_string(&workload).unwrap();
            assert_eq!(json, format!("{:?}", workload.name()));
        }
        assert!(Workload::ALL.is_sorted());
        let error = "juggle".parse::<Workload>().unwrap_err().to_string();
        assert!(
            error.contains("juggle") && error.contains("ycsb-a"),
            "{error}"
        );
    }

    #[test]
    fn threads_share_the_keys_of_a_load_and_of_what_changes_each_once() {
        let all = loaded(1);
        assert_eq!(all.len() as u64, COUNT);
        for threads in [1, 3] {
            assert_eq!(loaded(threads), all);
            for workload in [Workload::Update, Workload::Delete] {
                let key = |call: Call| match call {
                    Call::Put { key, version: 1 } | Call::Remove(key) => key,
                    other => panic!("{other:?}"),
                };
                let calls = calls(workload, threads);
                assert_eq!(calls.len() as u64, COUNT);
                let keys: BTreeSet<u64> = calls.into_iter().map(key).collect();
                assert_eq!(keys, all, "{workload}");
            }
        }
    }

    #[test]
    fn new_keys_are_new_in_every_workload_and_thread() {
        let mut all = loaded(1);
        for workload in [Workload::Insert, Workload::YcsbD, Workload::YcsbE] {
            for call in calls(workload, 2) {
                if let Call::Put { key, version } = call {
                    assert_eq!(version, 0);
                    assert!(all.insert(key), "{workload} puts {key} again");
                }
            }
        }
        assert!(all.len() as u64 > 2 * COUNT);
    }

    #[test]
    fn a_thread_of_workload_d_reads_what_is_there_and_mostly_what_is_new() {
        let plan = Plan::new(COUNT, 2, 3);
        let loaded = loaded(2);
        let (mut own, mut reads, mut new) = (BTreeSet::new(), 0, 0);
        for call in plan.calls(Workload::YcsbD, 1) {
            match call {
                Call::Put { key, .. } => assert!(own.insert(key)),
                Call::Get(key) => {
                    reads += 1;
                    new += u32::from(own.contains(&key));
                    assert!(own.contains(&key) || loaded.contains(&key));
                }
                other => panic!("{other:?}"),
            }
        }
        // Nearly two thirds of the draws fall on the first 250 of 10,000 ranks.
        assert!(own.len() > 150 && new * 2 > reads, "{new} of {reads}");
    }

    #[test]
    fn mixes_have_ycsbs_shares() {
        let share = |workload, of: fn(&Call) -> bool| {
            let calls = calls(workload, 1);
            calls.iter().filter(|call| of(call)).count() as f64 / calls.len() as f64
        };
        let put: fn(&Call) -> bool = |call| matches!(call, Call::Put { .. });
        let expected = [
            (Workload::YcsbA, 0.5),
            (Workload::YcsbB, 0.05),
            (Workload::YcsbC, 0.0),
            (Workload::YcsbD, 0.05),
            (Workload::YcsbE, 0.05),
        ];
        for (workload, expected) in expected {
            // Four standard deviations of 10,000 draws are at most 0.02.
            let found = share(workload, put);
            assert!((found - expected).abs() < 0.02, "{workload}: {found}");
        }
        let modify = share(Workload::YcsbF, |call| matches!(call, Call::Modify { .. }));
        assert!((modify - 0.5).abs() < 0.02, "{modify}");
        let limits: BTreeSet<u64> = calls(Workload::YcsbE, 1)
            .into_iter()
            .filter_map(|call| match call {
                Call::Scan { limit, .. } => Some(limit),
                _ => None,
            })
            .collect();
        assert_eq!(limits, (1..=SCAN).collect());
    }

    #[test]
    fn the_first_scans_cover_the_key_space() {
        let mut from: Vec<u64> = calls(Workload::Scan100First, 3)
            .into_iter()
            .map(|call| match call {
                Call::Scan { from, limit: SCAN } => from,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(!from.is_sorted());
        from.sort_unstable();
        let wide = u64::MAX / (COUNT / SCAN);
        assert_eq!(from.len() as u64, COUNT / SCAN);
        assert!(
            from.iter()
                .enumerate()
                .all(|(i, at)| *at == wide * i as u64)
        );
    }
}
