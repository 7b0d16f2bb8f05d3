//! Persistent unsorted (UCSC-CRSS-20-01, sections 2.3 and 3.1): a B+-tree whose leaves are unsorted, with a
//! validity bitmap, and whose other nodes are sorted. All of it is in persistent memory.
//!
//! An entry is written into an empty slot and made to count by one NAW of a bitmap word (*native atomic
//! in-place updates*); only structural modifications are logged. Descent, splits, unlinking, scans, bulk load
//! and recovery are [`crate::btree`]'s.
//!
//! ```text
//! word 0     | 0 (level 0)             word 1 | offset of the next leaf, 0 for the last
//! words 2 .. | bitmap, 1 to 8 words: bit s % 64 of word s / 64 says that slot s is in use | unused, if odd |
//! then       | key 0 | value 0 | key 1 | value 1 | ...       16-byte entries, none of which crosses a line
//! ```
//!
//! # Invariants
//! 1. A slot counts iff its bit is set.
//! 2. A slot that counts in the *durable* bitmap is never overwritten but for the 8-byte value word of an
//!    update.
//!
//! # Crash states
//! 1. *Insert*, before the bitmap's NAW: an entry in a slot that does not count.
//! 2. *Update*, *remove*: the old or the new word.
//! 3. *Split*, *unlinking of an emptied leaf*: as [`crate::btree`] says.
//!
//! # Persist cost
//! Insert: 2 lines and 2 fences (records share the first). Update and remove: 1 line and 1 fence (an update
//! to a record: 2 fences).

use crate::btree::BTree;
use crate::btree::change::{Change, OverwrittenWords};
use crate::btree::kind::{Found, Kind, Leaf};
use crate::btree::node::{Node, compare_to_word};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::sync::atomic::Ordering;

/// First word of the bitmap.
pub(crate) const BITMAP: usize = 2;
/// Bits in a word of it.
const BITS: usize = u64::BITS as usize;

/// The persistent unsorted design.
#[derive(Debug)]
pub struct Unsorted;

impl Kind for Unsorted {
    const NAME: &'static str = "unsorted";
    const USUAL_BYTES: u32 = 512;
    type Leaf = Bitmap;
    type Protect = OverwrittenWords;
}

/// A B+-tree in persistent memory with unsorted leaves. See the module's head.
pub type UnsortedTree<K, V, M> = BTree<K, V, M, Unsorted>;

/// The unsorted leaf.
#[derive(Debug)]
pub struct Bitmap;

/// Words of the bitmap of a leaf of `words` words.
pub(crate) const fn bitmap_words(words: usize) -> usize {
    // Two words an entry at least: this many are enough, whatever they take themselves.
    (words / 2 - 2).div_ceil(BITS)
}

/// Word number of the first entry: even, so that no entry crosses a line.
const fn entries_at(words: usize) -> usize {
    (BITMAP + bitmap_words(words)).next_multiple_of(2)
}

pub(crate) const fn slots(words: usize) -> usize {
    (words - entries_at(words)) / 2
}

const _: () = assert!(slots(32) == 14 && slots(64) == 30 && slots(128) == 62);
const _: () = assert!(slots(256) == 126 && slots(512) == 253);
const _: () = assert!(slots(16) == 6 && slots(1024) == 507);
const _: () = assert!(slots(1024) <= bitmap_words(1024) * BITS);

/// Word number of the key of `slot`; the value follows.
pub(crate) fn key_at(leaf: Node<'_>, slot: usize) -> usize {
    entries_at(leaf.words.len()) + 2 * slot
}

/// Words of the bitmap, with the number of slots that each is for.
fn parts(leaf: Node<'_>) -> impl Iterator<Item = (usize, usize)> {
    let slots = slots(leaf.words.len());
    (0..bitmap_words(leaf.words.len())).map(move |i| (i, (slots - i * BITS).min(BITS)))
}

/// Bits of the slots that part `i` is for and that are in use.
#[inline]
fn in_use<M: Media>(leaf: Node<'_>, pm: &M, (i, slots): (usize, usize)) -> u64 {
    let all = !0 >> (BITS - slots);
    // ORDERING: Acquire; pairs with the Release of the NAW that made slots count.
    leaf.words[BITMAP + i].load(pm, Ordering::Acquire) & all
}

/// The slots in use.
#[inline]
fn used<M: Media>(leaf: Node<'_>, pm: &M) -> impl Iterator<Item = usize> {
    parts(leaf).flat_map(move |part| {
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

impl Leaf for Bitmap {
    const SORTED: bool = false;

    fn capacity(words: usize) -> usize {
        slots(words)
    }

    #[inline]
    fn len<M: Media>(leaf: Node<'_>, pm: &M) -> usize {
        parts(leaf)
            .map(|part| in_use(leaf, pm, part).count_ones() as usize)
            .sum()
    }

    fn entries<M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(u64, u64)>) {
        out.clear();
        out.extend(used(leaf, pm).map(|slot| {
            let at = key_at(leaf, slot);
            (leaf.load(pm, at), leaf.load(pm, at + 1))
        }));
    }

    #[inline]
    fn find<K: KeyRepr + ?Sized, M: Media>(leaf: Node<'_>, pm: &M, key: &K) -> Option<Found> {
        used(leaf, pm).find_map(|slot| {
            let at = key_at(leaf, slot);
            let word = leaf.load(pm, at);
            compare_to_word(pm, key, word).is_eq().then(|| Found {
                slot,
                key: word,
                value: leaf.load(pm, at + 1),
            })
        })
    }

    fn fill<M: Media>(leaf: Node<'_>, pm: &M, entries: &[(u64, u64)], next: u64) {
        leaf.init(pm, 0, 0);
        leaf.init(pm, 1, next);
        for (i, slots) in parts(leaf) {
            let filled = entries.len().saturating_sub(i * BITS).min(slots);
            let bits = if filled == 0 {
                0
            } else {
                !0 >> (BITS - filled)
            };
            leaf.init(pm, BITMAP + i, bits);
        }
        for (slot, (key, value)) in entries.iter().enumerate() {
            let at = key_at(leaf, slot);
            leaf.init(pm, at, *key);
            leaf.init(pm, at + 1, *value);
        }
    }

    fn split_words(words: usize) -> usize {
        BITMAP + bitmap_words(words)
    }

    fn keep_lower<'t, K: KeyRepr + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: u64,
        next: u64,
    ) {
        let mut kept = [0u64; bitmap_words(1024)];
        for slot in used(leaf, pm) {
            let word = leaf.load(pm, key_at(leaf, slot));
            let lower = K::read(pm, separator, |key| compare_to_word(pm, key, word).is_gt());
            if lower.unwrap_or(true) {
                kept[slot / BITS] |= 1 << (slot % BITS);
            }
        }
        change.store(leaf, 1, next);
        for (i, _) in parts(leaf) {
            change.store(leaf, BITMAP + i, kept[i]);
        }
    }

    fn insert<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        _key: &K,
        (key, value): (u64, u64),
    ) {
        let pm = tree.pm();
        let room = parts(leaf)
            .map(|part| (part, in_use(leaf, pm, part)))
            .find(|((_, slots), bits)| bits.count_ones() < *slots as u32);
        let Some(((i, _), bits)) = room else {
            debug_assert!(false, "the caller saw that the leaf has room");
            return;
        };
        let bit = bits.trailing_ones() as usize;
        let at = key_at(leaf, i * BITS + bit);
        leaf.init(pm, at, key);
        leaf.init(pm, at + 1, value);
        // PERSIST: the entry, and the pair's records, before the bit that makes it count.
        tree.flush(leaf.words[at].addr(), 16);
        tree.fence();
        // PERSIST: (in `publish`) the entry counts.
        tree.publish(&leaf.words[BITMAP + i], bits | 1 << bit);
    }

    fn update<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: u64,
    ) {
        if V::RECORDS {
            // PERSIST: the new value's record, before the word that leads to it.
            tree.fence();
        }
        // PERSIST: (in `publish`) the new value counts.
        tree.publish(&leaf.words[key_at(leaf, slot) + 1], value);
    }

    fn remove<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    ) {
        let (pm, word) = (tree.pm(), &leaf.words[BITMAP + slot / BITS]);
        // ORDERING: Relaxed; the leaf is locked.
        let bits = word.load(pm, Ordering::Relaxed);
        // PERSIST: (in `publish`) the entry no longer counts.
        tree.publish(word, bits & !(1 << (slot % BITS)));
    }
}
