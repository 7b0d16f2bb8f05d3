//! Words of the directory, each with a check: one flipped bit is always told, others mostly.
//!
//! ```text
//! word | value (bits 0..56) | check of the value (bits 56..64) |      0: the value 0
//! ```
//!
//! A word is changed by one 8-byte store, so a crash never tears it.

/// Bits of a value.
const BITS: u32 = 56;
/// The bits that a value has.
pub const VALUE: u64 = (1 << BITS) - 1;

/// 2^64 divided by the golden ratio. No run of 8 of its bits is all zeros or all ones, so that a
/// product with one bit of its other factor flipped has another high byte.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the word of `value`, of which bits above [`VALUE`] are left out.
#[inline]
#[must_use]
pub const fn seal(value: u64) -> u64 {
    let value = value & VALUE;
    value | value.wrapping_mul(GOLDEN) >> BITS << BITS
}

/// Returns the value of a word; `None` if its check is wrong.
#[inline]
#[must_use]
pub const fn open(word: u64) -> Option<u64> {
    let value = word & VALUE;
    if seal(value) == word {
        Some(value)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_told() {
        let single = (0..BITS).map(|bit| 1 << bit);
        for value in single.chain([0, 1, 5, VALUE, 0x12_3456_789A_BCDE, 0x7F_FF00]) {
            let word = seal(value);
            assert_eq!(open(word), Some(value));
            for bit in 0..64 {
                assert_eq!(open(word ^ 1 << bit), None, "{value:#x}, bit {bit}");
            }
        }
        assert_eq!(seal(0), 0, "a word that was never written");
    }
}
