//! Zipf's law by the method of Gray et al. ("Quickly generating billion-record synthetic
//! databases", SIGMOD 1994), which YCSB uses: rank `r` (from 1) is drawn with a probability
//! proportional to `1 / r^theta`.
//!
//! The construction takes time proportional to the number of items, a draw constant time.

use super::{Permutation, Random};

/// Draws ranks by Zipf's law.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    /// Probability mass, times zeta, of the two first ranks.
    two: f64,
    spread: Permutation,
}

impl Zipf {
    /// Returns a generator over `items` items, at least one, with skew `theta`, which is clamped to
    /// 0.01..=0.9999, the range of the method. YCSB's default skew is 0.99.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        let items = items.max(1);
        let theta = if theta.is_nan() {
            0.99
        } else {
            theta.clamp(0.01, 0.9999)
        };
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    fn with_zeta(items: u64, theta: f64, zeta: f64) -> Self {
        let two = 1.0 + 0.5_f64.powf(theta);
        let eta = if items > 2 {
            (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - two / zeta)
        } else {
            0.0
        };
        Self {
            items,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta,
            two,
            spread: Permutation::new(items, 0x7a69_7066),
        }
    }

    /// Draws a rank below the number of items; 0 is the likeliest.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let scaled = u * self.zeta;
        if scaled < 1.0 || self.items == 1 {
            return 0;
        }
        if scaled < self.two || self.items == 2 {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// Draws an index below the number of items: a rank, spread so that the likeliest are not
    /// neighbours.
    pub fn scrambled(&self, random: &mut Random) -> u64 {
        self.spread.at(self.rank(random))
    }
}

/// Draws records as YCSB's "scrambled Zipfian" does: a rank of [`ITEMS`](Self::ITEMS), whatever the
/// number of records, is hashed (FNV-1a) and taken modulo that number.
///
/// So the likeliest record has the same share of draws for every number of records, and a record
/// may have several ranks or none.
#[derive(Clone, Debug)]
pub struct Scrambled {
    ranks: Zipf,
    records: u64,
}

impl Scrambled {
    /// Number of ranks, as in YCSB.
    pub const ITEMS: u64 = 10_000_000_000;
    /// Skew, as in YCSB.
    pub const THETA: f64 = 0.99;
    /// The sum of `1 / r^THETA` over all ranks, which YCSB has as a constant too.
    pub const ZETA: f64 = 26.469_028_201_783_02;

    /// Returns a generator over `records` records, at least one.
    #[must_use]
    pub fn new(records: u64) -> Self {
        Self {
            ranks: Zipf::with_zeta(Self::ITEMS, Self::THETA, Self::ZETA),
            records: records.max(1),
        }
    }

    /// Draws an index below the number of records.
    pub fn index(&self, random: &mut Random) -> u64 {
        self.record(self.ranks.rank(random))
    }

    fn record(&self, rank: u64) -> u64 {
        fnv(rank).cast_signed().unsigned_abs() % self.records
    }
}

/// FNV-1a of the word's bytes, lowest first.
fn fnv(word: u64) -> u64 {
    let byte = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = word.to_le_bytes().into_iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, byte)
}

fn zeta(items: u64, theta: f64) -> f64 {
    (1..=items).map(|rank| (rank as f64).powf(-theta)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_law() {
        let (items, draws) = (1_000, 200_000);
        let zipf = Zipf::new(items, 0.99);
        let mut random = Random::new(11);
        let mut counts = vec![0_u32; items as usize];
        for _ in 0..draws {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        let zeta = zeta(items, 0.99);
        for rank in [0_usize, 1] {
            let expected = f64::from(draws) / ((rank + 1) as f64).powf(0.99) / zeta;
            let found = f64::from(counts[rank]);
            assert!(
                (found / expected - 1.0).abs() < 0.05,
                "rank {rank}: {found} for {expected}"
            );
        }
        // The approximation of the tail: half the mass lies where the law puts it, within a few
        // ranks.
        let half = |weights: &mut dyn Iterator<Item = f64>, total: f64| {
            let mut sum = 0.0;
            weights
                .take_while(|w| {
                    sum += w;
                    sum < total / 2.0
                })
                .count()
        };
        let law = half(&mut (1..=items).map(|r| (r as f64).powf(-0.99)), zeta);
        let drawn = half(&mut counts.iter().map(|c| f64::from(*c)), f64::from(draws));
        assert!(
            law.abs_diff(drawn) <= 6,
            "half the mass by rank {law}, drawn by rank {drawn}"
        );
    }

    #[test]
    fn the_scrambled_head_has_the_shares_of_the_law() {
        const DRAWS: u32 = 1_000_000;
        // The sum's tail by Euler and Maclaurin, from the millionth rank on.
        let (rest, power) = (1.0 - Scrambled::THETA, |n: f64| {
            n.powf(1.0 - Scrambled::THETA)
        });
        let tail = (power(Scrambled::ITEMS as f64) - power(1e6)) / rest;
        let sum = zeta(1_000_000, Scrambled::THETA) + tail;
        assert!((sum / Scrambled::ZETA - 1.0).abs() < 1e-6, "{sum}");
        for records in [1_000_u64, 100_000] {
            let scrambled = Scrambled::new(records);
            let mut random = Random::new(4);
            let mut counts = vec![0_u32; records as usize];
            for _ in 0..DRAWS {
                counts[scrambled.index(&mut random) as usize] += 1;
            }
            let law = |rank: u64| ((rank + 1) as f64).powf(-Scrambled::THETA) / Scrambled::ZETA;
            let found = |rank| f64::from(counts[scrambled.record(rank) as usize]);
            // The two likeliest: within 3 %. Of 1000 records each also gets a thousandth of the
            // ranks behind the head.
            for rank in [0, 1] {
                let others = (1.0 - (0..10).map(law).sum::<f64>()) / records as f64;
                let expected = f64::from(DRAWS) * (law(rank) + others);
                let share = found(rank) / expected;
                assert!(
                    (share - 1.0).abs() < 0.03,
                    "rank {rank} of {records}: {share}"
                );
            }
            // The ten likeliest together: within 8 %, since the method approximates from the third
            // rank on.
            if records > 1_000 {
                let expected: f64 = (0..10).map(law).sum::<f64>() * f64::from(DRAWS);
                let share = (0..10).map(found).sum::<f64>() / expected;
                assert!((share - 1.0).abs() < 0.08, "the first ten: {share}");
            }
        }
    }

    #[test]
    fn the_hash_is_that_of_ycsb() {
        // FNV-1a of eight zero bytes, and of the byte 1 and seven zeros.
        assert_eq!(fnv(0), 0xa8c7_f832_281a_39c5);
        assert_eq!(fnv(1), 0x89cd_3129_1d2a_efa4);
    }

    #[test]
    fn scrambling_keeps_every_index_in_range() {
        for items in [0, 1, 2, 3, 10] {
            let zipf = Zipf::new(items, 0.99);
            let mut random = Random::new(2);
            assert!((0..1_000).all(|_| zipf.scrambled(&mut random) < items.max(1)));
        }
    }
}
