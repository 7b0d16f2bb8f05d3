//! The values of a comparison: the first eight bytes tell key and version, the others are random.
//!
//! ```text
//! value = value_of(key) + version (8 bytes, little-endian) | bytes of a pool of random ones
//! ```
//!
//! Engines that compress blocks gain next to nothing from the random part: the pool is many times
//! larger than a block, so two values of a block rarely overlap in it.

use crate::workload::{Random, mix, value_of};

/// Random bytes that values are cut from.
const POOL: usize = 1 << 20;
/// Bytes that tell key and version: the shortest value.
pub(super) const SHORTEST: usize = 8;
/// More versions than any key has.
const VERSIONS: u64 = 64;

/// Values of one length.
#[derive(Debug)]
pub(super) struct Values {
    bytes: usize,
    pool: Vec<u8>,
}

impl Values {
    /// Values of `bytes` bytes, at least [`SHORTEST`].
    pub(super) fn new(bytes: usize) -> Self {
        let mut random = Random::new(0x0076_616c_7565);
        let words = (POOL + bytes).div_ceil(8);
        Self {
            bytes,
            pool: (0..words)
                .flat_map(|_| random.word().to_le_bytes())
                .collect(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces the content of `out` with a value.
    pub(super) fn fill(&self, key: u64, version: u64, out: &mut Vec<u8>) {
        let word = value_of(key).wrapping_add(version);
        let from = mix(word) as usize % POOL;
        out.clear();
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(&self.pool[from..from + self.bytes - SHORTEST]);
    }

    /// Returns true if `value` is a version of `key`'s value, by its length and first bytes.
    pub(super) fn is_of(&self, key: u64, value: &[u8]) -> bool {
        let Some((word, _)) = value.split_first_chunk() else {
            return false;
        };
        let version = u64::from_le_bytes(*word).wrapping_sub(value_of(key));
        value.len() == self.bytes && version < VERSIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_key() {
        for bytes in [8, 9, 100, 1000] {
            let values = Values::new(bytes);
            let (mut one, mut other) = (Vec::new(), Vec::new());
            values.fill(7, 0, &mut one);
            values.fill(7, 3, &mut other);
            assert_eq!((one.len(), other.len()), (bytes, bytes));
            assert_ne!(one, other, "versions differ");
            assert!(values.is_of(7, &one) && values.is_of(7, &other));
            assert!(!values.is_of(8, &one));
            assert!(!values.is_of(7, &one[..bytes - 1]));
        }
        assert!(!Values::new(8).is_of(7, &[]));
    }

    #[test]
    fn values_of_a_block_hardly_repeat() {
        let values = Values::new(1000);
        let (mut value, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        let (mut repeated, mut words) = (0, 0);
        for key in 0..64 {
            values.fill(key, 0, &mut value);
            for word in value.windows(8) {
                words += 1;
                repeated += usize::from(!seen.insert(word.to_vec()));
            }
        }
        assert!(repeated * 20 < words, "{repeated} of {words}");
    }
}
