//! FAST/FAIR (UCSC-CRSS-20-01, sections 2.3 and 3.1, after Hwang et al., FAST 2018): a sorted
//! B+-tree entirely in persistent memory, without any log.
//!
//! *FAST*, failure-atomic shift (`node.rs`), changes one node: each store of a shift leaves a node
//! that reads right. *FAIR*, failure-atomic in-place rebalance (`fair.rs`), changes several: a new
//! node is a *sibling* first, which its left neighbour leads to, and a child of its parent
//! afterwards. A removed node first ceases to be a child, and then a sibling.
//!
//! [`FastFairSp`] has the same leaf under inner nodes in DRAM (*FAST/FAIR SP*, selective
//! persistence).
//!
//! # Structure
//! ```text
//! root word 0 --> root node               root word 1 --> allocator's marks of a clean close, or 0
//!
//!           [ low | a | c | ... ] ---> [ low = m | ... ]            inner: the child of entry i has the keys
//!              |     \   \                                          from key i to key i+1 (exclusive)
//!              v      v   v
//!             [..]-->[..]-->[..]-->  ...                            every level is a list by `next`
//! ```
//!
//! # Invariants
//! 1. A child's level is its parent's less 1; leaves have level 0.
//! 2. A node's low word is the key word of its entry in the parent, and 0 in the first node of a
//!    level.
//! 3. A node's keys lie between its low (inclusive) and the low of its `next` (exclusive), and
//!    ascend strictly.
//! 4. The `next` offsets lead through exactly the children of the level above, in order.
//! 5. An inner node has a child. (A leaf may be empty: a leaf that becomes empty is merged, unless
//!    it is an only child whose parent has no neighbour with room.)
//! 6. A byte string's low is a record of its own, which the leaf owns; inner entries share it. The
//!    first child of an inner node is never removed without that node, so the record of an inner
//!    node's own low stays.
//!
//! # Decisions
//! * *Duplicates* of a shift have equal key words, and not equal pointers (`node.rs`), since values
//!   are arbitrary.
//! * *Readers validate versions* ([`crate::version_lock`]) in DRAM, and do not use a switch counter
//!   in the node. With a switch counter a reader would continue beside the writer, and could return
//!   what a crash undoes. Nodes could not be reused while searches of numbers, which are not
//!   pinned, may be in them. The report gives all its trees the same optimistic scheme too. Readers
//!   take no lock, and wait only for a writer in the same node. Only recovery relies on the
//!   tolerance of duplicates.
//! * *No wrong child*: a version of the child is read before the parent's is validated. A split
//!   holds the locks of the node and of its parent, so only recovery meets a sibling that the
//!   parent does not have.
//! * *Low keys* are in the node. The first key of a sibling is not its low key once that was
//!   removed, and an inner sibling's first key never was. Using it would put keys into the wrong
//!   node.
//! * *Repair is eager*: recovery walks the tree anyway to tell blocks in use from free ones. So it
//!   also removes duplicates, cuts off entries that a sibling has, and makes siblings children.
//!   With lazy repair, a sibling without a parent might stay so for ever, and every reader and
//!   writer would have to handle it.
//! * *Keys and values of 16 bytes* that count are stored by one 16-byte store, which such a tree
//!   declares to be failure-atomic (`node.rs`). Two stores could leave mixtures of neighbouring
//!   keys that look like keys, and a log would make it another design.
//! * A search reads numbers one by one, as the papers do, because a node without a count cannot be
//!   halved.
//!
//! # Concurrency
//! Descents are optimistic, hand over hand. A writer locks the nodes that it changes and those that
//! it frees, at the versions that its descent read, without waiting. If one has changed, it begins
//! again. Full nodes are split from the top down, so a parent has room. Locks are released once the
//! change is durable.
//!
//! # Crash states
//! 1. *Shift*: see `node.rs`. The operation is done or not.
//! 2. *Split*: the parent does not have the sibling, whose entries may still be in the left node
//!    too. Recovery cuts these off and makes the sibling a child (the root's sibling becomes a
//!    child of a new root).
//! 3. *Merge*: the same state, from the other side: the right node is no longer a child. Recovery
//!    makes it one again, or unlinks it if it is an empty leaf. Entries that were appended to the
//!    left node are cut off.
//! 4. *Emptied*: a leaf without entries, before anything else. Recovery merges it.
//! 5. *A root with one child*, after a merge and before the root is removed; recovery removes it.
//! 6. *New nodes and records* that nothing leads to yet, and *old ones* that nothing leads to any
//!    more: they are free, because no walk reaches them.
//! 7. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//! 8. *Bulk load*, before the root word's NAW, and *clean close*, before the marks word's: the new
//!    blocks are free, because nothing leads to them.

mod bulk;
mod fair;
mod node;
mod read;
mod recovery;
mod scan;
mod sp;
mod verify;
mod write;

#[cfg(test)]
mod tests;

pub use sp::{FastFairSp, SpDesign};

use crate::btree::node::UNIT;
use crate::common::{self, check_node_bytes, check_pair};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError,
};
use crate::link;
use crate::repr::{Stored, StoredKey, Word};
use crate::saved;
use crate::version_lock::VersionLocks;
use bristlecone_pmem::cell::PWord16;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, POff, PWord, Pool, SpaceError};
use node::{Node, NodeOf};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Root word: offset of the root node.
const ROOT: usize = 0;
/// Root word: offset of the saved marks, 0 if there are none.
const MARKS: usize = 1;

/// Maximum number of levels above the leaves. Only a split of full nodes makes a node, so even the
/// smallest nodes would need more than 2^64 insertions to exceed it.
const MAX_LEVEL: usize = 63;

/// Node sizes in bytes.
pub const NODE_BYTES: &[u32] = &[256, 512, 1024, 2048, 4096, 8192];

/// Options of a FAST/FAIR tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastFairOptions {
    /// Bytes of a node, one of [`NODE_BYTES`]. A tree is opened with the size that it was made
    /// with.
    pub node_bytes: u32,
    /// Maximum number of entries of a node, at least 4; `None` for as many as fit. A small maximum
    /// makes small trees high, for tests.
    pub most_entries: Option<usize>,
    /// Number of threads that walk the tree at recovery; 0 counts as 1.
    pub recovery_threads: usize,
}

impl Default for FastFairOptions {
    fn default() -> Self {
        Self {
            node_bytes: 512,
            most_entries: None,
            recovery_threads: 1,
        }
    }
}

/// A FAST/FAIR B+-tree. See the module's head.
pub struct FastFair<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> {
    /// Handle of the root node.
    top: AtomicU32,
    locks: VersionLocks,
    base: *mut u8,
    /// Words of a node.
    words: usize,
    /// Number of entries in a full node.
    capacity: usize,
    read_only: bool,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics, and the protocol in the module's head orders them.
unsafe impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> Send for FastFair<K, V, M> {}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> Sync for FastFair<K, V, M> {}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> fmt::Debug for FastFair<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastFair")
            .field("pool", &self.pool)
            .field("node_bytes", &self.node_bytes())
            .finish_non_exhaustive()
    }
}

/// Returns the entry of a tree of these types in the root table.
fn root_kind<K: Stored + ?Sized, V: Stored + ?Sized>(options: &FastFairOptions) -> RootKind {
    common::root_kind::<K, V>("fastfair", options.node_bytes)
}

/// Refuses a tree of 16-byte keys or values on a processor without a 16-byte store.
fn check_width<K: Stored + ?Sized, V: Stored + ?Sized>() -> Result<(), TreeError> {
    if K::Word::WORDS + V::Word::WORDS == 2 || PWord16::supported() {
        Ok(())
    } else {
        Err(TreeError::NoAtomic16)
    }
}

/// Returns the offset of the node with this handle.
#[inline(always)]
fn offset(handle: u32) -> u64 {
    u64::from(handle) * UNIT
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    /// True if a pair leads to records, whose lines must be fenced before it counts.
    const RECORDS: bool = K::RECORDS || V::RECORDS;

    fn check_options(options: &FastFairOptions) -> Result<(), TreeError> {
        check_width::<K, V>()?;
        check_node_bytes(options.node_bytes, NODE_BYTES)
    }

    fn assemble(root: Root<M>, heap: Heap<M>, options: &FastFairOptions) -> Self {
        let pool = Arc::clone(root.pool());
        let bytes = options.node_bytes as usize;
        Self {
            top: AtomicU32::new(0),
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            words: bytes / 8,
            capacity: (options.most_entries.unwrap_or(usize::MAX).max(4))
                .min(node::capacity::<K::Word, V::Word>(bytes)),
            read_only: pool.pm().read_only(),
            report: RecoveryReport::default(),
            heap,
            root: Some(root),
            pool,
            kinds: PhantomData,
        }
    }

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    #[inline(always)]
    fn node_bytes(&self) -> u64 {
        self.words as u64 * 8
    }

    fn root(&self) -> &Root<M> {
        // Only `close_now` takes `root`, after which the tree is not used.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// Returns the handle of the root node.
    #[inline(always)]
    fn top(&self) -> u32 {
        // ORDERING: Acquire; pairs with the Release of the thread that made the node the root.
        self.top.load(Ordering::Acquire)
    }

    /// Makes a node the root. Everything that it leads to is durable, and the old root is locked.
    fn publish_top(&self, top: u32) {
        // PERSIST: (in `publish`) the root word.
        let link = link::word(offset(top));
        self.root().word(ROOT).publish(self.pm(), link);
        // ORDERING: Release; pairs with the Acquire in `top`.
        self.top.store(top, Ordering::Release);
    }

    /// Returns the node of a handle from the allocator or from `handle`.
    #[inline(always)]
    fn node(&self, at: u32) -> NodeOf<'_, K, V> {
        // A search may come after the pool was compacted: memory that was ever mapped can be read.
        debug_assert!(offset(at) + self.node_bytes() <= self.pm().capacity());
        let start = self.base.wrapping_add(at as usize * UNIT as usize);
        // SAFETY: 1. handles come from the allocator or were checked by `handle`, so a node's words
        // there are inside the mapping; 2. they are 256-aligned; 3. a PWord is valid for any bits;
        // 4. the mapping lives as long as `pool`; a node that was freed meanwhile is still mapped
        // memory.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<PWord>(), self.words) };
        Node::new(words)
    }

    /// Returns the handle of the node at `off`, which came from the pool, or `None` if no node can
    /// be there.
    #[inline(always)]
    fn handle(&self, off: u64) -> Option<u32> {
        let inside = off >= CHUNK
            && off.is_multiple_of(UNIT)
            && off
                .checked_add(self.node_bytes())
                .is_some_and(|end| end <= self.pm().len());
        u32::try_from(off / UNIT).ok().filter(|_| inside)
    }

    /// Returns a block for a node.
    fn new_node(&self) -> Result<u32, SpaceError> {
        let off = self.heap.alloc(self.node_bytes())?;
        self.handle(off.get()).ok_or_else(|| {
            self.heap.free(off);
            SpaceError::Capacity {
                wanted: off.get() + self.node_bytes(),
                capacity: (1 << 32) * UNIT,
            }
        })
    }

    /// Frees a node that nothing ever led to.
    fn free_node(&self, at: u32) {
        self.heap.free(POff::new(offset(at)));
    }

    /// Makes a record for a low key that equals the key behind `word`. Flushes it and does not
    /// fence.
    fn copy_key(&self, word: K::Word) -> Result<K::Word, SpaceError> {
        K::read(self.pm(), word, |key| key.make(&self.heap))
            .unwrap_or_else(|| Err(read::Corrupt.into_error()))
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    fn close_now(&mut self) -> Result<(), CommitError> {
        let Some(root) = self.root.take() else {
            return Ok(());
        };
        if self.read_only {
            return Ok(());
        }
        content::seal::<K, V, M>(&root, self);
        saved::save_marks(&root, &self.heap, MARKS, &[]);
        self.pm().commit()
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }

    /// Makes the empty leaf and publishes the root.
    fn make_first_leaf(&mut self) -> Result<(), TreeError> {
        let top = self.new_node()?;
        let (pm, node) = (self.pm(), self.node(top));
        node.fill(pm, 0, 0, K::Word::default(), std::iter::empty());
        node.flush_new(pm);
        let word = self.root().word(ROOT);
        // ORDERING: Relaxed; the root is not published.
        word.store(pm, link::word(offset(top)), Ordering::Relaxed);
        // PERSIST: the root word that leads to the leaf; `publish` fences both.
        pm.flush_of(word);
        self.root().publish();
        if let Err(e) = pm.commit() {
            self.root().unpublish();
            self.free_node(top);
            return Err(e.into());
        }
        self.top = AtomicU32::new(top);
        Ok(())
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> Drop for FastFair<K, V, M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A walk or a change may have stopped half-way, so marks might be wrong. The next
            // opening walks the tree.
            self.root = None;
        }
        // A failure costs a walk at the next opening; `close` would report it.
        let _ = self.close_now();
    }
}

impl<K, V, M> DurableIndex<K, V, M> for FastFair<K, V, M>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    type Options = FastFairOptions;

    fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &FastFairOptions,
    ) -> Result<Self, TreeError> {
        Self::check_options(options)?;
        let root = pool.create_root(name, &root_kind::<K, V>(options))?;
        content::mark(&root, content::FORMAT);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let mut tree = Self::assemble(root, heap.clone(), options);
        let made = tree.make_first_leaf();
        if made.is_err() {
            heap.trim();
            // There is no such tree, so nothing is saved.
            tree.root = None;
        }
        made.map(|()| tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &FastFairOptions) -> Result<Self, TreeError> {
        Self::check_options(options)?;
        let root = pool.open_root(name, Some(&root_kind::<K, V>(options)))?;
        content::check_version(&root, content::FORMAT)?;
        let mut tree = Self::recover(root, options)?;
        if let Err(e) = content::compare::<K, V, M>(tree.root(), &tree) {
            // The sum stays for the next opening.
            tree.root = None;
            return Err(e);
        }
        Ok(tree)
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

impl<K, V, M> OrderedIndex<K, V> for FastFair<K, V, M>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    forward!(
        changes,
        lookups,
        lookup_batches,
        insert_batches,
        scans,
        checks
    );
}

forward_impls!(FastFair<K, V, M>, StoredKey, Stored);
