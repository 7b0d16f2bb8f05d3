//! [`LeafDesign`]: the layout of a leaf, and the protocols that change it.

use super::LeafTree;
use super::entry::{At, Attempt, Found, Moved, Pair, Removal};
use crate::contract::{IfPresent, InsertError, TreeError};
use crate::repr::{Stored, StoredKey, Word, WordOf};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::fmt;

/// The layout of a leaf and the protocols that make a change of it durable.
///
/// The tree calls the changing methods under the leaf's lock, and unlocks when the call has
/// returned: everything that the call made visible must be durable by then. Reading methods may be
/// called while other threads write: they must end whatever they see, and their result is used only
/// once the leaf's version has been validated. A slot is any number by which the design finds an
/// entry.
pub trait LeafDesign<K, V, M>: Send + Sync + Sized + 'static
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Type of the leaf.
    type Leaf: LeafLayout;
    /// Options of the tree.
    type Options: Clone + Default + fmt::Debug + Send + Sync + 'static;

    /// Name of the design in the root table.
    const NAME: &'static str;
    /// Maximum number of entries in a full leaf, whatever its size.
    const CAPACITY: usize;
    /// True if [`for_each`](Self::for_each) visits in the order of the keys.
    const SORTED: bool = false;
    /// Bytes of a leaf that a search prefetches before it knows which it needs.
    const PREFETCH: u64 = u64::MAX;

    /// Returns the name, in the root table, of the design with these options.
    fn name(_options: &Self::Options) -> &'static str {
        Self::NAME
    }

    /// Returns the bytes of a leaf for these options, a multiple of 256.
    ///
    /// # Errors
    /// [`TreeError::NodeBytes`].
    fn node_bytes(_options: &Self::Options) -> Result<u64, TreeError> {
        Ok(size_of::<Self::Leaf>() as u64)
    }

    /// Returns the bytes of a leaf.
    #[inline(always)]
    fn leaf_bytes(&self) -> u64 {
        size_of::<Self::Leaf>() as u64
    }

    /// Returns the number of entries in a full leaf.
    #[inline(always)]
    fn capacity(&self) -> usize {
        Self::CAPACITY
    }

    /// Prepares the design's own state besides leaves, for a root that is not published. Flushes
    /// it.
    ///
    /// # Errors
    /// [`TreeError`] with nothing allocated.
    fn create(options: &Self::Options, root: &Root<M>, heap: &Heap<M>) -> Result<Self, TreeError>;

    /// Opens the design's own state besides leaves. Unless the tree was closed cleanly (`clean`),
    /// finishes or undoes changes that a crash cut short, and marks the design's own blocks.
    ///
    /// # Errors
    /// [`TreeError::Corrupt`].
    fn open(
        options: &Self::Options,
        root: &Root<M>,
        heap: &Heap<M>,
        clean: bool,
    ) -> Result<Self, TreeError>;

    /// Returns the number of threads that rebuild the inner nodes.
    fn recovery_threads(_options: &Self::Options) -> usize {
        1
    }

    /// Returns the blocks that the design has allocated besides leaves.
    fn blocks(_tree: &LeafTree<Self, K, V, M>) -> Vec<u64> {
        Vec::new()
    }

    /// Returns a slot's name for messages.
    fn place(slot: usize) -> String {
        format!("slot {slot}")
    }

    /// Searches for a key. By default, compares it with every entry's.
    fn search(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        key: &K,
        hash: u32,
    ) -> Option<Found<K::Word, V::Word>> {
        let mut found = None;
        Self::for_each(tree, leaf, |slot, word, value| {
            if found.is_none() && key.is_at(hash, tree.pm(), word) {
                found = Some(Found {
                    slot,
                    key: word,
                    value,
                });
            }
        });
        found
    }

    /// Calls `f` with key and value words of the entries that a search for this hash will read, as
    /// far as these are cheap to find. The leaf may be changing.
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

    /// Checks the words of a leaf that say which entries count and which leaf is next, as far as
    /// they have a check.
    ///
    /// # Errors
    /// The reason in words.
    fn sound(_tree: &LeafTree<Self, K, V, M>, _leaf: &Self::Leaf) -> Result<(), String> {
        Ok(())
    }

    /// Returns the number of entries. By default, visits them.
    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> usize {
        let mut entries = 0;
        Self::for_each(tree, leaf, |_, _, _| entries += 1);
        entries
    }

    /// Returns the value word of a slot; the first, if there are two.
    fn value<'t>(tree: &'t LeafTree<Self, K, V, M>, leaf: &'t Self::Leaf, slot: usize)
    -> &'t PWord;

    /// Replaces the value of a slot by one NAW. A design that holds wide values overrides this.
    #[inline(always)]
    #[track_caller]
    fn set_value(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf, slot: usize, value: V::Word) {
        debug_assert!(V::Word::WORDS == 1, "one word is published");
        // PERSIST: (in `publish`) the new value.
        Self::value(tree, leaf, slot).publish(tree.pm(), value.parts()[0]);
    }

    /// Returns the offset of the right sibling; 0 for the last leaf.
    fn next(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> u64;

    /// Returns the word that leads to the right sibling, and its content for leading to `next`.
    fn link<'t>(
        tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t Self::Leaf,
        next: u64,
    ) -> (&'t PWord, u64);

    /// Stores a leaf with these pairs (at most [`capacity`](Self::capacity), in order) and no right
    /// sibling. Nothing leads to it.
    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf, pairs: &[Pair<K::Word, V::Word>]);

    /// Flushes everything that [`fill`](Self::fill) stored. The caller fences before anything leads
    /// to the leaf.
    #[track_caller]
    fn flush_filled(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) {
        // PERSIST: the whole leaf; the caller fences it before the word that leads to it.
        tree.pm().flush_of(leaf);
    }

    /// Inserts a pair whose key is absent. Returns false, with nothing changed, if the leaf is
    /// full. If `fenced` is false, records that the pair leads to are flushed and not fenced yet.
    fn insert(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &Self::Leaf,
        pair: Pair<K::Word, V::Word>,
        fenced: bool,
    ) -> bool;

    /// Removes an entry. Returns how many are left.
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

    /// Inserts a pair, whose key may be present, into a locked leaf.
    ///
    /// # Errors
    /// [`SpaceError`]. Nothing has changed then, and nothing is locked.
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
        // After the fence, so that others see only what survives a crash.
        at.locked.unlock();
        Ok(Attempt::Done)
    }

    /// Removes a key from a locked leaf, if it is present.
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

    /// Frees space after a removal left `leaf`, which `key` is routed to, with `left` entries.
    #[inline(always)]
    fn thin_out(tree: &LeafTree<Self, K, V, M>, leaf: u32, key: &K, left: usize) {
        if left == 0 {
            tree.reclaim(leaf, key, &epoch::pin());
        }
    }

    /// Makes `before` lead past the empty `leaf`, its right sibling. `flushed` is true if a line
    /// was flushed that must be durable before.
    fn unlink(
        tree: &LeafTree<Self, K, V, M>,
        before: &Self::Leaf,
        leaf: &Self::Leaf,
        flushed: bool,
    ) {
        let pm = tree.pm();
        if flushed {
            // PERSIST: the removed recovery position, before the leaf leaves the chain.
            pm.fence();
        }
        let (word, value) = Self::link(tree, before, Self::next(tree, leaf));
        // PERSIST: (in `publish`) the link past the leaf, before its block is used again.
        word.publish(pm, value);
    }

    /// Repairs a leaf after a crash, before anything else reads it. Returns the number of repairs,
    /// which are flushed and not fenced.
    ///
    /// # Errors
    /// The reason in words.
    fn repair(_tree: &LeafTree<Self, K, V, M>, _leaf: &Self::Leaf) -> Result<u64, String> {
        Ok(0)
    }

    /// Checks the design's own invariants of a leaf. Words have been checked before.
    ///
    /// # Errors
    /// The reason in words.
    fn check(_tree: &LeafTree<Self, K, V, M>, _leaf: &Self::Leaf) -> Result<(), String> {
        Ok(())
    }

    /// As [`OrderedIndex::multi_insert`](crate::OrderedIndex::multi_insert), for designs whose
    /// inserts can share fences.
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

/// Options of a tree without further choices. None of them is stored in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafOptions {
    /// Number of threads that rebuild the inner nodes after a crash.
    pub recovery_threads: usize,
}

impl Default for LeafOptions {
    fn default() -> Self {
        Self {
            recovery_threads: 1,
        }
    }
}

/// Marks a type that can be a leaf.
///
/// # Safety
/// The type consists of [`PWord`]s (any bits are valid), its size is a multiple of 256 bytes and
/// its alignment at most that.
pub unsafe trait LeafLayout: Send + Sync + 'static {}
