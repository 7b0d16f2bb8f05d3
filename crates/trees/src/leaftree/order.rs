//! Sorting the few entries of a leaf.

/// Up to so many items are sorted by counting.
pub(super) const FEW: usize = 14;

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

#[cfg(test)]
mod tests {
    use super::*;

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
