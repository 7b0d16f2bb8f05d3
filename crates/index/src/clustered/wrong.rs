//! Which bit of a change is wrong, if it is one.
//!
//! Of what a power cut tore otherwise, one in 2^40 / its bits passes for such a change: CRC and
//! fold agree on the bit. The CRC alone lets one in 2^32 pass.
//!
//! CRC-32C is linear: what a wrong bit does to it does not depend on the others.

use super::layout::{Seed, fold};
use super::sum;

/// The one bit that is wrong of the group at word `place`, of whose words `words` are the first:
/// which word it is in, and the bit.
pub(super) fn wrong_bit(seed: Seed, place: usize, words: &[u64]) -> Option<(usize, u64)> {
    let (&head, _) = words.split_first()?;
    let is_whole = |head: u64| {
        let of = seed.headed(place, head);
        of.is_some_and(|(kind, n)| {
            n <= words.len() && seed.is_head(place, head, kind, &words[1..n])
        })
    };
    let in_head = (0..64).map(|bit| 1 << bit).find(|bit| is_whole(head ^ bit));
    if let Some(bit) = in_head {
        return Some((0, bit));
    }
    let (kind, n) = seed
        .headed(place, head)
        .filter(|(_, n)| *n <= words.len())?;
    let wrong = head ^ seed.head(place, kind, &words[1..n]);
    // How each bit of a word changes the CRC, beginning with the last word.
    let mut changes: Vec<u32> = (0..64).map(|bit| sum::words(0, &[1 << bit])).collect();
    for word in (1..n).rev() {
        if let Some(bit) = changes.iter().position(|change| *change == wrong as u32) {
            return (fold(1 << bit) == wrong >> 32).then_some((word, 1 << bit));
        }
        changes
            .iter_mut()
            .for_each(|change| *change = sum::words(*change, &[0]));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::layout::Kind;
    use super::*;

    #[test]
    fn every_wrong_bit_of_a_group_is_found() {
        let seed = Seed {
            salt: 0x1234_5678_9ABC,
            generation: 77,
        };
        for n in [3, 4, 9, 60] {
            let mut words: Vec<u64> = (0..n + 5).map(|i| sum::mix(i, n, 3)).collect();
            words[0] = seed.head(40, Kind::General, &words[1..n as usize]);
            for bit in 0..n * 64 {
                let (word, bit) = (bit as usize / 64, 1 << (bit % 64));
                words[word] ^= bit;
                assert_eq!(
                    wrong_bit(seed, 40, &words),
                    Some((word, bit)),
                    "of {n} words"
                );
                // Of another place.
                assert_eq!(wrong_bit(seed, 41, &words), None);
                words[2] ^= 1 << 50;
                assert_eq!(wrong_bit(seed, 40, &words), None, "two bits, or none");
                words[2] ^= 1 << 50;
                words[word] ^= bit;
            }
        }
    }
}
