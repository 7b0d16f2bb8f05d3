//! Skip lists (LB+-Tree, section 4.1): with the whole list in the pool, or divided.
//!
//! ```text
//! level 2 | head ------------------------> 30 ---------> end    towers: in the pool (skiplist-nvm)
//! level 1 | head ---------> 20 ----------> 30 ---------> end            or in DRAM (skiplist-divided)
//! level 0 | head -> 10 ---> 20 ---> 25 --> 30 -> 40 ---> end    bottom list: in the pool
//! ```
//!
//! The paper compares three. `dram-skiplist` is the original, and `nvm-skiplist` is the original
//! placed in persistent memory. `divided-skiplist` keeps the bottom list there, as an ordered
//! linked list whose links are written by NAWs; everything above it is in DRAM, and recovery
//! rebuilds it. Here they share their code and differ in the place of the towers ([`Towers`]): in
//! the nodes ([`InPool`]) or in DRAM ([`InDram`]). The original in DRAM is [`InPool`] in a pool on
//! the medium [`Dram`](bristlecone_pmem::media::Dram).
//!
//! `node.rs` has the nodes, and `towers.rs` the towers. One node in four is a level higher than the
//! others.
//!
//! The upper levels only shorten the search; the bottom list decides. So the list with towers in
//! the pool flushes none of their links, and recovery sets them all anew. Its walk is needed
//! anyway, to tell blocks in use from free ones.
//!
//! # Invariants
//! 1. The bottom list from the head holds strictly ascending keys; a node's key word and height
//!    never change while it is in the list.
//! 2. Every link that a reader's validated step saw, and every value, is durable.
//! 3. Level `l` holds a subset of level `l - 1`, in the same order, with at most one tower of a
//!    key.
//! 4. If a node is in no list and no pinned thread can be in it, it is free, and so is its tower.
//!
//! # Concurrency
//! Version locks are in a volatile table, indexed by the node ([`crate::version_lock`]). The lock
//! of a node covers its bottom link, its mark, the *value of the node that the link leads to*, and
//! its tower's links.
//!
//! * *Reading*: descend and move along without reading locks. At the last node before the key read
//!   its version, its link and the next node, and validate the version.
//! * *Update*: lock the node before, at that version; NAW of the value word.
//! * *Insert*: lock the node before and the new node (other threads may reach it as soon as it is
//!   linked, and must not build on it before the link is durable); check the link; NAW of the link.
//! * *Remove*: lock the node before and the node; check the link; NAW of the link; then mark the
//!   node's own link, so that a thread that is still at the node begins again.
//! * Writers unlock after the fence. No thread waits for a lock while it holds another
//!   (`lock_two` takes both in the order of the table).
//! * *Towers*: once the node is in the list, an insert links its tower level by level, upwards.
//!   Each level is linked under the locks of the node before and its own, and the insert stops if
//!   the node has been removed. A remove marks the node first and then unlinks the tower downwards.
//!   So no level gains a removed node.
//! * Searches are pinned; blocks and towers are freed through the epoch collector (`search.rs` says
//!   why that is enough).
//!
//! # Crash states
//! 1. *Insert*, before the NAW of the link: the new node and records are free, because the walk
//!    does not reach them.
//! 2. *Update*: the old or the new value word is there. The record of the other is not reached.
//! 3. *Remove*: before the NAW of the link the node is in the list; after it the node is not
//!    reached.
//! 4. *Upper links* in the pool: each may be old or new, and may lead into blocks that are free or
//!    hold something else. Recovery sets each before it follows it.
//! 5. *Bulk load*, before the NAW of the head's link: the new list is free, because nothing leads
//!    to it.
//! 6. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//!
//! A clean close saves nothing: opening walks the list.

mod bulk;
mod modify;
mod node;
mod recovery;
mod scan;
mod search;
mod towers;
mod verify;

use crate::common::{self, check_pair};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError,
};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, Pool};
use node::{MAX_HEIGHT, NODE_BYTES, Nodes};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub use towers::{InDram, InPool, Towers};

/// Root word: offset of the head.
const HEAD: usize = 0;

/// Options of a skip list. There are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkipOptions {}

/// The whole list in the pool, towers included.
pub type NvmSkipList<K, V, M> = SkipList<K, V, M, InPool>;
/// The bottom list in the pool, the towers in DRAM.
pub type DividedSkipList<K, V, M> = SkipList<K, V, M, InDram>;

/// A durable ordered index. See the module's head.
pub struct SkipList<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, T: Towers<M>> {
    towers: T,
    locks: VersionLocks,
    nodes: Nodes<M>,
    /// The node before the first.
    head: u64,
    head_tower: u64,
    /// Highest level that has had a node.
    highest: AtomicUsize,
    /// Number of heights drawn.
    drawn: AtomicU64,
    read_only: bool,
    /// True while its content may be summed when it is closed.
    whole: bool,
    report: RecoveryReport,
    heap: Heap<M>,
    /// Keeps the root from being opened twice.
    root: Root<M>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, T: Towers<M>> fmt::Debug
    for SkipList<K, V, M, T>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkipList")
            .field("design", &T::DESIGN)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Returns the index of a node's lock.
#[inline(always)]
fn handle(node: u64) -> u32 {
    (node >> 4) as u32 ^ (node >> 36) as u32
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, T: Towers<M>> SkipList<K, V, M, T> {
    /// Returns the entry of a list of these types in the root table.
    fn root_kind() -> RootKind {
        common::root_kind::<K, V>(T::DESIGN, NODE_BYTES as u32)
    }

    /// Returns an empty list around the head, whose upper links are still to be set.
    fn assemble(heap: Heap<M>, root: Root<M>, head: u64) -> Self {
        let towers = T::new();
        Self {
            head_tower: towers.make(head, 0, MAX_HEIGHT),
            towers,
            locks: VersionLocks::new(),
            nodes: Nodes::new(root.pool()),
            head,
            highest: AtomicUsize::new(0),
            drawn: AtomicU64::new(0),
            read_only: root.pool().pm().read_only(),
            whole: false,
            report: RecoveryReport::default(),
            heap,
            root,
            kinds: PhantomData,
        }
    }

    #[inline(always)]
    fn pm(&self) -> &M {
        self.nodes.pm()
    }

    /// Returns the highest level with a node; 0 is the bottom list.
    #[inline(always)]
    fn top(&self) -> usize {
        // ORDERING: Relaxed; a search that begins too low only takes longer.
        self.highest.load(Ordering::Relaxed)
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }

    fn close_now(&mut self) -> Result<(), CommitError> {
        if !std::mem::take(&mut self.whole) || self.read_only {
            return Ok(());
        }
        content::seal::<K, V, M>(&self.root, self);
        // PERSIST: the sum, before the pool says that it was closed cleanly.
        self.pm().fence();
        self.pm().commit()
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, T: Towers<M>> Drop for SkipList<K, V, M, T> {
    fn drop(&mut self) {
        // A change may have stopped half-way; the next opening walks the list anyway.
        self.whole &= !std::thread::panicking();
        // `close` would report a failure.
        let _ = self.close_now();
    }
}

impl<K, V, M, T> DurableIndex<K, V, M> for SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    type Options = SkipOptions;

    const SNAPSHOT: bool = false;

    fn create(pool: &Arc<Pool<M>>, name: &str, _options: &SkipOptions) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &Self::root_kind())?;
        content::mark(&root, content::FORMAT);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let head = heap.alloc(T::node_bytes(MAX_HEIGHT))?;
        let mut list = Self::assemble(heap.clone(), root, head.get());
        list.raised(bulk::Raiser::new(list.head_tower));
        list.write_node(head.get(), 0, 0, 0, MAX_HEIGHT);
        let pm = pool.pm();
        // PERSIST: the head and the pointer to it; `publish` fences them.
        pm.flush_of(list.nodes.at(head.get()));
        let word = list.root.word(HEAD);
        // ORDERING: Relaxed; the root is not published.
        word.store(pm, link::word(head.get()), Ordering::Relaxed);
        pm.flush_of(word);
        list.root.publish();
        if let Err(e) = pm.commit() {
            list.root.unpublish();
            heap.free(head);
            heap.trim();
            return Err(e.into());
        }
        list.whole = true;
        Ok(list)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, _options: &SkipOptions) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&Self::root_kind()))?;
        content::check_version(&root, content::FORMAT)?;
        let mut list: Self = recovery::open(root)?;
        content::compare::<K, V, M>(&list.root, &list)?;
        list.whole = true;
        Ok(list)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        self.nodes.pool()
    }

    fn close(mut self) -> Result<(), CommitError> {
        self.close_now()
    }
}

impl<K, V, M, T> OrderedIndex<K, V> for SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    forward!(changes, lookups, lookup_batches, scans, checks);
}

forward_impls!(SkipList<K, V, M, T: Towers<M>>, KeyRepr, Repr);
