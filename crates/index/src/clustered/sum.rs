//! Sums: CRC-32C over words, in one go where the processor has an instruction for it.
//!
//! A change's record has a few words; calling a library for each would cost more than the sum.

/// Returns the CRC-32C of `words`, as bytes from the lowest on, from the state `seed` on.
#[inline]
pub(super) fn words(seed: u32, words: &[u64]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: 1. the processor has SSE4.2, the only feature that the function requires.
        return unsafe { by_instruction(seed, words) };
    }
    words.iter().fold(!seed, |crc, word| {
        crc32c::crc32c_append(crc, &word.to_le_bytes())
    }) ^ !0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(seed: u32, words: &[u64]) -> u32 {
    use std::arch::x86_64::_mm_crc32_u64;
    let add = |state, word: &u64| _mm_crc32_u64(state, *word);
    words.iter().fold(u64::from(seed), add) as u32
}

/// Mixes words into one all of whose bits depend on all of theirs.
#[inline]
pub(super) fn mix(a: u64, b: u64, c: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut x = a ^ b.wrapping_mul(GOLDEN) ^ c.rotate_left(32).wrapping_mul(GOLDEN | 2);
    for shift in [32, 29, 31] {
        x = (x ^ x >> shift).wrapping_mul(GOLDEN);
    }
    x ^ x >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_and_the_library_agree() {
        let some: Vec<u64> = (0..70).map(|i: u64| mix(i, 1, 2)).collect();
        for seed in [0, 1, 0xFFFF_FFFF, 0x1234_5678] {
            for n in 0..some.len() {
                let library = (some[..n].iter()).fold(!seed, |crc, word| {
                    crc32c::crc32c_append(crc, &word.to_le_bytes())
                }) ^ !0;
                assert_eq!(words(seed, &some[..n]), library);
            }
        }
        assert_eq!(
            !words(!0, &[u64::from_le_bytes(*b"12345678")]),
            crc32c::crc32c(b"12345678")
        );
    }
}
