//! CRC-32C of records: of the index key, of length and flags, and of expiry and value.
//!
//! Every read compares a checksum, mostly of some hundred bytes in three pieces. For so few bytes,
//! calling the library for each piece costs more than the checksum itself. So short pieces are
//! computed here in one go where the processor has an instruction for CRC-32C.

/// Longest value whose checksum is computed here. The library computes longer ones three words at a
/// time.
#[cfg(target_arch = "x86_64")]
const SHORT: usize = 512;

/// Returns the CRC-32C of three consecutive pieces.
#[inline]
pub(crate) fn of_three(a: &[u8], b: &[u8; 4], c: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if c.len() <= SHORT && is_x86_feature_detected!("sse4.2") {
        // SAFETY: 1. the processor has SSE4.2, the only feature that the function requires.
        return unsafe { short::of_three(a, b, c) };
    }
    append(crc32c::crc32c(a), &[b, c])
}

/// Returns the CRC-32C of data with CRC-32C `crc` followed by these pieces.
pub(crate) fn append(crc: u32, pieces: &[&[u8]]) -> u32 {
    (pieces.iter()).fold(crc, |crc, piece| crc32c::crc32c_append(crc, piece))
}

#[cfg(target_arch = "x86_64")]
mod short {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    #[target_feature(enable = "sse4.2")]
    pub fn of_three(a: &[u8], b: &[u8; 4], c: &[u8]) -> u32 {
        let state = _mm_crc32_u32(append(!0, a), u32::from_le_bytes(*b));
        !append(state, c)
    }

    /// `state` is the complement of the CRC.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn append(state: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        let word = |state, word: &[u8; 8]| _mm_crc32_u64(state, u64::from_le_bytes(*word));
        let state = words.iter().fold(u64::from(state), word) as u32;
        let (half, rest) = rest.as_chunks::<4>();
        let state = (half.iter()).fold(state, |state, half| {
            _mm_crc32_u32(state, u32::from_le_bytes(*half))
        });
        (rest.iter()).fold(state, |state, byte| _mm_crc32_u8(state, *byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_pieces_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..2000u32).map(|i| (i * i / 7 + i) as u8).collect();
        let words = *bytes[500..].first_chunk().unwrap();
        for key in [0, 1, 3, 4, 7, 8, 12, 27, 63, 64, 300] {
            for len in (0..80).chain([100, 255, 511, 512, 513, 520, 1024, 1400]) {
                // At any alignment.
                let (key, value) = (&bytes[len % 8..][..key], &bytes[key % 8 + 3..][..len]);
                let whole = crc32c::crc32c(&[key, &words, value].concat());
                assert_eq!(of_three(key, &words, value), whole, "{} {len}", key.len());
                assert_eq!(append(crc32c::crc32c(key), &[&words, value]), whole);
            }
        }
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283, "CRC-32C");
    }
}
