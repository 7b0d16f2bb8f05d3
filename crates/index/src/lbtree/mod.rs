//! LB+-Tree (Liu, Chen, Wang, PVLDB 2020): few NVM line writes per insertion, no log for splits.
//!
//! A [`LeafTree`] (leaves in the pool, inner nodes in DRAM) whose leaf's layout is in `leaf.rs`.
//! Entries are unsorted; a bitmap in the header says which slots are in use, so one 8-byte store
//! (NAW) of a header word makes a change count. The paper's three techniques:
//!
//! * *Entry moving* (3.2, `insert.rs`): an insert that has to write a line other than the header's
//!   moves the header line's entries there too, so that the next inserts need one line only.
//! * *Logless split* (3.3, `split.rs`): two sibling pointers; one NAW switches pointer and bitmap.
//! * *Distributed headers* (3.4): every 256-byte block has its own header, the blocks after the
//!   first a second, alternative one, switched by the same NAW.
//!
//! # Invariants
//! Besides the tree's:
//! 1. A slot counts iff its bit is set in the header that counts (`leaf.rs`).
//! 2. fingerprint\[s\] = low byte of hash(key of slot s), for every slot s that counts.
//! 3. A slot that counts in the *durable* header is never overwritten but for the 8-byte value word
//!    of an update. (The paper's Algorithm 3 breaks this when the new key goes to the old leaf: it
//!    writes into a slot that only the not yet published header calls empty. Here the split is
//!    published first.)
//!
//! # Concurrency
//! The tree's. The bit that the paper's layout locks a leaf with is a header's check here.
//!
//! # Crash states
//! Besides the tree's:
//! 1. *Insert*, before the NAW: an entry in a slot that does not count. Nothing to repair.
//! 2. *Insert with moves*, before the NAW: moved entries stand twice, their old slots count.
//! 3. *Split*, before the NAW: a new leaf that only the inactive sibling pointer leads to, inactive
//!    back headers. The walk does not reach the leaf, so it is free.
//! 4. *Remove*: the bit is set or not. Persist cost: 1 line, 1 fence.
//! 5. *Unlink*: before its predecessor's NAW, inactive pointer and headers only. Persist cost: 2
//!    lines (1 more per further block) and 2 fences.

mod batch;
mod insert;
mod leaf;
mod split;

#[cfg(test)]
mod tests;

use crate::contract::{InsertError, TreeError};
use crate::leaftree::{Found, LeafDesign, LeafLayout, LeafTree, Moved, Pair};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord};
use leaf::{Header, Leaf, Place, slots};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// An LB+-Tree with leaves of `B` x 256 bytes (`B` from 1 to 4). See the module's head.
pub type LbTree<K, V, M, const B: usize = 1> = LeafTree<LbDesign<B>, K, V, M>;

/// Options of an LB+-Tree. None of them is stored in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbOptions {
    /// Move entries out of the header line (the paper's technique). Off is the "traditional" design
    /// that the paper compares with.
    pub entry_moving: bool,
    /// Number of threads that rebuild the inner nodes after a crash.
    pub recovery_threads: usize,
}

impl Default for LbOptions {
    fn default() -> Self {
        Self {
            entry_moving: true,
            recovery_threads: 1,
        }
    }
}

/// The leaf design of the LB+-Tree.
#[derive(Debug)]
pub struct LbDesign<const B: usize> {
    entry_moving: bool,
}

/// Returns the number of a slot, given its block and its place there.
#[inline(always)]
fn numbered(block: usize, slot: usize) -> usize {
    block << 4 | slot
}

/// Returns block and place of a slot.
#[inline(always)]
fn located(slot: usize) -> (usize, usize) {
    (slot >> 4, slot & 15)
}

// SAFETY: a leaf is blocks of 256 bytes, which are persistent words, aligned to 256.
unsafe impl<const B: usize> LeafLayout for Leaf<B> {}

impl<K, V, M, const B: usize> LeafDesign<K, V, M> for LbDesign<B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Leaf = Leaf<B>;
    type Options = LbOptions;

    const NAME: &'static str = "lbtree";
    const CAPACITY: usize = {
        assert!(B >= 1 && B <= 4, "leaves of 256 to 1024 bytes");
        B * crate::fingerprint::SLOTS
    };

    fn create(options: &LbOptions, _root: &Root<M>, _heap: &Heap<M>) -> Result<Self, TreeError> {
        Ok(Self {
            entry_moving: options.entry_moving,
        })
    }

    fn open(
        options: &LbOptions,
        _root: &Root<M>,
        _heap: &Heap<M>,
        _clean: bool,
    ) -> Result<Self, TreeError> {
        Ok(Self {
            entry_moving: options.entry_moving,
        })
    }

    fn recovery_threads(options: &LbOptions) -> usize {
        options.recovery_threads
    }

    fn place(slot: usize) -> String {
        let (block, slot) = located(slot);
        format!("block {block} slot {slot}")
    }

    #[inline(always)]
    fn search(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, key: &K, hash: u32) -> Option<Found> {
        tree.search_blocks(leaf, key, hash)
    }

    #[inline(always)]
    fn candidates(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        hash: u32,
        mut f: impl FnMut(u64, u64),
    ) {
        let pm = tree.pm();
        for (block, header) in leaf.blocks.iter().zip(leaf.headers(pm)) {
            for slot in slots(header.candidates(hash as u8)) {
                let (key, value) = block.entry(pm, slot);
                f(key, value);
            }
        }
    }

    #[inline(always)]
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let pm = tree.pm();
        let first = leaf.first_header(pm);
        for (b, block) in leaf.blocks.iter().enumerate() {
            let header = block.header(pm, first.place(b));
            for slot in slots(header.bitmap()) {
                let (key, value) = block.entry(pm, slot);
                f(numbered(b, slot), key, value);
            }
        }
    }

    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> usize {
        leaf.headers(tree.pm()).iter().map(|h| h.count()).sum()
    }

    #[inline(always)]
    fn value<'t>(_tree: &'t LeafTree<Self, K, V, M>, leaf: &'t Leaf<B>, slot: usize) -> &'t PWord {
        let (block, slot) = located(slot);
        &leaf.blocks[block].entries[slot].value
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
        (leaf.sibling(0), link::word(next))
    }

    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, pairs: &[Pair]) {
        let pm = tree.pm();
        let mut headers = [Header::default(); B];
        for (i, pair) in pairs.iter().enumerate() {
            // All blocks are filled alike, as a split packs a new leaf: from the end, so that
            // header lines have room, or the traditional way.
            let (b, first) = (i % B, i / B);
            let slot = if tree.design.entry_moving {
                crate::fingerprint::SLOTS - 1 - first
            } else {
                first
            };
            leaf.blocks[b].store_entry(pm, slot, pair.key, pair.value);
            headers[b].set(slot, pair.fingerprint);
        }
        // ORDERING: Relaxed; nothing leads to the leaf yet.
        leaf.sibling(0).store(pm, 0, Ordering::Relaxed);
        leaf.sibling(1).store(pm, 0, Ordering::Relaxed);
        for (block, header) in leaf.blocks.iter().zip(headers) {
            block.store_header(pm, Place::Front, header);
        }
    }

    #[inline(always)]
    fn insert(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, pair: Pair, fenced: bool) -> bool {
        let headers = leaf.headers(tree.pm());
        let Some(b) = (0..B).find(|&b| headers[b].empty() != 0) else {
            return false;
        };
        tree.insert_in_block(
            &leaf.blocks[b],
            headers[0].place(b),
            headers[b],
            pair,
            fenced,
        );
        true
    }

    fn remove(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>, found: &Found) -> usize {
        let pm = tree.pm();
        let headers = leaf.headers(pm);
        let (b, slot) = located(found.slot);
        let place = headers[0].place(b);
        let mut header = headers[b];
        header.clear(slot);
        let block = &leaf.blocks[b];
        block.store_header(pm, place, header);
        // PERSIST: the header word (NAW) that makes the removal count.
        pm.flush(block.line(place.line()), 64);
        pm.fence();
        headers.iter().map(|h| h.count()).sum::<usize>() - 1
    }

    fn split(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Leaf<B>,
        new: u32,
        upper: &[Moved],
        pair: Pair,
        goes_right: bool,
    ) {
        tree.split_in_two(leaf, new, upper, goes_right.then_some(pair));
        if !goes_right {
            // The split fenced the pair's records.
            let inserted = Self::insert(tree, leaf, pair, true);
            debug_assert!(inserted, "half the slots are empty");
        }
    }

    fn unlink(tree: &LeafTree<Self, K, V, M>, before: &Leaf<B>, leaf: &Leaf<B>, _flushed: bool) {
        tree.lead_past(before, leaf);
    }

    fn sound(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        let pm = tree.pm();
        let headers = leaf.headers(pm);
        if let Some(b) = headers.iter().position(|header| !header.is_sound()) {
            return Err(format!("the header of block {b} fails its check"));
        }
        link::checked(leaf.link(pm)).map(drop)
    }

    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &Leaf<B>) -> Result<(), String> {
        let pm = tree.pm();
        let headers = leaf.headers(pm);
        for (b, header) in headers.iter().enumerate() {
            for slot in slots(header.bitmap()) {
                let key = leaf.blocks[b].entry(pm, slot).0;
                if K::read(pm, key, |key| key.hash() as u8) != Some(header.fingerprint(slot)) {
                    return Err(format!(
                        "block {b} slot {slot}: fingerprint does not match the key ({key:#x})"
                    ));
                }
            }
        }
        Ok(())
    }

    fn insert_batch<Q: Borrow<K>, W: Borrow<V>>(
        tree: &LeafTree<Self, K, V, M>,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        tree.insert_batches(pairs, out);
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>
    LeafTree<LbDesign<B>, K, V, M>
{
    /// Searches a leaf for a key (Algorithm 1): fingerprints, then keys.
    #[inline(always)]
    fn search_blocks(&self, leaf: &Leaf<B>, key: &K, hash: u32) -> Option<Found> {
        let pm = self.pm();
        let first = leaf.first_header(pm);
        self.search_block(leaf, 0, first, key, hash).or_else(|| {
            (1..B).find_map(|b| {
                let header = leaf.blocks[b].header(pm, first.place(b));
                self.search_block(leaf, b, header, key, hash)
            })
        })
    }

    #[inline(always)]
    fn search_block(
        &self,
        leaf: &Leaf<B>,
        block: usize,
        header: Header,
        key: &K,
        hash: u32,
    ) -> Option<Found> {
        let pm = self.pm();
        slots(header.candidates(hash as u8)).find_map(|slot| {
            let (word, value) = leaf.blocks[block].entry(pm, slot);
            key.is_at(hash, pm, word).then_some(Found {
                slot: numbered(block, slot),
                key: word,
                value,
            })
        })
    }
}
