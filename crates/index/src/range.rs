//! Keys relative to the ends of a range.

use std::borrow::Borrow;
use std::ops::Bound;

/// Returns true if `key` lies before a range that starts here.
pub fn is_before<K: Ord + ?Sized>(key: &K, start: Bound<&K>) -> bool {
    match start {
        Bound::Included(start) => key < start,
        Bound::Excluded(start) => key <= start,
        Bound::Unbounded => false,
    }
}

/// Returns true if `key` lies after a range that ends here.
pub fn is_after<K: Ord + ?Sized>(key: &K, end: Bound<&K>) -> bool {
    match end {
        Bound::Included(end) => key > end,
        Bound::Excluded(end) => key >= end,
        Bound::Unbounded => false,
    }
}

/// Returns true if no key below `key` is in a range that starts here.
pub fn has_none_below<K: Ord + ?Sized>(key: &K, start: Bound<&K>) -> bool {
    match start {
        Bound::Included(start) | Bound::Excluded(start) => key <= start,
        Bound::Unbounded => false,
    }
}

/// Returns the bound with a borrowed key.
pub fn borrowed<K: ToOwned + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    match bound {
        Bound::Included(key) => Bound::Included(key.borrow()),
        Bound::Excluded(key) => Bound::Excluded(key.borrow()),
        Bound::Unbounded => Bound::Unbounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_compared_with_the_ends_of_a_range() {
        let bounds = [Bound::Included(&3), Bound::Excluded(&3), Bound::Unbounded];
        let of = |test: fn(&i32, Bound<&i32>) -> bool| {
            bounds.map(|bound| [2, 3, 4].map(|key| test(&key, bound)))
        };
        let never = [false; 3];
        let (to_two, to_three) = ([true, false, false], [true, true, false]);
        assert_eq!(of(is_before), [to_two, to_three, never]);
        let (from_three, from_four) = ([false, true, true], [false, false, true]);
        assert_eq!(of(is_after), [from_four, from_three, never]);
        assert_eq!(of(has_none_below), [to_three, to_three, never]);
    }

    #[test]
    fn a_borrowed_bound_is_of_the_same_kind() {
        let text = || "k".to_owned();
        assert_eq!(
            borrowed::<str>(&Bound::Included(text())),
            Bound::Included("k")
        );
        assert_eq!(
            borrowed::<str>(&Bound::Excluded(text())),
            Bound::Excluded("k")
        );
        assert_eq!(borrowed::<str>(&Bound::Unbounded), Bound::Unbounded);
    }
}
