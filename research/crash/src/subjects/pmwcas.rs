//! The persistent multi-word compare-and-swap: a map whose entries are several words each.
//!
//! ```text
//! root word 0 --> descriptor area
//! root word 1 --> node | count | first word of key 0 | ... | second word of key 0 | ...
//!                      | stock block 0 | ... | state of stock block 0 | ... |
//! ```
//!
//! Every word is in a line of its own. The words of a missing key are 0.
//!
//! | key % 8 | first word | second word | an insertion or removal changes | an update changes |
//! | --- | --- | --- | --- | --- |
//! | 0, 2, 4, 6 | value + 1 | the same | both and the count | both |
//! | 3 | value + 1 | 0 | the first | the first |
//! | 1 | offset of a heap block with value + 1 | value + 1 | both and the count | both |
//! | 5 | offset of a stock block with value + 1 | value + 1 | both, the count, and its state | both, its state |
//! | 7 | offset of a heap block with value + 1 | 0 | the first | the first |
//!
//! *Heap blocks* come from the root's allocator, whose state is volatile. Recovery rebuilds it with
//! a walk. *Stock blocks* come from a small allocator whose state is durable, so that recovery
//! needs no walk. The operation that makes a word lead to a block also sets the block's state to 1
//! (taken), and the block's [release](Recycle::release) stores 0. So a block is taken if and only
//! if a key leads to it, or an ended operation has still to recycle it.
//!
//! [`Policy`] decides what happens to old and new blocks, and differs with the key. Keys 7 and
//! every other key 5 use `FreeOne`. The other keys 5 take back the new block of a failed operation
//! themselves. Keys 1 retire the old block of a successful one. Some keys in blocks first expect a
//! wrong second word, so that operations fail without threads too.
//!
//! # Crash states
//! The states of the operation in flight. Recovery rolls it forward or back before it reads the
//! words.

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pmwcas::{Descriptor, DescriptorPool, FLAGS, Policy, Recycle};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::{give_way, lock};
use bristlecone_pmem::{Heap, Media, POff, PWord, Pool};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const ROOT: &str = "pmwcas";
/// Root word: the descriptor area.
const DESCRIPTORS: usize = 0;
/// Root word: the node.
const NODE: usize = 1;
const KEYS: u64 = 40;
const LINE: u64 = 64;
const BLOCK: u64 = 16;
/// Largest number of words of an operation.
const MAX_WORDS: usize = 4;

/// The multi-word swap as a subject, with a number of descriptors.
#[derive(Clone, Copy, Debug)]
pub struct PmwcasSubject {
    descriptors: usize,
}

impl PmwcasSubject {
    /// One descriptor, which every operation reuses.
    pub const ONE: Self = Self { descriptors: 1 };
    /// Several descriptors, so that operations meet.
    pub const SEVERAL: Self = Self { descriptors: 6 };
}

/// Returns the number of stock blocks: one for each key in a stock block, and one for each
/// operation that has taken one or has still to recycle one.
fn stock_for(descriptors: usize) -> u64 {
    KEYS / 8 + descriptors as u64
}

/// Returns the bytes of a node.
fn node_bytes(stock: u64) -> u64 {
    (1 + 2 * KEYS + 2 * stock) * LINE
}

fn kind() -> RootKind {
    RootKind {
        design: "pmwcas-subject".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: LINE as u32,
    }
}

/// A node's words.
#[derive(Clone)]
struct Node {
    pool: Arc<Pool<Sim>>,
    at: u64,
    /// Number of its stock blocks.
    stock: u64,
}

impl Node {
    /// Returns the word at `at`, in the node or in a heap block.
    fn word(&self, at: u64) -> &PWord {
        let pm = self.pool.pm();
        debug_assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "{at:#x}");
        // SAFETY: 1. node and blocks came from the allocator, or recovery checked them, so they are
        // inside the pool; 2. places are 8-aligned; 3. any bits are a valid PWord; 4. the mapping
        // lives as long as the pool, which `self` holds.
        unsafe { &*pm.base().wrapping_add(at as usize).cast_const().cast() }
    }

    fn count(&self) -> &PWord {
        self.word(self.at)
    }

    fn first(&self, key: u64) -> &PWord {
        self.word(self.at + (1 + key) * LINE)
    }

    fn second(&self, key: u64) -> &PWord {
        self.word(self.at + (1 + KEYS + key) * LINE)
    }

    fn stock_block(&self, i: u64) -> u64 {
        self.at + (1 + 2 * KEYS + i) * LINE
    }

    /// Returns the number of the stock block at `at`, if there is one.
    fn in_stock(&self, at: u64) -> Option<u64> {
        (0..self.stock).find(|i| self.stock_block(*i) == at)
    }

    /// 1 if the stock block is taken, else 0.
    fn state(&self, i: u64) -> &PWord {
        self.word(self.stock_block(self.stock + i))
    }
}

/// The two allocators of blocks.
#[derive(Clone)]
struct Blocks {
    node: Node,
    heap: Heap<Sim>,
    /// Stock blocks that may be handed out.
    free: Arc<Mutex<Vec<u64>>>,
}

impl Recycle for Blocks {
    fn check(&self, block: u64) -> Result<(), String> {
        match self.node.in_stock(block) {
            Some(_) => Ok(()),
            None => self.heap.check(block, BLOCK),
        }
    }

    fn release(&self, block: u64) {
        if let Some(i) = self.node.in_stock(block) {
            let (pm, state) = (self.node.pool.pm(), self.node.state(i));
            // ORDERING: Relaxed; the block is this thread's alone until `reuse` puts it on the free
            // list, under a mutex.
            state.store(pm, 0, Ordering::Relaxed);
            // PERSIST: the block is free, before the descriptor that names it is reused.
            pm.persist(state);
        }
    }

    fn reuse(&self, block: u64) {
        if self.node.in_stock(block).is_some() {
            lock(&self.free).push(block);
        } else {
            self.heap.free(POff::new(block));
        }
    }
}

impl Subject for PmwcasSubject {
    fn name(&self) -> String {
        format!("pmwcas-{}", self.descriptors)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let made = |e: &dyn std::fmt::Display| Fault::new(FaultKind::Progress, e.to_string());
        let pool = make_pool()?;
        let root = pool.create_root(ROOT, &kind()).map_err(|e| made(&e))?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let stock = stock_for(self.descriptors);
        let at = heap.alloc(node_bytes(stock)).map_err(|e| made(&e))?.get();
        let blocks = Blocks {
            node: Node {
                pool: Arc::clone(&pool),
                at,
                stock,
            },
            heap: heap.clone(),
            free: Arc::default(),
        };
        let recycle = Box::new(blocks.clone());
        let swaps = DescriptorPool::create(&heap, 1, self.descriptors, MAX_WORDS, recycle)
            .map_err(|e| made(&e))?;
        let live = LivePmwcas {
            swaps,
            node: blocks.node.clone(),
            blocks,
            root,
        };
        let pm = pool.pm();
        for line in 0..node_bytes(stock) / LINE {
            let word = live.node.word(at + line * LINE);
            // ORDERING (all): Relaxed; one thread, and nothing leads to the node yet.
            word.store(pm, 0, Ordering::Relaxed);
            // PERSIST: the empty node; fenced by `publish`, before the root counts.
            pm.flush_of(word);
        }
        live.take_stock();
        live.root.word(NODE).store(pm, at, Ordering::Relaxed);
        let word = live.root.word(DESCRIPTORS);
        word.store(pm, live.swaps.offset(), Ordering::Relaxed);
        // PERSIST: the root words of descriptors and node, in one line; fenced by `publish` too.
        pm.flush(word.addr(), 16);
        live.root.publish();
        Ok(Box::new(live))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let root = match pool.open_root(ROOT, Some(&kind())) {
            Ok(root) => root,
            Err(RootError::NotFound(_)) => return Ok(Opened::Absent),
            Err(e) => return Err(Fault::new(FaultKind::Recovery, e.to_string())),
        };
        recover(pool, root, stock_for(self.descriptors))
            .map(|live| Opened::Live(Box::new(live)))
            .map_err(|what| Fault::new(FaultKind::Recovery, what))
    }

    fn max_key(&self) -> u64 {
        KEYS - 1
    }
}

fn recover(pool: Arc<Pool<Sim>>, root: Root<Sim>, stock: u64) -> Result<LivePmwcas, String> {
    let guard = epoch::pin();
    let heap = root.heap();
    heap.begin_recovery();
    // ORDERING (both): Relaxed; the root is being opened.
    let swaps_at = root.word(DESCRIPTORS).load(pool.pm(), Ordering::Relaxed);
    let at = root.word(NODE).load(pool.pm(), Ordering::Relaxed);
    heap.check(at, node_bytes(stock))?;
    let blocks = Blocks {
        node: Node { pool, at, stock },
        heap: heap.clone(),
        free: Arc::default(),
    };
    let (swaps, _) = DescriptorPool::open(&heap, swaps_at, Box::new(blocks.clone()))?;
    swaps.mark(&heap, &guard)?;
    heap.mark(at, node_bytes(stock), &guard)?;
    let live = LivePmwcas {
        swaps,
        node: blocks.node.clone(),
        blocks,
        root,
    };
    for key in 0..KEYS {
        let first = live.swaps.check(live.node.first(key))?;
        match Kind::of(key) {
            Kind::Heap | Kind::HeapAlone if first != 0 => heap.mark(first, BLOCK, &guard)?,
            Kind::Stock if first != 0 && live.node.in_stock(first).is_none() => {
                return Err(format!("key {key} is in {first:#x}, which is no block"));
            }
            _ => {}
        }
    }
    live.take_stock();
    heap.finish_recovery();
    Ok(live)
}

/// The kind of a key's words. See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pair,
    Alone,
    Heap,
    Stock,
    HeapAlone,
}

impl Kind {
    fn of(key: u64) -> Self {
        match key % 8 {
            1 => Self::Heap,
            3 => Self::Alone,
            5 => Self::Stock,
            7 => Self::HeapAlone,
            _ => Self::Pair,
        }
    }

    /// Returns true if the key's value is in a block.
    fn boxed(self) -> bool {
        matches!(self, Self::Heap | Self::Stock | Self::HeapAlone)
    }

    /// Returns true if the key has one word.
    fn alone(self) -> bool {
        matches!(self, Self::Alone | Self::HeapAlone)
    }

    /// Returns true if a change is first tried with a wrong expectation.
    fn fails_first(key: u64) -> bool {
        matches!(key % 16, 1 | 13)
    }

    fn policy(self, key: u64) -> Policy {
        match self {
            Self::Pair | Self::Alone => Policy::None,
            Self::Heap => Policy::FreeNewOnFailure,
            Self::Stock if key % 16 == 5 => Policy::FreeOldOnSuccess,
            Self::Stock | Self::HeapAlone => Policy::FreeOne,
        }
    }
}

struct LivePmwcas {
    swaps: DescriptorPool<Sim>,
    node: Node,
    blocks: Blocks,
    root: Root<Sim>,
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

impl LivePmwcas {
    fn pool(&self) -> &Pool<Sim> {
        &self.node.pool
    }

    /// Fills the free list with the stock blocks that are not taken.
    fn take_stock(&self) {
        let pm = self.pool().pm();
        // ORDERING: Relaxed; no operation is under way.
        let free = |i: &u64| self.node.state(*i).load(pm, Ordering::Relaxed) == 0;
        let free = (0..self.node.stock).filter(free);
        *lock(&self.blocks.free) = free.map(|i| self.node.stock_block(i)).collect();
    }

    fn read(&self, word: &PWord) -> u64 {
        self.swaps.read(word)
    }

    /// Returns the value behind the content of a key's first word.
    fn value(&self, key: u64, first: u64) -> u64 {
        if Kind::of(key).boxed() {
            // ORDERING: Acquire; pairs with the Release of the word that leads to the block.
            let boxed = self
                .node
                .word(first)
                .load(self.pool().pm(), Ordering::Acquire);
            boxed.wrapping_sub(1)
        } else {
            first - 1
        }
    }

    /// Returns a new block with `content`, flushed but not fenced.
    fn new_block(&self, kind: Kind, content: u64) -> Result<u64, Fault> {
        let pm = self.pool().pm();
        let block = if kind == Kind::Stock {
            let free = lock(&self.blocks.free).pop();
            free.ok_or_else(|| progress("no stock block is free"))?
        } else {
            self.blocks.heap.alloc(BLOCK).map_err(progress)?.get()
        };
        // ORDERING: Relaxed; the swap publishes it.
        self.node.word(block).store(pm, content, Ordering::Relaxed);
        // PERSIST: the block; fenced with the descriptor, before a word leads to it.
        pm.flush_of(self.node.word(block));
        Ok(block)
    }

    /// Tries to change a key from the content of its first word to `value`, or to remove it
    /// (`None`).
    fn change(
        &self,
        mut swap: Descriptor<'_, Sim>,
        key: u64,
        first: u64,
        value: Option<u64>,
        wrong: bool,
        guard: &Guard,
    ) -> Result<bool, Fault> {
        let (kind, node) = (Kind::of(key), &self.node);
        let new = value.map_or(0, |value| value + 1);
        swap.reserve_entry(node.first(key), first, kind.policy(key))
            .map_err(progress)?;
        if !kind.alone() {
            let old_second = self.read(node.second(key));
            let expected = old_second + u64::from(wrong);
            swap.add_word(node.second(key), expected, new)
                .map_err(progress)?;
            if (first == 0) != (new == 0) {
                let count = self.read(node.count());
                let changed = if first == 0 {
                    count + 1
                } else {
                    count.wrapping_sub(1) & !FLAGS
                };
                swap.add_word(node.count(), count, changed)
                    .map_err(progress)?;
            }
        }
        let mut desired = new;
        if kind.boxed() && new != 0 {
            desired = self.new_block(kind, new)?;
            if let Some(i) = node.in_stock(desired) {
                swap.add_word(node.state(i), 0, 1).map_err(progress)?;
            }
        }
        swap.fill(node.first(key), desired).map_err(progress)?;
        let done = swap.execute().map_err(progress)?;
        match kind.policy(key) {
            // No durable word led to the new block.
            Policy::FreeOldOnSuccess if !done && desired != 0 => self.blocks.reuse(desired),
            Policy::FreeNewOnFailure if done && first != 0 => {
                self.blocks.heap.retire(POff::new(first), guard);
            }
            _ => {}
        }
        Ok(done)
    }

    /// Sets a key to `value`, or removes it. Returns false if the key exists against `there`.
    fn put(&self, key: u64, value: Option<u64>, there: Option<bool>) -> Result<bool, Fault> {
        let mut wrong = Kind::fails_first(key) && value.is_some();
        loop {
            // Allocates before this thread is pinned, since a pin would keep descriptors from
            // coming back.
            let swap = match self.swaps.allocate_descriptor() {
                Ok(swap) => swap,
                Err(_) if give_way() => continue,
                // Another test of the process holds back the epoch.
                Err(_) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            let guard = epoch::pin();
            let first = self.read(self.node.first(key));
            if there.is_some_and(|there| there != (first != 0)) {
                return Ok(false);
            }
            let done = self.change(swap, key, first, value, wrong, &guard)?;
            if done && wrong {
                let what = format!("key {key}: a swap succeeded that expected what is not there");
                return Err(Fault::new(FaultKind::Wrong, what));
            }
            if done {
                return Ok(true);
            }
            wrong = false;
        }
    }
}

impl Live for LivePmwcas {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        let done = match *op {
            Op::Insert(key, value) => self.put(key, Some(value), Some(false))?,
            Op::Upsert(key, value) => self.put(key, Some(value), None)?,
            Op::Update(key, value) => self.put(key, Some(value), Some(true))?,
            Op::Remove(key) => self.put(key, None, Some(true))?,
            Op::Get(key) => {
                let _guard = epoch::pin();
                let first = self.read(self.node.first(key));
                let value = (first != 0).then(|| self.value(key, first));
                return Ok(Reply::Found(value));
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                for key in super::batch_keys(first, step, count) {
                    self.put(key, Some(value), Some(false))?;
                }
                true
            }
            Op::Compact => {
                self.pool()
                    .compact()
                    .map_err(|e| progress(format!("{op:?}: {e}")))?;
                true
            }
            Op::Reopen => {
                return Err(progress(format!("{op:?}: the explorer closes and opens")));
            }
        };
        Ok(if done { Reply::Done } else { Reply::Refused })
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        for key in 0..KEYS {
            let first = self.read(self.node.first(key));
            if first != 0 {
                each(key, self.value(key, first));
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let pm = self.pool().pm();
        let broken = |what: String| Err(Fault::new(FaultKind::Structure, what));
        let leak = |what: String| Err(Fault::new(FaultKind::Leak, what));
        let (mut there, mut in_heap, mut led) = (0, 0, Vec::new());
        for key in 0..KEYS {
            let words =
                [self.node.first(key), self.node.second(key)].map(|word| self.swaps.check(word));
            let [Ok(first), Ok(second)] = words else {
                return broken(format!(
                    "key {key}: {words:?} where no operation is under way"
                ));
            };
            let kind = Kind::of(key);
            if kind == Kind::Stock && first != 0 {
                if self.node.in_stock(first).is_none() {
                    return broken(format!("key {key} is in {first:#x}, which is no block"));
                }
                led.push(first);
            }
            let whole = match first {
                0 => second == 0,
                _ if kind.alone() => second == 0,
                first => self.value(key, first).wrapping_add(1) == second,
            };
            if !whole {
                return broken(format!(
                    "key {key}: {first:#x} and {second:#x} do not belong together"
                ));
            }
            there += u64::from(first != 0 && !kind.alone());
            in_heap += u64::from(first != 0 && kind.boxed() && kind != Kind::Stock);
        }
        // ORDERING (all): Relaxed; no operation is under way.
        let counted = self.node.count().load(pm, Ordering::Relaxed);
        if counted != there {
            return broken(format!("{there} entries, {counted} counted"));
        }
        let (held_stock, held): (Vec<u64>, Vec<u64>) = (self.swaps.held_blocks().into_iter())
            .partition(|block| self.node.in_stock(*block).is_some());
        let free = lock(&self.blocks.free).clone();
        for i in 0..self.node.stock {
            let block = self.node.stock_block(i);
            let state = self.node.state(i).load(pm, Ordering::Relaxed);
            let times = |of: &[u64]| of.iter().filter(|one| **one == block).count();
            let whole = match (times(&led), times(&held_stock), times(&free)) {
                (1, 0, 0) => state == 1,
                (0, 1, 0) => state <= 1,
                (0, 0, 1) => state == 0,
                _ => false,
            };
            if !whole {
                return leak(format!(
                    "stock block {i}: state {state:#x}; keys lead to it {} times, it is to be recycled {} times, \
                     and free {} times",
                    times(&led),
                    times(&held_stock),
                    times(&free)
                ));
            }
        }
        let (live, held) = (self.blocks.heap.live_blocks(), held.len() as u64);
        if live != 2 + in_heap + held {
            return leak(format!(
                "{live} blocks are in use: descriptors, a node, {in_heap} values, {held} to be recycled"
            ));
        }
        verify_pool(self.pool(), false).map(|_| ())
    }

    fn close(mut self: Box<Self>) -> Result<(), Fault> {
        self.swaps.quiesce();
        // Dropping the pool, after its root, marks it clean.
        Ok(())
    }
}
