//! A durable ordered index whose leaves are in the pool and whose inner nodes are in DRAM
//! ("selective persistence"): the common part of LB+-Tree, FPTree, wB+-Tree, Crab-tree and
//! FAST/FAIR SP.
//!
//! A [`LeafDesign`] is the layout of a leaf and the protocols that make a change of it count:
//! insertion, removal, split, unlinking. All else is here, once: routing by the inner index
//! ([`crate::inner`]), version locks, records of byte strings, scans both ways, batches,
//! reclamation of emptied leaves (`remove.rs`), parallel recovery (`recovery.rs`), clean reopening
//! (`snapshot.rs`), bulk load, `verify`.
//!
//! # Invariants
//! 1. For adjacent leaves P, L in the chain: max(keys of P) < separator(L) <= min(keys of L).
//! 2. The chain from the head holds exactly the leaves of the inner index, in the same order.
//! 3. A key is in one slot of one leaf.
//!
//! # Concurrency
//! Version locks in DRAM ([`crate::version_lock`]) take the place of hardware transactions: readers
//! go down, read the leaf's version, validate the inner node that led there, read, and validate the
//! leaf's version. Writers lock the leaf at that version, and unlock after the fence, so that no
//! thread acts on what a crash can undo. There is one exception: the caller of `update_unflushed`
//! flushes and fences the value, and keeps other threads from acting on it until then. A thread
//! that moves such an entry fences its copy. Inner nodes are changed while the leaf's lock is held.
//!
//! # Crash states
//! 1. *Update*: old or new value word.
//! 2. *Reclaim*, after the last key is removed: an empty leaf in the chain, which recovery unlinks.
//! 3. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//! 4. *Clean close*, before the snapshot word's NAW: the new snapshot is free, because nothing
//!    leads to it.
//!
//! Those of insertion, removal, split and unlinking are the design's.

mod batch;
mod bulk;
mod design;
mod entry;
mod index;
mod insert;
mod layout;
mod order;
mod positions;
mod read;
mod recovery;
mod remove;
mod replace;
mod scan;
mod snapshot;
mod split;
mod verify;

pub use batch::TOGETHER;
pub use design::{LeafDesign, LeafLayout, LeafOptions};
pub use entry::{At, Attempt, Found, Moved, Pair, Removal};
pub use insert::UNLOCK_FIRST;
pub use layout::{DESIGN_WORD, FEW_ENTRIES, HEAD, UNIT, handle, offset};
pub use replace::{Before, Blocked};

use crate::content;
use crate::contract::{RecoveryReport, TreeError};
use crate::inner::{InnerIndex, NODE_SEPARATORS};
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::sync::Retired;
use crate::version_lock::VersionLocks;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, Instrument};
use bristlecone_pmem::planted;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{CommitError, Heap, Media, POff, Pool, SpaceError};
use positions::Positions;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
    // The inner index comes first, so that it is dropped before the pool can be.
    #[doc(hidden)] // for designs
    pub inner: Inner<K, M>,
    #[doc(hidden)] // for designs
    pub locks: VersionLocks,
    base: *mut u8,
    /// No other tree has this number, which identifies the tree of a hint.
    number: u64,
    /// The design's own state.
    pub design: D,
    read_only: bool,
    positions: Mutex<Positions>,
    /// Number of splits until the next position is recorded.
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
// SAFETY: 1. and 2. as for `Send`.
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
            // ORDERING: Relaxed; only its uniqueness matters.
            number: TREES.fetch_add(1, Ordering::Relaxed),
            inner,
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            design,
            read_only: pool.pm().read_only(),
            positions: Mutex::new(Positions::new::<M>()),
            until_position: AtomicI64::new(positions::first_interval::<M>() as i64),
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
        content::seal::<K, V, M>(&root, self);
        self.save_snapshot(&root);
        self.pm().commit()
    }

    /// Removes the index from its pool and gives its space back. No other thread uses it.
    pub fn destroy(mut self) {
        if let Some(root) = self.root.take() {
            // PERSIST: (in `unpublish`) the root is gone, before its chunks serve another.
            root.unpublish();
            // Blocks that nothing has marked are free.
            self.heap.begin_recovery();
            self.heap.finish_recovery();
        }
    }

    /// Returns the medium.
    #[inline(always)]
    pub fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the root of the tree in its pool.
    pub fn root(&self) -> &Root<M> {
        // Only `close_now` takes `root`, after which the tree is not used.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// Returns the leaf of a handle from the inner index or the allocator.
    #[inline(always)]
    pub fn leaf(&self, handle: u32) -> &D::Leaf {
        // SAFETY: 1. handles are offsets (/ 256) of leaf blocks that came from the allocator or
        // that recovery checked, so a leaf's bytes there are inside the mapping; 2. they are
        // 256-aligned; 3. a leaf is all atomic words, valid for any bits (`LeafLayout`); 4. the
        // mapping lives as long as `pool`, and a leaf that was reclaimed meanwhile is still mapped
        // memory.
        unsafe {
            &*self
                .base
                .wrapping_add(handle as usize * UNIT as usize)
                .cast::<D::Leaf>()
        }
    }

    /// Returns the offset of a leaf of this tree.
    #[inline(always)]
    pub fn offset_of(&self, leaf: &D::Leaf) -> u64 {
        (std::ptr::from_ref(leaf) as usize - self.base as usize) as u64
    }

    /// Prefetches the lines of a leaf.
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
        self.inner.ensure_room(0)?;
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
    /// [`TreeError`]. The leaf is freed, and the root is not published.
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
        // PERSIST: the empty leaf; `publish` fences it.
        D::flush_filled(self, leaf);
        let head = self.root().word(HEAD);
        // ORDERING: Relaxed; the root is not published.
        head.store(pm, link::word(first.get()), Ordering::Relaxed);
        // PERSIST: the root word that leads to the leaf; `publish` fences it.
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
            // A walk or a change may have stopped half-way, so a snapshot might be wrong. The next
            // opening walks the leaves.
            self.root = None;
        }
        // A failure costs a rebuild at the next opening; `close` would report it.
        let _ = self.close_now();
    }
}
