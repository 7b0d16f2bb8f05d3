//! NVT-A (NV-Tree paper, section 6.2): NV-Tree's append-only leaves under persistent, consistent
//! inner nodes as in LCB+-Tree. It shows what consistent inner nodes cost once leaves cost little.
//!
//! [`crate::btree`] has descent, splits, unlinking, scans, bulk load, recovery and the log of whole
//! nodes. The leaf is here.
//!
//! ```text
//! word 0     | nElement (16 bits) | 0 (level) | keys that are there (16 bits, from bit 24) | sum (24 bits)
//! word 1     | link to the next leaf, 0 for the last
//! words 2 .. | a flag per element, 1 = NEGATIVE (all in the first line)
//! then       | key 0 | value 0 | key 1 | value 1 | ...       elements of 16 or 32 bytes, none of which crosses a line (24: some do)
//! ```
//!
//! The sum is of the elements that count, with their flags. Elements never change, so an append
//! goes on from the sum before.
//!
//! # Invariants
//! 1. The first `nElement` elements count. Of the elements with one key *word* the newest decides.
//!    Two key words whose newest elements are positive never stand for the same key.
//! 2. The record behind a key word whose newest element is NEGATIVE is free, and may hold another
//!    key by now. Such elements are never compared with a key.
//!
//! # Where this differs from NV-Tree
//! A full leaf that is less than half live is rewritten in place, under the log. NV-Tree links a
//! replacement in, but here a leaf's place is in its parent, which is persistent too. An insertion
//! splits a leaf that is more than half live; updates and removals rewrite it.
//!
//! # Crash states
//! 1. *Append*, before the counter's NAW: the element and its flags do not count. The next append
//!    overwrites both.
//! 2. *Rewriting*, *split*, *unlinking of an emptied leaf*: as [`crate::btree`] says.
//!
//! # Persist cost
//! Insert, remove: 2 lines and 2 fences. Update: 2 or 3 lines and 2 fences.

use crate::btree::BTree;
use crate::btree::change::{Change, Overwritten, WholeNodes};
use crate::btree::kind::{Found, FoundOf, Kind, Leaf};
use crate::btree::node::{Node, compare_to_word};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, Word};
use crate::unsorted::{BITMAP as FLAGS, bitmap_words as flag_words, key_at, slots, stride};
use bristlecone_pmem::Media;
use std::iter;
use std::sync::atomic::Ordering;

const COUNT: u64 = 0xFFFF;
const LIVE_SHIFT: u32 = 24;
const SUM_SHIFT: u32 = 40;
const SUM: u32 = (1 << (u64::BITS - SUM_SHIFT)) - 1;

/// Node sizes of NVT-A in bytes.
pub const NVTA_BYTES: &[u32] = &[128, 256, 512, 1024, 2048, 4096];

/// The NVT-A design.
#[derive(Debug)]
pub struct NvtA;

impl Kind for NvtA {
    const NAME: &'static str = "nvta";
    const DEFAULT_BYTES: u32 = 1024;
    // Larger nodes have more flags than fit a line.
    const NODE_BYTES: &'static [u32] = NVTA_BYTES;
    type Leaf = Appended;
    type Protect = WholeNodes;
}

/// NV-Tree with persistent inner nodes. See the module's head.
pub type NvtATree<K, V, M> = BTree<K, V, M, NvtA>;

/// The append-only leaf.
#[derive(Debug)]
pub struct Appended;

fn header(elements: usize, live: usize, sum: u32) -> u64 {
    elements as u64 | (live as u64) << LIVE_SHIFT | u64::from(sum) << SUM_SHIFT
}

/// Returns `sum` with an element behind those that it is of: 24 bits of a CRC-32C.
fn with_element<A: Word, B: Word>(sum: u32, (key, value, negative): Element<A, B>) -> u32 {
    let words = key.parts().into_iter().take(A::WORDS);
    let words = words.chain(value.parts().into_iter().take(B::WORDS));
    let sum = crc32c::crc32c_append(sum, &[u8::from(negative)]);
    words.fold(sum, |sum, word| {
        crc32c::crc32c_append(sum, &word.to_le_bytes())
    }) & SUM
}

/// Returns the numbers of elements that count and of live keys.
#[inline]
fn counts<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> (usize, usize) {
    // ORDERING: Acquire; pairs with the Release of the NAW that made elements count.
    let word = leaf.words[0].load(pm, Ordering::Acquire);
    let elements = ((word & COUNT) as usize).min(slots(leaf.words.len(), stride::<A, B>()));
    (
        elements,
        ((word >> LIVE_SHIFT & COUNT) as usize).min(elements),
    )
}

fn is_negative<M: Media>(leaf: Node<'_>, pm: &M, i: usize) -> bool {
    leaf.load(pm, FLAGS + i / 64) >> (i % 64) & 1 != 0
}

fn pairs<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> Vec<(A, B)> {
    let mut pairs = Vec::new();
    Appended::entries(leaf, pm, &mut pairs);
    pairs
}

/// An element: key word, value word, NEGATIVE flag.
type Element<A, B> = (A, B, bool);

/// Appends to a locked leaf that has room. One store makes all elements count. The leaf then has
/// `live` live keys.
fn append<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind>(
    tree: &BTree<K, V, M, D>,
    leaf: Node<'_>,
    elements: &[Element<K::Word, V::Word>],
    live: usize,
) {
    let pm = tree.pm();
    let (n, _) = counts::<K::Word, V::Word, M>(leaf, pm);
    let key_at = key_at::<K::Word, V::Word>;
    for (i, (key, value, negative)) in (n..).zip(elements) {
        leaf.init_wide(pm, key_at(leaf, i), *key);
        leaf.init_wide(pm, key_at(leaf, i) + K::Word::WORDS, *value);
        let (word, bit) = (FLAGS + i / 64, 1 << (i % 64));
        let flags = leaf.load(pm, word);
        // A crash may have left the flag of an element that never counted.
        let new = if *negative { flags | bit } else { flags & !bit };
        if new != flags {
            // A flag in the counter's line becomes durable with the counter.
            leaf.init(pm, word, new);
        }
    }
    let before = (leaf.load(pm, 0) >> SUM_SHIFT) as u32;
    let sum = (elements.iter()).fold(before, |sum, element| with_element(sum, *element));
    // PERSIST: the elements and their records, before the counter that makes them count.
    let words = elements.len() * stride::<K::Word, V::Word>();
    tree.flush(leaf.words[key_at(leaf, n)].addr(), words * 8);
    tree.fence();
    // PERSIST: (in `publish`) the counter; the elements count, all or none.
    tree.publish(&leaf.words[0], header(n + elements.len(), live, sum));
}

/// Rewrites a leaf's whole content except the link.
fn restore<'t, A: Word, B: Word, M: Media>(
    change: &mut Change<'t, M>,
    leaf: Node<'t>,
    pairs: &[(A, B)],
) {
    for (word, value) in content(leaf, pairs) {
        change.store(leaf, word, value);
    }
}

/// Returns the words of a leaf with these pairs, except its link: each word's index and value.
fn content<A: Word, B: Word>(
    leaf: Node<'_>,
    pairs: &[(A, B)],
) -> impl Iterator<Item = (usize, u64)> {
    let flags = flag_words(leaf.words.len(), stride::<A, B>());
    let flags = (0..flags).map(|i| (FLAGS + i, 0));
    let elements = pairs.iter().enumerate().flat_map(move |(i, (key, value))| {
        let at = key_at::<A, B>(leaf, i);
        let key = (at..at + A::WORDS).zip(key.parts());
        key.chain((at + A::WORDS..at + stride::<A, B>()).zip(value.parts()))
    });
    let sum = (pairs.iter()).fold(0, |sum, (key, value)| {
        with_element(sum, (*key, *value, false))
    });
    iter::once((0, header(pairs.len(), pairs.len(), sum)))
        .chain(flags)
        .chain(elements)
}

fn rewrite<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind>(
    tree: &BTree<K, V, M, D>,
    leaf: Node<'_>,
    pairs: &[PairOf<K, V>],
) {
    let mut change = tree.change(&[Overwritten {
        node: leaf,
        from: 0,
        words: leaf.words.len(),
    }]);
    restore(&mut change, leaf, pairs);
    change.commit();
}

impl Leaf for Appended {
    const SORTED: bool = false;

    fn capacity<A: Word, B: Word>(words: usize) -> usize {
        slots(words, stride::<A, B>())
    }

    #[inline]
    fn len<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> usize {
        counts::<A, B, M>(leaf, pm).1
    }

    #[inline]
    fn has_room<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, most: usize) -> bool {
        let slots = slots(leaf.words.len(), stride::<A, B>());
        let (elements, live) = counts::<A, B, M>(leaf, pm);
        // Section 4.4: a full leaf that is half live is split.
        live < most && (elements < slots || live * 2 < slots)
    }

    fn sound<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> Result<(), String> {
        let (n, _) = counts::<A, B, M>(leaf, pm);
        let sum = (0..n).fold(0, |sum, i| {
            let at = key_at::<A, B>(leaf, i);
            let (key, value) = (leaf.load_wide(pm, at), leaf.load_wide(pm, at + A::WORDS));
            with_element::<A, B>(sum, (key, value, is_negative(leaf, pm, i)))
        });
        let header = leaf.load(pm, 0);
        if sum == (header >> SUM_SHIFT) as u32 {
            return Ok(());
        }
        Err(format!(
            "its elements have the sum {sum:#x}, and its counter is {header:#x}"
        ))
    }

    fn entries<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(A, B)>) {
        let (n, _) = counts::<A, B, M>(leaf, pm);
        let key_at = key_at::<A, B>;
        let mut all: Vec<(A, usize)> = (0..n)
            .map(|i| (leaf.load_wide(pm, key_at(leaf, i)), i))
            .collect();
        all.sort_unstable_by_key(|(word, i)| (*word, std::cmp::Reverse(*i)));
        out.clear();
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            let (word, newest) = same[0];
            if !is_negative(leaf, pm, newest) {
                out.push((word, leaf.load_wide(pm, key_at(leaf, newest) + A::WORDS)));
            }
        }
    }

    #[inline]
    fn find<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        leaf: Node<'_>,
        pm: &M,
        key: &K,
    ) -> Option<FoundOf<K, V>> {
        let (n, _) = counts::<K::Word, V::Word, M>(leaf, pm);
        let key_at = key_at::<K::Word, V::Word>;
        let word_of = |i| -> K::Word { leaf.load_wide(pm, key_at(leaf, i)) };
        (0..n).rev().find_map(|i| {
            let word = word_of(i);
            // Of strings the newest element is looked for first, since the record behind another
            // may be free (invariant 2).
            let newest = || (i + 1..n).all(|newer| word_of(newer) != word);
            let is_it = !is_negative(leaf, pm, i)
                && (!K::RECORDS || newest())
                && compare_to_word(pm, key, word).is_eq()
                && newest();
            is_it.then(|| Found {
                slot: i,
                key: word,
                value: leaf.load_wide(pm, key_at(leaf, i) + K::Word::WORDS),
            })
        })
    }

    fn fill<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, entries: &[(A, B)], next: u64) {
        leaf.init(pm, 1, link::word(next));
        for (word, value) in content(leaf, entries) {
            leaf.init(pm, word, value);
        }
    }

    fn split_words<A: Word, B: Word>(words: usize) -> usize {
        words
    }

    fn keep_lower<'t, K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: K::Word,
        next: u64,
    ) {
        let mut kept = pairs::<K::Word, V::Word, M>(leaf, pm);
        kept.retain(|(word, _)| {
            let lower = K::read(pm, separator, |key| compare_to_word(pm, key, *word).is_gt());
            lower.unwrap_or(true)
        });
        restore(change, leaf, &kept);
        change.store(leaf, 1, link::word(next));
    }

    fn insert<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        _key: &K,
        (key, value): PairOf<K, V>,
    ) {
        let (n, live) = counts::<K::Word, V::Word, M>(leaf, tree.pm());
        if n < slots(leaf.words.len(), stride::<K::Word, V::Word>()) {
            return append(tree, leaf, &[(key, value, false)], live + 1);
        }
        let mut pairs = pairs(leaf, tree.pm());
        pairs.push((key, value));
        rewrite(tree, leaf, &pairs);
    }

    fn update<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: V::Word,
    ) {
        let pm = tree.pm();
        let at = key_at::<K::Word, V::Word>(leaf, slot);
        let (key, old) = (
            leaf.load_wide(pm, at),
            leaf.load_wide(pm, at + K::Word::WORDS),
        );
        let (n, live) = counts::<K::Word, V::Word, M>(leaf, pm);
        let slots = slots(leaf.words.len(), stride::<K::Word, V::Word>());
        if n + 2 <= slots {
            return append(tree, leaf, &[(key, old, true), (key, value, false)], live);
        }
        let mut pairs = pairs(leaf, pm);
        let mine = pairs.iter_mut().filter(|pair| pair.0 == key);
        mine.for_each(|pair| pair.1 = value);
        rewrite(tree, leaf, &pairs);
    }

    fn remove<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    ) {
        let pm = tree.pm();
        let at = key_at::<K::Word, V::Word>(leaf, slot);
        let (key, old) = (
            leaf.load_wide(pm, at),
            leaf.load_wide(pm, at + K::Word::WORDS),
        );
        let (n, live) = counts::<K::Word, V::Word, M>(leaf, pm);
        let slots = slots(leaf.words.len(), stride::<K::Word, V::Word>());
        if n < slots {
            return append(tree, leaf, &[(key, old, true)], live.saturating_sub(1));
        }
        let mut pairs = pairs(leaf, pm);
        pairs.retain(|pair| pair.0 != key);
        rewrite(tree, leaf, &pairs);
    }
}
