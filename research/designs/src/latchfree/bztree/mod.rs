//! BzTree (Arulraj, Levandoski, Minhas, Larson, PVLDB 11(5), 2018): a latch-free B+-tree entirely
//! in the pool. Every change is one persistent multi-word compare-and-swap
//! ([`pmwcas`](bristlecone_pmem::pmwcas)). Section numbers are the paper's.
//!
//! ```text
//! root words | 0 descriptors | 1 anchor | 2 index epoch | 3 a bulk load is under way |
//! anchor     | status: version | root node |                                      a line of its own
//! inner node | header | metadata ... | separator, child | ... |                    immutable but for child words
//! leaf       | header | metadata ... | free space | ... | key, value | key, value |     (module `node`)
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `node` | layout, fields |
//! | `find`, `scan` | reading, which neither waits nor writes |
//! | `leaf` | insertion, replacement, removal: one swap, or two |
//! | `build`, `reshape`, `merge` | new nodes that replace frozen ones |
//! | `room` | descriptors and room, and waiting for them |
//! | `bulk`, `verify` | building the tree at once, and walking it |
//!
//! # Words of the swaps
//! | operation | Table 1 | here | lines, fences (u64, nodes of 1 KB) |
//! | --- | --- | --- | --- |
//! | insert: reservation, completion | 2, 2 | 2, 2 | 9 to 13, 8 |
//! | delete | 2 | 2 | 4 to 6, 4 |
//! | update: record pointer | 3 | 3 | 7 to 9, 4 |
//! | update: inlined payload | 2 (and 2 to reserve) | 3 (and 2) | |
//! | consolidation | 1, 2 | 1, 2 | |
//! | split: preparation, installation | 1, 3 | 1, 3 and 2 memory words | |
//! | merge: preparation, installation | 2, 3 | 2, 3 and 2 memory words | |
//!
//! Of the update's words, the metadata word keeps its value and is not necessary, since every
//! change of it changes the status too. It is the paper's third word, and stays so that costs can
//! be compared.
//!
//! A random insertion takes 15.2 lines and 8.3 fences, splits included
//! (`tests/all/bztree_cost.rs`).
//!
//! *Memory words* change nothing in the tree. A swap recycles only what its words name, and a split
//! has two nodes, and a merge one or two, that no word of the tree names. So each node has a word
//! for that. The swap that puts N into the tree sets it to N's own offset. Where N is replaced or
//! removed without a word of the tree naming it, the swap changes it from N to N's replacement, or
//! to 0.
//!
//! # Where this differs from the paper
//! 1. *Replaced payloads.* An update to another record deletes the old one in the same swap: three
//!    words. With the paper's two words, an update and a delete of one key both succeed and the key
//!    is still there; and a delete would have to find all its records.
//! 2. *Versions* in the status of inner nodes (module `reshape`): without them a split could bring
//!    back a node that a consolidation has replaced.
//! 3. *Thawing* where there is no room. The paper's allocator never fails.
//! 4. *Reserved entries* of other threads are waited for, then given up (module `leaf`). The paper
//!    only waits, so that a stopped thread would stop others.
//! 5. *Deleted records keep their offsets*, which the binary search needs; the paper zeroes them.
//! 6. *Numbers.* Swaps leave 61 bits. A value below 2^61 is a word that swaps replace, like the
//!    paper's record pointers. A larger one is an inlined payload that is never changed in place.
//!    An update from one kind to the other writes a new record.
//! 7. *Byte strings.* Keys and short values are inlined. A value longer than an eighth of a node
//!    has a block of its own behind the record's word, which is updated in place and recycled by
//!    the swap's policies.
//! 8. *Size.* Full inner nodes are split, not only leaves. If keys are so long that half a node
//!    would have fewer than two children, one child too many is allowed.
//!
//! # Invariants
//! 1. Only swaps change a node's status, metadata, child words and value words. All else of a node
//!    is written before a word leads to it, and records before their metadata are visible.
//! 2. Every swap on a leaf or inner node has its status among its words, expected not to be frozen
//!    (except for thawing and for entries that are given up). So nothing in a frozen node changes.
//! 3. A replaced node stays frozen for ever. A frozen node in the tree can still be read.
//! 4. A leaf has at most one visible record of a key, and a key that is always present always has
//!    one.
//! 5. A block of the allocator is active if and only if the anchor reaches it or a descriptor will
//!    free it (except while a load is under way).
//! 6. Levels fall by one from parent to child; keys lie between the separators around them.
//!
//! # Concurrency
//! Readers write nothing and never wait: they ignore freezing and entries that are not visible. A
//! writer that meets a frozen node finishes the operation that froze it. An operation fails only
//! where one of another thread has succeeded, apart from the bounded wait for reserved entries.
//! Every operation on a leaf has its status among its words, so the operations of one leaf take
//! place one by one.
//!
//! *Descriptors* come back when every thread that was pinned has left. A thread waits for them
//! before it is pinned, and only if it holds none; a pinned thread takes a free one or none. A
//! thread that reads for long (stopped in a callback) keeps all used descriptors from coming back.
//! Writers then fail after some six seconds, with an error that says so. A thread that writes in
//! its own callback of a search or scan fails at once. Nothing has changed then, but a leaf may
//! stay frozen, which other operations handle.
//!
//! # Crash states
//! 1. *In a swap*: recovery of the descriptors rolls it forward or back, with the blocks that its
//!    policies name.
//! 2. *Between reservation and completion*: a reserved entry of an epoch that is over, since
//!    opening raises the index epoch durably before the first operation. The entry is never visible
//!    and is dropped by the next consolidation.
//! 3. *Between freezing and installation*: a frozen node, which any thread may meet. New nodes were
//!    only reserved.
//! 4. *In a bulk load*: module `bulk`.
//! 5. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//!
//! Opening looks at the descriptors and three root words, whatever the tree's size.

mod build;
mod bulk;
mod find;
mod leaf;
mod merge;
mod node;
mod reshape;
mod room;
mod scan;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_scarce;
#[cfg(test)]
mod tests_stopped;
mod verify;

use crate::common::{self, check_node_bytes};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError, UpdateError,
};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::heap::activated::{Activated, MAX_ACTIVATED};
use bristlecone_pmem::pmwcas::{Counts, DescriptorPool};
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, POff, Pool, SpaceError};
use build::Image;
use crossbeam_epoch as epoch;
use leaf::{Done, Mode};
use node::{FROZEN, HEADER, Node, word_at};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Name in the root table.
const DESIGN: &str = "bztree";

/// Root words.
const DESCRIPTORS: usize = 0;
const ANCHOR: usize = 1;
const EPOCH: usize = 2;
const LOADING: usize = 3;

/// Bytes of the anchor: a line.
const ANCHOR_BYTES: u64 = 64;
/// Maximum number of words of a swap.
const SWAP_WORDS: usize = 5;
/// Number of descriptors: for this many threads, and for each thread.
const THREADS: usize = 32;
const PER_THREAD: usize = 16;
/// How often a thread waits for descriptors for work that can be left undone.
const FEW_TURNS: usize = 12;

/// Node sizes in bytes, ascending.
pub const NODE_BYTES: &[u32] = &[256, 512, 1024, 2048, 4096];
/// Longest byte-string key in bytes; a few of them fit into the largest block.
pub const MAX_KEY: usize = 2048;
/// Longest byte-string value in bytes: the largest block without a record's header.
pub const MAX_VALUE: usize = MAX_ACTIVATED as usize - 8;

/// Options of a BzTree. The pool stores only the node size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BzOptions {
    /// Bytes of a node, one of [`NODE_BYTES`]. Longer records have larger nodes.
    pub node_bytes: u32,
    /// Minimum free space of a consolidated leaf in bytes; with less it is split. At most half a
    /// node; `None` for a quarter of a node.
    pub free_bytes: Option<u32>,
    /// A node with fewer used bytes than this is merged with a neighbour, if there is one. At most
    /// half a node; `None` for a quarter of a node.
    pub merge_bytes: Option<u32>,
}

impl Default for BzOptions {
    fn default() -> Self {
        Self {
            node_bytes: 1024,
            free_bytes: None,
            merge_bytes: None,
        }
    }
}

/// Thresholds, in words except `inline`.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Size of a node.
    node: usize,
    /// Free words of a consolidated leaf.
    free: usize,
    /// A node with fewer words is merged.
    merge: usize,
    /// A leaf with this many deleted words or more is consolidated.
    deleted: usize,
    /// Longest value in bytes that is inlined.
    inline: usize,
}

impl Sizes {
    fn of(options: &BzOptions) -> Self {
        let node = options.node_bytes as usize / 8;
        let share =
            |bytes: Option<u32>| bytes.map_or(node / 4, |bytes| (bytes as usize / 8).min(node / 2));
        Self {
            node,
            free: share(options.free_bytes),
            merge: share(options.merge_bytes),
            deleted: node / 2,
            inline: options.node_bytes as usize / 8,
        }
    }
}

/// Returns the error for content of the pool that contradicts itself.
#[cold]
fn corrupt() -> SpaceError {
    let source = io::Error::new(ErrorKind::InvalidData, "the index is damaged: verify it");
    SpaceError::Io {
        doing: "following the index",
        source,
    }
}

/// A durable ordered index. See the module's head.
pub struct BzTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> {
    swaps: DescriptorPool<M>,
    blocks: Activated<M>,
    /// Offset of the anchor.
    anchor: u64,
    /// The index epoch.
    epoch: u64,
    sizes: Sizes,
    read_only: bool,
    report: RecoveryReport,
    /// Held by the thread that looks for space.
    turn: Mutex<()>,
    heap: Heap<M>,
    /// `None` once closed. Keeps the root from being opened twice.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> fmt::Debug for BzTree<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BzTree")
            .field("sizes", &self.sizes)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    fn root_kind(options: &BzOptions) -> Result<RootKind, TreeError> {
        check_node_bytes(options.node_bytes, NODE_BYTES)?;
        Ok(common::root_kind::<K, V>(DESIGN, options.node_bytes))
    }

    /// Returns the number of swaps executed since the index was opened, and of their words, memory
    /// words included.
    #[must_use]
    pub fn swap_counts(&self) -> Counts {
        self.swaps.counts()
    }

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the root slot, which exists until the index is closed.
    fn root_slot(&self) -> &Root<M> {
        self.root.as_ref().expect("open until it is dropped")
    }

    /// Returns the word of the anchor that leads to the root node.
    fn root_word(&self) -> &bristlecone_pmem::PWord {
        word_at(self.pm(), self.anchor + 8)
    }

    /// Returns the anchor's status: a version, like an inner node's.
    fn root_status(&self) -> &bristlecone_pmem::PWord {
        word_at(self.pm(), self.anchor)
    }

    /// Returns the offset of the root node.
    #[inline]
    fn root_node(&self) -> u64 {
        self.swaps.read(self.root_word())
    }

    /// Checks that the sizes in the node's header fit its block.
    #[inline]
    fn in_block(&self, node: &Node<'_, M>) -> Result<(), SpaceError> {
        match self.blocks.block_bytes(node.off) {
            Some(bytes) if bytes >= node.size as u64 * 8 => Ok(()),
            _ => Err(corrupt()),
        }
    }

    /// Checks the same for a block that a swap will recycle, which must be active.
    fn recyclable(&self, node: &Node<'_, M>) -> Result<(), SpaceError> {
        (self.blocks.check(node.off, node.size as u64 * 8)).map_err(|_| corrupt())
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        if key.bytes() > MAX_KEY {
            return Err(InsertError::KeyTooLong {
                len: key.bytes(),
                most: MAX_KEY,
            });
        }
        if value.bytes() > MAX_VALUE {
            return Err(InsertError::ValueTooLong {
                len: value.bytes(),
                most: MAX_VALUE,
            });
        }
        Ok(())
    }

    fn create_in(root: Root<M>, options: &BzOptions) -> Result<Self, TreeError> {
        let pool = Arc::clone(root.pool());
        let pm = pool.pm();
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let blocks = Activated::of(&root);
        let (threads, each) = if pm.tiny() {
            (1, 8)
        } else {
            (THREADS, PER_THREAD)
        };
        let swaps =
            DescriptorPool::create(&heap, threads, each, SWAP_WORDS, Box::new(blocks.clone()))?;
        let anchor = blocks.reserve(ANCHOR_BYTES)?;
        let tree = Self {
            anchor: anchor.get(),
            epoch: 1,
            sizes: Sizes::of(options),
            read_only: pm.read_only(),
            report: RecoveryReport::default(),
            turn: Mutex::new(()),
            heap,
            root: Some(root),
            pool: Arc::clone(&pool),
            swaps,
            blocks,
            kinds: PhantomData,
        };
        let leaf = tree.seal(Image::new(tree.sizes.node, 0), true);
        // Nothing may stay reserved when the tree is dropped.
        let leaf = leaf.inspect_err(|_| tree.blocks.cancel(anchor))?;
        // ORDERING (all): Relaxed; the root is not published.
        for i in 0..ANCHOR_BYTES / 8 {
            let value = if i == 1 { leaf } else { 0 };
            word_at(pm, anchor.get() + i * 8).store(pm, value, Ordering::Relaxed);
        }
        // PERSIST: the anchor; `publish` fences it, with the leaf and the descriptors.
        pm.flush(tree.root_status().addr(), ANCHOR_BYTES as usize);
        tree.blocks.activate_unowned(anchor);
        tree.blocks.activate_unowned(POff::new(leaf));
        let words = [
            (DESCRIPTORS, tree.swaps.offset()),
            (ANCHOR, anchor.get()),
            (EPOCH, tree.epoch),
            (LOADING, 0),
        ];
        for (i, value) in words {
            let word = tree.root_slot().word(i);
            word.store(pm, value, Ordering::Relaxed);
            // PERSIST: the words that lead to the tree; `publish` fences them too.
            pm.flush_of(word);
        }
        tree.root_slot().publish();
        if let Err(e) = pm.commit() {
            tree.root_slot().unpublish();
            return Err(e.into());
        }
        Ok(tree)
    }

    fn open_in(root: Root<M>, options: &BzOptions) -> Result<Self, TreeError> {
        let started = Instant::now();
        let pool = Arc::clone(root.pool());
        let pm = pool.pm();
        let guard = epoch::pin();
        let heap = root.heap();
        heap.begin_recovery();
        let blocks = Activated::of(&root);
        // ORDERING (all): Relaxed; the index is being opened.
        let word = |i| root.word(i).load(pm, Ordering::Relaxed);
        let (anchor, epoch, loading) = (word(ANCHOR), word(EPOCH), word(LOADING));
        let opened = DescriptorPool::open(&heap, word(DESCRIPTORS), Box::new(blocks.clone()))
            .and_then(|(swaps, recovered)| {
                if swaps.words() < SWAP_WORDS {
                    return Err(format!("descriptors of {} words", swaps.words()));
                }
                swaps.mark(&heap, &guard)?;
                blocks.check(anchor, ANCHOR_BYTES)?;
                Ok((swaps, recovered))
            });
        let (swaps, recovered) = opened.map_err(TreeError::Corrupt)?;
        heap.finish_recovery();
        drop(guard);
        let epoch = epoch.wrapping_add(1);
        let mut tree = Self {
            anchor,
            epoch,
            sizes: Sizes::of(options),
            read_only: pm.read_only(),
            report: RecoveryReport::default(),
            turn: Mutex::new(()),
            heap,
            root: Some(root),
            pool: Arc::clone(&pool),
            swaps,
            blocks,
            kinds: PhantomData,
        };
        let reached = tree.look_at_root(loading != 0).map_err(|what| {
            // The pool may hold more than can be seen, so nothing of it is freed.
            tree.root = None;
            TreeError::Corrupt(what)
        })?;
        if !pm.planted("bztree-epoch-kept") {
            // PERSIST: (in `publish`) the new epoch, which invalidates reserved entries, before the
            // first operation.
            tree.root_slot().word(EPOCH).publish(pm, epoch);
        }
        if let Some(reached) = reached {
            tree.blocks.retain(|block| reached.contains(&block));
            tree.say_loading(0);
        }
        tree.report = RecoveryReport {
            clean: false,
            leaves_scanned: 0,
            entries: 0,
            repaired: recovered.forward
                + recovered.back
                + recovered.released
                + u64::from(loading != 0),
            threads: 1,
            elapsed: started.elapsed(),
        };
        pm.commit()?;
        Ok(tree)
    }

    /// Checks what opening needs of the tree. Returns the blocks that the tree reaches, if it was
    /// being loaded.
    fn look_at_root(&self, loading: bool) -> Result<Option<BTreeSet<u64>>, String> {
        self.blocks.check(self.root_node(), HEADER as u64 * 8)?;
        if self.swaps.read(self.root_status()) & FROZEN != 0 {
            return Err("the anchor is frozen".into());
        }
        loading
            .then(|| self.walk(false).map(|walked| walked.blocks))
            .transpose()
    }

    /// Frees the blocks of ended operations and empty chunks.
    fn close_now(&mut self) -> Result<(), CommitError> {
        if self.root.is_none() || self.read_only {
            return Ok(());
        }
        self.swaps.quiesce();
        self.blocks.give_back_empty();
        if let Some(root) = self.root.take() {
            content::seal::<K, V, M>(&root, self);
            // PERSIST: the sum, before the pool says that it was closed cleanly.
            self.pm().fence();
        }
        self.pm().commit()
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Drop for BzTree<K, V, M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A change may have stopped half-way; the next opening recovers it.
            self.root = None;
        }
        // `close` would report a failure.
        let _ = self.close_now();
    }
}

impl<K, V, M> DurableIndex<K, V, M> for BzTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = BzOptions;

    const SNAPSHOT: bool = false;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &BzOptions) -> Result<Self, TreeError> {
        let kind = Self::root_kind(options)?;
        let root = pool.create_root(name, &kind)?;
        content::mark(&root, content::FORMAT);
        Self::create_in(root, options)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &BzOptions) -> Result<Self, TreeError> {
        let kind = Self::root_kind(options)?;
        let root = pool.open_root(name, Some(&kind))?;
        content::check_version(&root, content::FORMAT)?;
        let mut tree = Self::open_in(root, options)?;
        let root = tree.root.as_ref();
        let compared = root.map(|root| content::compare::<K, V, M>(root, &tree));
        if let Some(Err(e)) = compared {
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

impl<K, V, M> OrderedIndex<K, V> for BzTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        match self.put(key, value, Mode::Insert)? {
            Done::Inserted => Ok(self.pm().commit()?),
            _ => Err(InsertError::KeyExists),
        }
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        let done = self.put(key, value, Mode::Upsert)?;
        self.pm().commit()?;
        Ok(done == Done::Replaced)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        match self.check_pair(key, value) {
            Ok(()) => {}
            Err(InsertError::ReadOnly) => return Err(UpdateError::ReadOnly),
            Err(InsertError::ValueTooLong { len, most }) => {
                return Err(UpdateError::ValueTooLong { len, most });
            }
            // Such a key cannot have been inserted.
            Err(_) => return Err(UpdateError::NotFound),
        }
        match self.put(key, value, Mode::Update)? {
            Done::Replaced => Ok(self.pm().commit()?),
            _ => Err(UpdateError::NotFound),
        }
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        let removed = self.take_out(key)?;
        if removed {
            self.pm().commit()?;
        }
        Ok(removed)
    }

    #[inline]
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        self.look_up(key, f)
    }

    forward!(scans, checks);
}

forward_impls!(BzTree<K, V, M>, KeyRepr, Repr);
