//! CDDS-Tree: the versioned B-tree of Venkataraman et al. (FAST 2011), as the NV-Tree paper builds
//! it for comparison (sections 2.3, 3.1, 6).
//!
//! All nodes, inner ones too, are in the pool, and every entry of every node carries the versions
//! \[start, end) in which it is live. An operation works under the next version number and
//! overwrites nothing that the last version shows. Then one 8-byte store of the *committed version*
//! (NAW) makes all of it count at once. So there is no log: recovery undoes everything newer than
//! the committed version.
//!
//! ```text
//! root words, one line
//!   0 | committed version
//!   1 | root node 0: offset, level in the low 8 bits    2 | its start version
//!   3 | root node 1                                     4 | its start version
//!   5 | what a clean close saved (crate::saved), 0 if nothing
//! ```
//!
//! | operation | steps under version v | lines, fences (u64; NAW of v included) |
//! | --- | --- | --- |
//! | insert | moves m entries by one slot, each persisted, then a new entry \[v, LIVE) | m + 2, m + 2 |
//! | update | the same beside the old entry, which ends at v | m + 2 or 3, m + 2 |
//! | remove | the entry ends at v | 2, 1 |
//! | split | copies live entries into two new nodes; in the parent the old node's entry ends at v, and two begin | both nodes, and as two inserts |
//! | removal of a node's last entry | the node's entry in its parent ends at v | 2, 1 |
//!
//! # Decisions
//! The paper leaves these points open, or describes a tree that keeps old versions for readers:
//!
//! * *No reader reads old versions here*, so an ended entry is garbage once its end is committed
//!   (for byte strings and nodes: once the epoch has passed). Its slot is reusable at once. No
//!   collector works in the background, and a full node is full of live entries: a split makes two
//!   nodes, never one.
//! * Of the reusable slots the nearest one is used, on either side, so that the fewest entries
//!   move.
//! * Entries take 32 bytes (as in the FAST paper), so flushing a moved entry flushes one line. The
//!   design flushes and fences two neighbours in one line one by one all the same.
//! * Nodes have no header: only lines of entries are written.
//! * A node is freed when its last entry ends; half-empty nodes are not merged. If the root has
//!   only one child, that becomes the root.
//! * Writers take turns (below), because versions must be committed in order.
//!
//! # Invariants
//! 1. A slot is live, dead, a hole or unused (`node.rs`); no version in it is above the committed
//!    one.
//! 2. Live entries' keys ascend strictly; u64 keys of all entries, dead ones too, ascend.
//! 3. A key is in the child of the last live entry whose separator is not above it. If there is
//!    none, it is in the child of the first live entry, whose separator therefore counts as below
//!    all keys.
//! 4. Every node but the root has a live entry; an inner root has two.
//! 5. Records belong to live entries, one each; dead entries' words may lead nowhere.
//!
//! # Concurrency
//! There is one writer at a time (a mutex over the tree). It locks each node that it changes or
//! removes ([`crate::version_lock`]) and unlocks after the fence of the version's NAW. Readers take
//! no lock: they read a node's version, validate the parent's, read the node, and validate. They
//! wait only for a writer in the same node. An entry of a version that is not committed is in a
//! locked node, so every entry that a reader sees has start <= committed version. The volatile root
//! has a lock of its own (`ROOT_LOCK`).
//!
//! # Crash states
//! 1. *While entries move*: an entry is in two neighbouring slots, or the slot between is a hole.
//! 2. *Before the NAW*: entries that start at v, entries that end at v, a root that starts at v.
//! 3. *Split, before the NAW*: only entries of crash state 2 lead to the new nodes. The walk does
//!    not follow these, so the nodes are free.
//! 4. *After the NAW*: ended entries lead to old nodes, which are free for the same reason.
//! 5. *Create*, before the root is published: opening frees the chunks of an unpublished root.

mod bulk;
mod insert;
mod node;
mod read;
mod recovery;
mod remove;
mod scan;
mod split;
mod verify;

#[cfg(test)]
mod tests;

use crate::common::{self, check_pair, check_value};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError,
};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::saved;
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Heap, Media, POff, Pool, SpaceError};
use crossbeam_epoch::Guard;
use node::{Node, SLOT};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Root word: the committed version.
const VERSION: usize = 0;
/// Root words: two root nodes with their start versions. The later committed one counts.
const ROOTS: [(usize, usize); 2] = [(1, 2), (3, 4)];
/// Root word: data of a clean close.
const SAVED: usize = 5;

/// Unit of handles in bytes, to which nodes are aligned.
const UNIT: u64 = 256;
/// Node sizes in bytes.
const NODE_BYTES: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// Maximum number of levels: far more than an address space of the smallest nodes fills.
const LEVELS: usize = 32;
/// The handle whose lock guards the volatile root (no node is at offset 0).
const ROOT_LOCK: u32 = 0;

/// Options of a CDDS-Tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CddsOptions {
    /// Bytes in a node: 256, 512, 1024, 2048 or 4096. The pool stores it, and a tree opens only
    /// with its own size.
    pub node_bytes: u32,
    /// Number of threads that walk the tree after a crash.
    pub recovery_threads: usize,
}

impl Default for CddsOptions {
    fn default() -> Self {
        Self {
            node_bytes: 1024,
            recovery_threads: 1,
        }
    }
}

/// State of the writers.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// The committed version.
    version: u64,
    /// Index of the entry of [`ROOTS`] that counts.
    root_slot: usize,
    entries: u64,
    leaves: u64,
    inner_nodes: u64,
}

/// A node's handle (its offset / [`UNIT`]) and level (0: a leaf), as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RootNode {
    handle: u32,
    level: u8,
}

impl RootNode {
    fn word(self) -> u64 {
        offset(self.handle) | u64::from(self.level)
    }

    /// Returns the root node of a word, if its node can be in a pool of `len` bytes.
    fn of(word: u64, node_bytes: u64, len: u64) -> Option<Self> {
        let level = (word % UNIT) as u8;
        let handle = checked_handle(word - u64::from(level), node_bytes, len)?;
        (usize::from(level) < LEVELS).then_some(Self { handle, level })
    }
}

/// A durable ordered index with all nodes in the pool. See the module's head.
pub struct CddsTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> {
    /// [`RootNode::word`]; changed under [`ROOT_LOCK`].
    top: AtomicU64,
    locks: VersionLocks,
    base: *mut u8,
    node_bytes: u32,
    read_only: bool,
    writer: Mutex<Writer>,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics, and the protocol in the module's head orders them.
unsafe impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Send for CddsTree<K, V, M> {}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Sync for CddsTree<K, V, M> {}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> fmt::Debug for CddsTree<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CddsTree")
            .field("pool", &self.pool)
            .field("node_bytes", &self.node_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the entry of a tree of these types in the root table.
fn root_kind<K: Repr + ?Sized, V: Repr + ?Sized>(options: &CddsOptions) -> RootKind {
    common::root_kind::<K, V>("cddstree", options.node_bytes)
}

/// Returns the offset of the node with this handle.
#[inline(always)]
fn offset(handle: u32) -> u64 {
    u64::from(handle) * UNIT
}

/// Returns the handle of the node at `off`, if a node can be there in a pool of `len` bytes.
#[inline(always)]
fn checked_handle(off: u64, node_bytes: u64, len: u64) -> Option<u32> {
    let inside = off.is_multiple_of(UNIT)
        && off >= CHUNK
        && off.checked_add(node_bytes).is_some_and(|end| end <= len);
    u32::try_from(off / UNIT).ok().filter(|_| inside)
}

/// The nodes that a writer has locked, each once.
struct Held<'t> {
    locks: &'t VersionLocks,
    held: Vec<(u32, Locked<'t>)>,
}

impl<'t> Held<'t> {
    fn new(locks: &'t VersionLocks) -> Self {
        Self {
            locks,
            held: Vec::new(),
        }
    }

    /// Locks a node. There is one writer, so the lock is free; two nodes may share a lock.
    fn lock(&mut self, handle: u32) {
        if !(self.held.iter()).any(|(held, _)| VersionLocks::same_slot(*held, handle)) {
            self.held.push((handle, self.locks.lock(handle)));
        }
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    fn assemble(
        top: RootNode,
        writer: Writer,
        heap: Heap<M>,
        root: Root<M>,
        options: &CddsOptions,
        report: RecoveryReport,
    ) -> Self {
        let pool = Arc::clone(root.pool());
        Self {
            top: AtomicU64::new(top.word()),
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            node_bytes: options.node_bytes,
            read_only: pool.pm().read_only(),
            writer: Mutex::new(writer),
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
        content::seal::<K, V, M>(&root, self);
        let writer = *lock(&self.writer);
        let counts = [writer.entries, writer.leaves, writer.inner_nodes];
        saved::save_marks(&root, &self.heap, SAVED, &counts);
        self.pm().commit()
    }

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    fn root(&self) -> &Root<M> {
        // Only `close_now` takes `root`, after which the tree is not used.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// Returns the number of slots in a node.
    #[inline(always)]
    fn slots(&self) -> usize {
        self.node_bytes as usize / SLOT
    }

    /// Returns the node of a handle from [`checked_handle`] or the allocator.
    #[inline(always)]
    fn node(&self, handle: u32) -> Node<'_> {
        let at = self.base.wrapping_add(offset(handle) as usize);
        // SAFETY: 1. such a handle is inside the pool with `node_bytes` bytes, and multiples of 256
        // are aligned for slots; 2. a Slot is all atomic words, valid for any bits; 3. the mapping
        // lives as long as `pool`; a node that was freed meanwhile is still mapped memory.
        let slots = unsafe { std::slice::from_raw_parts(at.cast(), self.slots()) };
        Node { slots }
    }

    /// Returns the child of an inner node's value word, or `None` if the pool is corrupt.
    #[inline(always)]
    fn child(&self, word: u64) -> Option<u32> {
        checked_handle(word, self.node_bytes.into(), self.pm().len())
    }

    /// Returns the root node. For the writer, and for readers once [`ROOT_LOCK`]'s version is
    /// validated.
    fn top(&self) -> RootNode {
        // ORDERING: Relaxed; the root's version lock orders it, and only the writer changes it.
        let word = self.top.load(Ordering::Relaxed);
        RootNode {
            handle: (word / UNIT) as u32,
            level: (word % UNIT) as u8,
        }
    }

    /// Returns a block for a node.
    fn new_node(&self) -> Result<u32, SpaceError> {
        let off = self.heap.alloc(self.node_bytes.into())?;
        u32::try_from(off.get() / UNIT).map_err(|_| {
            self.heap.free(off);
            SpaceError::Capacity {
                wanted: off.get() + u64::from(self.node_bytes),
                capacity: (1 << 32) * UNIT,
            }
        })
    }

    /// Returns `count` blocks for nodes, or none.
    fn new_nodes(&self, count: usize) -> Result<Vec<u32>, SpaceError> {
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            match self.new_node() {
                Ok(node) => nodes.push(node),
                Err(e) => {
                    self.free_nodes(&nodes);
                    return Err(e);
                }
            }
        }
        Ok(nodes)
    }

    /// Frees nodes that nothing ever led to.
    fn free_nodes(&self, nodes: &[u32]) {
        for node in nodes {
            self.heap.free(POff::new(offset(*node)));
        }
    }

    /// Frees a node that nothing durable leads to any more.
    fn retire_node(&self, node: u32, guard: &Guard) {
        self.heap.retire(POff::new(offset(node)), guard);
    }

    /// Frees the record of an inner node's separator word; 0 has none.
    fn retire_separator(&self, word: u64, guard: &Guard) {
        if word != 0 {
            K::retire(&self.heap, word, guard);
        }
    }

    /// Makes everything count that was written under version `v` and fenced.
    fn commit_version(&self, writer: &mut Writer, v: u64) {
        // PERSIST: (in `publish`) the committed version; everything under v counts at once.
        self.root().word(VERSION).publish(self.pm(), link::word(v));
        writer.version = v;
    }

    /// Writes `top` as the root from version `v` on. A fence follows before `v` is committed.
    fn prepare_root(&self, writer: &mut Writer, top: RootNode, v: u64) {
        writer.root_slot ^= 1;
        let (word, start) = ROOTS[writer.root_slot];
        // ORDERING: Relaxed (both); read at opening only.
        self.root()
            .word(word)
            .store(self.pm(), link::word(top.word()), Ordering::Relaxed);
        // This word is in the line of the committed version. A fence comes before that version's
        // NAW, whose flush writes it back.
        self.root()
            .word(start)
            .store(self.pm(), link::word(v), Ordering::Relaxed);
    }

    /// Returns the state of the writers. `&mut self`: there is no other thread.
    fn writer_mut(&mut self) -> &mut Writer {
        (self.writer.get_mut()).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }
}

/// Returns the error of a writer that meets an impossible child pointer or key: the pool is
/// corrupt.
fn corrupt() -> SpaceError {
    SpaceError::io(
        "following a child",
        std::io::Error::other("the tree is corrupt; verify says where"),
    )
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Drop for CddsTree<K, V, M> {
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

/// Refuses other node sizes.
fn check_options(options: &CddsOptions) -> Result<(), TreeError> {
    if NODE_BYTES.contains(&options.node_bytes) {
        return Ok(());
    }
    Err(TreeError::Space(SpaceError::io(
        "making nodes",
        std::io::Error::other(format!(
            "a CDDS-Tree has nodes of 256, 512, 1024, 2048 or 4096 bytes, not {}",
            options.node_bytes
        )),
    )))
}

impl<K, V, M> DurableIndex<K, V, M> for CddsTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = CddsOptions;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &CddsOptions) -> Result<Self, TreeError> {
        check_options(options)?;
        let root = pool.create_root(name, &root_kind::<K, V>(options))?;
        content::mark(&root, content::FORMAT);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let writer = Writer {
            leaves: 1,
            ..Writer::default()
        };
        let nowhere = RootNode {
            handle: 0,
            level: 0,
        };
        let report = RecoveryReport::default();
        let mut tree = Self::assemble(nowhere, writer, heap, root, options, report);
        let made = tree.publish_empty();
        if made.is_err() {
            // There is no such tree, so nothing is saved.
            tree.root = None;
            tree.heap.trim();
        }
        made.map(|()| tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &CddsOptions) -> Result<Self, TreeError> {
        check_options(options)?;
        let root = pool.open_root(name, Some(&root_kind::<K, V>(options)))?;
        content::check_version(&root, content::FORMAT)?;
        let mut tree = recovery::open::<K, V, M>(root, options)?;
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

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Makes the empty leaf and publishes the root.
    fn publish_empty(&mut self) -> Result<(), TreeError> {
        let handle = self.new_node()?;
        let pm = self.pm();
        // The slot's other words are 0: no second root, version 0.
        self.node(handle).fill(pm, &[]);
        let top = RootNode { handle, level: 0 };
        let word = self.root().word(ROOTS[0].0);
        // ORDERING: Relaxed; the root is not published.
        word.store(pm, link::word(top.word()), Ordering::Relaxed);
        // PERSIST: the root word that leads to the empty leaf; `publish` fences both.
        pm.flush_of(word);
        self.root().publish();
        self.top = AtomicU64::new(top.word());
        self.commit().map_err(|e| {
            self.root().unpublish();
            self.free_nodes(&[handle]);
            e.into()
        })
    }
}

impl<K, V, M> OrderedIndex<K, V> for CddsTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        self.put(key, value, IfPresent::Refuse)?;
        Ok(self.commit()?)
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        let was_there = self.put(key, value, IfPresent::Replace)?;
        self.commit()?;
        Ok(was_there)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        check_value(self.read_only, value)?;
        if !self.replace(key, value)? {
            return Err(UpdateError::NotFound);
        }
        Ok(self.commit()?)
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        let was_there = self.take_out(key);
        if was_there {
            self.commit()?;
        }
        Ok(was_there)
    }

    forward!(lookups, lookup_batches, insert_batches, scans, checks);
}

forward_impls!(CddsTree<K, V, M>, KeyRepr, Repr);
