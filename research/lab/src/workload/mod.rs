//! The keys of an experiment, and the order in which it uses them.
//!
//! ```text
//! index 0..n  --Permutation / Zipf / Sequential-->  index  --Keys-->  key
//!                the next record                            its spelling
//! ```
//!
//! A seed determines all keys, and nothing is stored. A record is known by its index, and both maps
//! are bijections, so ten million distinct keys in random order need no memory. Two runs with one
//! seed do the same operations in the same order, on every machine and with every version of every
//! dependency.

mod permutation;
mod zipf;

pub use permutation::Permutation;
pub use zipf::{Scrambled, Zipf};

/// Mixes a word with the finaliser of SplitMix64, a bijection on 64-bit words whose output looks
/// random.
#[must_use]
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A small random generator whose seed fixes its sequence (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Returns the generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next word.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The spelling of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Keys are spread over all 64 bits: distinct for distinct records, and without an order.
    Random {
        /// Selects the spread.
        seed: u64,
    },
    /// A key is the record's index: dense and ascending in index order.
    Dense,
}

impl Keys {
    /// Returns the key of record `index`.
    #[inline]
    #[must_use]
    pub const fn key(self, index: u64) -> u64 {
        match self {
            // Addition of a constant and mixing are bijections, and so is their composition.
            Self::Random { seed } => mix(index.wrapping_add(mix(seed))),
            Self::Dense => index,
        }
    }
}

/// Returns the first value of `key` in every workload, by which a reader recognises a wrong one.
#[inline]
#[must_use]
pub const fn value_of(key: u64) -> u64 {
    key.rotate_left(29) ^ 0x5bd1_e995_9d1b_5a3b
}

/// The choice of the next operation's record.
#[derive(Clone, Debug)]
pub enum Pick {
    /// 0, 1, 2, ... and then from the start again.
    Sequential {
        /// The next index.
        next: u64,
        /// Number of records.
        records: u64,
    },
    /// Each record once in random order, and then again in the same order.
    Shuffled {
        /// The order.
        order: Permutation,
        /// The next position in it.
        next: u64,
    },
    /// Any record, with equal probability.
    Uniform {
        /// The random generator.
        random: Random,
        /// Number of records.
        records: u64,
    },
    /// Some records far more often than others. These are spread over the key space.
    Zipf {
        /// The random generator.
        random: Random,
        /// Their probabilities.
        zipf: Zipf,
    },
}

impl Pick {
    /// Returns the next record's index, or 0 if there are no records.
    pub fn index(&mut self) -> u64 {
        match self {
            Self::Sequential { next, records } => {
                let index = *next;
                *next = if index + 1 < *records { index + 1 } else { 0 };
                index
            }
            Self::Shuffled { order, next } => {
                let index = order.at(*next);
                *next = if *next + 1 < order.len() {
                    *next + 1
                } else {
                    0
                };
                index
            }
            Self::Uniform { random, records } => random.below(*records),
            Self::Zipf { random, zipf } => zipf.scrambled(random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_distinct_and_follow_from_the_seed() {
        let keys = Keys::Random { seed: 9 };
        let distinct: BTreeSet<u64> = (0..100_000).map(|i| keys.key(i)).collect();
        assert_eq!(distinct.len(), 100_000);
        assert_eq!(keys.key(77), Keys::Random { seed: 9 }.key(77));
        assert_ne!(keys.key(77), Keys::Random { seed: 10 }.key(77));
        assert_eq!(Keys::Dense.key(77), 77);
    }

    #[test]
    fn random_keys_spread_over_the_whole_range() {
        let keys = Keys::Random { seed: 1 };
        let mut buckets = [0_u32; 16];
        for i in 0..160_000 {
            buckets[(keys.key(i) >> 60) as usize] += 1;
        }
        assert!(
            buckets.iter().all(|n| (9_500..10_500).contains(n)),
            "{buckets:?}"
        );
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut random = Random::new(3);
        let seen: BTreeSet<u64> = (0..1_000).map(|_| random.below(10)).collect();
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        assert_eq!(random.below(0), 0);
        assert!(
            (0..1_000)
                .map(|_| random.unit())
                .all(|u| (0.0..1.0).contains(&u))
        );
    }

    #[test]
    fn sequential_and_shuffled_picks_go_round() {
        let mut sequential = Pick::Sequential {
            next: 0,
            records: 3,
        };
        assert_eq!([0, 1, 2, 0, 1], std::array::from_fn(|_| sequential.index()));
        let mut shuffled = Pick::Shuffled {
            order: Permutation::new(5, 8),
            next: 0,
        };
        let first: Vec<u64> = (0..5).map(|_| shuffled.index()).collect();
        let again: Vec<u64> = (0..5).map(|_| shuffled.index()).collect();
        assert_eq!(first, again);
        assert_eq!(first.into_iter().collect::<BTreeSet<_>>(), (0..5).collect());
    }

    #[test]
    fn a_zipf_pick_prefers_few_records() {
        let mut pick = Pick::Zipf {
            random: Random::new(5),
            zipf: Zipf::new(1_000, 0.99),
        };
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..50_000 {
            counts[pick.index() as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts[..10].iter().sum();
        assert!(top > 15_000, "the ten favourites drew {top} of 50,000");
        let mut uniform = Pick::Uniform {
            random: Random::new(5),
            records: 1_000,
        };
        let low = (0..50_000).filter(|_| uniform.index() < 10).count();
        assert!((300..700).contains(&low), "{low}");
    }
}
