//! Random numbers that follow from a seed. The load in the machine uses this file, too.

/// A sequence of random numbers.
pub struct Draw(u64);

const fn mix(mut word: u64) -> u64 {
    word ^= word >> 30;
    word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^= word >> 27;
    word = word.wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl Draw {
    /// Returns the sequence of that seed and purpose.
    pub fn of(seed: u64, purpose: u64) -> Self {
        Self(mix(mix(seed) ^ purpose))
    }

    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }
}
