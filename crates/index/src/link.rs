//! Words that lead to a block, with a check in the bits that an offset does not need.
//!
//! ```text
//! word | offset of the block (bits 0..48) | check of the offset (bits 48..64) |      0: to nothing
//! ```
//!
//! A word is changed by one 8-byte store, so a crash never tears it, and one that fails its check
//! is damaged. Searches take the offset and do not look at the check. Whoever walks the structure,
//! to recover or to check it, does. Every single flipped bit is found: one in a word of zeros too,
//! and none leaves a word of zeros.

const SHIFT: u32 = 48;
const OFFSET: u64 = (1 << SHIFT) - 1;
/// 2^64 divided by the golden ratio: a product with another bit of its other factor flipped has
/// other high bits.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the word that leads to `offset`.
#[inline(always)]
#[must_use]
pub const fn word(offset: u64) -> u64 {
    debug_assert!(offset <= OFFSET);
    offset | offset.wrapping_mul(GOLDEN) >> SHIFT << SHIFT
}

/// Returns the offset that a word leads to.
#[inline(always)]
#[must_use]
pub const fn offset(word: u64) -> u64 {
    word & OFFSET
}

/// Returns the offset that a word leads to, if its check is right.
///
/// # Errors
/// The reason in words.
pub fn checked(found: u64) -> Result<u64, String> {
    let offset = offset(found);
    if word(offset) == found {
        Ok(offset)
    } else {
        Err(format!("the link {found:#x} fails its check"))
    }
}

/// Returns `word` with its bit `at` such that an even number of its bits is set. A word that is
/// stored so is [even](is_even) unless a bit of it was flipped.
#[inline(always)]
#[must_use]
pub const fn evened(word: u64, at: u32) -> u64 {
    let rest = word & !(1 << at);
    rest | (rest.count_ones() as u64 & 1) << at
}

/// Returns true if an even number of a word's bits is set.
#[inline(always)]
#[must_use]
pub const fn is_even(word: u64) -> bool {
    word.count_ones().is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let single = (0..SHIFT).map(|bit| 1 << bit);
        for off in single.chain([0, 0x10000, 0x7F_FF00, OFFSET, 0x0123_4567_8900]) {
            let whole = word(off);
            assert_eq!((offset(whole), checked(whole)), (off, Ok(off)));
            for bit in 0..64 {
                assert!(checked(whole ^ 1 << bit).is_err(), "{off:#x}, bit {bit}");
            }
        }
    }

    #[test]
    fn even_words_tell_every_flipped_bit() {
        for found in [0, 1, 0b1011, u64::MAX, 0x8000_0000_0000_0000] {
            let even = evened(found, 17);
            assert!(is_even(even) && (even ^ found) & !(1 << 17) == 0);
            assert!((0..64).all(|bit| !is_even(even ^ 1 << bit)));
        }
    }
}
