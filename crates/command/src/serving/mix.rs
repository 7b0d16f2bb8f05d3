//! Mixes of operations.
//!
//! Two are YCSB's, as NV-Tree (TC 2016), section 6.6, uses them: StatusUpdate reads the latest
//! records mostly, and adds new ones; SessionStore reads and replaces records by Zipf's law. Two
//! are those of LB+-Trees (PVLDB 2020), section 4.4: getting and setting random keys of 20 bytes.

use clap::ValueEnum;
use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// YCSB's skew.
const SKEW: f64 = 0.99;
/// The seed of the first client.
const SEED: u64 = 0x5e55_1015;

/// The operations of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// 95 % reads, mostly of what is new, and 5 % new records
    StatusUpdate,
    /// Half reads, half updates, of records by Zipf's law
    SessionStore,
    /// Reads of any record, under random keys of 20 bytes
    Gets,
    /// New records, under random keys of 20 bytes
    Sets,
}

impl Mix {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StatusUpdate => "status-update",
            Self::SessionStore => "session-store",
            Self::Gets => "gets",
            Self::Sets => "sets",
        }
    }

    /// Returns the key of a record.
    #[must_use]
    pub fn key(self, record: u64) -> Key {
        match self {
            Self::StatusUpdate | Self::SessionStore => Key::numbered(record),
            Self::Gets | Self::Sets => Key::random(record),
        }
    }
}

/// The key of a record.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    bytes: [u8; 20],
    length: usize,
}

impl Key {
    /// `user` and the number, 16 bytes.
    fn numbered(record: u64) -> Self {
        let mut bytes = *b"user0000000000000000";
        let mut rest = record;
        for digit in bytes[4..16].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Self { bytes, length: 16 }
    }

    /// 20 letters that look like chance. Different records have different ones: the first 14 are
    /// a permutation of 64 bits.
    fn random(record: u64) -> Self {
        let mut hash = mixed(record);
        let bytes = std::array::from_fn(|at| {
            if at == 14 {
                hash = mixed(!record);
            }
            let letter = b'a' + (hash % 26) as u8;
            hash /= 26;
            letter
        });
        Self { bytes, length: 20 }
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A permutation of 64 bits: the finalizer of SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// An operation on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads it.
    Get(u64),
    /// Replaces its value.
    Put(u64),
    /// Makes it.
    Add(u64),
}

impl Op {
    /// Returns the record.
    #[must_use]
    pub fn record(self) -> u64 {
        let (Self::Get(record) | Self::Put(record) | Self::Add(record)) = self;
        record
    }
}

/// A hash of a rank, as YCSB spreads likely records over all of them: FNV-1a, 64 bits.
fn scrambled(rank: u64) -> u64 {
    rank.to_le_bytes()
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        })
}

/// The records that all clients of a server know of. The counters are counted only, so they need no
/// order (`Relaxed`).
#[derive(Debug)]
struct Records {
    loaded: u64,
    /// Records that were added, and how many of them were answered.
    added: AtomicU64,
    answered: AtomicU64,
}

/// The operations of a client.
#[derive(Debug)]
pub struct Load {
    mix: Mix,
    records: Arc<Records>,
    zipf: Zipf<f64>,
    random: Random,
}

impl Load {
    /// Returns a mix over so many records.
    #[must_use]
    pub fn new(mix: Mix, records: u64) -> Self {
        let zipf = Zipf::new(records.max(1) as f64, SKEW);
        Self {
            mix,
            records: Arc::new(Records {
                loaded: records.max(1),
                added: AtomicU64::new(0),
                answered: AtomicU64::new(0),
            }),
            zipf: zipf.unwrap_or_else(|_| unreachable!("records and skew are above 0")),
            random: Random::seed_from_u64(SEED),
        }
    }

    /// Returns the operations of another client, which knows of the same records.
    #[must_use]
    pub fn another(&mut self) -> Self {
        Self {
            records: Arc::clone(&self.records),
            random: Random::seed_from_u64(self.random.random()),
            ..*self
        }
    }

    /// Returns the key of a record.
    #[must_use]
    pub fn key(&self, record: u64) -> Key {
        self.mix.key(record)
    }

    /// Returns the same records under another mix, which has to give them the same keys.
    #[must_use]
    pub fn of(&self, mix: Mix) -> Self {
        Self {
            mix,
            records: Arc::clone(&self.records),
            random: self.random.clone(),
            ..*self
        }
    }

    /// Returns how many records there are at first.
    #[must_use]
    pub fn loaded(&self) -> u64 {
        self.records.loaded
    }

    /// The rank of a record by Zipf's law, from 0, the lower the likelier.
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }

    fn add(&self) -> Op {
        let added = self.records.added.fetch_add(1, Ordering::Relaxed);
        Op::Add(self.records.loaded + added)
    }

    /// Returns the next operation.
    pub fn next_op(&mut self) -> Op {
        let loaded = self.records.loaded;
        match self.mix {
            Mix::StatusUpdate if self.random.random_range(0..100) < 5 => self.add(),
            Mix::Sets => self.add(),
            Mix::Gets => Op::Get(self.random.random_range(0..loaded)),
            Mix::StatusUpdate => {
                let back = self.rank();
                let answered = self.records.answered.load(Ordering::Relaxed);
                Op::Get(loaded + answered - 1 - back)
            }
            Mix::SessionStore => {
                let record = scrambled(self.rank()) % loaded;
                if self.random.random() {
                    Op::Put(record)
                } else {
                    Op::Get(record)
                }
            }
        }
    }

    /// Takes note that so many records were added.
    pub fn have_added(&self, records: u64) {
        self.records.answered.fetch_add(records, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn mixes_have_their_shares() {
        for (mix, writes) in [
            (Mix::StatusUpdate, 0.05),
            (Mix::SessionStore, 0.5),
            (Mix::Gets, 0.0),
            (Mix::Sets, 1.0),
        ] {
            let mut load = Load::new(mix, 1000);
            let mut clients = [load.another(), load.another()];
            let mut counts = [0_u32; 3];
            for n in 0..20_000 {
                let client = &mut clients[n % 2];
                match client.next_op() {
                    Op::Get(record) => {
                        assert!(record < 1000 + u64::from(counts[2]));
                        counts[0] += 1;
                    }
                    Op::Put(record) => {
                        assert!(record < 1000);
                        counts[1] += 1;
                    }
                    Op::Add(record) => {
                        assert_eq!(record, 1000 + u64::from(counts[2]));
                        client.have_added(1);
                        counts[2] += 1;
                    }
                }
            }
            let [_, puts, adds] = counts.map(|count| f64::from(count) / 20_000.0);
            assert!((puts + adds - writes).abs() < 0.01, "{counts:?}");
            assert_eq!(
                adds > 0.0,
                [Mix::StatusUpdate, Mix::Sets].contains(&mix),
                "{mix:?}"
            );
        }
    }

    #[test]
    fn keys_are_as_long_as_their_mixes_say_and_differ() {
        assert_eq!(&*Mix::SessionStore.key(1_234), b"user000000001234");
        let keys: HashSet<Vec<u8>> = (0..10_000).map(|n| Mix::Gets.key(n).to_vec()).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| key.len() == 20));
        let first: HashSet<u8> = keys.iter().map(|key| key[0]).collect();
        assert_eq!(first.len(), 26);
        // What one mix adds, the other one knows by the same key.
        let mut sets = Load::new(Mix::Sets, 10);
        let mut gets = sets.of(Mix::Gets);
        let added = sets.next_op().record();
        assert_eq!((added, gets.next_op().record() < 10), (10, true));
        assert_eq!(*sets.key(added), *gets.key(added));
    }
}
