//! Two mixes of operations from YCSB.
//!
//! NV-Tree (TC 2016), section 6.6, uses them: StatusUpdate reads the latest records mostly, and
//! adds new ones; SessionStore reads and replaces records by Zipf's law.

use clap::ValueEnum;
use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
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
}

impl Mix {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StatusUpdate => "status-update",
            Self::SessionStore => "session-store",
        }
    }
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
    /// Returns the record's key.
    #[must_use]
    pub fn key(self) -> [u8; 16] {
        let (Self::Get(record) | Self::Put(record) | Self::Add(record)) = self;
        key(record)
    }
}

/// Returns the key of a record.
#[must_use]
pub fn key(record: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut rest = record;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
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

    /// Returns how many records there are at first.
    #[must_use]
    pub fn loaded(&self) -> u64 {
        self.records.loaded
    }

    /// The rank of a record by Zipf's law, from 0, the lower the likelier.
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }

    /// Returns the next operation.
    pub fn next_op(&mut self) -> Op {
        let loaded = self.records.loaded;
        match self.mix {
            Mix::StatusUpdate if self.random.random_range(0..100) < 5 => {
                Op::Add(loaded + self.records.added.fetch_add(1, Ordering::Relaxed))
            }
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

    #[test]
    fn mixes_have_their_shares() {
        for (mix, writes) in [(Mix::StatusUpdate, 0.05), (Mix::SessionStore, 0.5)] {
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
            assert_eq!(adds > 0.0, mix == Mix::StatusUpdate);
        }
        assert_eq!(&Op::Get(1_234).key(), b"user000000001234");
    }
}
