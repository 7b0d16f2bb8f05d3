//! [`LeafDesign`]: the layout of a leaf, and the protocols that change it.

use super::LeafTree;
use super::entry::{At, Attempt, Found, IfPresent, Moved, Pair, Removal};
use crate::contract::{InsertError, TreeError};
use crate::repr::{Stored, StoredKey, Word, WordOf};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::fmt;

/// The layout of a leaf and the protocols that make a change of it durable.
///
/// The tree calls what changes a leaf under that leaf's lock, and unlocks when the call has
/// returned: everything that the call made visible must be durable by then. Methods that only read
/// may be called while others write: it must come to an end whatever it sees, and its answer is
/// used only once the leaf's version has been validated. A slot is any number that the design finds
/// an entry by.
pub trait LeafDesign<K, V, M>: Send + Sync + Sized + 'static
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// The leaf.
    type Leaf: LeafLayout;
    /// How the tree is run.
    type Options: Clone + Default + fmt::Debug + Send + Sync + 'static;

    /// The design's name in the root table.
    const NAME: &'static str;
    /// Entries in a full leaf, at most, whatever its size.
    const CAPACITY: usize;
    /// True if [`for_each`](Self::for_each) visits in the order of the keys.
    const SORTED: bool = false;
    /// Bytes of a leaf that a search asks for before it knows which it needs.
    const PREFETCH: u64 = u64::MAX;

    /// The name in the root table of the design with these options.
    fn name(_options: &Self::Options) -> &'static str {
        Self::NAME
    }

    /// Bytes of a leaf of a tree that is run so, a multiple of 256.
    ///
    /// # Errors
    /// [`TreeError::NodeBytes`].
    fn node_bytes(_options: &Self::Options) -> Result<u64, TreeError> {
        Ok(size_of::<Self::Leaf>() as u64)
    }

    /// Bytes of a leaf.
    #[inline(always)]
    fn leaf_bytes(&self) -> u64 {
        size_of::<Self::Leaf>() as u64
    }

    /// Entries in a full leaf.
    #[inline(always)]
    fn capacity(&self) -> usize {
        Self::CAPACITY
    }

    /// Prepares what the design keeps besides leaves, for a root that is not published; flushed.
    ///
    /// # Errors
    /// [`TreeError`] with nothing allocated.
    fn create(options: &Self::Options, root: &Root<M>, heap: &Heap<M>) -> Result<Self, TreeError>;

    /// Opens what the design keeps besides leaves. Unless the tree was closed cleanly (`clean`),
    /// what a crash cut short is finished or undone, and own blocks are marked.
    ///
    /// # Errors
    /// [`TreeError::Corrupt`].
    fn open(
        options: &Self::Options,
        root: &Root<M>,
        heap: &Heap<M>,
        clean: bool,
    ) -> Result<Self, TreeError>;

    /// Threads that rebuild the inner nodes.
    fn recovery_threads(options: &Self::Options) -> usize;

    /// Blocks that the design has allocated besides leaves.
    fn blocks(_tree: &LeafTree<Self, K, V, M>) -> Vec<u64> {
        Vec::new()
    }

    /// A slot, for messages.
    fn place(slot: usize) -> String {
        format!("slot {slot}")
    }

    /// Looks for a key.
    fn search(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        key: &K,
        hash: u32,
    ) -> Option<Found<K::Word, V::Word>>;

    /// Calls `f` with key word and value word of the entries that a search by this hash is going to
    /// look at, as far as that is cheaply said. The leaf may be changing.
    #[inline(always)]
    fn candidates(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        hash: u32,
        f: impl FnMut(K::Word, V::Word),
    ) {
        let _ = (tree, leaf, hash, f);
    }

    /// Calls `f` with slot, key word and value word of every entry.
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        f: impl FnMut(usize, K::Word, V::Word),
    );

    /// Entries.
    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> usize;

    /// The value word of a slot; the first, if there are two.
    fn value<'t>(tree: &'t LeafTree<Self, K, V, M>, leaf: &'t Self::Leaf, slot: usize)
    -> &'t PWord;

    /// Replaces the value of a slot by one NAW. A design that takes wide values says how.
    #[inline(always)]
    #[track_caller]
    fn set_value(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf, slot: usize, value: V::Word) {
        debug_assert!(V::Word::WORDS == 1, "one word is published");
        // PERSIST: (in `publish`) the new value counts.
        Self::value(tree, leaf, slot).publish(tree.pm(), value.parts()[0]);
    }

    /// Offset of the right sibling; 0 for the last leaf.
    fn next(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> u64;

    /// The word that leads to the right sibling, and what it is to hold to lead to `next`.
    fn link<'t>(
        tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t Self::Leaf,
        next: u64,
    ) -> (&'t PWord, u64);

    /// Stores a leaf with these pairs (at most [`capacity`](Self::capacity), in order) and no right
    /// sibling. Nothing leads to it.
    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf, pairs: &[Pair<K::Word, V::Word>]);

    /// Flushes what [`fill`](Self::fill) stored. The caller fences before anything leads to the
    /// leaf.
    #[track_caller]
    fn flush_filled(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) {
        // PERSIST: the whole leaf; the caller fences, before the word that leads to it.
        tree.pm().flush_of(leaf);
    }

    /// Inserts a pair whose key is not there; false, with nothing changed, if the leaf is full.
    /// Unless `fenced`, records that the pair leads to are flushed but not fenced yet.
    fn insert(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        pair: Pair<K::Word, V::Word>,
        fenced: bool,
    ) -> bool;

    /// Removes an entry; returns how many are left.
    fn remove(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        found: &Found<K::Word, V::Word>,
    ) -> usize;

    /// Moves `upper`, the entries with the larger keys, in order, to the new leaf with handle
    /// `new`, which becomes the right sibling, and inserts the pair there if it `goes_right`, else
    /// in the leaf. The pair's records are flushed and may share a fence.
    fn split(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        new: u32,
        upper: &[Moved<K::Word, V::Word>],
        pair: Pair<K::Word, V::Word>,
        goes_right: bool,
    );

    /// Inserts a pair into a locked leaf, whose key may be there.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then, and nothing is locked.
    #[inline(always)]
    fn put<'t>(
        tree: &'t LeafTree<Self, K, V, M>,
        at: At<'t, Self::Leaf>,
        key: &K,
        hash: u32,
        pair: Pair<K::Word, V::Word>,
        _present: IfPresent,
    ) -> Result<Attempt<'t, WordOf<K>, WordOf<V>>, SpaceError> {
        if let Some(found) = Self::search(tree, at.leaf, key, hash) {
            return Ok(Attempt::There(found, at.locked));
        }
        let fenced = !LeafTree::<Self, K, V, M>::RECORDS;
        if !Self::insert(tree, at.leaf, pair, fenced)
            && let Err(e) = tree.split(at.leaf, key, pair)
        {
            at.locked.unlock_unchanged();
            return Err(e);
        }
        // After the fence: what others see now, a crash keeps.
        at.locked.unlock();
        Ok(Attempt::Done)
    }

    /// Removes a key from a locked leaf, if it is there.
    #[inline(always)]
    fn take(
        tree: &LeafTree<Self, K, V, M>,
        at: At<'_, Self::Leaf>,
        key: &K,
        hash: u32,
    ) -> Removal<WordOf<K>, WordOf<V>> {
        let Some(found) = Self::search(tree, at.leaf, key, hash) else {
            at.locked.unlock_unchanged();
            return Removal::NotThere;
        };
        let left = Self::remove(tree, at.leaf, &found);
        at.locked.unlock();
        let leaf = at.handle;
        Removal::Done { found, leaf, left }
    }

    /// Gives space back once `leaf`, which `key` is routed to, has `left` entries left by a
    /// removal.
    #[inline(always)]
    fn thin_out(tree: &LeafTree<Self, K, V, M>, leaf: u32, key: &K, left: usize) {
        if left == 0 {
            tree.reclaim(leaf, key, &epoch::pin());
        }
    }

    /// Makes `before` lead past the empty `leaf`, its right sibling. `flushed`: a line has been
    /// flushed that must be durable before.
    fn unlink(
        tree: &LeafTree<Self, K, V, M>,
        before: &Self::Leaf,
        leaf: &Self::Leaf,
        flushed: bool,
    ) {
        let pm = tree.pm();
        if flushed {
            // PERSIST: the forgotten position, before the leaf leaves the chain.
            pm.fence();
        }
        let (word, value) = Self::link(tree, before, Self::next(tree, leaf));
        // PERSIST: (in `publish`) the chain leads past the leaf, before its block can be used
        // again.
        word.publish(pm, value);
    }

    /// Repairs a leaf after a crash, before anything else reads it; returns the number of repairs,
    /// which are flushed, not fenced.
    ///
    /// # Errors
    /// A message that says what is wrong with the leaf.
    fn repair(_tree: &LeafTree<Self, K, V, M>, _leaf: &Self::Leaf) -> Result<u64, String> {
        Ok(0)
    }

    /// Checks the design's own invariants of a leaf; words have been checked before.
    ///
    /// # Errors
    /// A message that says what is wrong with the leaf.
    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> Result<(), String>;

    /// As [`OrderedIndex::multi_insert`](crate::OrderedIndex::multi_insert), for designs whose inserts can share fences.
    fn insert_batch<Q: Borrow<K>, W: Borrow<V>>(
        tree: &LeafTree<Self, K, V, M>,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.extend(
            pairs
                .iter()
                .map(|(key, value)| tree.insert_uncommitted(key.borrow(), value.borrow())),
        );
    }
}

/// How a tree without further choices is run. None of this is stored in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafOptions {
    /// Threads that rebuild the inner nodes after a crash.
    pub recovery_threads: usize,
}

impl Default for LeafOptions {
    fn default() -> Self {
        Self {
            recovery_threads: 1,
        }
    }
}

/// Marks what a leaf may be.
///
/// # Safety
/// The type consists of [`PWord`]s (any bits are valid), its size is a multiple of 256 bytes and
/// its alignment at most that.
pub unsafe trait LeafLayout: Send + Sync + 'static {}
