//! Persistent unsorted (UCSC-CRSS-20-01, sections 2.3 and 3.1): a B+-tree entirely in persistent
//! memory. Its leaves are unsorted, with a validity bitmap; its other nodes are sorted.
//!
//! An entry is written into an empty slot, and one NAW of a bitmap word makes it count (*native
//! atomic in-place updates*). Only structural modifications are logged. [`crate::btree`] has
//! descent, splits, unlinking, scans, bulk load and recovery.
//!
//! ```text
//! word 0     | 0 (level 0)             word 1 | link to the next leaf, 0 for the last
//! words 2 .. | bitmap, 1 to 9 words: bit s % 62 of word s / 62 says that slot s is in use | unused, until an entry may begin |
//! then       | key 0 | value 0 | key 1 | value 1 | ...       entries of 16 or 32 bytes, none of which crosses a line (24: some do)
//! ```
//!
//! Bit 62 of a word of the bitmap is the parity of its slots in use, and bit 63 that of their keys.
//!
//! # Invariants
//! 1. A slot counts iff its bit is set.
//! 2. A slot that counts in the *durable* bitmap is never overwritten, with two exceptions: the
//!    8-byte value word of an update, and changes under the log.
//!
//! # Values of 16 bytes
//! No store that vendors promise to be failure-atomic replaces such a value. Therefore the updated
//! entry is written into an empty slot, and one NAW of the bitmap word removes the old slot and
//! adds the new one. If the same bitmap word has no empty slot, the value is replaced in place,
//! under the log of structural modifications.
//!
//! # Crash states
//! 1. *Insert*, before the bitmap's NAW: the entry is in a slot that does not count.
//! 2. *Update*, *remove*: the old or the new word. (A wide value: the old or the new bitmap, and an
//!    entry in a slot that does not count; or a logged change, see [`crate::btree`].)
//! 3. *Split*, *unlinking of an emptied leaf*: see [`crate::btree`].
//!
//! # Persist cost
//! Insert: 2 lines and 2 fences (records share the first). Update and remove: 1 line and 1 fence
//! (an update to a record: 2 fences; of a wide value: 2 lines and 2 fences, or, under the log, 3
//! lines and 3 fences).

use crate::btree::BTree;
use crate::btree::change::{Change, Overwritten, OverwrittenWords};
use crate::btree::kind::{Found, FoundOf, Kind, Leaf};
use crate::btree::node::{Node, compare_to_word};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, Word};
use bristlecone_pmem::Media;
use std::sync::atomic::Ordering;

/// Index of the bitmap's first word.
pub(crate) const BITMAP: usize = 2;
/// Number of slots in a word of the bitmap.
const BITS: usize = 62;
/// The bits of such a word that are its check: the parity of its slots in use, and of their keys.
/// One bit would not do, since a flipped bit of a slot brings the slot's key in.
const PARITY: [u32; 2] = [62, 63];

/// The persistent unsorted design.
#[derive(Debug)]
pub struct Unsorted;

impl Kind for Unsorted {
    const NAME: &'static str = "unsorted";
    const DEFAULT_BYTES: u32 = 512;
    type Leaf = Bitmap;
    type Protect = OverwrittenWords;
}

/// A B+-tree in persistent memory with unsorted leaves. See the module's head.
pub type UnsortedTree<K, V, M> = BTree<K, V, M, Unsorted>;

/// The unsorted leaf.
#[derive(Debug)]
pub struct Bitmap;

/// Returns the words of an entry.
pub(crate) const fn stride<A: Word, B: Word>() -> usize {
    A::WORDS + B::WORDS
}

/// Returns the words of the bitmap of a leaf of `words` words, whose entries have `stride` words.
pub(crate) const fn bitmap_words(words: usize, stride: usize) -> usize {
    // The link and the bitmap take at least the room of one entry.
    (words / stride - 1).div_ceil(BITS)
}

/// Returns the index of the first entry's first word. Entries of 2 or 4 words then cross no line.
const fn entries_at(words: usize, stride: usize) -> usize {
    (BITMAP + bitmap_words(words, stride)).next_multiple_of(stride)
}

pub(crate) const fn slots(words: usize, stride: usize) -> usize {
    (words - entries_at(words, stride)) / stride
}

const _: () = assert!(slots(32, 2) == 14 && slots(64, 2) == 30 && slots(128, 2) == 62);
const _: () = assert!(slots(256, 2) == 125 && slots(512, 2) == 252);
const _: () = assert!(slots(16, 2) == 6 && slots(1024, 2) == 506);
const _: () = assert!(slots(16, 4) == 3 && slots(64, 4) == 15 && slots(1024, 4) == 254);
const _: () = {
    let mut stride = 2;
    while stride <= 4 {
        let mut words = 16;
        while words <= 1024 {
            assert!(slots(words, stride) <= bitmap_words(words, stride) * BITS);
            words *= 2;
        }
        stride += 1;
    }
};

/// Returns the index of the key of `slot`; the value follows.
pub(crate) fn key_at<A: Word, B: Word>(leaf: Node<'_>, slot: usize) -> usize {
    let stride = stride::<A, B>();
    entries_at(leaf.words.len(), stride) + stride * slot
}

/// Returns the words of the bitmap, with the number of slots of each.
fn parts<A: Word, B: Word>(leaf: Node<'_>) -> impl Iterator<Item = (usize, usize)> {
    let (words, stride) = (leaf.words.len(), stride::<A, B>());
    let slots = slots(words, stride);
    (0..bitmap_words(words, stride)).map(move |i| (i, (slots - i * BITS).min(BITS)))
}

/// Returns the bits of part `i`'s slots that are in use.
#[inline]
fn in_use<M: Media>(leaf: Node<'_>, pm: &M, (i, slots): (usize, usize)) -> u64 {
    let all = (1 << slots) - 1;
    // ORDERING: Acquire; pairs with the Release of the NAW that made slots count.
    leaf.words[BITMAP + i].load(pm, Ordering::Acquire) & all
}

/// Returns the bits of a word of the bitmap that change when the slot of `bit`, which holds `key`,
/// begins or ends to count.
#[inline]
fn toggled<A: Word>(bit: usize, key: A) -> u64 {
    let ones: u32 = key.parts().iter().map(|part| part.count_ones()).sum();
    1 << bit | 1 << PARITY[0] | u64::from(ones % 2) << PARITY[1]
}

/// Returns the slots in use.
#[inline]
fn used<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> impl Iterator<Item = usize> {
    parts::<A, B>(leaf).flat_map(move |part| {
        let mut bits = in_use(leaf, pm, part);
        std::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(part.0 * BITS + bit)
        })
    })
}

#[inline(always)]
#[track_caller]
fn key<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, slot: usize) -> A {
    leaf.load_wide(pm, key_at::<A, B>(leaf, slot))
}

#[inline(always)]
#[track_caller]
fn value<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, slot: usize) -> B {
    leaf.load_wide(pm, key_at::<A, B>(leaf, slot) + A::WORDS)
}

/// Writes an entry into a slot that does not count, and makes it durable.
#[inline(always)]
fn write<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind>(
    tree: &BTree<K, V, M, D>,
    leaf: Node<'_>,
    slot: usize,
    (key, value): PairOf<K, V>,
) {
    let pm = tree.pm();
    let at = key_at::<K::Word, V::Word>(leaf, slot);
    leaf.init_wide(pm, at, key);
    leaf.init_wide(pm, at + K::Word::WORDS, value);
    // PERSIST: the entry, and the pair's records, before the bit that makes it count.
    tree.flush(
        leaf.words[at].addr(),
        stride::<K::Word, V::Word>() * size_of::<u64>(),
    );
    tree.fence();
}

impl Leaf for Bitmap {
    const SORTED: bool = false;

    fn capacity<A: Word, B: Word>(words: usize) -> usize {
        slots(words, stride::<A, B>())
    }

    #[inline]
    fn len<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> usize {
        parts::<A, B>(leaf)
            .map(|part| in_use(leaf, pm, part).count_ones() as usize)
            .sum()
    }

    fn sound<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> Result<(), String> {
        for part in parts::<A, B>(leaf) {
            let (mut bits, mut expected) = (in_use(leaf, pm, part), 0);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                expected ^= toggled(bit, key::<A, B, M>(leaf, pm, part.0 * BITS + bit));
                bits &= bits - 1;
            }
            let word = leaf.load(pm, BITMAP + part.0);
            if word != expected {
                return Err(format!("its bitmap has {word:#x}, expected {expected:#x}"));
            }
        }
        Ok(())
    }

    fn entries<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(A, B)>) {
        out.clear();
        out.extend(used::<A, B, M>(leaf, pm).map(|slot| {
            (
                key::<A, B, M>(leaf, pm, slot),
                value::<A, B, M>(leaf, pm, slot),
            )
        }));
    }

    #[inline]
    fn find<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        leaf: Node<'_>,
        pm: &M,
        key: &K,
    ) -> Option<FoundOf<K, V>> {
        used::<K::Word, V::Word, M>(leaf, pm).find_map(|slot| {
            let word = self::key::<K::Word, V::Word, M>(leaf, pm, slot);
            compare_to_word(pm, key, word).is_eq().then(|| Found {
                slot,
                key: word,
                value: value::<K::Word, V::Word, M>(leaf, pm, slot),
            })
        })
    }

    fn fill<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, entries: &[(A, B)], next: u64) {
        leaf.init(pm, 0, 0);
        leaf.init(pm, 1, link::word(next));
        for (i, slots) in parts::<A, B>(leaf) {
            let filled = entries.len().saturating_sub(i * BITS).min(slots);
            let keys = entries.iter().skip(i * BITS).take(filled);
            let word =
                (keys.enumerate()).fold(0, |word, (bit, (key, _))| word ^ toggled(bit, *key));
            leaf.init(pm, BITMAP + i, word);
        }
        for (slot, (key, value)) in entries.iter().enumerate() {
            let at = key_at::<A, B>(leaf, slot);
            leaf.init_wide(pm, at, *key);
            leaf.init_wide(pm, at + A::WORDS, *value);
        }
    }

    fn split_words<A: Word, B: Word>(words: usize) -> usize {
        BITMAP + bitmap_words(words, stride::<A, B>())
    }

    fn keep_lower<'t, K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: K::Word,
        next: u64,
    ) {
        let mut kept = [0u64; bitmap_words(1024, 2)];
        for slot in used::<K::Word, V::Word, M>(leaf, pm) {
            let word = key::<K::Word, V::Word, M>(leaf, pm, slot);
            let lower = K::read(pm, separator, |key| compare_to_word(pm, key, word).is_gt());
            if lower.unwrap_or(true) {
                kept[slot / BITS] ^= toggled(slot % BITS, word);
            }
        }
        change.store(leaf, 1, link::word(next));
        for (i, _) in parts::<K::Word, V::Word>(leaf) {
            change.store(leaf, BITMAP + i, kept[i]);
        }
    }

    fn insert<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        _key: &K,
        pair: PairOf<K, V>,
    ) {
        let pm = tree.pm();
        let room = parts::<K::Word, V::Word>(leaf)
            .map(|part| (part, in_use(leaf, pm, part)))
            .find(|((_, slots), bits)| bits.count_ones() < *slots as u32);
        let Some(((i, _), bits)) = room else {
            debug_assert!(false, "the caller saw that the leaf has room");
            return;
        };
        let bit = bits.trailing_ones() as usize;
        write(tree, leaf, i * BITS + bit, pair);
        let word = leaf.load(pm, BITMAP + i) ^ toggled(bit, pair.0);
        // PERSIST: (in `publish`) the bit; the entry counts.
        tree.publish(&leaf.words[BITMAP + i], word);
    }

    fn update<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: V::Word,
    ) {
        let pm = tree.pm();
        let at = key_at::<K::Word, V::Word>(leaf, slot) + K::Word::WORDS;
        if V::Word::WORDS == 1 {
            if V::RECORDS {
                // PERSIST: the new value's record, before the word that leads to it.
                tree.fence();
            }
            // PERSIST: (in `publish`) the new value.
            tree.publish(&leaf.words[at], value.parts()[0]);
            return;
        }
        if !tree.is_durable() {
            leaf.init_wide(pm, at, value);
            return;
        }
        let (i, old) = (slot / BITS, slot % BITS);
        let part = parts::<K::Word, V::Word>(leaf).nth(i);
        let bits = part.map_or(!0, |part| in_use(leaf, pm, part));
        let bit = bits.trailing_ones() as usize;
        if part.is_some_and(|(_, slots)| bit < slots) {
            let key = key::<K::Word, V::Word, M>(leaf, pm, slot);
            write(tree, leaf, i * BITS + bit, (key, value));
            let word = leaf.load(pm, BITMAP + i) ^ toggled(bit, key) ^ toggled(old, key);
            // PERSIST: (in `publish`) the bitmap word; the entry with the new value counts, and the
            // old one no longer.
            tree.publish(&leaf.words[BITMAP + i], word);
            return;
        }
        let mut change = tree.change(&[Overwritten {
            node: leaf,
            from: at,
            words: V::Word::WORDS,
        }]);
        change.store_wide(leaf, at, value);
        change.commit();
    }

    fn remove<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    ) {
        let (pm, word) = (tree.pm(), &leaf.words[BITMAP + slot / BITS]);
        let key = key::<K::Word, V::Word, M>(leaf, pm, slot);
        // ORDERING: Relaxed; the leaf is locked.
        let without = word.load(pm, Ordering::Relaxed) ^ toggled(slot % BITS, key);
        // PERSIST: (in `publish`) the bit; the entry no longer counts.
        tree.publish(word, without);
    }
}
