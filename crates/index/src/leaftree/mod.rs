//! A durable ordered index whose leaves are in the pool and whose inner nodes are in DRAM: what
//! LB+-Tree, FPTree and wB+-Tree have in common ("selective persistence").
//!
//! A [`LeafDesign`] is the layout of a leaf and the protocols that make a change of it count: insertion,
//! removal, split, unlinking. All else is here, once: routing by the inner index ([`crate::inner`]),
//! version locks, records of byte strings, scans both ways, batches, reclamation of emptied leaves
//! (`remove.rs`), parallel recovery (`recovery.rs`), clean reopening (`snapshot.rs`), bulk load, `verify`.
//!
//! # Invariants
//! 1. For adjacent leaves P, L in the chain: max(keys of P) < separator(L) <= min(keys of L).
//! 2. The chain from the head holds exactly the leaves of the inner index, in the same order.
//! 3. A key is in one slot of one leaf.
//!
//! # Concurrency
//! Version locks in DRAM ([`crate::version_lock`]) take the place of hardware transactions: readers
//! go down, read the leaf's version, validate the inner node that led there, read, and validate the
//! leaf's version. Writers lock the leaf at that version, and unlock after the fence, so that no one
//! acts on what a crash can undo. But values of `update_at` are flushed and fenced by its caller, who sees to it that no one does; who
//! moves such an entry fences its copy. Inner nodes are changed while the leaf's lock is held.
//!
//! # Crash states
//! 1. *Update*: old or new value word.
//! 2. *Reclaim*, after the last key is gone: an empty leaf in the chain, which recovery unlinks.
//! 3. *Create*, before the root is published: chunks of an unpublished root, freed at open.
//! 4. *Clean close*, before the snapshot word's NAW: a snapshot that nothing leads to, freed.
//!
//! Those of insertion, removal, split and unlinking are the design's.

mod batch;
mod bulk;
mod insert;
mod order;
mod read;
mod recovery;
mod remove;
mod replace;
mod scan;
mod snapshot;
mod split;
mod verify;

pub use batch::TOGETHER;
pub use insert::UNLOCK_FIRST;
pub use insert::{At, Attempt, IfPresent, Pair};
pub use read::Found;
pub use remove::Removal;
pub use replace::{Before, Blocked};

use crate::contract::{
    BulkLoad, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, Place, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::inner::{InnerIndex, NODE_SEPARATORS};
use crate::repr::{MAX_KEY, MAX_VALUE, Stored, StoredKey, Word, WordOf};
use crate::sync::Retired;
use crate::version_lock::VersionLocks;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, Instrument};
use bristlecone_pmem::planted;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, POff, PWord, Pool, SpaceError};
use crossbeam_epoch as epoch;
use recovery::Positions;
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Root word: offset of the first leaf.
pub const HEAD: usize = 0;
/// Root word: offset of the clean-close snapshot, 0 if there is none.
const SNAPSHOT: usize = 1;
/// Root word: for the design.
pub const DESIGN_WORD: usize = 2;
/// Root words: offsets of recorded leaves (LB+-Tree, section 4.2), 0 where there is none.
const POSITIONS: usize = 8;
/// How many leaves are recorded.
const POSITION_COUNT: usize = 64;
/// Leaves are aligned to, and handles count, so many bytes.
pub const UNIT: u64 = 256;
/// Leaves of up to so many entries are looked at without allocating.
pub const FEW_ENTRIES: usize = 64;

/// An entry that a split moves to the new leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved<A = u64, B = u64> {
    /// The key's word.
    pub key: A,
    /// The value's word.
    pub value: B,
    /// Its slot in the old leaf.
    pub slot: usize,
}

/// The layout of a leaf and the protocols that make a change of it durable.
///
/// The tree calls what changes a leaf under that leaf's lock, and unlocks when the call has returned:
/// whatever the call made visible must be durable by then. What only reads may be called while others
/// write: it must come to an end whatever it sees, and its answer is used only once the leaf's version
/// has been validated. A slot is any number that the design finds an entry by.
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

    /// What the root table calls the design.
    const NAME: &'static str;
    /// Entries in a full leaf, at most, whatever its size.
    const CAPACITY: usize;
    /// True if [`for_each`](Self::for_each) visits in the order of the keys.
    const SORTED: bool = false;
    /// Bytes of a leaf that a search asks for before it knows which it needs.
    const PREFETCH: u64 = u64::MAX;

    /// What the root table calls the design run so.
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

    /// Opens what the design keeps besides leaves. Unless the tree was closed cleanly (`clean`), what a
    /// crash cut short is finished or undone, and own blocks are marked.
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

    /// Calls `f` with key word and value word of the entries that a search by this hash is going to look at, as far as that
    /// is cheaply said. The leaf may be changing.
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

    /// Flushes what [`fill`](Self::fill) stored.
    #[track_caller]
    fn flush_filled(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) {
        // PERSIST: as the caller says.
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

    /// Moves `upper`, the entries with the larger keys, in order, to the new leaf with handle `new`,
    /// which becomes the right sibling, and inserts the pair there if it `goes_right`, else in the leaf. The
    /// pair's records are flushed and may share a fence.
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

    /// Gives space back once `leaf`, which `key` is routed to, has `left` entries left by a removal.
    #[inline(always)]
    fn thin_out(tree: &LeafTree<Self, K, V, M>, leaf: u32, key: &K, left: usize) {
        if left == 0 {
            tree.reclaim(leaf, key, &epoch::pin());
        }
    }

    /// Makes `before` lead past the empty `leaf`, its right sibling. `flushed`: a line has been flushed
    /// that must be durable before.
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
        // PERSIST: (in `publish`) the chain leads past the leaf, before its block can be used again.
        word.publish(pm, value);
    }

    /// Repairs a leaf after a crash, before anything else reads it; returns the number of repairs,
    /// which are flushed, not fenced.
    ///
    /// # Errors
    /// What is wrong with the leaf, in words.
    fn repair(_tree: &LeafTree<Self, K, V, M>, _leaf: &Self::Leaf) -> Result<u64, String> {
        Ok(0)
    }

    /// Checks the design's own invariants of a leaf; words have been checked before.
    ///
    /// # Errors
    /// What is wrong with the leaf, in words.
    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &Self::Leaf) -> Result<(), String>;

    /// As [`OrderedIndex::multi_insert`], for designs whose inserts can share fences.
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
/// The type consists of [`PWord`]s (any bits are valid), its size is a multiple of 256 bytes and its
/// alignment at most that.
pub unsafe trait LeafLayout: Send + Sync + 'static {}

/// The inner index of a tree on medium `M`.
type Inner<K, M> = InnerIndex<K, NODE_SEPARATORS, <M as Instrument>::Dram>;

/// A durable ordered index with leaves of design `D`. See the module's head.
pub struct LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    // The inner index first: it is dropped before the pool can be.
    #[doc(hidden)] // for designs
    pub inner: Inner<K, M>,
    #[doc(hidden)] // for designs
    pub locks: VersionLocks,
    base: *mut u8,
    /// No other tree has this number: places are one tree's.
    number: u64,
    /// The design's own state.
    pub design: D,
    read_only: bool,
    positions: Mutex<Positions>,
    /// Splits until the next position is recorded.
    until_position: AtomicI64,
    report: RecoveryReport,
    retired: Retired,
    #[doc(hidden)] // for designs
    pub heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics, and the protocol in the module's head orders them.
unsafe impl<D, K, V, M> Send for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
}
// SAFETY: as for `Send`.
unsafe impl<D, K, V, M> Sync for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
}

impl<D, K, V, M> fmt::Debug for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafTree")
            .field("design", &D::NAME)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// What the root table says of a tree of these types that is run so.
fn root_kind<D, K, V, M>(options: &D::Options) -> Result<RootKind, TreeError>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    Ok(RootKind {
        design: D::name(options).into(),
        keys: K::KIND,
        values: V::KIND,
        node_bytes: D::node_bytes(options)? as u32,
    })
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    const LAYOUT: () = {
        let bytes = size_of::<D::Leaf>() as u64;
        assert!(bytes > 0 && bytes.is_multiple_of(UNIT) && align_of::<D::Leaf>() as u64 <= UNIT);
    };

    fn assemble(
        design: D,
        inner: Inner<K, M>,
        heap: Heap<M>,
        root: Root<M>,
        report: RecoveryReport,
    ) -> Self {
        const { Self::LAYOUT };
        debug_assert!(design.leaf_bytes().is_multiple_of(UNIT));
        let pool = Arc::clone(root.pool());
        static TREES: AtomicU64 = AtomicU64::new(1);
        Self {
            // ORDERING: Relaxed; only that it is new matters.
            number: TREES.fetch_add(1, Ordering::Relaxed),
            inner,
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            design,
            read_only: pool.pm().read_only(),
            positions: Mutex::new(Positions::new::<M>()),
            until_position: AtomicI64::new(recovery::first_interval::<M>() as i64),
            report,
            retired: Retired::default(),
            heap,
            root: Some(root),
            pool,
            kinds: PhantomData,
        }
    }

    fn close_now(&mut self) -> Result<(), CommitError> {
        let Some(root) = self.root.take() else {
            return Ok(());
        };
        if self.pm().read_only() {
            return Ok(());
        }
        self.save_snapshot(&root);
        self.pm().commit()
    }

    /// The medium.
    #[inline(always)]
    pub fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// The root of the tree in its pool.
    pub fn root(&self) -> &Root<M> {
        // `root` is taken by `close_now` only, after which the tree is gone.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// The leaf of a handle that came from the inner index or the allocator.
    #[inline(always)]
    pub fn leaf(&self, handle: u32) -> &D::Leaf {
        // SAFETY: 1. handles are offsets (/ 256) of leaf blocks that the allocator or recovery
        // vouched for, so a leaf's bytes there are inside the mapping; 2. they are 256-aligned;
        // 3. a leaf is all atomic words, valid for any bits (`LeafLayout`); 4. the mapping lives as long as `pool`;
        // a leaf that was reclaimed meanwhile is still mapped memory.
        unsafe {
            &*self
                .base
                .wrapping_add(handle as usize * UNIT as usize)
                .cast::<D::Leaf>()
        }
    }

    /// Offset of a leaf of this tree.
    #[inline(always)]
    pub fn offset_of(&self, leaf: &D::Leaf) -> u64 {
        (std::ptr::from_ref(leaf) as usize - self.base as usize) as u64
    }

    /// Asks for the lines of a leaf at once.
    #[inline(always)]
    fn prefetch(&self, handle: u32) {
        let at = self.base.wrapping_add(handle as usize * UNIT as usize);
        let bytes = self.design.leaf_bytes().min(D::PREFETCH);
        bristlecone_pmem::media::cpu::prefetch(at, bytes as usize);
        let (region, access) = (DramRegion::Pool, DramAccess::Prefetch);
        M::Dram::touch(region, access, offset(handle), bytes);
    }

    /// Reserves a leaf, which nothing leads to yet, and room for its separator.
    ///
    /// # Errors
    /// [`SpaceError`]
    pub fn new_leaf(&self) -> Result<POff<u8>, SpaceError> {
        let (heap, bytes) = (&self.heap, self.design.leaf_bytes());
        self.inner.ensure_room()?;
        let off = heap.alloc(bytes)?;
        if u32::try_from(off.get() / UNIT).is_err() {
            heap.free(off);
            return Err(SpaceError::Capacity {
                wanted: off.get() + bytes,
                capacity: (1 << 32) * UNIT,
            });
        }
        Ok(off)
    }

    /// Makes the first leaf and publishes the root.
    ///
    /// # Errors
    /// [`TreeError`]; the leaf is given back, and the root is not published.
    fn make_first_leaf(&mut self) -> Result<(), TreeError> {
        let first = self.new_leaf()?;
        let made = self.publish_with(first);
        if made.is_err() {
            self.heap.free(first);
        }
        made
    }

    fn publish_with(&mut self, first: POff<u8>) -> Result<(), TreeError> {
        self.inner =
            InnerIndex::new(handle(first), self.pm().capacity()).map_err(TreeError::Memory)?;
        let pm = self.pm();
        let leaf = self.leaf(handle(first));
        D::fill(self, leaf, &[]);
        if planted!(pm, "lbtree-root-first") {
            self.root().publish();
        }
        // PERSIST: the empty leaf and the pointer to it; `publish` fences them.
        D::flush_filled(self, leaf);
        let head = self.root().word(HEAD);
        // ORDERING: Relaxed; the root is not published.
        head.store(pm, first.get(), Ordering::Relaxed);
        // PERSIST: likewise.
        pm.flush_of(head);
        self.root().publish();
        pm.commit().inspect_err(|_| self.root().unpublish())?;
        Ok(())
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    fn value_fits(value: &V) -> Result<(), (usize, usize)> {
        if value.bytes() <= MAX_VALUE {
            Ok(())
        } else {
            Err((value.bytes(), MAX_VALUE))
        }
    }
}

impl<D, K, V, M> Drop for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Who knows how far the walk of an opening, or a change, had come: the next opening looks.
            self.root = None;
        }
        // A failure costs a rebuild at the next opening; `close` reports it.
        let _ = self.close_now();
    }
}

/// The handle of the leaf at `off`, which `new_leaf` or recovery has checked to fit.
#[inline(always)]
pub fn handle(off: POff<u8>) -> u32 {
    debug_assert!(
        off.get().is_multiple_of(UNIT) && off.get() >= CHUNK,
        "a leaf at {off:?}"
    );
    (off.get() / UNIT) as u32
}

/// Offset of the leaf with this handle.
#[inline(always)]
pub fn offset(handle: u32) -> u64 {
    u64::from(handle) * UNIT
}

impl<D, K, V, M> DurableIndex<K, V, M> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    type Options = D::Options;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &D::Options) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<D, K, V, M>(options)?)?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        // Replaced when there is a leaf.
        let inner = InnerIndex::new(0, 0).map_err(TreeError::Memory)?;
        let design = D::create(options, &root, &heap)?;
        let report = RecoveryReport::default();
        let mut tree = Self::assemble(design, inner, heap.clone(), root, report);
        let made = tree.make_first_leaf();
        if made.is_err() {
            for block in D::blocks(&tree) {
                heap.free(POff::new(block));
            }
            heap.trim();
            // Nothing to save: there is no such tree.
            tree.root = None;
        }
        made.map(|()| tree)
    }
    fn open(pool: &Arc<Pool<M>>, name: &str, options: &D::Options) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&root_kind::<D, K, V, M>(options)?))?;
        recovery::open(root, options)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn close(mut self) -> Result<(), CommitError> {
        self.close_now()
    }
}

impl<D, K, V, M> OrderedIndex<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.insert_uncommitted(key, value)?;
        self.commit()?;
        Ok(())
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        let was_there = self.put_uncommitted(key, value, IfPresent::Replace)?;
        self.commit()?;
        Ok(was_there)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        self.replace(key, value, None)?;
        self.commit()?;
        Ok(())
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        self.take_out(key)
    }

    #[inline]
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        self.find_value(key, f)
    }

    fn scan<R: RangeBounds<K>>(&self, range: R, visit: impl FnMut(&K, &V) -> ControlFlow<()>) {
        self.scan_up(&range, |_| {}, visit);
    }

    fn scan_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_up(&range, ahead, visit);
    }

    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        self.get_batch(keys, out);
    }

    fn multi_find<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        ahead: impl FnMut(&V),
        out: &mut Vec<(Option<V::Owned>, Place)>,
    ) {
        self.find_together(keys, ahead, out);
    }

    fn update_at(&self, place: &Place, key: &K, value: &V) -> Result<Option<u64>, UpdateError> {
        self.replace(key, value, Some(place))
    }

    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.reserve(pairs.len());
        D::insert_batch(self, pairs, out);
        if out.iter().any(Result::is_ok)
            && let Err(e) = self.commit()
        {
            for result in out.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(e.duplicate().into());
            }
        }
    }

    fn stats(&self) -> IndexStats {
        self.measure()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.check()
    }
}

impl<D, K, V, M> ReverseScan<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_down(&range, |_| {}, visit);
    }

    fn scan_reverse_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_down(&range, ahead, visit);
    }
}

impl<D, K, V, M> BulkLoad<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        self.load_sorted(sorted, fill)
    }
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Inserts; what it fenced is still to be committed.
    fn insert_uncommitted(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        self.put_uncommitted(key, value, IfPresent::Refuse)
            .map(|_| ())
    }

    /// Whether an entry may be stored.
    ///
    /// # Errors
    /// [`InsertError`]: the tree is read-only, or the key or value is too long.
    pub fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        if !key.fits() {
            return Err(InsertError::KeyTooLong {
                len: key.bytes(),
                most: MAX_KEY,
            });
        }
        Self::value_fits(value).map_err(|(len, most)| InsertError::ValueTooLong { len, most })
    }
}
