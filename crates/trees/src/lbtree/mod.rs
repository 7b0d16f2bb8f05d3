//! LB+-Tree (Liu, Chen, Wang, PVLDB 2020): few NVM line writes per insertion, no log for splits.
//!
//! Leaves are in the pool, inner nodes in DRAM ([`crate::inner`]). The leaf's layout is in `leaf.rs`.
//! Entries are unsorted; a bitmap in the header says which slots are in use, so one 8-byte store
//! (NAW) of a header word makes a change count. The paper's three techniques:
//!
//! * *Entry moving* (3.2, `insert.rs`): an insert that has to write a line other than the header's
//!   moves the header line's entries there too, so that the next inserts need one line only.
//! * *Logless split* (3.3, `split.rs`): two sibling pointers; one NAW switches pointer and bitmap.
//! * *Distributed headers* (3.4): every 256-byte block has its own header, the blocks after the first
//!   a second, alternative one, switched by the same NAW.
//!
//! Beyond the paper: update, upsert, scans both ways, batches, byte strings, reclamation of emptied
//! leaves (`remove.rs`), parallel recovery and clean reopening (`recovery.rs`), bulk load, `verify`.
//!
//! # Invariants
//! 1. A slot counts iff its bit is set in the header that counts (`leaf.rs`).
//! 2. fingerprint\[s\] = low byte of hash(key of slot s), for every slot s that counts.
//! 3. For adjacent leaves P, L in the chain: max(keys of P) < separator(L) <= min(keys of L).
//! 4. The chain from the head holds exactly the leaves of the inner index, in the same order.
//! 5. A slot that counts in the *durable* header is never overwritten but for the 8-byte value word
//!    of an update. (The paper's Algorithm 3 breaks this when the new key goes to the old leaf: it
//!    writes into a slot that only the not yet published header calls empty. Here the split is
//!    published first.)
//!
//! # Concurrency
//! Version locks in DRAM ([`crate::version_lock`]) take the place of hardware transactions: readers
//! go down, read the leaf's version, validate the inner node that led there, read, and validate the
//! leaf's version. Writers lock the leaf at that version, and unlock after the fence, so that no one
//! acts on what a crash can undo. Inner nodes are changed while the leaf's lock is held. The lock bit
//! of the paper's layout keeps its place and stays 0; recovery clears it if it is not.
//!
//! # Crash states
//! 1. *Insert*, before the NAW: an entry in a slot that does not count. Nothing to repair.
//! 2. *Insert with moves*, before the NAW: moved entries stand twice, their old slots count.
//! 3. *Split*, before the NAW: a new leaf that only the inactive sibling pointer leads to, inactive
//!    back headers. The walk does not reach the leaf, so it is free.
//! 4. *Update*: old or new value word.
//! 5. *Remove*: the bit is set or not.
//! 6. *Reclaim*, after the bit of the last key is cleared: an empty leaf in the chain, which recovery
//!    unlinks; before its predecessor's NAW: inactive pointer and headers only.
//! 7. *Create*, before the root is published: chunks of an unpublished root, freed at open.
//! 8. *Clean close*, before the snapshot word's NAW: a snapshot that nothing leads to, freed.

mod batch;
mod bulk;
mod insert;
mod leaf;
mod read;
mod recovery;
mod remove;
mod scan;
mod snapshot;
mod split;
mod verify;

#[cfg(test)]
mod tests;

use crate::index::{
    BulkLoad, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::inner::{InnerIndex, NODE_SEPARATORS};
use crate::repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, POff, Pool, SpaceError};
use leaf::{BLOCK, Header, Leaf};
use recovery::Positions;
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// Root word: offset of the first leaf.
const HEAD: usize = 0;
/// Root word: offset of the clean-close snapshot, 0 if there is none.
const SNAPSHOT: usize = 1;
/// Root words: offsets of recorded leaves (section 4.2), 0 where there is none.
const POSITIONS: usize = 8;
/// How many leaves are recorded.
const POSITION_COUNT: usize = 64;

/// How an LB+-Tree is run. None of this is stored in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbOptions {
    /// Move entries out of the header line (the paper's technique). Off is the "traditional" design
    /// that the paper compares with.
    pub entry_moving: bool,
    /// Threads that rebuild the inner nodes after a crash.
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

/// The inner index of a tree on medium `M`.
type Inner<K, M> = InnerIndex<K, NODE_SEPARATORS, <M as Media>::Dram>;

/// A durable ordered index with leaves of `B` x 256 bytes (`B` from 1 to 4). See the module's head.
pub struct LbTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize = 1> {
    // The inner index first: it is dropped before the pool can be.
    inner: Inner<K, M>,
    locks: VersionLocks,
    base: *mut u8,
    entry_moving: bool,
    read_only: bool,
    positions: Mutex<Positions>,
    /// Splits until the next position is recorded.
    until_position: AtomicI64,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics, and the protocol in the module's head orders them.
unsafe impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> Send
    for LbTree<K, V, M, B>
{
}
// SAFETY: as for `Send`.
unsafe impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> Sync
    for LbTree<K, V, M, B>
{
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> fmt::Debug
    for LbTree<K, V, M, B>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LbTree")
            .field("pool", &self.pool)
            .field("blocks", &B)
            .finish_non_exhaustive()
    }
}

/// What the root table says of a tree of these types.
fn root_kind<K: Repr + ?Sized, V: Repr + ?Sized, const B: usize>() -> RootKind {
    RootKind {
        design: "lbtree".into(),
        keys: K::KIND,
        values: V::KIND,
        node_bytes: (B * BLOCK) as u32,
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> LbTree<K, V, M, B> {
    const LEAF_BYTES: u64 = {
        assert!(B >= 1 && B <= 4, "leaves of 256 to 1024 bytes");
        (B * BLOCK) as u64
    };
    /// Entries in a full leaf.
    const CAPACITY: usize = B * crate::fingerprint::SLOTS;

    fn assemble(
        inner: Inner<K, M>,
        heap: Heap<M>,
        root: Root<M>,
        options: &LbOptions,
        report: RecoveryReport,
    ) -> Self {
        let pool = Arc::clone(root.pool());
        Self {
            inner,
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            entry_moving: options.entry_moving,
            read_only: pool.pm().read_only(),
            positions: Mutex::new(Positions::new::<M>()),
            until_position: AtomicI64::new(recovery::first_interval::<M>() as i64),
            report,
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

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    fn root(&self) -> &Root<M> {
        // `root` is taken by `close_now` only, after which the tree is gone.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// The leaf of a handle that came from the inner index or the allocator.
    #[inline(always)]
    fn leaf(&self, handle: u32) -> &Leaf<B> {
        // SAFETY: 1. handles are offsets (/ 256) of leaf blocks that the allocator or recovery
        // vouched for, so `B * 256` bytes there are inside the mapping; 2. they are 256-aligned;
        // 3. a Leaf is all atomic words, valid for any bits; 4. the mapping lives as long as `pool`;
        // a leaf that was reclaimed meanwhile is still mapped memory.
        unsafe {
            &*self
                .base
                .wrapping_add(handle as usize * BLOCK)
                .cast::<Leaf<B>>()
        }
    }

    /// Asks for all lines of a leaf at once.
    #[inline(always)]
    fn prefetch(&self, handle: u32) {
        let at = self.base.wrapping_add(handle as usize * BLOCK);
        bristlecone_pmem::media::cpu::prefetch(at, B * BLOCK);
        let (region, access) = (DramRegion::Pool, DramAccess::Prefetch);
        M::Dram::touch(region, access, offset(handle), Self::LEAF_BYTES);
    }

    fn new_leaf_in(heap: &Heap<M>) -> Result<POff<u8>, SpaceError> {
        let off = heap.alloc(Self::LEAF_BYTES)?;
        if u32::try_from(off.get() / BLOCK as u64).is_err() {
            heap.free(off);
            return Err(SpaceError::Capacity {
                wanted: off.get() + Self::LEAF_BYTES,
                capacity: (1 << 32) * BLOCK as u64,
            });
        }
        Ok(off)
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

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> Drop for LbTree<K, V, M, B> {
    fn drop(&mut self) {
        // A failure costs a rebuild at the next opening; `close` reports it.
        let _ = self.close_now();
    }
}

/// The handle of the leaf at `off`, which `new_leaf_in` or recovery has checked to fit.
#[inline(always)]
fn handle(off: POff<u8>) -> u32 {
    debug_assert!(
        off.get().is_multiple_of(BLOCK as u64) && off.get() >= CHUNK,
        "a leaf at {off:?}"
    );
    (off.get() / BLOCK as u64) as u32
}

/// Offset of the leaf with this handle.
#[inline(always)]
fn offset(handle: u32) -> u64 {
    u64::from(handle) * BLOCK as u64
}

impl<K, V, M, const B: usize> DurableIndex<K, V, M> for LbTree<K, V, M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = LbOptions;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &LbOptions) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<K, V, B>())?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let first = Self::new_leaf_in(&heap)?;
        let give_back = || {
            heap.free(first);
            heap.trim();
        };
        let inner = InnerIndex::new(handle(first), pool.pm().capacity()).map_err(|e| {
            give_back();
            TreeError::Memory(e)
        })?;
        let report = RecoveryReport::default();
        let mut tree = Self::assemble(inner, heap.clone(), root, options, report);
        let pm = pool.pm();
        let leaf = tree.leaf(handle(first));
        for block in &leaf.blocks {
            block.store_header(pm, leaf::Place::Front, Header::default());
        }
        // ORDERING: Relaxed; the root is not published.
        leaf.sibling(0).store(pm, 0, Ordering::Relaxed);
        leaf.sibling(1).store(pm, 0, Ordering::Relaxed);
        if pm.planted("lbtree-root-first") {
            tree.root().publish();
        }
        // PERSIST: the empty leaf and the pointer to it; `publish` fences them.
        pm.flush_of(leaf);
        let head = tree.root().word(HEAD);
        // ORDERING: Relaxed; the root is not published.
        head.store(pm, first.get(), Ordering::Relaxed);
        pm.flush_of(head);
        tree.root().publish();
        if let Err(e) = pm.commit() {
            tree.root().unpublish();
            give_back();
            // Nothing to save: there is no such tree.
            tree.root = None;
            return Err(e.into());
        }
        Ok(tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &LbOptions) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&root_kind::<K, V, B>()))?;
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

impl<K, V, M, const B: usize> OrderedIndex<K, V> for LbTree<K, V, M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        self.put(key, value, insert::IfPresent::Refuse).map(|_| ())
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        self.put(key, value, insert::IfPresent::Replace)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        if self.read_only {
            return Err(UpdateError::ReadOnly);
        }
        if let Err((len, most)) = Self::value_fits(value) {
            return Err(UpdateError::ValueTooLong { len, most });
        }
        self.replace(key, value)
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
        self.scan_up(&range, visit);
    }

    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        self.get_batch(keys, out);
    }

    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        self.insert_batch(pairs, out);
    }

    fn stats(&self) -> IndexStats {
        self.measure()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.check()
    }
}

impl<K, V, M, const B: usize> ReverseScan<K, V> for LbTree<K, V, M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_down(&range, visit);
    }
}

impl<K, V, M, const B: usize> BulkLoad<K, V> for LbTree<K, V, M, B>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
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

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> LbTree<K, V, M, B> {
    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
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
