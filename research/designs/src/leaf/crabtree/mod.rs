//! Crab-tree and Crab_opt: sorted leaves that are changed by shifting in place or by copying,
//! whichever costs less.
//!
//! After Wang, Chattopadhyay, Brihadiswarn: "Crab-tree: A Crash Recoverable B+-tree Variant for
//! Persistent Memory with ARMv8 Architecture" (ACM TECS 2020); section numbers are the paper's.
//!
//! | file | holds | section |
//! | --- | --- | --- |
//! | `leaf` | layout, landmarks, store order of a pair | 4.1 |
//! | `cost` | the cost of both ways on this medium | 4.2 |
//! | `shift` | shifting in place (SIP) | 4.2, 4.4 |
//! | `copy` | copy on write (COW) of one leaf, and of one to two | 4.2, 4.4 |
//! | `reshape` | the choice, the approximate probe, splits, merge, redistribution | 4.2, 4.4, 5.2 |
//! | `repair` | recovery of a leaf | 4.5 |
//!
//! Inner nodes are volatile. The [`LeafTree`] does the rest: routing, locks, rebuilding with
//! threads, scans, bulk load, verification.
//!
//! # Invariants
//! Besides the tree's, those of `leaf.rs`.
//!
//! # Concurrency
//! A leaf's lock covers its pairs and its link. A copy also takes the lock of the leaf before, and
//! a merge those of the siblings. A thread that holds a lock never waits for another: it releases
//! its locks and starts again, or leaves the leaf thin. A reader of a leaf that is copied meanwhile
//! sees the old content and starts again.
//!
//! # Crash states
//! 1. *In place*: a prefix of the stores (`shift.rs`); `repair.rs` undoes an insertion and finishes
//!    a removal.
//! 2. *Copy*, *redistribution*: either the old leaves or the new ones are reachable. The blocks of
//!    the others are free.
//! 3. *Split in place*: before the NAW of the head the leaf is as before. After it both halves are
//!    there, with pairs behind the lower half's last one, which recovery clears.
//! 4. *Merge*: before the NAW of the head the leaf is as before, with pairs behind its last. After
//!    it the leaves are merged.
//!
//! # The three optimizations of Crab_opt (section 5)
//! [`CrabOptions`] switches each of them.
//!
//! *Self-managed space.* On, leaves come from the heap's caches, which are refilled in bulk without
//! a persist for each leaf. Off, a general allocator does two things more. Each leaf that is
//! allocated or freed costs one more persisted word, its tag: the least that an allocator has to
//! write that itself remembers which blocks are in use. And a leaf that is allocated is filled with
//! nulls, as Algorithm 1, line 8 has it. Recovery needs neither, so nothing reads them, and they
//! are not written where crash states are explored.
//!
//! *Approximate probe.* On, an insertion or removal of a key that is not above the middle one
//! copies the leaf and finds the place while copying. Byte strings are still searched, since
//! comparing them means reading records.
//!
//! *16-byte stores.* On, and where the processor has such a store ([`PWord16::supported`]), SIP
//! shifts key and value as one, without a store fence between them. The failure-atomic unit is then
//! 16 bytes, which is a declared assumption ([`CrabOptions::failure_unit`]). On other processors,
//! two stores shift a pair, as if this were off. The paper has no fence between pairs either, since
//! its compare-and-swap orders them. Here a store fence does, which on x86-64 is no instruction.

mod copy;
mod cost;
mod leaf;
mod repair;
mod reshape;
mod shift;
#[cfg(test)]
mod tests;

pub use cost::Costs;

use crate::common::check_node_bytes;
use crate::index::{IfPresent, TreeError};
use crate::leaftree::{
    At, Attempt, Found, LeafDesign, LeafLayout, LeafTree, Moved, Pair, Removal, UNIT,
};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::cell::PWord16;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use crossbeam_utils::CachePadded;
use leaf::{Head, Leaf, capacity, terminators_end};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Leaf sizes in bytes.
pub const NODE_BYTES: &[u32] = &[256, 512, 1024, 2048, 4096, 8192];

/// A Crab-tree. See the module's head.
pub type CrabTree<K, V, M> = LeafTree<CrabDesign, K, V, M>;

/// Ways of changing a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The way that costs less (Crab-tree).
    #[default]
    Choose,
    /// Copying while there is space for it (COW-only, section 6.3).
    CopyOnWrite,
    /// Shifting in place; only splits and redistributions copy (SIP-only, section 6.3).
    ShiftInPlace,
}

/// Options of a Crab-tree. The pool stores `leaf_bytes`, and in the name of the design whether all
/// three optimizations are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrabOptions {
    /// Bytes of a leaf, one of [`NODE_BYTES`].
    pub leaf_bytes: u32,
    /// Shifting or copying.
    pub strategy: Strategy,
    /// Costs of both; `None` to measure the medium.
    pub costs: Option<Costs>,
    /// Self-managed space (section 5.1).
    pub self_managed: bool,
    /// Approximate probe (section 5.2).
    pub probe: bool,
    /// 16-byte stores (section 5.3).
    pub atomic16: bool,
    /// Threads that rebuild the inner nodes after a crash.
    pub recovery_threads: usize,
}

impl CrabOptions {
    /// Crab-tree in leaves of 1 KB.
    pub const PLAIN: Self = Self {
        leaf_bytes: 1024,
        strategy: Strategy::Choose,
        costs: None,
        self_managed: false,
        probe: false,
        atomic16: false,
        recovery_threads: 1,
    };

    /// Crab_opt in leaves of 1 KB.
    pub const OPTIMIZED: Self = Self {
        self_managed: true,
        probe: true,
        atomic16: true,
        ..Self::PLAIN
    };

    /// Returns how many bytes the medium has to write as one: 16 where pairs are shifted by 16-byte
    /// stores, else 8.
    #[must_use]
    pub fn failure_unit(&self) -> u8 {
        if self.atomic16 && PWord16::supported() {
            16
        } else {
            8
        }
    }
}

impl Default for CrabOptions {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// The first 256 bytes of a leaf; see `leaf.rs`.
#[repr(C, align(256))]
pub struct CrabLeaf {
    words: [PWord; 32],
}

// SAFETY: 32 persistent words, aligned to 256.
unsafe impl LeafLayout for CrabLeaf {}

impl std::fmt::Debug for CrabLeaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrabLeaf")
            .field("head", &self.words[0])
            .finish_non_exhaustive()
    }
}

/// Counts of what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrabStats {
    /// Insertions by shifting, without those that end a split.
    pub inserts_in_place: u64,
    /// Insertions by copying.
    pub inserts_by_copy: u64,
    /// Removals by shifting.
    pub removes_in_place: u64,
    /// Removals by copying.
    pub removes_by_copy: u64,
    /// Splits that copied the upper half.
    pub splits_in_place: u64,
    /// Splits that copied both halves.
    pub splits_by_copy: u64,
    /// Merges of two leaves.
    pub merges: u64,
    /// Redistributions between two leaves.
    pub redistributions: u64,
}

/// Events that are counted, in the order of [`CrabStats`].
#[derive(Clone, Copy, Debug)]
enum Event {
    InsertInPlace,
    InsertByCopy,
    RemoveInPlace,
    RemoveByCopy,
    SplitInPlace,
    SplitByCopy,
    Merge,
    Redistribute,
}

const EVENTS: usize = 8;
/// Number of counters of each event, so that threads seldom share one.
const SHARDS: usize = 16;

/// The leaf design of the Crab-tree.
#[derive(Debug)]
pub struct CrabDesign {
    options: CrabOptions,
    /// Number of pairs in a full leaf.
    capacity: usize,
    /// True if pairs are shifted by 16-byte stores.
    wide: bool,
    /// True if a general allocator's tags and nulls are written, because space is not self-managed.
    /// They are not written where crash states are explored: the explorer would report every flush
    /// and fence of a word that nothing reads as waste, and rightly so.
    general: bool,
    /// Empty until first needed if the costs are to be measured.
    costs: OnceLock<Costs>,
    counters: [CachePadded<[AtomicU64; EVENTS]>; SHARDS],
}

fn checked(options: &CrabOptions) -> Result<u64, TreeError> {
    check_node_bytes(options.leaf_bytes, NODE_BYTES)?;
    Ok(options.leaf_bytes.into())
}

impl CrabDesign {
    fn new<M: Media>(options: &CrabOptions, heap: &Heap<M>) -> Result<Self, TreeError> {
        let costs = OnceLock::new();
        if let Some(given) = options.costs {
            // Nothing else is there yet.
            let _ = costs.set(given);
        }
        Ok(Self {
            options: *options,
            capacity: capacity(checked(options)?),
            wide: options.failure_unit() == 16,
            general: !options.self_managed && !heap.pool().pm().tiny(),
            costs,
            counters: Default::default(),
        })
    }

    /// Returns the costs, which are known by the first decision.
    fn costs(&self) -> &Costs {
        self.costs.get().unwrap_or(&Costs::PAPER)
    }

    /// Returns the cost of writing a leaf with `n` pairs.
    fn write(&self, n: usize) -> u64 {
        let bytes = u64::from(self.options.leaf_bytes);
        self.costs().write(n, bytes, self.options.self_managed)
    }
}

/// Returns the calling thread's index into the counters.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed; any distribution of numbers will do.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.with(|mine| *mine)
}

impl CrabDesign {
    /// Returns how often each thing was done since the tree was opened.
    #[must_use]
    pub fn crab_stats(&self) -> CrabStats {
        let sum = |event: Event| {
            let shards = self.counters.iter();
            // ORDERING: Relaxed; a statistic.
            shards
                .map(|shard| shard[event as usize].load(Ordering::Relaxed))
                .sum()
        };
        CrabStats {
            inserts_in_place: sum(Event::InsertInPlace),
            inserts_by_copy: sum(Event::InsertByCopy),
            removes_in_place: sum(Event::RemoveInPlace),
            removes_by_copy: sum(Event::RemoveByCopy),
            splits_in_place: sum(Event::SplitInPlace),
            splits_by_copy: sum(Event::SplitByCopy),
            merges: sum(Event::Merge),
            redistributions: sum(Event::Redistribute),
        }
    }

    /// Returns true if 16-byte stores shift pairs: the options ask for them, and the processor has
    /// them.
    #[must_use]
    pub fn shifts_16_bytes(&self) -> bool {
        self.wide
    }
}

/// Operations on a tree that only this design has.
struct Crab<'t, K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>(&'t CrabTree<K, V, M>);

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Clone for Crab<'_, K, V, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Copy for Crab<'_, K, V, M> {}

impl<'t, K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Crab<'t, K, V, M> {
    /// Returns a view of a leaf in its whole length.
    #[inline(always)]
    fn view(self, leaf: &'t CrabLeaf) -> Leaf<'t, M> {
        Leaf::new(self.0.pm(), self.0.words(leaf), self.0.design.wide)
    }

    fn count_event(self, event: Event) {
        // ORDERING: Relaxed; a statistic.
        self.0.design.counters[shard()][event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true to copy, by the strategy or by the costs of shifting and copying.
    #[inline]
    fn copies(self, costs: impl FnOnce(&CrabDesign) -> (u64, u64)) -> bool {
        match self.0.design.options.strategy {
            Strategy::CopyOnWrite => true,
            Strategy::ShiftInPlace => false,
            Strategy::Choose => {
                let known = &self.0.design.costs;
                known.get_or_init(|| Costs::of(&self.0.heap));
                let (shift, copy) = costs(&self.0.design);
                copy < shift
            }
        }
    }
}

impl<K, V, M> LeafDesign<K, V, M> for CrabDesign
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Leaf = CrabLeaf;
    type Options = CrabOptions;

    const NAME: &'static str = "crabtree";
    const CAPACITY: usize = capacity(8192);
    const SORTED: bool = true;
    // The header and the pairs that a search ends at are an unknown number of lines apart.
    const PREFETCH: u64 = UNIT;

    fn name(options: &CrabOptions) -> &'static str {
        if options.self_managed && options.probe && options.atomic16 {
            "crabtree-opt"
        } else {
            "crabtree"
        }
    }

    fn node_bytes(options: &CrabOptions) -> Result<u64, TreeError> {
        checked(options)
    }

    #[inline(always)]
    fn leaf_bytes(&self) -> u64 {
        u64::from(self.options.leaf_bytes)
    }

    #[inline(always)]
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn create(options: &CrabOptions, _root: &Root<M>, heap: &Heap<M>) -> Result<Self, TreeError> {
        Self::new(options, heap)
    }

    fn open(
        options: &CrabOptions,
        _root: &Root<M>,
        heap: &Heap<M>,
        _clean: bool,
    ) -> Result<Self, TreeError> {
        Self::new(options, heap)
    }

    fn recovery_threads(options: &CrabOptions) -> usize {
        options.recovery_threads
    }

    #[inline(always)]
    fn search(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &CrabLeaf,
        key: &K,
        _hash: u32,
    ) -> Option<Found> {
        let leaf = Crab(tree).view(leaf);
        let order = |word| tree.compare_to_word(key, word);
        let slot = leaf.position(0, leaf.n(), order).ok()?;
        Some(Crab::<K, V, M>::found(&leaf, slot))
    }

    #[inline(always)]
    fn for_each(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &CrabLeaf,
        mut f: impl FnMut(usize, u64, u64),
    ) {
        let leaf = Crab(tree).view(leaf);
        for slot in 0..leaf.n() {
            let (key, value) = leaf.pair(slot);
            f(slot, key, value);
        }
    }

    fn count(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf) -> usize {
        Crab(tree).view(leaf).n()
    }

    #[inline(always)]
    fn value<'t>(tree: &'t LeafTree<Self, K, V, M>, leaf: &'t CrabLeaf, slot: usize) -> &'t PWord {
        Crab(tree).view(leaf).value_word(slot)
    }

    fn next(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf) -> u64 {
        Crab(tree).next_of(leaf)
    }

    fn link<'t>(
        tree: &'t LeafTree<Self, K, V, M>,
        leaf: &'t CrabLeaf,
        next: u64,
    ) -> (&'t PWord, u64) {
        let leaf = Crab(tree).view(leaf);
        let head = Head {
            next: (next / UNIT) as u32,
            ..leaf.head()
        };
        (leaf.head_word(), leaf.word_of(head))
    }

    fn fill(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf, pairs: &[Pair]) {
        let leaf = Crab(tree).view(leaf);
        let n = pairs.len();
        for (slot, pair) in pairs.iter().enumerate() {
            leaf.set(slot, (pair.key, pair.value));
        }
        leaf.terminate(n, terminators_end(n, leaf.capacity()));
        leaf.set_head(Head { n, next: 0 });
    }

    fn flush_filled(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf) {
        // PERSIST: the whole leaf; the tree fences it before anything leads to it.
        Crab(tree).view(leaf).flush_all();
    }

    fn insert(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf, pair: Pair, fenced: bool) -> bool {
        let leaf = Crab(tree).view(leaf);
        let n = leaf.n();
        if n == leaf.capacity() {
            return false;
        }
        let order = |word| tree.compare_words(pair.key, word);
        let (Ok(slot) | Err(slot)) = leaf.position(0, n, order);
        shift::insert(&leaf, slot, (pair.key, pair.value), fenced);
        true
    }

    fn remove(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf, found: &Found) -> usize {
        shift::remove(&Crab(tree).view(leaf), found.slot)
    }

    fn split(
        tree: &LeafTree<Self, K, V, M>,
        leaf: &CrabLeaf,
        new: u32,
        upper: &[Moved],
        pair: Pair,
        goes_right: bool,
    ) {
        let view = Crab(tree).view(leaf);
        Crab(tree).halve(&view, new, upper, goes_right.then_some(pair));
        repair::clear(&view, view.n());
        // PERSIST: the nulls behind the lower half, before anyone inserts there.
        tree.pm().fence();
        if !goes_right {
            // The split fenced the pair's records.
            let inserted = Self::insert(tree, leaf, pair, true);
            debug_assert!(inserted, "half the slots are empty");
        }
    }

    fn put<'t>(
        tree: &'t LeafTree<Self, K, V, M>,
        at: At<'t, CrabLeaf>,
        key: &K,
        _hash: u32,
        pair: Pair,
        present: IfPresent,
    ) -> Result<Attempt<'t>, SpaceError> {
        Crab(tree).put_in(at, key, pair, present)
    }

    fn take(tree: &LeafTree<Self, K, V, M>, at: At<'_, CrabLeaf>, key: &K, _hash: u32) -> Removal {
        Crab(tree).take_from(at, key)
    }

    fn thin_out(tree: &LeafTree<Self, K, V, M>, leaf: u32, key: &K, left: usize) {
        Crab(tree).thin(leaf, key, left);
    }

    fn unlink(tree: &LeafTree<Self, K, V, M>, before: &CrabLeaf, leaf: &CrabLeaf, flushed: bool) {
        if flushed {
            // PERSIST: the removed recovery position, before the leaf leaves the chain.
            tree.pm().fence();
        }
        Crab(tree).lead_past(before, leaf);
    }

    fn repair(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf) -> Result<u64, String> {
        let leaf = Crab(tree).view(leaf);
        let repaired = repair::repair(&leaf)?;
        Crab(tree).check_order(&leaf)?;
        leaf.sound()?;
        Ok(repaired.into())
    }

    fn check(tree: &LeafTree<Self, K, V, M>, leaf: &CrabLeaf) -> Result<(), String> {
        let leaf = Crab(tree).view(leaf);
        let n = leaf.head().n;
        if n > leaf.capacity() {
            return Err(format!("{n} pairs, where {} have room", leaf.capacity()));
        }
        leaf.sound()?;
        let end = terminators_end(n, leaf.capacity());
        if let Some(slot) = (n.max(1)..end).find(|slot| leaf.key(*slot) != leaf::NULL) {
            return Err(format!("slot {slot}, behind {n} pairs, is not null"));
        }
        Crab(tree).check_order(&leaf)
    }
}

impl<'t, K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Crab<'t, K, V, M> {
    /// Checks that keys ascend.
    fn check_order(self, leaf: &Leaf<'_, M>) -> Result<(), String> {
        let out_of_order = |slot: &usize| {
            self.0
                .compare_words(leaf.key(slot - 1), leaf.key(*slot))
                .is_ge()
        };
        match (1..leaf.n()).find(out_of_order) {
            Some(slot) => Err(format!(
                "slot {slot}: its key does not follow the one below"
            )),
            None => Ok(()),
        }
    }
}
