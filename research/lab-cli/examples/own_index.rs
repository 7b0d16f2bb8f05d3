//! An index of one's own, through bench, figures and explorer (`docs/own-index.md`): leaves whose
//! bitmap and sibling share a word, so that a split is one store and needs no log.
//!
//! ```text
//! leaf (256 bytes) | head | unused | entry 0: key, value | entry 1 | ... | entry 14 |
//! head             | a bit per entry (16 bits, the last is 0) | right sibling / 256 (48 bits) |
//! ```
//!
//! # Invariants
//! An entry counts iff its bit is set. Of an entry that counts, only the value is overwritten.
//!
//! # Concurrency
//! The tree locks a leaf around every change, and validates what searches read.
//!
//! # Crash states
//! The store of the head is a whole insertion, removal or split. Until then an insertion has
//! written where nothing counts, and a split to a leaf that nothing leads to.

use bristlecone_designs::leaftree::{Found, LeafDesign, LeafLayout, LeafTree, Moved, Pair, UNIT};
use bristlecone_designs::{KeyRepr, Repr, TreeError, design};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord};
use std::process::ExitCode;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

const SLOTS: usize = 15;

#[repr(C, align(256))]
struct Leaf {
    head: PWord,
    _unused: PWord,
    /// Keys and values.
    entries: [[PWord; 2]; SLOTS],
}

const _: () = assert!(size_of::<Leaf>() == 256 && align_of::<Leaf>() == 256);
// SAFETY: 1. all of it is persistent words; 2. size and alignment are 256 bytes, as asserted.
unsafe impl LeafLayout for Leaf {}

impl Leaf {
    fn head<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `PWord::publish`.
        self.head.load(pm, Acquire)
    }

    /// Writes an entry that does not count yet.
    fn write<M: Media>(&self, pm: &M, slot: usize, key: u64, value: u64) {
        // ORDERING (both): Relaxed; the Release of the head in `PWord::publish` orders them.
        self.entries[slot][0].store(pm, key, Relaxed);
        self.entries[slot][1].store(pm, value, Relaxed);
    }
}

struct Leaves;
type Tree<K, V, M> = LeafTree<Leaves, K, V, M>;
design!(OneWord, (), Tree);

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LeafDesign<K, V, M> for Leaves {
    type Leaf = Leaf;
    type Options = ();
    const NAME: &'static str = "one-word";
    const CAPACITY: usize = SLOTS;

    fn create(_: &(), _: &Root<M>, _: &Heap<M>) -> Result<Self, TreeError> {
        Ok(Self)
    }

    fn open(_: &(), _: &Root<M>, _: &Heap<M>, _: bool) -> Result<Self, TreeError> {
        Ok(Self)
    }

    fn for_each(tree: &Tree<K, V, M>, leaf: &Leaf, mut f: impl FnMut(usize, u64, u64)) {
        let (pm, head) = (tree.pm(), leaf.head(tree.pm()));
        for slot in (0..SLOTS).filter(|slot| head >> slot & 1 == 1) {
            let [key, value] = &leaf.entries[slot];
            // ORDERING (both): Relaxed; ordered by the Acquire in `head`.
            f(slot, key.load(pm, Relaxed), value.load(pm, Relaxed));
        }
    }

    fn value<'t>(_: &'t Tree<K, V, M>, leaf: &'t Leaf, slot: usize) -> &'t PWord {
        &leaf.entries[slot][1]
    }

    fn next(tree: &Tree<K, V, M>, leaf: &Leaf) -> u64 {
        (leaf.head(tree.pm()) >> 16) * UNIT
    }

    fn link<'t>(tree: &'t Tree<K, V, M>, leaf: &'t Leaf, next: u64) -> (&'t PWord, u64) {
        let bits = leaf.head(tree.pm()) & 0xFFFF;
        (&leaf.head, bits | (next / UNIT) << 16)
    }

    fn fill(tree: &Tree<K, V, M>, leaf: &Leaf, pairs: &[Pair]) {
        for (slot, pair) in pairs.iter().enumerate() {
            leaf.write(tree.pm(), slot, pair.key, pair.value);
        }
        // ORDERING: Relaxed; nothing leads to the leaf yet.
        leaf.head.store(tree.pm(), (1 << pairs.len()) - 1, Relaxed);
    }

    fn insert(tree: &Tree<K, V, M>, leaf: &Leaf, pair: Pair, _fenced: bool) -> bool {
        let (pm, head) = (tree.pm(), leaf.head(tree.pm()));
        let slot = (!head).trailing_zeros() as usize;
        if slot < SLOTS {
            leaf.write(pm, slot, pair.key, pair.value);
            // PERSIST: the entry, and records it leads to, before the head that makes it count.
            pm.persist(&leaf.entries[slot]);
            // PERSIST: (in `publish`) the insertion, before the leaf is unlocked.
            leaf.head.publish(pm, head | 1 << slot);
        }
        slot < SLOTS
    }

    fn remove(tree: &Tree<K, V, M>, leaf: &Leaf, found: &Found) -> usize {
        let head = leaf.head(tree.pm()) & !(1 << found.slot);
        // PERSIST: (in `publish`) the removal, before the leaf is unlocked.
        leaf.head.publish(tree.pm(), head);
        (head as u16).count_ones() as usize
    }

    fn split(
        tree: &Tree<K, V, M>,
        leaf: &Leaf,
        new: u32,
        upper: &[Moved],
        pair: Pair,
        goes_right: bool,
    ) {
        let (pm, head, right) = (tree.pm(), leaf.head(tree.pm()), tree.leaf(new));
        let mut kept = head & 0xFFFF;
        for (slot, moved) in upper.iter().enumerate() {
            right.write(pm, slot, moved.key, moved.value);
            kept &= !(1 << moved.slot);
        }
        let bits = (1 << upper.len()) - 1;
        // ORDERING: Relaxed; nothing leads to the new leaf yet.
        right.head.store(pm, head >> 16 << 16 | bits, Relaxed);
        // PERSIST: the new leaf, and the pair's records, before the head that leads to them.
        pm.persist(right);
        // PERSIST: (in `publish`) the split; a crash before it leaves the new leaf free.
        leaf.head.publish(pm, kept | u64::from(new) << 16);
        Self::insert(tree, if goes_right { right } else { leaf }, pair, true);
    }
}

fn main() -> ExitCode {
    bristlecone_lab_cli::own("one-word", 256, OneWord(()))
}
