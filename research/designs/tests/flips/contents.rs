//! What the pools hold.

use bristlecone_designs::repr::Stored;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A type of keys and values.
pub trait Contents: Stored<Owned: Ord + Clone + Debug + 'static> + Ord + Debug + 'static {
    /// Name of the type.
    const NAME: &'static str;

    /// Returns the `n`th key. No two keys differ in one bit, and those of one bit more or less are
    /// mostly between the same two others.
    fn key(n: u64) -> Self::Owned;

    /// Returns a value that depends on `n`.
    fn value(n: u64) -> Self::Owned;
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Contents for u64 {
    const NAME: &'static str = "u64";

    fn key(n: u64) -> u64 {
        n << 24 | n << 12 | n
    }

    fn value(n: u64) -> u64 {
        n.wrapping_mul(GOLDEN)
    }
}

impl Contents for u128 {
    const NAME: &'static str = "u128";

    fn key(n: u64) -> u128 {
        u128::from(<u64 as Contents>::key(n)) << 64 | u128::from(n.wrapping_mul(GOLDEN))
    }

    fn value(n: u64) -> u128 {
        u128::from(n.wrapping_mul(GOLDEN)) << 64 | u128::from(n)
    }
}

impl Contents for [u8] {
    const NAME: &'static str = "bytes";

    fn key(n: u64) -> Vec<u8> {
        format!("key {:04}{}", n * 7, "x".repeat(n as usize % 5 * 6)).into_bytes()
    }

    fn value(n: u64) -> Vec<u8> {
        let length = [0, 3, 12, 41, 300][n as usize % 5];
        (0..length).map(|i| (n * 31 + i * 7) as u8).collect()
    }
}

/// Keys with their values.
pub type Pairs<K> = BTreeMap<<K as ToOwned>::Owned, <K as ToOwned>::Owned>;

/// Number of the first key that is never there.
pub const ABSENT: u64 = 90;

/// One change of an index.
pub enum Change {
    /// The key with this number, with the value of that.
    Put(u64, u64),
    /// The key with this number.
    Remove(u64),
}

/// Returns the changes that make the content: keys in no order, some replaced, some removed, so
/// that leaves were split, and some were emptied.
pub fn changes() -> Vec<Change> {
    let mut all: Vec<Change> = (0..ABSENT)
        .map(|i| i * 37 % ABSENT)
        .map(|n| Change::Put(n, n))
        .collect();
    all.extend((0..ABSENT).step_by(4).map(|n| Change::Put(n, n + 1000)));
    all.extend((40..60).map(Change::Remove));
    all.extend((0..ABSENT).step_by(9).map(Change::Remove));
    all.extend((45..50).map(|n| Change::Put(n, n + 2000)));
    all
}
