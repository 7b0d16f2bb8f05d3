//! The node: a header of two words, then key words, then value or child words.
//!
//! ```text
//! word   0     | count (16 bits) | level (8 bits) | 0 (8 bits) | sum (32 bits)
//! word   1     | leaf: link to the next leaf, 0 for the last       inner: child 0
//! words  2 ..  | key 0 | key 1 | ... | key C-1 |
//! then         | value or child 1 | ... | value C-1 or child C |
//! ```
//!
//! Keys and values have one word each, or two (`u128`); children have one. So C is (words - 2) / 2
//! where both have one. Inner nodes and sorted leaves have this layout; other leaves share the
//! first two words ([`super::kind`]). Level 0 is a leaf. Child `i` of an inner node has the keys
//! from separator `i - 1` (inclusive) to separator `i` (exclusive).
//!
//! The sum is the exclusive or of the sums of the word's lower half, of all keys, and in inner
//! nodes of all children, so an insertion need not read the others. The count has a sum of its own,
//! since those of four numbers in a row can cancel out. The values of a leaf are in no sum, since
//! an update would have to flush the header's line too.

use crate::common::{sort_by, sort_by_first};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, WIDEST, Word, WordOf};
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// Unit of handles in bytes: the smallest node's size, to which nodes are aligned.
pub const UNIT: u64 = 128;
/// Words before the keys.
pub const HEADER: usize = 2;
/// Maximum level of a node; a higher tree counts as corrupt. Only a split of full nodes makes a
/// node, so random insertions into the smallest nodes would need more than 2^64 entries to exceed
/// it.
pub const MAX_LEVEL: usize = 31;
/// Words in a line. A search usually reads this many keys one by one.
pub const RUN: u32 = 8;

const COUNT: u64 = 0xFFFF;
const LEVEL_SHIFT: u32 = 16;
const LEVEL: u64 = 0xFF;

const SUM_SHIFT: u32 = 32;

/// Returns a header's first word. `sum` is that of the keys and children.
pub fn meta(count: usize, level: usize, sum: u32) -> u64 {
    let counts = count as u64 | (level as u64) << LEVEL_SHIFT;
    counts | u64::from(sum ^ sum_of_counts(counts)) << SUM_SHIFT
}

/// Returns the sum of a header's lower half.
#[inline]
fn sum_of_counts(word: u64) -> u32 {
    crc32c::crc32c(&(word as u32).to_le_bytes())
}

/// Returns the sum of a key.
#[inline]
pub fn sum_of_key<A: Word>(key: A) -> u32 {
    let words = key.parts().into_iter().take(A::WORDS);
    words.fold(0, |sum, word| {
        crc32c::crc32c_append(sum, &word.to_le_bytes())
    })
}

/// Returns the sum of a child, other than that of the same number as a key.
#[inline]
pub fn sum_of_child(child: u64) -> u32 {
    crc32c::crc32c_append(u32::MAX, &child.to_le_bytes())
}

/// Returns what an entry of a node of level `level` adds to its sum.
#[inline]
pub fn sum_of<A: Word, B: Word>(level: usize, key: A, value: B) -> u32 {
    match level {
        0 => sum_of_key(key),
        _ => sum_of_key(key) ^ sum_of_child(value.parts()[0]),
    }
}

/// A node in the pool.
#[derive(Clone, Copy, Debug)]
pub struct Node<'t> {
    /// Offset in units of [`UNIT`].
    pub at: u32,
    pub words: &'t [PWord],
    /// Number of keys that a search reads in order once it has halved down to them.
    pub run: u32,
}

/// Returns the number of sorted entries of such keys and values that a node of `words` words has
/// room for.
pub const fn capacity<A: Word, B: Word>(words: usize) -> usize {
    (words - HEADER) / (A::WORDS + B::WORDS)
}

/// A node with sorted keys, and a value or a child for each.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'t, A, B> {
    node: Node<'t>,
    words: PhantomData<fn() -> (A, B)>,
}

/// An inner node: its keys are separators.
pub type Inner<'t, K> = Pairs<'t, WordOf<K>, u64>;

impl<'t, A, B> Deref for Pairs<'t, A, B> {
    type Target = Node<'t>;

    #[inline(always)]
    fn deref(&self) -> &Node<'t> {
        &self.node
    }
}

impl<'t> Node<'t> {
    /// Returns the node as one of sorted entries.
    #[inline(always)]
    pub fn pairs<A: Word, B: Word>(self) -> Pairs<'t, A, B> {
        let words = PhantomData;
        Pairs { node: self, words }
    }

    /// Returns the node as an inner one.
    #[inline(always)]
    pub fn inner<K: StoredKey + ?Sized>(self) -> Inner<'t, K> {
        self.pairs()
    }

    /// Returns the offset in the pool.
    #[inline]
    pub fn offset(self) -> u64 {
        u64::from(self.at) * UNIT
    }

    #[inline]
    pub fn bytes(self) -> u64 {
        self.words.len() as u64 * 8
    }

    #[inline(always)]
    #[track_caller]
    pub fn load<M: Media>(self, pm: &M, word: usize) -> u64 {
        // ORDERING: Relaxed; the value is right under the node's lock, or once its version is
        // validated.
        self.words[word].load(pm, Ordering::Relaxed)
    }

    /// Stores a word of a node that nothing leads to yet.
    #[inline]
    #[track_caller]
    pub fn init<M: Media>(self, pm: &M, word: usize, value: u64) {
        // ORDERING: Relaxed; the store that links the node in orders it.
        self.words[word].store(pm, value, Ordering::Relaxed);
    }

    /// Returns the key or value whose words begin at `word`.
    #[inline(always)]
    #[track_caller]
    pub fn load_wide<M: Media, W: Word>(self, pm: &M, word: usize) -> W {
        if W::WORDS == 1 {
            return W::from_parts([self.load(pm, word), 0]);
        }
        let mut parts = [0; WIDEST];
        // Bounds are checked once.
        for (part, word) in parts.iter_mut().zip(&self.words[word..word + W::WORDS]) {
            // ORDERING: Relaxed; as `load`.
            *part = word.load(pm, Ordering::Relaxed);
        }
        W::from_parts(parts)
    }

    /// Stores a key or value of a node that nothing leads to yet, or in a slot that does not count.
    #[inline(always)]
    #[track_caller]
    pub fn init_wide<M: Media, W: Word>(self, pm: &M, word: usize, value: W) {
        let parts = value.parts();
        for (i, part) in parts.into_iter().enumerate().take(W::WORDS) {
            self.init(pm, word + i, part);
        }
    }

    #[inline]
    #[track_caller]
    pub fn level<M: Media>(self, pm: &M) -> usize {
        (self.load(pm, 0) >> LEVEL_SHIFT & LEVEL) as usize
    }

    /// Returns the offset of the next leaf.
    #[inline]
    #[track_caller]
    pub fn next<M: Media>(self, pm: &M) -> u64 {
        link::offset(self.load(pm, 1))
    }

    /// Returns the sum in the header, of keys and children.
    #[inline]
    #[track_caller]
    pub fn sum<M: Media>(self, pm: &M) -> u32 {
        let word = self.load(pm, 0);
        (word >> SUM_SHIFT) as u32 ^ sum_of_counts(word)
    }
}

impl<A: Word, B: Word> Pairs<'_, A, B> {
    #[inline]
    pub fn capacity(self) -> usize {
        capacity::<A, B>(self.node.words.len())
    }

    /// Returns the number of separators, or of entries of a sorted leaf, at most as many as there
    /// is room for, whatever is read.
    #[inline]
    #[track_caller]
    pub fn count<M: Media>(self, pm: &M) -> usize {
        ((self.load(pm, 0) & COUNT) as usize).min(self.capacity())
    }

    /// Returns the index of the first word of key `i`.
    #[inline(always)]
    pub fn key_at(self, i: usize) -> usize {
        HEADER + i * A::WORDS
    }

    /// Returns the index of the first word of value `i`.
    #[inline(always)]
    pub fn value_at(self, i: usize) -> usize {
        HEADER + self.capacity() * A::WORDS + i * B::WORDS
    }

    #[inline(always)]
    #[track_caller]
    pub fn key<M: Media>(self, pm: &M, i: usize) -> A {
        self.load_wide(pm, self.key_at(i))
    }

    #[inline(always)]
    #[track_caller]
    pub fn value<M: Media>(self, pm: &M, i: usize) -> B {
        self.load_wide(pm, self.value_at(i))
    }

    /// Returns how many of the first `n` keys are less than `key`, or (`or_equal`) not greater.
    #[inline]
    pub fn rank<K: StoredKey<Word = A> + ?Sized, M: Media>(
        self,
        pm: &M,
        n: usize,
        key: &K,
        or_equal: bool,
    ) -> usize {
        let before = |i: usize| match compare_to_word(pm, key, self.key(pm, i)) {
            Order::Less => false,
            Order::Equal => or_equal,
            Order::Greater => true,
        };
        let (mut low, mut high) = (0, n);
        // Usually halves down to about a line of keys, which it then reads in order.
        let run = self.run as usize;
        while high - low > run {
            let middle = low + (high - low) / 2;
            if before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        while low < high && before(low) {
            low += 1;
        }
        low
    }

    /// Returns the sum of a node with its first `n` keys.
    pub fn sum_of_first<M: Media>(self, pm: &M, n: usize, level: usize) -> u32 {
        let first = first_word(level, self.node.load(pm, 1));
        (0..n).fold(first.1, |sum, i| {
            sum ^ sum_of(level, self.key(pm, i), self.value(pm, i))
        })
    }

    /// Compares the sum in the header.
    pub fn sound<M: Media>(self, pm: &M) -> Result<(), String> {
        let found = self.sum_of_first(pm, self.count(pm), self.node.level(pm));
        let expected = self.node.sum(pm);
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "its keys and children have the sum {found:#010x}, and its header {expected:#010x}"
        ))
    }

    /// Writes a whole sorted node that nothing leads to yet. `first` is the next leaf or child 0.
    /// `rest` has the keys, each with its value or child. Does not flush.
    pub fn fill<M: Media>(self, pm: &M, level: usize, first: u64, rest: &[(A, B)]) {
        let (word, first) = first_word(level, first);
        let sum = (rest.iter()).fold(first, |sum, (key, value)| sum ^ sum_of(level, *key, *value));
        self.init(pm, 0, meta(rest.len(), level, sum));
        self.init(pm, 1, word);
        for (i, (key, value)) in rest.iter().enumerate() {
            self.init_wide(pm, self.key_at(i), *key);
            self.init_wide(pm, self.value_at(i), *value);
        }
    }
}

impl<A: Word> Pairs<'_, A, u64> {
    /// Returns the index of child `i`'s word.
    #[inline(always)]
    pub fn child_at(self, i: usize) -> usize {
        if i == 0 { 1 } else { self.value_at(i - 1) }
    }

    #[inline(always)]
    #[track_caller]
    pub fn child<M: Media>(self, pm: &M, i: usize) -> u64 {
        self.load(pm, self.child_at(i))
    }

    /// Returns the index of the child that leads to `key`.
    #[inline]
    pub fn route<K: StoredKey<Word = A> + ?Sized, M: Media>(self, pm: &M, key: &K) -> usize {
        self.rank(pm, self.count(pm), key, true)
    }
}

/// Returns word 1 of a node, and what it adds to the node's sum: of a leaf, whose next one is at
/// `first`, nothing, since links have a check; of an inner node child 0.
fn first_word(level: usize, first: u64) -> (u64, u32) {
    match level {
        0 => (link::word(link::offset(first)), 0),
        _ => (first, sum_of_child(first)),
    }
}

/// Returns the order of a key and a key word. A word that leads nowhere (a corrupt pool, or a read
/// that will not validate) sorts last.
#[inline(always)]
pub fn compare_to_word<K: StoredKey + ?Sized, M: Media>(pm: &M, key: &K, word: K::Word) -> Order {
    K::read(pm, word, |other| key.cmp(other)).unwrap_or(Order::Less)
}

/// Returns the order of two key words.
#[inline]
pub fn compare_words<K: StoredKey + ?Sized, M: Media>(pm: &M, a: K::Word, b: K::Word) -> Order {
    K::read(pm, a, |a| compare_to_word::<K, M>(pm, a, b)).unwrap_or(Order::Greater)
}

/// Sorts words by key.
pub fn sort_words<K, V, M>(pm: &M, words: &mut [PairOf<K, V>])
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    if K::RECORDS {
        sort_by(words, &mut |a, b| compare_words::<K, M>(pm, a.0, b.0));
    } else {
        sort_by_first(words);
    }
}
