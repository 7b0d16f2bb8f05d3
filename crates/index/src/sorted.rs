//! Sorting keys.

use std::cmp::Ordering;

/// Returns the order of `n` keys: their indices, ascending by key, and those of equal keys
/// ascending. `None` if they are in that order.
#[must_use]
pub fn order_of<'k>(n: usize, key: impl Fn(usize) -> &'k [u8]) -> Option<Vec<u32>> {
    if (1..n).all(|i| key(i - 1) <= key(i)) {
        return None;
    }
    // By the words behind what all keys have in common: these decide mostly.
    let first = key(0);
    let common = (1..n).map(|i| common_prefix(first, key(i)));
    let prefix = common.min().unwrap_or(0);
    let mut order: Vec<(u64, u32)> = (0..n)
        .map(|i| (key_word(&key(i)[prefix..]), i as u32))
        .collect();
    order.sort_unstable_by(|a, b| match a.0.cmp(&b.0) {
        Ordering::Equal => (key(a.1 as usize).cmp(key(b.1 as usize))).then(a.1.cmp(&b.1)),
        order => order,
    });
    Some(order.into_iter().map(|(_, i)| i).collect())
}

/// The first eight bytes of a key as a number: zeros stand for bytes that it does not have.
#[inline(always)]
pub(crate) fn key_word(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(eight)
        }
    }
}

/// Bytes that two keys have in common at their start.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_a_stable_sort() {
        let mut state = 7u64;
        for n in [0, 1, 2, 3, 50, 400] {
            for prefix in ["", "k", "a common start"] {
                let mut keys: Vec<Vec<u8>> = Vec::new();
                for _ in 0..n {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let len = (state >> 60) as usize;
                    let rest = state.to_be_bytes().repeat(2);
                    // Few different bytes, so that some are equal or begin alike.
                    let rest = rest[..len].iter().map(|byte| byte & 0x81);
                    keys.push(prefix.bytes().chain(rest).collect());
                }
                let mut stable: Vec<u32> = (0..n).collect();
                stable.sort_by(|a, b| keys[*a as usize].cmp(&keys[*b as usize]));
                match order_of(keys.len(), |i| keys[i].as_slice()) {
                    Some(order) => assert_eq!(order, stable),
                    None => assert!(keys.is_sorted()),
                }
            }
        }
    }
}
