//! NV-Tree (Yang, Wei, Wang, Chen, Yong, He, IEEE TC 2016): append-only leaves, inner nodes without
//! pointers that are rebuilt instead of split, and leaf sizes that follow the workload.
//!
//! Leaves (LNs) are in the pool, in one list. Inner nodes (INs, and PLNs, the parents of leaves)
//! are in DRAM, since they can be reconstructed.
//!
//! | file | holds | paper |
//! | --- | --- | --- |
//! | `leaf` | the leaf and its append protocol | 4.1, 4.3 |
//! | `info` | a leaf's lock, visible count and statistics, in DRAM | 4.3, 5.2 |
//! | `inner` | INs and PLNs in one block, by number | 4.2 |
//! | `write` | insertion (Algorithm 2), update, deletion | 4.3 |
//! | `reshape` | split, replace, merge, and removal of emptied leaves | 4.4 |
//! | `rebuild` | rebuild-from-PLN, hot PLNs enlarged | 4.5, 5.5 |
//! | `recovery` | rebuild-from-LN, instant recovery after a clean close | 4.6 |
//! | `adapt` | counters, strategies (Algorithm 3), the analytical model | 5 |
//! | `gate` | excludes changes of inner nodes while they are rebuilt | 4.5 |
//!
//! # Invariants
//! 1. The first `nElement` elements of a leaf count. Of the elements of one key the newest decides:
//!    if it is positive, the key is live with that value; if it is NEGATIVE, the key is absent.
//!    (The paper pairs equal keys *and values*, which cannot tell an old value from an equal one
//!    that was inserted again.)
//! 2. Elements that count never change, with one exception: a removal that finds no space sets a
//!    flag in place.
//! 3. For adjacent leaves P, L in the list: max(live keys of P) < low(L) <= min(live keys of L),
//!    where low(L) is the key that leads to L in its PLN.
//! 4. The list from the head holds exactly the leaves that PLNs lead to, in the same order.
//! 5. A leaf owns the key record of each of its elements (elements of one key may share it) and the
//!    value records of its live keys. A superseded value is free at once. The record of a removed
//!    key stays until the leaf is replaced, because searches still compare with it.
//!
//! # Concurrency
//! *Searches* take no lock and never wait for a write. They go through the PLN (version-validated),
//! take the leaf's visible count, and look at elements below it. The count is raised after the
//! fence, so searches see only durable elements. A leaf is frozen before it is replaced; a thread
//! that still reads it reads what was true when its search began. All memory is freed through the
//! epoch.
//!
//! *Appends* hold the leaf's lock. *Split, replace, merge, unlink* pass the gate and hold `writers`
//! of the PLNs involved (left to right), then the leaves' locks (left to right). The link that
//! changes belongs to the PLN of the leaf before. *Rebuilding* closes the gate: changes of PLNs
//! wait, while searches and appends continue with the old nodes.
//!
//! # Crash states
//! 1. *Append*, before the counter's NAW: elements and flags past the counter do not count. The
//!    next append overwrites both. One store of the counter covers both elements of an update.
//! 2. *Split, replace, merge*: before the link's NAW the new leaves are free, because nothing leads
//!    to them; after it the old leaves are. One 8-byte store of the link (of the leaf before, or of
//!    the head word) switches. There is no log and nothing to repair.
//! 3. *Unlink*, before the link's NAW: the list has a leaf without live keys, which recovery
//!    unlinks.
//! 4. *Rebuild*: no part of it is in the pool.
//! 5. *Create*, before the root is published: opening frees the chunks of an unpublished root.
//! 6. *Clean close*: see `crate::saved`.

mod adapt;
mod bulk;
mod gate;
mod info;
mod inner;
mod leaf;
mod read;
mod rebuild;
mod recovery;
mod reshape;
mod scan;
mod verify;
mod write;

#[cfg(test)]
mod tests;

pub use adapt::Adaptivity;

use crate::common::{self, check_node_bytes, check_pair};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, ReverseScan,
    TreeError, UpdateError,
};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::sync::Retired;
use adapt::{Costs, Limits, Sizing, Totals};
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Heap, Media, Pool, SpaceError};
use crossbeam_epoch::Guard;
use gate::Gate;
use info::LeafInfo;
use inner::{Entry, Inner, NodeShape};
use leaf::{Leaf, Shape, block};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Root word: offset of the first leaf.
const HEAD: usize = 0;
/// Root word: offset of the clean-close snapshot, 0 if there is none.
const SNAPSHOT: usize = 1;

/// Leaf sizes in bytes of a new tree.
pub const NODE_BYTES: &[u32] = &[256, 512, 1024, 2048, 4096, 8192];

/// Options of an NV-Tree. The pool stores only `leaf_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvOptions {
    /// Bytes of a leaf and of an inner node, one of [`NODE_BYTES`]. With adaptivity, leaves begin
    /// with this.
    pub leaf_bytes: u32,
    /// Strategy of resizing leaves.
    pub adaptivity: Adaptivity,
    /// True if an insertion appends its key without looking for it first, as the paper's does. It
    /// then never refuses: of a key that is present the new value counts, and so does the key once
    /// more in its leaf, until the leaf is replaced. Only for keys and values without records.
    pub blind: bool,
    /// Number of threads that read the leaves after a crash.
    pub recovery_threads: usize,
}

impl Default for NvOptions {
    fn default() -> Self {
        Self {
            leaf_bytes: 1024,
            adaptivity: Adaptivity::default(),
            blind: false,
            recovery_threads: 1,
        }
    }
}

/// Counts since the tree was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvStats {
    /// Number of rebuilds of the inner nodes (rebuild-from-PLN).
    pub rebuilds: u64,
    /// Time that rebuilding took.
    pub rebuild_time: Duration,
    /// Full leaves that became two.
    pub splits: u64,
    /// Full leaves that were replaced by a leaf with the same keys.
    pub replaces: u64,
    /// Full leaves that were merged with the one on their right.
    pub merges: u64,
    /// Emptied leaves that were unlinked.
    pub unlinks: u64,
    /// Leaves whose successors were made larger.
    pub enlarged: u64,
    /// Leaves whose successors were made smaller.
    pub shrunk: u64,
    /// PLNs that a rebuild found to be hot-write and enlarged.
    pub hot_plns: u64,
    /// `nWrites`: elements appended.
    pub writes: u64,
    /// `nReads`: searches (sampled).
    pub reads: u64,
    /// `N_LN`: leaves.
    pub leaves: u64,
}

#[derive(Debug, Default)]
struct Counters {
    rebuilds: AtomicU64,
    rebuild_nanos: AtomicU64,
    splits: AtomicU64,
    replaces: AtomicU64,
    merges: AtomicU64,
    unlinks: AtomicU64,
    enlarged: AtomicU64,
    shrunk: AtomicU64,
    hot_plns: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    // ORDERING: Relaxed; a statistic.
    counter.fetch_add(more, Ordering::Relaxed);
}

/// INs and PLNs of a tree on medium `M`.
type Nodes<K, M> = Inner<K, <M as bristlecone_pmem::media::Instrument>::Dram>;

/// A durable ordered index. See the module's head.
pub struct NvTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> {
    inner: AtomicPtr<Nodes<K, M>>,
    gate: Gate,
    nodes: NodeShape,
    /// See [`NvOptions::blind`].
    blind: bool,
    sizing: Sizing,
    totals: Totals,
    counters: Counters,
    /// `N_LN`
    leaves: AtomicU64,
    leaf_bytes: u64,
    /// Block of a leaf, kept for the replacement that frees another one when there is no space
    /// left.
    spare: Mutex<Option<u64>>,
    retired: Retired,
    read_only: bool,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> fmt::Debug for NvTree<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvTree")
            .field("pool", &self.pool)
            .field("leaf_bytes", &self.leaf_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the entry of a tree of these types in the root table.
fn root_kind<K: Repr + ?Sized, V: Repr + ?Sized>(
    options: &NvOptions,
) -> Result<RootKind, TreeError> {
    let bytes = options.leaf_bytes;
    check_node_bytes(bytes, NODE_BYTES)?;
    Ok(common::root_kind::<K, V>("nvtree", bytes))
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// True if a pair leads to records.
    const RECORDS: bool = K::RECORDS || V::RECORDS;

    /// Returns a tree over `entries`.
    fn assemble(
        heap: Heap<M>,
        root: Root<M>,
        options: &NvOptions,
        entries: Vec<Entry<K>>,
        report: RecoveryReport,
    ) -> Self {
        let pool = Arc::clone(root.pool());
        let leaf_bytes = u64::from(options.leaf_bytes);
        let nodes = NodeShape::new::<K>(leaf_bytes, root.pool().pm().tiny());
        let leaves = entries.len() as u64;
        let inner = Box::new(Inner::build(nodes, entries));
        let costs = match options.adaptivity {
            Adaptivity::Off => Costs::ASSUMED,
            _ => Costs::of(&heap),
        };
        Self {
            inner: AtomicPtr::new(Box::into_raw(inner)),
            gate: Gate::new(),
            nodes,
            blind: options.blind && !Self::RECORDS,
            sizing: Sizing {
                strategy: options.adaptivity,
                costs,
                limits: Limits::around(leaf_bytes, root.pool().pm().tiny()),
            },
            totals: Totals::default(),
            counters: Counters::default(),
            leaves: AtomicU64::new(leaves),
            leaf_bytes,
            spare: Mutex::new(None),
            retired: Retired::default(),
            read_only: pool.pm().read_only(),
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
        if let Some(spare) = lock(&self.spare).take() {
            self.heap.free(block(spare));
        }
        content::seal::<K, V, M>(&root, self);
        self.save_snapshot(&root);
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

    /// Returns the current inner nodes.
    #[inline(always)]
    fn inner<'g>(&self, _guard: &'g Guard) -> &'g Nodes<K, M> {
        // ORDERING: Acquire; pairs with the Release of the thread that stored the pointer, so that
        // the nodes are seen whole.
        let inner = self.inner.load(Ordering::Acquire);
        // SAFETY: 1. the pointer came from `Box::into_raw`; 2. replaced nodes are freed through the
        // epoch, and the caller is pinned.
        unsafe { &*inner }
    }

    /// Returns a block for a leaf of `size` bytes, and the layout of a leaf that fills it.
    fn new_leaf(&self, size: u64) -> Result<(u64, Shape), SpaceError> {
        let off = self.heap.alloc(size)?;
        let bytes = self.heap.block_bytes(off.get()).unwrap_or(size);
        Ok((off.get(), Shape::of(bytes.min(leaf::MAX_BYTES))))
    }

    /// Returns the leaf at an offset from the allocator or one that recovery checked.
    fn leaf_of(&self, off: u64, shape: Shape) -> Leaf<'_, M> {
        // SAFETY: the offset is a leaf's block, with `shape.lines` lines in the pool: the allocator
        // gave both, or recovery checked them.
        unsafe { Leaf::at(self.pm(), off, shape) }
    }

    /// Returns true if workload statistics are kept.
    #[inline(always)]
    fn adaptive(&self) -> bool {
        self.sizing.strategy != Adaptivity::Off
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    /// Returns counts since the tree was opened.
    pub fn nv_stats(&self) -> NvStats {
        // ORDERING: Relaxed; statistics.
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        let all = self.totals.sum();
        NvStats {
            rebuilds: get(&c.rebuilds),
            rebuild_time: Duration::from_nanos(get(&c.rebuild_nanos)),
            splits: get(&c.splits),
            replaces: get(&c.replaces),
            merges: get(&c.merges),
            unlinks: get(&c.unlinks),
            enlarged: get(&c.enlarged),
            shrunk: get(&c.shrunk),
            hot_plns: get(&c.hot_plns),
            writes: all.writes,
            reads: all.reads,
            leaves: get(&self.leaves),
        }
    }

    /// Returns the number of leaves of each size in bytes, ascending.
    pub fn leaf_sizes(&self) -> Vec<(u64, u64)> {
        let mut sizes = std::collections::BTreeMap::new();
        let guard = crossbeam_epoch::pin();
        self.each_leaf(&guard, |info| {
            *sizes.entry(u64::from(info.size)).or_insert(0) += 1;
        });
        sizes.into_iter().collect()
    }

    /// Visits every leaf in order. Other threads may change the tree meanwhile.
    fn each_leaf(&self, guard: &Guard, mut each: impl FnMut(&LeafInfo)) {
        let mut ranged = self.inner(guard).find_first(guard);
        loop {
            each(ranged.info);
            let Some(high) = ranged.high else { return };
            ranged = self.inner(guard).find_range(high.borrow(), guard);
        }
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Drop for NvTree<K, V, M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A walk or a change may have stopped half-way, so a snapshot might be wrong. The next
            // opening walks the leaves.
            self.root = None;
        }
        // A failure costs a rebuild at the next opening; `close` would report it.
        let _ = self.close_now();
        // SAFETY: 1. the pointer came from `Box::into_raw`; 2. `&mut self`: no other thread uses
        // the tree; 3. sets of nodes that were replaced may still point to what is freed here, but
        // nothing follows those pointers.
        unsafe {
            let inner = Box::from_raw(*self.inner.get_mut());
            inner.dismantle();
        }
    }
}

impl<K, V, M> DurableIndex<K, V, M> for NvTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = NvOptions;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &NvOptions) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<K, V>(options)?)?;
        content::mark(&root, content::FORMAT);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let bytes = u64::from(options.leaf_bytes);
        let first = heap.alloc(bytes)?;
        let shape = Shape::of(bytes);
        let info = LeafInfo::new(first.get(), shape, bytes, 0, 0);
        let entry = Entry {
            low: None,
            info: Box::into_raw(Box::new(info)),
            units: 1,
        };
        let report = RecoveryReport::default();
        let mut tree = Self::assemble(heap.clone(), root, options, vec![entry], report);
        let pm = pool.pm();
        // PERSIST: the empty leaf (flushed in `fill`) and the pointer to it; `publish` fences them.
        tree.leaf_of(first.get(), shape).fill(&[], 0);
        let head = tree.root().word(HEAD);
        // ORDERING: Relaxed; the root is not published.
        head.store(pm, link::word(first.get()), Ordering::Relaxed);
        pm.flush_of(head);
        tree.root().publish();
        if let Err(e) = pm.commit() {
            tree.root().unpublish();
            heap.free(first);
            heap.trim();
            // There is no such tree, so nothing is saved.
            tree.root = None;
            return Err(e.into());
        }
        Ok(tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &NvOptions) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&root_kind::<K, V>(options)?))?;
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

impl<K, V, M> OrderedIndex<K, V> for NvTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
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

    forward!(changes, lookups, lookup_batches, checks);
}

impl<K, V, M> ReverseScan<K, V> for NvTree<K, V, M>
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

forward_impls!(only load: NvTree<K, V, M>, KeyRepr, Repr);
