//! Words that carry their own check: 52 bits of payload and 12 bits that depend on the payload and
//! on the word's place.
//!
//! ```text
//! bits 12..64   payload; never 0 in a word that counts
//! bits 0..12    check
//! ```
//!
//! A word of the page table or of the root is changed by one 8-byte store, so a crash never tears
//! it; what the check finds is damage. It finds every single flipped bit, and a word that stands in
//! another's place. A word of all zeros is *empty*: it says that nothing is there. So that no
//! single flipped bit makes an empty word count, payloads have at least two bits set wherever that
//! matters ([`super::table`], [`MARK`]).

use super::sum;

/// Bits of a payload.
pub(super) const PAYLOAD_BITS: u32 = 52;
/// Two bits that mark the payload of a root word, so that no flipped bit turns an empty word into
/// one.
pub(super) const MARK: u64 = 0b11 << (PAYLOAD_BITS - 2);
const CHECK_BITS: u32 = 64 - PAYLOAD_BITS;
const CHECK_MASK: u64 = (1 << CHECK_BITS) - 1;

/// Returns the word of `payload` at `place`: a number that no other checked word of the tree has.
#[inline]
pub(super) fn word(payload: u64, place: u64) -> u64 {
    debug_assert!(payload != 0 && payload >> PAYLOAD_BITS == 0);
    payload << CHECK_BITS | check(payload, place)
}

/// Returns the payload of a word at `place`: 0 of an empty one, `None` if the check fails.
#[inline]
pub(super) fn payload(word: u64, place: u64) -> Option<u64> {
    let payload = word >> CHECK_BITS;
    (word == 0 || payload != 0 && check(payload, place) == word & CHECK_MASK).then_some(payload)
}

/// Returns the word of `value` at `place`, marked.
pub(super) fn marked(value: u64, place: u64) -> u64 {
    debug_assert!(value < MARK);
    word(value | MARK, place)
}

/// Returns the value of a marked word at `place`; `None` if the word is empty or fails its check.
pub(super) fn marked_value(word: u64, place: u64) -> Option<u64> {
    let payload = payload(word, place)?;
    (payload & MARK == MARK).then_some(payload & !MARK)
}

/// The check: CRC-32C, folded to 12 bits.
#[inline]
fn check(payload: u64, place: u64) -> u64 {
    let crc = u64::from(sum::words(place as u32 ^ (place >> 32) as u32, &[payload]));
    (crc ^ crc >> 11 ^ crc >> 23) & CHECK_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let payloads = [1, MARK | 5, (1 << PAYLOAD_BITS) - 1, 0x000A_5A5A_1234_5678];
        for (payload_of, place) in payloads.into_iter().zip([0, 1, 77, u64::MAX]) {
            let whole = word(payload_of, place);
            assert_eq!(payload(whole, place), Some(payload_of));
            assert_ne!(payload(whole, place ^ 1), Some(payload_of), "another place");
            for bit in 0..64 {
                assert_eq!(payload(whole ^ 1 << bit, place), None, "bit {bit}");
            }
        }
        assert_eq!(payload(0, 9), Some(0), "an empty word");
    }
}
