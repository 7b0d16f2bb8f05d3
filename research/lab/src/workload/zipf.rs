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
        let zeta = zeta(items, theta);
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
    fn scrambling_keeps_every_index_in_range() {
        for items in [0, 1, 2, 3, 10] {
            let zipf = Zipf::new(items, 0.99);
            let mut random = Random::new(2);
            assert!((0..1_000).all(|_| zipf.scrambled(&mut random) < items.max(1)));
        }
    }
}
