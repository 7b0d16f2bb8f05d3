//! Sorting the few entries of a leaf.

/// Up to so many items are sorted by counting.
pub(super) const FEW: usize = 14;
/// Bytes of a number.
const WORD: usize = size_of::<u64>();

/// Sorts up to [`FEW`] items by a number each. So few are sorted fastest by counting for each how
/// many are smaller, which takes no branch that could be predicted wrongly.
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
        for j in 0..i {
            let after = u8::from(numbers[i] > numbers[j]);
            rank[i] += after;
            rank[j] += 1 - after;
        }
    }
    for (item, rank) in unsorted.into_iter().zip(rank).take(n) {
        items[usize::from(rank)] = item;
    }
}

/// How many bytes two strings begin with that are the same.
#[inline]
pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (a_words, _) = a.as_chunks::<WORD>();
    let (b_words, _) = b.as_chunks::<WORD>();
    for (i, (a, b)) in a_words.iter().zip(b_words).enumerate() {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return i * WORD + (differ.trailing_zeros() / u8::BITS) as usize;
        }
    }
    let rest = a_words.len() * WORD;
    let same = a[rest..].iter().zip(&b[rest..]).take_while(|(a, b)| a == b);
    rest + same.count()
}

/// The number that the eight bytes of a string from `start` on are, the first one highest; those that it has not are 0. Of two strings
/// that begin alike up to there, the one with the lower number is less.
#[inline]
pub(super) fn number_after(string: &[u8], start: usize) -> u64 {
    let rest = string.get(start..).unwrap_or_default();
    match rest.first_chunk::<WORD>() {
        Some(word) => u64::from_be_bytes(*word),
        None => {
            let mut word = [0; WORD];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(word)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_ordered_by_what_follows_what_they_share() {
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
                let shared = shared_prefix(a, b);
                assert_eq!(a[..shared], b[..shared]);
                assert!(
                    a.get(shared).is_none() || a.get(shared) != b.get(shared),
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
