//! Sorting the few entries of a leaf.

/// Up to this many items are sorted by counting.
pub(super) const FEW: usize = 14;
/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();

/// Sorts up to [`FEW`] items by a number each. Counting for each item how many are smaller sorts so
/// few fastest, because it takes no branch that could be mispredicted.
#[inline]
pub(super) fn sort_by_number<T: Copy + Default, N: Ord + Copy + Default>(
    items: &mut [T],
    number: impl Fn(&T) -> N,
) {
    let n = items.len();
    debug_assert!(n <= FEW, "few");
    let (mut unsorted, mut numbers) = ([T::default(); FEW], [N::default(); FEW]);
    for (i, item) in items.iter().enumerate() {
        (unsorted[i], numbers[i]) = (*item, number(item));
    }
    let mut rank = [0u8; FEW];
    for i in 1..n {
        let (number, mut below) = (numbers[i], 0);
        for (other, rank) in numbers[..i].iter().zip(&mut rank) {
            let after = u8::from(number > *other);
            below += after;
            *rank += 1 - after;
        }
        rank[i] = below;
    }
    for (item, rank) in unsorted.into_iter().zip(rank).take(n) {
        items[usize::from(rank)] = item;
    }
}

/// Returns the number of equal 8-byte words that two strings begin with.
#[inline]
pub(super) fn shared_words(a: &[u8], b: &[u8]) -> usize {
    let ((a, _), (b, _)) = (a.as_chunks::<WORD>(), b.as_chunks::<WORD>());
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the sixteen bytes of a string from its word `start` on as a number, the first byte
/// highest; missing bytes are 0. Of two strings that are equal up to there, the one with the lower
/// number is less.
#[inline]
pub(super) fn number_after(string: &[u8], start: usize) -> u128 {
    let rest = string.get(start * WORD..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u128::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; size_of::<u128>()];
            bytes[..rest.len()].copy_from_slice(rest);
            u128::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_ordered_by_what_follows_the_words_they_share() {
        let strings: Vec<Vec<u8>> = [
            "",
            "a",
            "aa",
            "a\0",
            "a\0\0",
            "user000000001",
            "user000000012",
        ]
        .iter()
        .chain(&[
            "user00000001",
            "user0000000123456789",
            "user0000000123456780",
            "\u{ff}",
        ])
        .map(|text| text.as_bytes().to_vec())
        .collect();
        for a in &strings {
            for b in &strings {
                let shared = shared_words(a, b);
                let (same, next) = (shared * WORD, (shared + 1) * WORD);
                assert_eq!(a[..same], b[..same]);
                assert!(
                    a.get(..next).is_none() || a.get(..next) != b.get(..next),
                    "{a:?} {b:?}"
                );
                let numbers = (number_after(a, shared), number_after(b, shared));
                if numbers.0 != numbers.1 {
                    assert_eq!(numbers.0.cmp(&numbers.1), a.cmp(b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn few_numbers_are_sorted_whatever_they_are() {
        for n in 0..=FEW {
            for seed in 0..200u64 {
                let number = |i: usize| (i as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
                let mut items: Vec<(u64, usize)> = (0..n).map(|i| (number(i), i)).collect();
                let mut expected = items.clone();
                sort_by_number(&mut items, |item| item.0);
                assert!(items.is_sorted_by_key(|item| item.0), "{items:?}");
                // Equal numbers may come in any order, but all must come.
                items.sort_unstable();
                expected.sort_unstable();
                assert_eq!(items, expected);
            }
        }
    }
}
