//! Fingerprints: one byte of hash per key, fourteen of them compared by one instruction.
//!
//! A 16-byte header holds a 16-bit bitmap word and 14 fingerprints:
//!
//! ```text
//! byte   0        2                      8                              16
//!        | bitmap | fingerprints 0..6    | fingerprints 6..14           |
//!        |<-------- word 0 ------------->|<--------- word 1 ----------->|
//! ```

/// Slots that a header covers.
pub const SLOTS: usize = 14;

/// Returns the slots whose fingerprint is `fingerprint`, in use or not, as bits 0..14.
#[inline(always)]
#[must_use]
pub fn matches(words: [u64; 2], fingerprint: u8) -> u32 {
    equal_bytes(words, fingerprint) >> 2
}

/// Returns which of the sixteen bytes are `byte`, as bits 0..16.
#[inline(always)]
#[must_use]
pub fn equal_bytes(words: [u64; 2], byte: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
        // SAFETY: SSE2 is part of x86-64's baseline.
        let mask = unsafe {
            let header = _mm_set_epi64x(words[1] as i64, words[0] as i64);
            _mm_movemask_epi8(_mm_cmpeq_epi8(header, _mm_set1_epi8(byte as i8)))
        };
        mask as u32
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::aarch64::{
            vceqq_u8, vcombine_u8, vcreate_u8, vdupq_n_u8, vget_lane_u64, vreinterpret_u64_u8,
            vreinterpretq_u16_u8, vshrn_n_u16,
        };
        // SAFETY: NEON is part of AArch64's baseline.
        let nibbles = unsafe {
            let header = vcombine_u8(vcreate_u8(words[0]), vcreate_u8(words[1]));
            let equal = vceqq_u8(header, vdupq_n_u8(byte));
            // Four bits for every byte: the narrowing shift that stands in for movemask.
            vget_lane_u64::<0>(vreinterpret_u64_u8(vshrn_n_u16::<4>(vreinterpretq_u16_u8(
                equal,
            ))))
        };
        let mut mask = 0;
        let mut rest = nibbles & 0x1111_1111_1111_1111;
        while rest != 0 {
            mask |= 1 << (rest.trailing_zeros() / 4);
            rest &= rest - 1;
        }
        mask
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    scalar(words, byte)
}

/// Returns the same, a byte at a time.
#[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), allow(dead_code))]
fn scalar(words: [u64; 2], byte: u8) -> u32 {
    let bytes = words[0]
        .to_le_bytes()
        .into_iter()
        .chain(words[1].to_le_bytes());
    bytes
        .enumerate()
        .fold(0, |mask, (i, b)| mask | u32::from(b == byte) << i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn vector_and_scalar_agree(a: u64, b: u64, slot in 0..SLOTS) {
            let fingerprint = if slot < 6 { a.to_le_bytes()[slot + 2] } else { b.to_le_bytes()[slot - 6] };
            let mask = matches([a, b], fingerprint);
            prop_assert_eq!(equal_bytes([a, b], fingerprint), scalar([a, b], fingerprint));
            prop_assert!(mask & 1 << slot != 0);
            prop_assert!(mask < 1 << SLOTS);
        }
    }
}
