//! Keys and values as the scenarios make them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Bound;

/// Longest byte-string key that every design takes.
pub const MAX_KEY: usize = 65_540;

/// A key type that the scenarios can use.
pub trait TestKey:
    ToOwned<Owned: Clone + Debug + Ord + Hash + Send + Sync + 'static>
    + Ord
    + Debug
    + Send
    + Sync
    + 'static
{
    /// Returns the `n`th key; strictly ascending in `n`.
    fn of(n: u64) -> Self::Owned;

    /// Returns the `n` of a key that [`of`](Self::of) made.
    fn number(&self) -> u64;

    /// Returns the same, or `None` for a key that was never made, where this can be told.
    fn made(&self) -> Option<u64>;

    /// Returns few and clustered keys, so that random operations meet each other.
    fn clustered() -> BoxedStrategy<Self::Owned>;

    /// Returns the extremes of the type, strictly ascending; byte strings of up to `most` bytes.
    fn boundaries(most: usize) -> Vec<Self::Owned>;

    /// Returns many keys that are hard to tell apart, in no order.
    fn look_alikes() -> Vec<Self::Owned>;

    /// Returns a key that is one byte longer than `most`, where keys have lengths.
    fn too_long(most: usize) -> Option<Self::Owned>;
}

impl TestKey for u64 {
    fn of(n: u64) -> u64 {
        n
    }

    fn number(&self) -> u64 {
        *self
    }

    fn made(&self) -> Option<u64> {
        Some(*self)
    }

    fn clustered() -> BoxedStrategy<u64> {
        prop_oneof![
            6 => 0..120u64,
            3 => (0..6u64, 0..40u64).prop_map(|(cluster, n)| (cluster << 61) + (n << 3)),
            1 => (0..30u64).prop_map(|n| u64::MAX - n),
            1 => any::<u64>(),
        ]
        .boxed()
    }

    fn boundaries(_most: usize) -> Vec<u64> {
        vec![
            0,
            1,
            2,
            255,
            256,
            u64::from(u32::MAX),
            1 << 32,
            (1 << 48) - 1,
            1 << 48,
            i64::MAX as u64 - 1,
            i64::MAX as u64,
            1 << 63,
            (1 << 63) + 1,
            u64::MAX - 1,
            u64::MAX,
        ]
    }

    fn look_alikes() -> Vec<u64> {
        // Few bits set, as a test of hashes of neighbours, halves and shifts.
        let mut keys: Vec<u64> = Vec::new();
        for a in 0..64 {
            keys.push(1 << a);
            keys.push(!(1 << a));
            for b in 0..a {
                keys.push(1 << a | 1 << b);
            }
        }
        keys
    }

    fn too_long(_most: usize) -> Option<u64> {
        None
    }
}

impl TestKey for u128 {
    // Two consecutive numbers share the high half; the low half depends on all of the number.
    fn of(n: u64) -> u128 {
        u128::from(n / 2) << 64 | u128::from(n % 2) << 63 | u128::from(!n >> 1)
    }

    fn number(&self) -> u64 {
        let n = (self >> 63) as u64;
        assert_eq!(*self, <u128 as TestKey>::of(n), "a key that no one made");
        n
    }

    // A number has no checksum, so a damaged one cannot be told.
    fn made(&self) -> Option<u64> {
        Some((self >> 63) as u64)
    }

    fn clustered() -> BoxedStrategy<u128> {
        prop_oneof![
            4 => 0..120u128,
            2 => (0..6u128, 0..20u128).prop_map(|(high, low)| (high << 64) + low),
            3 => (0..6u128, 0..6u128).prop_map(|(high, low)| (high << 125) + (low << 61)),
            1 => (0..30u128).prop_map(|n| u128::MAX - n),
            1 => any::<u128>(),
        ]
        .boxed()
    }

    fn boundaries(_most: usize) -> Vec<u128> {
        let max = u128::from(u64::MAX);
        vec![
            0,
            1,
            2,
            255,
            256,
            i64::MAX as u128,
            1 << 63,
            max - 1,
            max,
            max + 1,
            max + 2,
            2 * max + 1,
            2 * max + 2,
            i128::MAX as u128 - 1,
            i128::MAX as u128,
            1 << 127,
            (1 << 127) + 1,
            u128::MAX - max - 1,
            u128::MAX - max,
            u128::MAX - 1,
            u128::MAX,
        ]
    }

    fn look_alikes() -> Vec<u128> {
        let mut keys: Vec<u128> = Vec::new();
        for a in 0..128 {
            keys.push(1 << a);
            keys.push(!(1 << a));
            keys.extend((a % 3..a).step_by(3).map(|b| 1 << a | 1 << b));
        }
        keys
    }

    fn too_long(_most: usize) -> Option<u128> {
        None
    }
}

/// Longer than any prefix that a node might keep.
const PREFIX: &[u8] = b"a prefix that no node has room for: ";

impl TestKey for [u8] {
    fn of(n: u64) -> Vec<u8> {
        let mut key = PREFIX.to_vec();
        key.extend(n.to_be_bytes());
        key.extend(std::iter::repeat_n(b'~', (n % 5 * 9) as usize));
        key
    }

    fn number(&self) -> u64 {
        let digits = self[PREFIX.len()..PREFIX.len() + 8]
            .try_into()
            .expect("made by `of`");
        u64::from_be_bytes(digits)
    }

    fn made(&self) -> Option<u64> {
        let digits = self.strip_prefix(PREFIX)?.first_chunk::<8>()?;
        let n = u64::from_be_bytes(*digits);
        (*self == *<[u8] as TestKey>::of(n)).then_some(n)
    }

    fn clustered() -> BoxedStrategy<Vec<u8>> {
        prop_oneof![
            4 => vec(prop::sample::select(&b"\0\x01ab\xff"[..]), 0..4),
            4 => (0..120u64).prop_map(<[u8] as TestKey>::of),
            1 => vec(Just(0u8), 0..20),
            1 => (0..40usize, 0..3u8).prop_map(|(n, last)| {
                let mut key = vec![b'x'; 50 + n];
                key.push(last);
                key
            }),
            1 => vec(any::<u8>(), 0..24),
        ]
        .boxed()
    }

    fn boundaries(most: usize) -> Vec<Vec<u8>> {
        let mut keys = vec![
            vec![],
            vec![0],
            vec![0, 0],
            vec![0; 7],
            vec![0; 8],
            vec![0; 9],
            vec![0; 16],
            vec![0, 0xff],
            vec![1],
            b"\x7f".to_vec(),
            b"\x80".to_vec(),
            b"a".to_vec(),
            b"a\0".to_vec(),
            b"a\0\0".to_vec(),
            b"a\0b".to_vec(),
            b"aa".to_vec(),
            b"abcdefg".to_vec(),
            b"abcdefgh".to_vec(),
            b"abcdefghi".to_vec(),
            vec![b'm'; most - 1],
            vec![b'm'; most],
            vec![0xff],
            vec![0xff; 8],
            vec![0xff; most - 1],
            vec![0xff; most],
        ];
        keys.push(vec![0; most]);
        let mut last_differs = vec![b'm'; most];
        last_differs[most - 1] = b'n';
        keys.push(last_differs);
        keys.sort();
        keys
    }

    fn look_alikes() -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for n in 0..600u16 {
            // The difference is at the very end, in the middle, or only in the length.
            let mut at_the_end = vec![b'e'; 300];
            at_the_end.extend(n.to_be_bytes());
            keys.push(at_the_end);
            let mut in_the_middle = vec![b'm'; 150];
            in_the_middle.extend(n.to_be_bytes());
            in_the_middle.extend([b'm'; 150]);
            keys.push(in_the_middle);
            keys.push(vec![b'l'; usize::from(n)]);
            keys.push(vec![0; usize::from(n)]);
        }
        keys.sort();
        keys.dedup();
        keys
    }

    fn too_long(most: usize) -> Option<Vec<u8>> {
        Some(vec![b'k'; most + 1])
    }
}

/// A value type that the scenarios can use.
pub trait TestValue:
    ToOwned<Owned: Clone + Debug + PartialEq + Send + Sync + 'static>
    + PartialEq
    + Debug
    + Send
    + Sync
    + 'static
{
    /// True if values lie in records with checksums.
    const CHECKED: bool;

    /// Returns the value that stands for `n`.
    fn of(n: u64) -> Self::Owned;

    /// Returns the `n` of a value that [`of`](Self::of) made. Panics on any other value, torn ones
    /// included.
    fn number(&self) -> u64;

    /// Returns a value of `bytes` bytes, where values have lengths.
    fn sized(bytes: usize, seed: u64) -> Option<Self::Owned>;
}

impl TestValue for u64 {
    const CHECKED: bool = false;

    fn of(n: u64) -> u64 {
        n
    }

    fn number(&self) -> u64 {
        *self
    }

    fn sized(_bytes: usize, _seed: u64) -> Option<u64> {
        None
    }
}

impl TestValue for u128 {
    const CHECKED: bool = false;

    fn of(n: u64) -> u128 {
        u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n)
    }

    fn number(&self) -> u64 {
        let n = *self as u64;
        assert_eq!(
            *self,
            <u128 as TestValue>::of(n),
            "a value that no one wrote"
        );
        n
    }

    fn sized(_bytes: usize, _seed: u64) -> Option<u128> {
        None
    }
}

impl TestValue for [u8] {
    const CHECKED: bool = true;

    fn of(n: u64) -> Vec<u8> {
        let mut value = n.to_le_bytes().to_vec();
        value.extend(std::iter::repeat_n(n as u8, (n % 37) as usize));
        value
    }

    fn number(&self) -> u64 {
        let n = u64::from_le_bytes(self[..8].try_into().expect("made by `of`"));
        assert_eq!(
            self,
            <[u8] as TestValue>::of(n),
            "a value that no one wrote"
        );
        n
    }

    fn sized(bytes: usize, seed: u64) -> Option<Vec<u8>> {
        let mut rng = Rng::new(seed ^ bytes as u64);
        let mut value = Vec::with_capacity(bytes + 8);
        while value.len() < bytes {
            value.extend(rng.next().to_le_bytes());
        }
        value.truncate(bytes);
        Some(value)
    }
}

/// SplitMix64: the same numbers on every machine for a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Borrows what is inside a bound.
pub fn bound_ref<K: ToOwned + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    use std::borrow::Borrow;
    match bound {
        Bound::Included(k) => Bound::Included(k.borrow()),
        Bound::Excluded(k) => Bound::Excluded(k.borrow()),
        Bound::Unbounded => Bound::Unbounded,
    }
}
