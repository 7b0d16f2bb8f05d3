//! The conventional B+-tree, entirely in persistent memory, and designs that differ from it in one
//! idea.
//!
//! | design | leaves | a change of one leaf | a change of several nodes | paper |
//! | --- | --- | --- | --- | --- |
//! | [`LcbTree`] | sorted | before-images of the nodes | the same | NV-Tree, section 3.1 |
//! | [`BTreeWal`] | sorted | write-ahead: the new values of the words | the same | UCSC-CRSS-20-01, section 3.1 (*btree-WAL*) |
//! | [`UnsortedTree`](crate::unsorted::UnsortedTree) | unsorted, with a bitmap | atomic in place | before-images of the words | UCSC-CRSS-20-01, section 3.1 |
//!
//! Each of them can be made *volatile* ([`BTreeOptions::volatile`]): the paper's *btree* and
//! *unsorted leaf*, in which nothing is logged, flushed or fenced. Volatile trees can flush in
//! groups ([`GroupFlush`]). That makes nothing durable, but lets the device see neighbouring lines
//! together.
//!
//! `node.rs` has the node, `kind.rs` the parts of a design, `change.rs` the mechanism that makes a
//! change crash-atomic, and `load.rs` the load that group flushing may depend on. The rest is
//! independent of leaf and mechanism: descent (`find.rs`, `batch.rs`), splits and the unlinking of
//! emptied nodes (`structure.rs`), scans, bulk load, recovery.
//!
//! # Structure
//! ```text
//! root word 0 --> root node (never moves; a bulk load replaces it)
//! root word 1 --> log area                root word 2 --> allocator's marks of a clean close, or 0
//! root word 3  |  1 in a volatile tree, which cannot be opened again
//! ```
//! A change of a full node and its parent splits the node; a full parent splits first. A full
//! *root* moves its content to two new nodes and becomes their parent. When a leaf loses its last
//! entry, a change of the leaf before it and of the lowest ancestor with another child unlinks it,
//! together with the nodes in between. A root with a single child takes over that child's content.
//!
//! # Invariants
//! 1. All leaves are at level 0, and a child's level is its parent's less 1.
//! 2. Child i of an inner node has exactly the keys k with separator\[i-1\] <= k < separator\[i\].
//! 3. The separators of an inner node ascend strictly, and so do the keys of a sorted leaf.
//! 4. From the leftmost leaf, the `next` offsets lead through all leaves in key order.
//! 5. Only a root leaf is empty.
//! 6. A byte-string separator is a record of its own, since the keys of leaves come and go.
//!
//! # Concurrency
//! Every node has a version lock ([`crate::version_lock`]), in a volatile table by its offset. A
//! reader descends hand over hand: it reads the child's version, then validates the parent's, so
//! the child was the right one at that version. A read of a node counts once the node's version is
//! validated. A writer locks the nodes that its change stores to and those that it frees, at the
//! versions that its descent read, without waiting. If one has changed, it begins again. So no
//! thread waits for a lock while it holds one, and there are no deadlocks. Locks are released after
//! the change is final and durable. Freed nodes are locked too, so that readers in them notice;
//! their memory is used again only once pinned threads have left.
//!
//! # Crash states
//! 1. *A change of one or several nodes*: before its log record counts, the nodes are as before.
//!    While it counts, the words that it covers may hold anything, and recovery copies the
//!    before-images back (undo) or stores the new words again (redo). Afterwards the nodes are as
//!    after the change. Each split, insertion and removal is one such change.
//! 2. *New nodes and records* that the change was to lead to, or *old ones* that it no longer leads
//!    to: they are free, because no walk reaches them.
//! 3. *Between two changes*: a split without the insertion that needed it, or a root with one
//!    child. Both are within the invariants.
//! 4. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//! 5. *Bulk load*, before the root word's NAW: the new nodes are free, because nothing leads to
//!    them.
//! 6. *Clean close*, before the marks word's NAW: the new marks are free, because nothing leads to
//!    them.

mod batch;
mod bulk;
pub(crate) mod change;
mod find;
pub(crate) mod kind;
mod load;
mod modify;
pub(crate) mod node;
mod recovery;
mod scan;
mod structure;
mod walk;

#[cfg(test)]
mod tests;

use crate::common::{self, check_node_bytes, check_pair};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError,
};
use crate::link;
use crate::repr::{Stored, StoredKey, Word};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Logs, Media, POff, PWord, Pool, SpaceError};
use change::{Change, NewWords, Overwritten, Protect, WholeNodes};
use kind::{Kind, Leaf, Sorted};
use load::Load;
use node::{Node, UNIT};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Root word: offset of the root node.
const ROOT: usize = 0;
/// Root word: offset of the log area.
const LOGS: usize = 1;
/// Root word: offset of the saved marks, 0 if there are none.
const MARKS: usize = 2;
/// Root word: 1 in a volatile tree.
const VOLATILE: usize = 3;

/// Node sizes in bytes.
pub const NODE_BYTES: &[u32] = &[128, 256, 512, 1024, 2048, 4096, 8192];

/// Search of a sorted node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// Halving down to a line of keys, then in order; for byte strings, only halving.
    #[default]
    Usual,
    /// Key by key from the first (UCSC-CRSS-20-01, section 3.1, searches all its trees in this
    /// way).
    Linear,
    /// Halving to the end.
    Binary,
}

/// When a volatile tree flushes neighbouring modified lines together (UCSC-CRSS-20-01, section
/// 6.2). This makes nothing durable. It spares a device with large media lines from getting them in
/// parts, as the caches happen to evict them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupFlush {
    /// Never.
    #[default]
    Off,
    /// After each change of a node, and each new node.
    On,
    /// While at least this number of threads write at a time. A thread judges after every 256 of
    /// its writes. It takes the number of writing threads to be the number of writes since its last
    /// judgement, at most 256 of each thread, over 256, rounded. So the tree follows a change of
    /// the load within 512 writes of each thread, a thread that writes seldom hardly counts, and a
    /// single thread never flushes unless 0 or 1 is asked for.
    UnderLoad {
        /// Minimum number of concurrent writers for which the tree flushes.
        writers: u32,
    },
}

impl GroupFlush {
    /// Flushing under the load from which on it paid in the paper: 16 threads.
    pub const UNDER_LOAD: Self = Self::UnderLoad { writers: 16 };
}

/// Options of a tree of this family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BTreeOptions {
    /// Bytes of a node, one of [`NODE_BYTES`]; `None` for the design's default. A tree is opened
    /// with the size that it was made with.
    pub node_bytes: Option<u32>,
    /// Maximum number of entries of a node, at least 3 (splitting nodes of two would make a tree as
    /// high as it has leaves); `None` for as many as fit. A small maximum makes small trees high,
    /// for tests.
    pub most_entries: Option<usize>,
    /// Number of threads that walk the tree at recovery; 0 counts as 1.
    pub recovery_threads: usize,
    /// If true, the tree is made without any protection: nothing is logged, flushed or fenced, and
    /// it cannot be opened again. It shows what durability costs (UCSC-CRSS-20-01, section 2.4:
    /// *btree*, *unsorted leaf*).
    pub volatile: bool,
    /// When a volatile tree flushes all the same. A durable tree ignores this.
    pub group_flush: GroupFlush,
    /// Search of sorted nodes.
    pub search: Search,
}

/// The log-based consistent B+-tree of the NV-Tree paper.
#[derive(Debug)]
pub struct Lcb;

impl Kind for Lcb {
    const NAME: &'static str = "lcbtree";
    const DEFAULT_BYTES: u32 = 1024;
    type Leaf = Sorted;
    type Protect = WholeNodes;
}

/// LCB+-Tree: a conventional B+-tree in persistent memory. Every change logs the nodes that it
/// modifies. See the module's head.
pub type LcbTree<K, V, M> = BTree<K, V, M, Lcb>;

/// The conventional B+-tree under a write-ahead log: *btree-WAL* of UCSC-CRSS-20-01.
#[derive(Debug)]
pub struct Wal;

impl Kind for Wal {
    const NAME: &'static str = "btree-wal";
    const DEFAULT_BYTES: u32 = 512;
    type Leaf = Sorted;
    type Protect = NewWords;
}

/// btree-WAL: a conventional B+-tree in persistent memory. Every change is logged, with the new
/// values, before it is made. See the module's head.
pub type BTreeWal<K, V, M> = BTree<K, V, M, Wal>;

/// A B+-tree in persistent memory of design `D`. See the module's head.
pub struct BTree<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> {
    locks: VersionLocks,
    base: *mut u8,
    /// Words of a node.
    words: usize,
    /// Maximum number of entries of a node.
    most_entries: usize,
    /// The root node.
    top: u32,
    /// False if the tree is volatile; see [`BTreeOptions::volatile`].
    durable: bool,
    /// The load, which decides when a volatile tree flushes.
    load: Load,
    /// Number of keys that a search of a node reads in order once it has halved down to them.
    run: u32,
    read_only: bool,
    logs: Logs<M>,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V, D)>,
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics, and the protocol in the module's head orders them.
unsafe impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> Send
    for BTree<K, V, M, D>
{
}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> Sync
    for BTree<K, V, M, D>
{
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> fmt::Debug
    for BTree<K, V, M, D>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BTree")
            .field("design", &D::NAME)
            .field("pool", &self.pool)
            .field("node_bytes", &self.node_bytes())
            .finish_non_exhaustive()
    }
}

/// Returns the number of log slots: threads that can change nodes at a time. There are few where
/// crash states are explored, in small pools.
fn log_slots<M: Media>(pm: &M) -> u32 {
    if pm.tiny() { 2 } else { 32 }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// True if a pair leads to records, whose lines must be fenced before it counts.
    pub(crate) const RECORDS: bool = K::RECORDS || V::RECORDS;

    fn root_kind(options: &BTreeOptions) -> RootKind {
        let bytes = options.node_bytes.unwrap_or(D::DEFAULT_BYTES);
        common::root_kind::<K, V>(D::NAME, bytes)
    }

    /// Returns the words of a node for these options.
    fn words_of(options: &BTreeOptions) -> Result<usize, TreeError> {
        let asked = options.node_bytes.unwrap_or(D::DEFAULT_BYTES);
        check_node_bytes(asked, D::NODE_BYTES)?;
        Ok(asked as usize / 8)
    }

    fn assemble(
        root: Root<M>,
        heap: Heap<M>,
        logs: Logs<M>,
        words: usize,
        options: &BTreeOptions,
    ) -> Self {
        let pool = Arc::clone(root.pool());
        Self {
            locks: VersionLocks::new(),
            base: pool.pm().base(),
            words,
            most_entries: options.most_entries.unwrap_or(usize::MAX).max(3),
            top: 0,
            durable: !options.volatile,
            load: Load::new(options.group_flush),
            run: match options.search {
                Search::Usual if K::RECORDS => 0,
                Search::Usual => node::RUN / K::Word::WORDS as u32,
                Search::Linear => u32::MAX,
                Search::Binary => 0,
            },
            read_only: pool.pm().read_only(),
            logs,
            report: RecoveryReport::default(),
            heap,
            root: Some(root),
            pool,
            kinds: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) fn pm(&self) -> &M {
        self.pool.pm()
    }

    #[inline(always)]
    fn node_bytes(&self) -> u64 {
        self.words as u64 * 8
    }

    /// Returns the number of entries in a full leaf.
    fn leaf_capacity(&self) -> usize {
        D::Leaf::capacity::<K::Word, V::Word>(self.words).min(self.most_entries)
    }

    /// Returns the number of separators in a full inner node.
    fn inner_capacity(&self) -> usize {
        node::capacity::<K::Word, u64>(self.words).min(self.most_entries)
    }

    fn root(&self) -> &Root<M> {
        // Only `close_now` takes `root`, after which the tree is not used.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// Returns the node of a handle from the allocator or from `handle`.
    #[inline(always)]
    fn node(&self, at: u32) -> Node<'_> {
        // A search may come after the pool was compacted: memory that was ever mapped can be read.
        debug_assert!(u64::from(at) * UNIT + self.node_bytes() <= self.pm().capacity());
        let start = self.base.wrapping_add(at as usize * UNIT as usize);
        // SAFETY: 1. handles come from the allocator or were checked by `handle`, so a node's words
        // there are inside the mapping; 2. they are 128-aligned; 3. a PWord is valid for any bits;
        // 4. the mapping lives as long as `pool`; a node that was freed meanwhile is still mapped
        // memory.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<PWord>(), self.words) };
        let run = self.run;
        Node { at, words, run }
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

    /// Returns a new node that nothing leads to.
    fn new_node(&self) -> Result<Node<'_>, SpaceError> {
        let off = self.heap.alloc(self.node_bytes())?;
        match self.handle(off.get()) {
            Some(at) => Ok(self.node(at)),
            None => {
                self.heap.free(off);
                Err(SpaceError::Capacity {
                    wanted: off.get() + self.node_bytes(),
                    capacity: (1 << 32) * UNIT,
                })
            }
        }
    }

    /// Frees a node that nothing ever led to.
    fn free_node(&self, node: Node<'_>) {
        self.heap.free(POff::new(node.offset()));
    }

    /// Returns true if the tree survives a crash.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Begins a change of all these words with the design's mechanism. Except for records of keys
    /// and values, everything that it leads to is durable or was there before.
    pub(crate) fn change<'t>(&'t self, overwritten: &[Overwritten<'t>]) -> Change<'t, M> {
        self.begin(overwritten, Self::RECORDS)
    }

    /// Begins a change that leads to new nodes, which are flushed.
    fn change_to_new<'t>(&'t self, overwritten: &[Overwritten<'t>]) -> Change<'t, M> {
        self.begin(overwritten, true)
    }

    fn begin<'t>(&'t self, overwritten: &[Overwritten<'t>], leads_on: bool) -> Change<'t, M> {
        if self.durable {
            Change::begin::<D::Protect>(self.pm(), &self.logs, overwritten, leads_on)
        } else {
            Change::unprotected(self.pm(), self.load.write())
        }
    }

    /// Flushes a new node; in a volatile tree, only if it flushes in groups.
    #[track_caller]
    fn flush_new(&self, node: Node<'_>) {
        if self.durable || self.load.is_high() {
            // PERSIST: the node, fenced before anything that leads to it counts.
            self.pm().flush(node.words[0].addr(), node.bytes() as usize);
        }
    }

    /// Flushes, unless the tree is volatile.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn flush(&self, at: *const u8, bytes: usize) {
        if self.durable {
            // PERSIST: each caller names the words, and what they precede.
            self.pm().flush(at, bytes);
        }
    }

    /// Fences, unless the tree is volatile.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn fence(&self) {
        if self.durable {
            // PERSIST: each caller names what was flushed, and what it precedes.
            self.pm().fence();
        }
    }

    /// Makes a NAW of a word of a locked leaf; a plain store if the tree is volatile.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn publish(&self, word: &PWord, value: u64) {
        if self.durable {
            // PERSIST: each caller names the word, and what it precedes.
            word.publish(self.pm(), value);
        } else {
            // ORDERING: Release; pairs with the Acquire of readers that do not lock.
            word.store(self.pm(), value, Ordering::Release);
        }
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
        if self.read_only || !self.durable {
            return Ok(());
        }
        content::seal::<K, V, M>(&root, self);
        self.save_marks(&root);
        self.pm().commit()
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> Drop for BTree<K, V, M, D> {
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

impl<K, V, M, D> DurableIndex<K, V, M> for BTree<K, V, M, D>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
    D: Kind,
{
    type Options = BTreeOptions;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &BTreeOptions) -> Result<Self, TreeError> {
        let words = Self::words_of(options)?;
        let root = pool.create_root(name, &Self::root_kind(options))?;
        content::mark(&root, content::FORMAT_CHECKED);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let slots = log_slots(pool.pm());
        let logs = Logs::create(&heap, slots, D::Protect::slot_words(words))?;
        let mut tree = Self::assemble(root, heap.clone(), logs, words, options);
        match tree.new_node() {
            Ok(top) => {
                D::Leaf::fill::<K::Word, V::Word, M>(top, pool.pm(), &[], 0);
                // PERSIST: the empty leaf; `publish` fences it and the log area.
                pool.pm().flush(top.words[0].addr(), words * 8);
                tree.top = top.at;
            }
            Err(e) => {
                heap.free(POff::new(tree.logs.offset()));
                heap.trim();
                tree.abandon();
                return Err(e.into());
            }
        }
        let pm = pool.pm();
        for (i, value) in [
            (ROOT, link::word(tree.node(tree.top).offset())),
            (LOGS, link::word(tree.logs.offset())),
            (VOLATILE, u64::from(options.volatile)),
        ] {
            let word = tree.root().word(i);
            // ORDERING: Relaxed; the root is not published.
            word.store(pm, value, Ordering::Relaxed);
        }
        // PERSIST: the root's words, in one line; `publish` fences them too.
        pm.flush(tree.root().word(ROOT).addr(), (VOLATILE + 1) * 8);
        tree.root().publish();
        if let Err(e) = pm.commit() {
            tree.root().unpublish();
            heap.free(POff::new(tree.node(tree.top).offset()));
            heap.free(POff::new(tree.logs.offset()));
            heap.trim();
            tree.abandon();
            return Err(e.into());
        }
        Ok(tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &BTreeOptions) -> Result<Self, TreeError> {
        let words = Self::words_of(options)?;
        let root = pool.open_root(name, Some(&Self::root_kind(options)))?;
        content::check_version(&root, content::FORMAT_CHECKED)?;
        let mut tree = Self::recover(root, words, options)?;
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

impl<K, V, M, D> OrderedIndex<K, V> for BTree<K, V, M, D>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
    D: Kind,
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

forward_impls!(BTree<K, V, M, D: Kind>, StoredKey, Stored);
