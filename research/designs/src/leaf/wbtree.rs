//! wB+-Tree's leaf as the LB+-Tree paper compares it (sections 2.2 and 4.1): an indirection array
//! keeps unsorted entries in order, an insertion takes two NAWs, and a redo log protects splits.
//!
//! wB+-Tree is a [`LeafTree`] with the [centralised leaf](crate::central). The leaf's bytes are the
//! *slot array*: the number of entries, then their slots in the order of their keys, each with the
//! parity of its key word in bit 6. Bit 63 of word
//! 0 says that the array is valid. Where the papers leave a choice, node sizes, inner index,
//! allocator and locks are LB+-Tree's, because that paper compares the trees in this way. A value
//! is replaced in place by one NAW. Entries in the header line need no flush of their own.
//!
//! # Invariants
//! Besides the tree's: a slot counts iff its bit is set; while the valid bit is set, the slot array
//! holds exactly the slots that count, in ascending order of keys; of a slot that counts, only the
//! value word is ever overwritten.
//!
//! # Crash states
//! 1. *Insert*, *remove*: the first NAW clears the valid bit. Entry and slot array follow. The
//!    second NAW stores the bitmap with the valid bit set. Between the two, the slot array may be
//!    anything. Recovery rebuilds it from the bitmap, which is still the old one.
//! 2. *Split*: the new leaf is durable before a record of three words of the leaf (bitmap, sibling
//!    pointer, number of entries) is armed. Recovery assigns those words, which can be repeated.
//!    With [images](crate::central::SplitLog), the log has the leaf as it was, and recovery copies
//!    it back: the new leaf is free again.
//! 3. *Lazy removal* ([option](crate::central::CentralOptions::lazy_removal)): the bit is set or
//!    not; the slot array has the slot in either case.
//!
//! # Persist cost
//! | operation | lines | fences |
//! | --- | --- | --- |
//! | insert, entry in the header line | 2 | 2 |
//! | insert, elsewhere | 3 (up to 4 where the slot array goes beyond the header line) | 3 |
//! | remove | 2 (up to 3, with a third fence) | 2 |
//! | split | the new leaf's, and 3 | 3; then the insert |

use crate::central::{CentralOptions, Leaf, MAX_BYTES, SplitLogs, logged_leaf, slots};
use crate::common::sort_by;
use crate::index::TreeError;
use crate::leaftree::{Found, LeafDesign, LeafTree, Moved, Pair, offset};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord};
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Bit that says that the slot array is valid.
const VALID: u64 = 1 << 63;

/// A wB+-Tree with leaves of `B` x 256 bytes (`B` from 1 to 4). See the module's head.
pub type WbTree<K, V, M, const B: usize = 1> = LeafTree<WbDesign<M, B>, K, V, M>;

/// The leaf design of the wB+-Tree.
#[derive(Debug)]
pub struct WbDesign<M: Media, const B: usize> {
    logs: SplitLogs<M>,
    /// See [`CentralOptions::lazy_removal`]. The record of a removed byte string is free at once,
    /// so it is no key to search by.
    lazy: bool,
}

/// The bits of a slot in a byte of the slot array.
const SLOT: u8 = 63;
const _: () = assert!(MAX_BYTES <= SLOT as usize + 1);

/// Returns the bit that goes with the slot of this key word.
fn parity(key: u64) -> u8 {
    (key.count_ones() as u8 & 1) << 6
}

/// A slot array outside persistent memory.
#[derive(Clone, Copy, Debug)]
struct SlotArray([u8; MAX_BYTES]);

impl SlotArray {
    /// Returns the number of entries, at most `most` whatever the leaf says.
    #[inline(always)]
    fn len(&self, most: usize) -> usize {
        usize::from(self.0[0]).min(most)
    }

    /// Returns the slot at a place of the array, below `capacity`. A leaf that changes meanwhile,
    /// or a corrupt one, may have any byte here.
    #[inline(always)]
    fn slot(&self, i: usize, capacity: usize) -> usize {
        usize::from(self.0[1 + i] & SLOT).min(capacity - 1)
    }

    /// Returns true if the parity at a place of the array is that of the key word `key`.
    fn fits(&self, i: usize, key: u64) -> bool {
        self.0[1 + i] & !SLOT == parity(key)
    }

    fn insert(&mut self, at: usize, slot: usize, key: u64) {
        let n = self.len(MAX_BYTES - 2);
        let at = at.min(n);
        self.0.copy_within(1 + at..1 + n, 2 + at);
        self.0[1 + at] = slot as u8 | parity(key);
        self.0[0] = n as u8 + 1;
    }

    /// Leaves out the slots whose bits are not set.
    fn keep(&mut self, bitmap: u64, capacity: usize) {
        let n = self.len(capacity);
        let mut kept = 0;
        for i in 0..n {
            if bitmap >> self.slot(i, capacity) & 1 != 0 {
                self.0[1 + kept] = self.0[1 + i];
                kept += 1;
            }
        }
        self.0[0] = kept as u8;
    }

    fn remove(&mut self, slot: usize) {
        let n = self.len(MAX_BYTES - 2);
        let place = self.0[1..1 + n]
            .iter()
            .position(|s| usize::from(*s & SLOT) == slot);
        if let Some(at) = place {
            self.0.copy_within(2 + at..1 + n, 1 + at);
            self.0[0] = n as u8 - 1;
        }
    }
}

impl<K, V, M, const B: usize> LeafDesign<K, V, M> for WbDesign<M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Leaf = Leaf<B>;
    type Options = CentralOptions;

    const NAME: &'static str = "wbtree";
    const CAPACITY: usize = Leaf::<B>::CAPACITY;

    fn create(options: &CentralOptions, root: &Root<M>, heap: &Heap<M>) -> Result<Self, TreeError> {
        Ok(Self {
            logs: SplitLogs::create::<B>(options.split_log, root, heap)?,
            lazy: options.lazy_removal && !K::RECORDS,
        })
    }

    fn open(
        options: &CentralOptions,
        root: &Root<M>,
        heap: &Heap<M>,
        clean: bool,
    ) -> Result<Self, TreeError> {
        let redo = |words: &[u64]| redo_split::<M, B>(heap, words);
        Ok(Self {
            logs: SplitLogs::open::<B>(options.split_log, root, heap, clean, redo)?,
            lazy: options.lazy_removal && !K::RECORDS,
        })
    }

    fn recovery_threads(options: &CentralOptions) -> usize {
        options.recovery_threads
    }

    fn blocks(tree: &LeafTree<Self, K, V, M>) -> Vec<u64> {
        vec![tree.design.logs.offset()]
    }

    #[inline(always)]
    fn search(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        key: &K,
        _hash: u32,
    ) -> Option<Found> {
        let pm = tree.pm();
        // While the valid bit is off, a writer is changing the leaf, and its version will not
        // validate.
        let array = SlotArray(leaf.bytes(pm));
        let at = position(tree, leaf, &array, key).ok()?;
        let slot = array.slot(at, Leaf::<B>::CAPACITY);
        if tree.design.lazy && leaf.bitmap(pm) >> slot & 1 == 0 {
            return None;
        }
        let (key, value) = leaf.entry(pm, slot);
        Some(Found { slot, key, value })
    }

    #[inline(always)]
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let pm = tree.pm();
        let array = SlotArray(leaf.bytes(pm));
        let counts = if tree.design.lazy {
            leaf.bitmap(pm)
        } else {
            Leaf::<B>::FULL
        };
        for i in 0..array.len(Leaf::<B>::CAPACITY) {
            let slot = array.slot(i, Leaf::<B>::CAPACITY);
            if counts >> slot & 1 == 0 {
                continue;
            }
            let (key, value) = leaf.entry(pm, slot);
            f(slot, key, value);
        }
    }

    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> usize {
        leaf.bitmap(tree.pm()).count_ones() as usize
    }

    #[inline(always)]
    fn value<'t>(_tree: &'t LeafTree<Self, K, V, M>, leaf: &'t Leaf<B>, slot: usize) -> &'t PWord {
        leaf.value(slot)
    }

    #[inline(always)]
    fn next(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> u64 {
        leaf.next(tree.pm())
    }

    fn link<'t>(
        _tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t Leaf<B>,
        next: u64,
    ) -> (&'t PWord, u64) {
        (leaf.sibling(), link::word(next))
    }

    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, pairs: &[Pair]) {
        let pm = tree.pm();
        leaf.store_entries(pm, pairs);
        let mut array = SlotArray([0; MAX_BYTES]);
        for (slot, pair) in pairs.iter().enumerate() {
            array.insert(slot, slot, pair.key);
        }
        leaf.store_bytes(pm, &leaf.bytes(pm), &array.0);
        leaf.store_head(pm, ((1 << pairs.len()) - 1) | VALID);
    }

    #[inline(always)]
    fn insert(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, pair: Pair, fenced: bool) -> bool {
        let pm = tree.pm();
        let bitmap = leaf.bitmap(pm);
        let slot = (!bitmap).trailing_zeros() as usize;
        if slot >= Leaf::<B>::CAPACITY {
            return false;
        }
        let old = SlotArray(leaf.bytes(pm));
        let mut array = old;
        if tree.design.lazy {
            array.keep(bitmap, Leaf::<B>::CAPACITY);
        }
        let at = position_of_word(tree, leaf, &array, pair.key);
        array.insert(at, slot, pair.key);
        // First NAW: the slot array is about to change.
        leaf.publish_head(pm, bitmap);
        let entry = leaf.store_entry(pm, slot, pair.key, pair.value);
        let lines = entry.and(leaf.store_bytes(pm, &old.0, &array.0));
        let lines = lines.beyond_header();
        // PERSIST: the entry and the slot array, before the bitmap that makes them count.
        leaf.flush(pm, lines);
        if !lines.is_empty() || !fenced {
            // PERSIST: both, and the pair's records.
            pm.fence();
        }
        // Second NAW.
        leaf.publish_head(pm, bitmap | 1 << slot | VALID);
        true
    }

    fn remove(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, found: &Found) -> usize {
        let pm = tree.pm();
        let bitmap = leaf.bitmap(pm);
        if tree.design.lazy {
            let bitmap = bitmap & !(1 << found.slot);
            leaf.publish_head(pm, bitmap | VALID);
            return bitmap.count_ones() as usize;
        }
        let old = SlotArray(leaf.bytes(pm));
        let mut array = old;
        array.remove(found.slot);
        // First NAW: the slot array is about to change.
        leaf.publish_head(pm, bitmap);
        let lines = leaf.store_bytes(pm, &old.0, &array.0).beyond_header();
        if !lines.is_empty() {
            // PERSIST: the slot array, before the valid bit.
            leaf.flush(pm, lines);
            pm.fence();
        }
        let bitmap = bitmap & !(1 << found.slot);
        // Second NAW.
        leaf.publish_head(pm, bitmap | VALID);
        bitmap.count_ones() as usize
    }

    fn split(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        new: u32,
        upper: &[Moved],
        pair: Pair,
        goes_right: bool,
    ) {
        let pm = tree.pm();
        let new_leaf = tree.leaf(new);
        let mut pairs = [Pair::default(); MAX_BYTES];
        for (pair, moved) in pairs.iter_mut().zip(upper) {
            *pair = Pair {
                key: moved.key,
                value: moved.value,
                fingerprint: 0, // not used by this design
            };
        }
        Self::fill(tree, new_leaf, &pairs[..upper.len()]);
        // ORDERING: Relaxed; nothing leads to the new leaf yet.
        new_leaf
            .sibling()
            .store(pm, link::word(leaf.next(pm)), Ordering::Relaxed);
        let bitmap = upper
            .iter()
            .fold(Leaf::<B>::FULL, |bits, moved| bits & !(1 << moved.slot));
        // PERSIST: the new leaf, before the record that leads to it.
        pm.flush_of(new_leaf);
        let logs = &tree.design.logs;
        if logs.logs_words() {
            pm.fence();
        }
        let mut log = logs.take();
        if logs.logs_words() {
            log.arm(&[tree.offset_of(leaf), bitmap, offset(new)]);
        } else {
            // This fences the new leaf, too.
            logs.arm_images::<B>(&mut log, [tree.offset_of(leaf), offset(new)]);
        }
        halve(pm, leaf, bitmap, offset(new));
        // PERSIST: the leaf's three words, before the log is disarmed.
        pm.fence();
        // The first NAW of the insertion fences the disarmed record, before anything else changes
        // those words and before another split takes the log slot.
        log.disarm_flushed();
        // The new leaf's fence also covered the pair's records.
        let inserted = Self::insert(tree, if goes_right { new_leaf } else { leaf }, pair, true);
        debug_assert!(inserted, "half the slots are empty");
    }

    fn repair(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<u64, String> {
        let pm = tree.pm();
        let head = leaf.head(pm);
        if head & VALID != 0 {
            return Ok(0);
        }
        let mut used: Vec<usize> = slots(head & Leaf::<B>::FULL).collect();
        sort_by(&mut used, &mut |a, b| {
            let (a, b) = (leaf.entry(pm, *a).0, leaf.entry(pm, *b).0);
            tree.compare_words(a, b)
        });
        let mut array = SlotArray([0; MAX_BYTES]);
        for (i, slot) in used.into_iter().enumerate() {
            array.insert(i, slot, leaf.entry(pm, slot).0);
        }
        let lines = leaf.store_bytes(pm, &leaf.bytes(pm), &array.0);
        let lines = lines.beyond_header();
        if !lines.is_empty() {
            // PERSIST: the slot array, before the bit that calls it valid.
            leaf.flush(pm, lines);
            pm.fence();
        }
        leaf.store_head(pm, head | VALID);
        // PERSIST: the header line. It is fenced before the tree is used, because the record of a
        // later split says that the array is valid, and so does a clean close.
        pm.flush_of(leaf.sibling());
        Ok(1)
    }

    fn sound(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        leaf.sound(tree.pm())
    }

    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        let pm = tree.pm();
        let head = leaf.head(pm);
        let array = SlotArray(leaf.bytes(pm));
        if head & VALID == 0 {
            return Err("its slot array is not valid".into());
        }
        let n = array.len(Leaf::<B>::CAPACITY);
        let slot = |i: usize| array.slot(i, Leaf::<B>::CAPACITY);
        let mut in_array = (0..n).fold(0u64, |bits, i| bits | 1 << slot(i));
        if in_array.count_ones() as usize != n {
            return Err(format!("the slot array has {n} slots, and one twice"));
        }
        if tree.design.lazy {
            in_array &= head & Leaf::<B>::FULL;
        }
        if in_array != head & Leaf::<B>::FULL {
            return Err(format!(
                "the slot array has slots {in_array:#x}, the bitmap {:#x}",
                head & Leaf::<B>::FULL
            ));
        }
        let key = |i: usize| leaf.entry(pm, slot(i)).0;
        if let Some(i) = (0..n).find(|&i| !array.fits(i, key(i))) {
            return Err(format!("the key at place {i} of the slot array is damaged"));
        }
        match (1..n).find(|&i| tree.compare_words(key(i - 1), key(i)) != Order::Less) {
            Some(i) => Err(format!("place {i} of the slot array is out of order")),
            None => Ok(()),
        }
    }
}

type Tree<K, V, M, const B: usize> = LeafTree<WbDesign<M, B>, K, V, M>;

/// Searches the slot array: `Ok` with the key's place, or `Err` with the place where it would be.
#[inline(always)]
fn position<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>(
    tree: &Tree<K, V, M, B>,
    leaf: &Leaf<B>,
    array: &SlotArray,
    key: &K,
) -> Result<usize, usize> {
    let pm = tree.pm();
    let (mut low, mut high) = (0, array.len(Leaf::<B>::CAPACITY));
    while low < high {
        let middle = (low + high) / 2;
        let slot = array.slot(middle, Leaf::<B>::CAPACITY);
        match tree.compare_to_word(key, leaf.entry(pm, slot).0) {
            Order::Equal => return Ok(middle),
            Order::Less => high = middle,
            Order::Greater => low = middle + 1,
        }
    }
    Err(low)
}

/// Returns the place where the key of `word`, which is absent, would be.
#[inline(always)]
fn position_of_word<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>(
    tree: &Tree<K, V, M, B>,
    leaf: &Leaf<B>,
    array: &SlotArray,
    word: u64,
) -> usize {
    let position = K::read(tree.pm(), word, |key| position(tree, leaf, array, key));
    match position {
        Some(Ok(at) | Err(at)) => at,
        None => 0, // no key was ever at that word: the pool has become corrupt
    }
}

/// Leaves only the slots of `bitmap`, the first of the slot array, in a leaf, and links its new
/// sibling. Flushes the words.
fn halve<M: Media, const B: usize>(pm: &M, leaf: &Leaf<B>, bitmap: u64, new: u64) {
    leaf.store_byte(pm, 0, bitmap.count_ones() as u8);
    // ORDERING: Release; pairs with the Acquire in `Leaf::next`.
    leaf.sibling().store(pm, link::word(new), Ordering::Release);
    leaf.store_head(pm, bitmap | VALID);
    // PERSIST: the leaf's three words, which share a line; fenced before the log is disarmed.
    pm.flush_of(leaf.sibling());
}

/// Applies the record of a split.
fn redo_split<M: Media, const B: usize>(heap: &Heap<M>, words: &[u64]) -> Result<(), String> {
    let [leaf_at, bitmap, new_at] = words else {
        return Err(format!("{} words where a split logs 3", words.len()));
    };
    let leaf = logged_leaf::<M, B>(heap, *leaf_at)?;
    logged_leaf::<M, B>(heap, *new_at)?;
    if leaf_at == new_at || bitmap & !Leaf::<B>::FULL != 0 {
        return Err(format!(
            "leaf {leaf_at:#x} is to keep slots {bitmap:#x} and have sibling {new_at:#x}"
        ));
    }
    halve(heap.pool().pm(), leaf, *bitmap, *new_at);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{DurableIndex, OrderedIndex};
    use bristlecone_pmem::media::Mapped;
    use bristlecone_pmem::{MediaOptions, Pool, PoolOptions};

    /// After a kill, a leaf is not taken to be empty, and unlinked, because the number in its slot
    /// array is damaged.
    #[test]
    fn an_array_of_no_slots_is_damage_where_slots_count() {
        let folder = tempfile::tempdir().unwrap();
        let (path, image) = (folder.path().join("pool"), folder.path().join("image"));
        let options = PoolOptions {
            media: MediaOptions {
                reserve: 1 << 28,
                ..MediaOptions::default()
            },
        };
        let pool = Pool::<Mapped>::create(&path, &options).unwrap();
        let tree = WbTree::<u64, u64, _>::create(&pool, "t", &CentralOptions::default()).unwrap();
        (0..100).for_each(|key| tree.insert(&key, &key).unwrap());
        let first = tree.inner.find_first(&crossbeam_epoch::pin()).located.leaf;
        let second = tree.leaf(first).next(tree.pm());
        let leaf = tree.leaf((second / crate::leaftree::UNIT) as u32);
        let number = leaf.bytes(tree.pm())[0];
        leaf.store_byte(tree.pm(), 0, 0);
        std::fs::copy(&path, &image).unwrap();
        leaf.store_byte(tree.pm(), 0, number);
        std::mem::forget(tree);
        let pool = Pool::<Mapped>::open(&image, &options).unwrap();
        let opened = WbTree::<u64, u64, _>::open(&pool, "t", &CentralOptions::default());
        let said = opened.unwrap_err().to_string();
        assert!(
            said.contains(&format!("leaf {second:#x}: it has {number} entries")),
            "{said}"
        );
    }

    #[test]
    fn slot_arrays_keep_their_order() {
        let mut array = SlotArray([0; MAX_BYTES]);
        for (at, slot) in [(0, 5), (0, 3), (2, 7), (1, 1)] {
            array.insert(at, slot, slot as u64);
        }
        let slots = |array: &SlotArray| -> Vec<usize> {
            (0..array.len(14)).map(|i| array.slot(i, 14)).collect()
        };
        assert_eq!(slots(&array), [3, 1, 5, 7]);
        assert!(array.fits(1, 1) && !array.fits(1, 3));
        array.remove(1);
        array.remove(9);
        assert_eq!(slots(&array), [3, 5, 7]);
    }

    #[test]
    fn damaged_slot_arrays_stay_inside() {
        let mut array = SlotArray([255; MAX_BYTES]);
        array.insert(200, 3, 0);
        array.remove(255);
        array.insert(0, 3, 0);
        assert!((0..array.len(14)).all(|i| array.slot(i, 14) < 14));
    }
}
