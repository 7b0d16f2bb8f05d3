//! FPTree's leaf as the LB+-Tree paper compares it (sections 2.2 and 4.1): fingerprints, a bitmap,
//! and splits under a micro-log.
//!
//! FPTree is a [`LeafTree`] with the [centralised leaf](crate::central), whose bytes are one
//! fingerprint per slot. Where the papers leave a choice, node sizes, inner index, allocator and
//! locks are LB+-Tree's, because that paper compares the trees in this way. A value is replaced in
//! place by one NAW. An entry or fingerprint in the header line needs no flush of its own.
//!
//! # Invariants
//! Besides the tree's: a slot counts iff its bit is set; its fingerprint is the low byte of its
//! key's hash; of a slot that counts, only the value word is ever overwritten.
//!
//! # Crash states
//! 1. *Insert*, before the bitmap's NAW: an entry in a slot that does not count.
//! 2. *Remove*: the bit is set or not.
//! 3. *Split*: the log names the leaf and the new leaf before either changes. The new leaf is a
//!    copy of the whole leaf, and its bitmap has the upper half. It is durable before the leaf's
//!    bitmap or sibling pointer changes. If recovery finds the leaf unchanged, it does nothing.
//!    Otherwise it *assigns* both words again, which can be repeated. With
//!    [images](crate::central::SplitLog), the log has the leaf as it was, and recovery copies it
//!    back: the new leaf is free again.
//!
//! # Persist cost
//! | operation | lines | fences |
//! | --- | --- | --- |
//! | insert, entry (and fingerprint) in the header line | 1 | 1 |
//! | insert, elsewhere | 2 (3 where the fingerprint is beyond the header line) | 2 |
//! | remove | 1 | 1 |
//! | split | the new leaf's, and 3 | 3; then the insert |

use crate::central::{CentralOptions, Leaf, SplitLogs, logged_leaf, slots};
use crate::fingerprint::equal_bytes;
use crate::index::TreeError;
use crate::leaftree::{Found, LeafDesign, LeafTree, Moved, Pair, offset};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord};
use std::sync::atomic::Ordering;

/// An FPTree with leaves of `B` x 256 bytes (`B` from 1 to 4). See the module's head.
pub type FpTree<K, V, M, const B: usize = 1> = LeafTree<FpDesign<M, B>, K, V, M>;

/// The leaf design of the FPTree.
#[derive(Debug)]
pub struct FpDesign<M: Media, const B: usize> {
    logs: SplitLogs<M>,
}

impl<K, V, M, const B: usize> LeafDesign<K, V, M> for FpDesign<M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Leaf = Leaf<B>;
    type Options = CentralOptions;

    const NAME: &'static str = "fptree";
    const CAPACITY: usize = Leaf::<B>::CAPACITY;

    fn create(options: &CentralOptions, root: &Root<M>, heap: &Heap<M>) -> Result<Self, TreeError> {
        SplitLogs::create::<B>(options.split_log, root, heap).map(|logs| Self { logs })
    }

    fn open(
        options: &CentralOptions,
        root: &Root<M>,
        heap: &Heap<M>,
        clean: bool,
    ) -> Result<Self, TreeError> {
        let redo = |words: &[u64]| redo_split::<M, B>(heap, words);
        let logs = SplitLogs::open::<B>(options.split_log, root, heap, clean, redo)?;
        Ok(Self { logs })
    }

    fn recovery_threads(options: &CentralOptions) -> usize {
        options.recovery_threads
    }

    fn blocks(tree: &LeafTree<Self, K, V, M>) -> Vec<u64> {
        vec![tree.design.logs.offset()]
    }

    #[inline(always)]
    fn search(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, key: &K, hash: u32) -> Option<Found> {
        let pm = tree.pm();
        let bitmap = leaf.bitmap(pm);
        (0..B).find_map(|b| {
            let equal = u64::from(equal_bytes(leaf.bytes_of(pm, b), hash as u8));
            slots(bitmap & equal << (16 * b)).find_map(|slot| {
                let (word, value) = leaf.entry(pm, slot);
                key.is_at(hash, pm, word).then_some(Found {
                    slot,
                    key: word,
                    value,
                })
            })
        })
    }

    #[inline(always)]
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let pm = tree.pm();
        for slot in slots(leaf.bitmap(pm)) {
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
        for (slot, pair) in pairs.iter().enumerate() {
            leaf.store_byte(pm, slot, pair.fingerprint);
        }
        leaf.store_head(pm, (1 << pairs.len()) - 1);
    }

    #[inline(always)]
    fn insert(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, pair: Pair, fenced: bool) -> bool {
        let pm = tree.pm();
        let bitmap = leaf.bitmap(pm);
        let slot = (!bitmap).trailing_zeros() as usize;
        if slot >= Leaf::<B>::CAPACITY {
            return false;
        }
        let entry = leaf.store_entry(pm, slot, pair.key, pair.value);
        let lines = entry.and(leaf.store_byte(pm, slot, pair.fingerprint));
        let lines = lines.beyond_header();
        // PERSIST: the entry and its fingerprint, before the bitmap that makes them count.
        leaf.flush(pm, lines);
        if !lines.is_empty() || !fenced {
            // PERSIST: both, and the pair's records.
            pm.fence();
        }
        leaf.publish_head(pm, bitmap | 1 << slot);
        true
    }

    fn remove(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, found: &Found) -> usize {
        let pm = tree.pm();
        let bitmap = leaf.bitmap(pm) & !(1 << found.slot);
        leaf.publish_head(pm, bitmap);
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
        let mut log = tree.design.logs.take();
        let logs_words = tree.design.logs.logs_words();
        if logs_words {
            // One fence makes the record and the new leaf durable; the leaf changes after it.
            log.arm_flushed(&[tree.offset_of(leaf), offset(new)]);
        }
        let old_bytes = new_leaf.bytes(pm);
        for slot in 0..Leaf::<B>::CAPACITY {
            let (key, value) = leaf.entry(pm, slot);
            new_leaf.store_entry(pm, slot, key, value);
        }
        new_leaf.store_bytes(pm, &old_bytes, &leaf.bytes(pm));
        // ORDERING: Relaxed; nothing leads to the new leaf yet.
        new_leaf
            .sibling()
            .store(pm, link::word(leaf.next(pm)), Ordering::Relaxed);
        let bitmap = upper.iter().fold(0, |bits, moved| bits | 1 << moved.slot);
        new_leaf.store_head(pm, bitmap);
        // PERSIST: the log's record and the whole new leaf, before the leaf changes.
        pm.flush_of(new_leaf);
        if logs_words {
            pm.fence();
        } else {
            // This fences the new leaf, too.
            let leaves = [tree.offset_of(leaf), offset(new)];
            tree.design.logs.arm_images::<B>(&mut log, leaves);
        }
        halve(pm, leaf, bitmap, offset(new));
        // PERSIST: the bitmap and the sibling pointer, before the log is disarmed.
        pm.fence();
        log.disarm();
        // The new leaf's fence also covered the pair's records.
        let inserted = Self::insert(tree, if goes_right { new_leaf } else { leaf }, pair, true);
        debug_assert!(inserted, "half the slots are empty");
    }

    fn sound(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        leaf.sound(tree.pm())
    }

    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        let pm = tree.pm();
        let bytes = leaf.bytes(pm);
        for slot in slots(leaf.bitmap(pm)) {
            let key = leaf.entry(pm, slot).0;
            if K::read(pm, key, |key| key.hash() as u8) != Some(bytes[slot]) {
                return Err(format!(
                    "slot {slot}: fingerprint does not match the key ({key:#x})"
                ));
            }
        }
        Ok(())
    }
}

/// Removes the slots of `moved` from a full leaf and links its new sibling. Flushes both words.
fn halve<M: Media, const B: usize>(pm: &M, leaf: &Leaf<B>, moved: u64, new: u64) {
    leaf.store_head(pm, Leaf::<B>::FULL & !moved);
    // ORDERING: Release; pairs with the Acquire in `Leaf::next`.
    leaf.sibling().store(pm, link::word(new), Ordering::Release);
    // PERSIST: the bitmap and the sibling pointer, which share a line; fenced before the log is
    // disarmed.
    pm.flush_of(leaf.sibling());
}

/// Finishes the split that a log record names, unless the split had not begun.
fn redo_split<M: Media, const B: usize>(heap: &Heap<M>, words: &[u64]) -> Result<(), String> {
    let pm = heap.pool().pm();
    let [leaf_at, new_at] = words else {
        return Err(format!("{} words where a split logs 2", words.len()));
    };
    let leaf = logged_leaf::<M, B>(heap, *leaf_at)?;
    let new_leaf = logged_leaf::<M, B>(heap, *new_at)?;
    if leaf_at == new_at {
        return Err(format!("leaf {leaf_at:#x} is to be its own sibling"));
    }
    // While the leaf is unchanged, the new leaf may be unwritten.
    if leaf.bitmap(pm) != Leaf::<B>::FULL || leaf.next(pm) == *new_at {
        halve(pm, leaf, new_leaf.bitmap(pm), *new_at);
    }
    Ok(())
}
