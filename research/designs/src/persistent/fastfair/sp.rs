//! FAST/FAIR SP (UCSC-CRSS-20-01, sections 2.3 and 4.3), *selective persistence*: FAST/FAIR's
//! leaves under inner nodes in DRAM, which recovery rebuilds from the leaves.
//!
//! FAST/FAIR SP is a [`LeafTree`] with the sorted node of `node.rs` as its leaf. The leaf's low
//! word is not used, because the inner index routes. If a crash left a leaf with entries that its
//! sibling has too, the first key of the sibling tells them, which no walk had reached before.
//!
//! # Persist cost
//! Insertions, removals and updates cost what they do in FAST/FAIR; a split lacks the insertion
//! into the parent.
//!
//! # Crash states
//! 1. *Shift*: see `node.rs`.
//! 2. *Split*: the new leaf is linked in and the upper half not cut off yet. Recovery cuts it off,
//!    if the sibling has each of those entries.
//! 3. *Unlinking*: an empty leaf is in the chain, or not.

use super::check_width;
use super::node::{Node, NodeOf, capacity};
use crate::index::TreeError;
use crate::leaftree::{
    Found, LeafDesign, LeafLayout, LeafOptions, LeafTree, Moved, Pair, UNIT, offset,
};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, Word};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media, PWord};

const BLOCK_WORDS: usize = 32;

/// A leaf of `B` blocks of 256 bytes.
#[repr(C, align(256))]
pub struct SpLeaf<const B: usize> {
    words: [[PWord; BLOCK_WORDS]; B],
}

// SAFETY: a leaf is B x 256 bytes of persistent words, aligned to 256.
unsafe impl<const B: usize> LeafLayout for SpLeaf<B> {}

const _: () = assert!(size_of::<SpLeaf<1>>() == 256 && size_of::<SpLeaf<4>>() == 1024);

impl<const B: usize> SpLeaf<B> {
    #[inline(always)]
    fn node<X: Word, Y: Word>(&self) -> Node<'_, X, Y> {
        Node::new(self.words.as_flattened())
    }
}

/// FAST/FAIR with selective persistence, in leaves of `B` x 256 bytes (`B` from 1 to 4). See the
/// module's head.
pub type FastFairSp<K, V, M, const B: usize = 2> = LeafTree<SpDesign<B>, K, V, M>;

/// The leaf design of FAST/FAIR SP.
#[derive(Debug)]
pub struct SpDesign<const B: usize>;

impl<K, V, M, const B: usize> LeafDesign<K, V, M> for SpDesign<B>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    type Leaf = SpLeaf<B>;
    type Options = LeafOptions;

    const NAME: &'static str = "fastfair-sp";
    const CAPACITY: usize = capacity::<K::Word, V::Word>(B * BLOCK_WORDS * 8);

    fn node_bytes(_options: &LeafOptions) -> Result<u64, TreeError> {
        check_width::<K, V>().map(|()| size_of::<Self::Leaf>() as u64)
    }

    fn create(_options: &LeafOptions, _root: &Root<M>, _heap: &Heap<M>) -> Result<Self, TreeError> {
        Ok(Self)
    }

    fn open(
        _options: &LeafOptions,
        _root: &Root<M>,
        _heap: &Heap<M>,
        _clean: bool,
    ) -> Result<Self, TreeError> {
        Ok(Self)
    }

    fn recovery_threads(options: &LeafOptions) -> usize {
        options.recovery_threads
    }

    #[inline(always)]
    fn search(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &SpLeaf<B>,
        key: &K,
        _hash: u32,
    ) -> Option<Found<K::Word, V::Word>> {
        node_of::<K, V, B>(leaf).find(tree.pm(), key).ok()
    }

    #[inline(always)]
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &SpLeaf<B>,
        f: impl FnMut(usize, K::Word, V::Word),
    ) {
        node_of::<K, V, B>(leaf).each(tree.pm(), f);
    }

    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>) -> usize {
        node_of::<K, V, B>(leaf).count(tree.pm())
    }

    #[inline(always)]
    fn value<'t>(
        _tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t SpLeaf<B>,
        slot: usize,
    ) -> &'t PWord {
        node_of::<K, V, B>(leaf).value_word(slot)
    }

    #[inline(always)]
    fn set_value(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>, slot: usize, value: V::Word) {
        // PERSIST: (in `publish_value`) the new value.
        node_of::<K, V, B>(leaf).publish_value(tree.pm(), slot, value);
    }

    #[inline(always)]
    fn next(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>) -> u64 {
        node_of::<K, V, B>(leaf).next(tree.pm())
    }

    fn link<'t>(
        _tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t SpLeaf<B>,
        next: u64,
    ) -> (&'t PWord, u64) {
        (node_of::<K, V, B>(leaf).link(), link::word(next))
    }

    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>, pairs: &[Pair<K::Word, V::Word>]) {
        let entries = pairs.iter().map(|pair| (pair.key, pair.value));
        let low = K::Word::default();
        node_of::<K, V, B>(leaf).fill(tree.pm(), 0, 0, low, entries);
    }

    #[inline(always)]
    fn insert(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &SpLeaf<B>,
        pair: Pair<K::Word, V::Word>,
        fenced: bool,
    ) -> bool {
        let (pm, node) = (tree.pm(), node_of::<K, V, B>(leaf));
        let n = node.count(pm);
        if n == node.slots() {
            return false;
        }
        let place = place_of_word::<K, V, M, B>(tree.pm(), leaf, pair.key);
        node.insert(pm, n, place, (pair.key, pair.value), fenced);
        true
    }

    fn remove(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &SpLeaf<B>,
        found: &Found<K::Word, V::Word>,
    ) -> usize {
        node_of::<K, V, B>(leaf).remove(tree.pm(), found.slot)
    }

    fn split(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &SpLeaf<B>,
        new: u32,
        upper: &[Moved<K::Word, V::Word>],
        pair: Pair<K::Word, V::Word>,
        goes_right: bool,
    ) {
        let (pm, node, new_node) = (
            tree.pm(),
            node_of::<K, V, B>(leaf),
            node_of::<K, V, B>(tree.leaf(new)),
        );
        let mut entries: Vec<PairOf<K, V>> = Vec::with_capacity(upper.len() + 1);
        entries.extend(upper.iter().map(|moved| (moved.key, moved.value)));
        if goes_right {
            let place =
                entries.partition_point(|entry| tree.compare_words(entry.0, pair.key).is_lt());
            entries.insert(place, (pair.key, pair.value));
        }
        let low = K::Word::default();
        new_node.fill(pm, 0, node.next(pm), low, entries.into_iter());
        new_node.flush_new(pm);
        // PERSIST: the new leaf, and the pair's records, before the link to it.
        pm.fence();
        // PERSIST: (in `publish`) the link; the upper half is the sibling's, before it is cut off
        // here.
        node.link().publish(pm, link::word(offset(new)));
        if let Some(first) = upper.first() {
            // PERSIST: (in `cut`) the cut, before an insertion comes.
            node.cut(pm, first.slot);
        }
        if !goes_right {
            // The split fenced the pair's records.
            let inserted = Self::insert(tree, leaf, pair, true);
            debug_assert!(inserted, "half the slots are empty");
        }
    }

    fn sound(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>) -> Result<(), String> {
        node_of::<K, V, B>(leaf).sound(tree.pm())
    }

    fn repair(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>) -> Result<u64, String> {
        let (pm, node) = (tree.pm(), node_of::<K, V, B>(leaf));
        let next = node.next(pm);
        let inside = next >= CHUNK
            && next.is_multiple_of(UNIT)
            && next
                .checked_add(size_of::<SpLeaf<B>>() as u64)
                .is_some_and(|end| end <= pm.len());
        // The walk reports anything else when it arrives there.
        let sibling = u32::try_from(next / UNIT).ok().filter(|_| inside);
        let mut moved = Vec::new();
        if let Some(sibling) = sibling {
            // If another thread is repairing the sibling, all keys seen in it are beyond this
            // leaf's.
            node_of::<K, V, B>(tree.leaf(sibling)).entries(pm, &mut moved);
        }
        let raw = node.raw::<K, M>(pm, moved.first().map(|entry| entry.0));
        if let Some(cut) = raw.cut_at() {
            // A split's sibling has all of them, and no walk has reached it yet. Its values may be
            // newer: a value that was not fenced before the lock was released (`update_unflushed`)
            // is fenced there with the copy, and may be lost here.
            let mut rest = moved.as_slice();
            let all = (cut..node.count(pm)).all(|i| {
                let key = node.key(pm, i);
                let there = rest.iter().position(|other| other.0 == key);
                rest = &rest[there.map_or(rest.len(), |at| at + 1)..];
                there.is_some()
            });
            if !all {
                return Err("its keys do not come before those of the next leaf".into());
            }
        }
        Ok(node.repair(pm, &raw))
    }

    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &SpLeaf<B>) -> Result<(), String> {
        let raw = node_of::<K, V, B>(leaf).raw::<K, M>(tree.pm(), None);
        if !raw.is_whole() {
            return Err("a shift was not finished".into());
        }
        let ascends =
            (raw.entries.windows(2)).all(|pair| tree.compare_words(pair[0].0, pair[1].0).is_lt());
        if ascends {
            Ok(())
        } else {
            Err("keys are out of order".into())
        }
    }
}

/// Returns the node of a leaf.
#[inline(always)]
fn node_of<K: StoredKey + ?Sized, V: Stored + ?Sized, const B: usize>(
    leaf: &SpLeaf<B>,
) -> NodeOf<'_, K, V> {
    leaf.node()
}

/// Returns the place where the key of `word`, which is absent, would be.
#[inline(always)]
fn place_of_word<K, V, M, const B: usize>(pm: &M, leaf: &SpLeaf<B>, word: K::Word) -> usize
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    let node = node_of::<K, V, B>(leaf);
    match K::read(pm, word, |key| node.find(pm, key)) {
        Some(Ok(Found { slot, .. }) | Err(slot)) => slot,
        None => node.count(pm), // no key was ever at that word: the pool has become corrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{DurableIndex, OrderedIndex};
    use crate::leaftree::LeafOptions;
    use bristlecone_pmem::media::Mapped;
    use bristlecone_pmem::{Pool, PoolOptions};
    use crossbeam_epoch as epoch;

    type Tree = FastFairSp<u64, u64, Mapped>;

    /// A crash in a split comes after the link to the new leaf, and also undoes values that were
    /// changed before and not fenced.
    #[test]
    fn a_half_done_split_is_repaired_though_the_old_leaf_has_older_values() {
        let folder = tempfile::tempdir().unwrap();
        let [path, copy] = ["pool", "copy"].map(|name| folder.path().join(name));
        let pool = Pool::create(&path, &PoolOptions::default()).unwrap();
        let tree = Tree::create(&pool, "t", &LeafOptions::default()).unwrap();
        let mut keys = 0;
        while tree.stats().leaves < 2 {
            keys += 1;
            tree.insert(&keys, &(keys + 1000)).unwrap();
        }
        let at = tree.lock_leaf(&1, &epoch::pin());
        let (pm, node) = (tree.pm(), node_of::<u64, u64, 2>(at.leaf));
        let sibling = u32::try_from(node.next(pm) / UNIT).unwrap();
        let mut moved = Vec::new();
        node_of::<u64, u64, 2>(tree.leaf(sibling)).entries(pm, &mut moved);
        node.append(pm, moved.iter().map(|(key, value)| (*key, value - 500)));
        at.locked.unlock();
        std::fs::copy(&path, &copy).unwrap();
        let pool = Pool::open(&copy, &PoolOptions::default()).unwrap();
        let tree = Tree::open(&pool, "t", &LeafOptions::default()).unwrap();
        for key in 1..=keys {
            assert_eq!(tree.get(&key), Some(key + 1000));
        }
        let report = tree.verify().unwrap();
        assert_eq!(report.entries, keys);
    }
}
