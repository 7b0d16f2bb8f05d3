//! A random order of `0..n` that is computed instead of stored.
//!
//! A four-round Feistel network permutes the smallest `0..4^h` that contains `0..n`. A result
//! outside `0..n` is fed in again until one falls inside ("cycle walking"). The network is a
//! bijection with any round function, and cycle walking preserves that. Since `4^h < 4 n`, it takes
//! fewer than four rounds on average.

use super::mix;

const ROUNDS: usize = 4;

/// A bijection on `0..n`, chosen by a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl Permutation {
    /// Returns the order of `0..n` that `seed` selects.
    #[must_use]
    pub fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let round_keys = std::array::from_fn(|i| mix(seed ^ mix(i as u64 + 1)));
        Self {
            n,
            half_bits,
            round_keys,
        }
    }

    /// Returns the number of ordered numbers.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Returns true if it orders no number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Returns the number at `position` modulo [`len`](Self::len), or 0 if the order is empty.
    #[must_use]
    pub fn at(&self, position: u64) -> u64 {
        if self.n == 0 {
            return 0;
        }
        let mut number = position % self.n;
        loop {
            number = self.network(number);
            if number < self.n {
                return number;
            }
        }
    }

    fn network(&self, number: u64) -> u64 {
        // `half_bits` is at most 32, so the shifts are in range.
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bijection_for_every_small_size() {
        for n in (1..300).chain([1 << 12, (1 << 12) + 1, 100_003]) {
            let order = Permutation::new(n, 42);
            let mut seen = vec![false; n as usize];
            for position in 0..n {
                let number = order.at(position);
                assert!(number < n, "{number} of {n}");
                assert!(
                    !std::mem::replace(&mut seen[number as usize], true),
                    "{number} twice"
                );
            }
        }
    }

    #[test]
    fn reaches_the_largest_sizes() {
        let order = Permutation::new(u64::MAX, 1);
        assert_ne!(order.at(0), order.at(1));
        assert_eq!(order.len(), u64::MAX);
        let nothing = Permutation::new(0, 1);
        assert!(nothing.is_empty());
        assert_eq!(nothing.at(5), 0);
    }

    #[test]
    fn looks_shuffled_and_follows_from_the_seed() {
        let order = Permutation::new(10_000, 7);
        let fixed = (0..10_000).filter(|i| order.at(*i) == *i).count();
        assert!(fixed < 20, "{fixed} fixed points; about one is expected");
        let ascending = (1..10_000)
            .filter(|i| order.at(*i) > order.at(i - 1))
            .count();
        assert!(
            (4_700..5_300).contains(&ascending),
            "{ascending} of 9,999 steps ascend"
        );
        assert_eq!(order, Permutation::new(10_000, 7));
        assert_ne!(order.at(3), Permutation::new(10_000, 8).at(3));
    }
}
