//! The persistent multi-word compare-and-swap: a map whose entries are several words each.
//!
//! ```text
//! root word 0 --> descriptor area      root word 1 --> node | count | first word of key 0 | ... | second word of key 0 | ...
//! ```
//!
//! Every word is in a line of its own. A word of a key that is not there is 0.
//!
//! | key | first word | second word | an insertion or removal changes | an update changes |
//! | --- | --- | --- | --- | --- |
//! | 4n, 4n + 2 | value + 1 | the same | both and the count | both |
//! | 4n + 1 | offset of a block with value + 1, recycled by policy | value + 1 | both and the count | both |
//! | 4n + 3 | value + 1 | 0 | the first | the first |
//!
//! # Crash states
//! Those of the operation in flight; recovery rolls it forward or back before the words are looked at.

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pmwcas::{Descriptor, DescriptorPool, FLAGS, Policy};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::give_way;
use bristlecone_pmem::{Heap, Media, PWord, Pool};
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ROOT: &str = "pmwcas";
/// Root word: the descriptor area.
const DESCRIPTORS: usize = 0;
/// Root word: the node.
const NODE: usize = 1;
const KEYS: u64 = 40;
const LINE: u64 = 64;
/// Bytes of the node.
const NODE_BYTES: u64 = (1 + 2 * KEYS) * LINE;
const BLOCK: u64 = 16;

/// The multi-word swap as a subject, with that many descriptors.
#[derive(Clone, Copy, Debug)]
pub struct PmwcasSubject {
    descriptors: usize,
}

impl PmwcasSubject {
    /// One descriptor: every operation uses it again.
    pub const ONE: Self = Self { descriptors: 1 };
    /// Several, so that operations meet.
    pub const SEVERAL: Self = Self { descriptors: 6 };
}

fn kind() -> RootKind {
    RootKind {
        design: "pmwcas-subject".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: NODE_BYTES as u32,
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
        let swaps = DescriptorPool::create(&heap, 1, self.descriptors, 3, Box::new(heap.clone()))
            .map_err(|e| made(&e))?;
        let node = heap.alloc(NODE_BYTES).map_err(|e| made(&e))?.get();
        let live = LivePmwcas {
            swaps,
            node,
            heap,
            root,
            pool,
        };
        let pm = live.pool.pm();
        for line in 0..=2 * KEYS {
            let word = live.word(node + line * LINE);
            // ORDERING (all): Relaxed; one thread, and nothing leads to the node yet.
            word.store(pm, 0, Ordering::Relaxed);
            // PERSIST: the empty node; fenced by `publish`.
            pm.flush_of(word);
        }
        live.root.word(NODE).store(pm, node, Ordering::Relaxed);
        let word = live.root.word(DESCRIPTORS);
        word.store(pm, live.swaps.offset(), Ordering::Relaxed);
        // PERSIST: what leads to descriptors and node, in one line; likewise.
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
        recover(pool, root)
            .map(|live| Opened::Live(Box::new(live)))
            .map_err(|what| Fault::new(FaultKind::Recovery, what))
    }

    fn max_key(&self) -> u64 {
        KEYS - 1
    }
}

fn recover(pool: Arc<Pool<Sim>>, root: Root<Sim>) -> Result<LivePmwcas, String> {
    let guard = epoch::pin();
    let heap = root.heap();
    heap.begin_recovery();
    // ORDERING (both): Relaxed; the root is being opened.
    let at = root.word(DESCRIPTORS).load(pool.pm(), Ordering::Relaxed);
    let node = root.word(NODE).load(pool.pm(), Ordering::Relaxed);
    heap.check(node, NODE_BYTES)?;
    let (swaps, _) = DescriptorPool::open(&heap, at, Box::new(heap.clone()))?;
    swaps.mark(&heap, &guard)?;
    heap.mark(node, NODE_BYTES, &guard)?;
    let live = LivePmwcas {
        swaps,
        node,
        heap,
        root,
        pool,
    };
    for key in (0..KEYS).filter(|key| boxed(*key)) {
        let block = live.read(live.first(key));
        if block != 0 {
            live.heap.mark(block, BLOCK, &guard)?;
        }
    }
    live.heap.finish_recovery();
    Ok(live)
}

/// True if the key's value is in a block.
fn boxed(key: u64) -> bool {
    key % 4 == 1
}

/// True if the key has one word.
fn single(key: u64) -> bool {
    key % 4 == 3
}

struct LivePmwcas {
    swaps: DescriptorPool<Sim>,
    node: u64,
    heap: Heap<Sim>,
    root: Root<Sim>,
    pool: Arc<Pool<Sim>>,
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

impl LivePmwcas {
    /// The word at `at`, of the node or a block.
    fn word(&self, at: u64) -> &PWord {
        let pm = self.pool.pm();
        debug_assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "{at:#x}");
        // SAFETY: 1. node and blocks came from the allocator or were checked by recovery; 2. places are 8-aligned; 3. any
        // bits are a valid PWord; 4. the mapping lives as long as the pool.
        unsafe { &*pm.base().wrapping_add(at as usize).cast_const().cast() }
    }

    fn count(&self) -> &PWord {
        self.word(self.node)
    }

    fn first(&self, key: u64) -> &PWord {
        self.word(self.node + (1 + key) * LINE)
    }

    fn second(&self, key: u64) -> &PWord {
        self.word(self.node + (1 + KEYS + key) * LINE)
    }

    fn read(&self, word: &PWord) -> u64 {
        self.swaps.read(word)
    }

    /// The value behind what a key's first word holds.
    fn value(&self, key: u64, first: u64) -> u64 {
        if boxed(key) {
            // ORDERING: Acquire; pairs with the Release of the word that leads to the block.
            self.word(first).load(self.pool.pm(), Ordering::Acquire) - 1
        } else {
            first - 1
        }
    }

    /// Tries to change a key from what its first word holds to `value` (to nothing, if `None`).
    fn change(
        &self,
        mut swap: Descriptor<'_, Sim>,
        key: u64,
        first: u64,
        value: Option<u64>,
    ) -> Result<bool, Fault> {
        let pm = self.pool.pm();
        let new = value.map_or(0, |value| value + 1);
        let old_second = self.read(self.second(key));
        let count = self.read(self.count());
        let policy = if boxed(key) {
            Policy::FreeOne
        } else {
            Policy::None
        };
        swap.reserve_entry(self.first(key), first, policy)
            .map_err(progress)?;
        if !single(key) {
            swap.add_word(self.second(key), old_second, new)
                .map_err(progress)?;
            if (first == 0) != (new == 0) {
                let changed = if first == 0 {
                    count + 1
                } else {
                    count.wrapping_sub(1) & !FLAGS
                };
                swap.add_word(self.count(), count, changed)
                    .map_err(progress)?;
            }
        }
        let mut desired = new;
        if boxed(key) && new != 0 {
            desired = self.heap.alloc(BLOCK).map_err(progress)?.get();
            // ORDERING: Relaxed; the swap publishes it.
            self.word(desired).store(pm, new, Ordering::Relaxed);
            // PERSIST: the block; fenced with the descriptor, before a word leads to it.
            pm.flush_of(self.word(desired));
        }
        swap.fill(self.first(key), desired).map_err(progress)?;
        swap.execute().map_err(progress)
    }

    /// Changes a key that is there (or is not, if `absent`) to `value`; false if it is otherwise.
    fn put(&self, key: u64, value: Option<u64>, there: Option<bool>) -> Result<bool, Fault> {
        loop {
            // Before this thread is pinned, which would keep descriptors from coming back.
            let swap = match self.swaps.allocate_descriptor() {
                Ok(swap) => swap,
                Err(_) if give_way() => continue,
                // Another test of the process holds back the epoch.
                Err(_) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            let _guard = epoch::pin();
            let first = self.read(self.first(key));
            if there.is_some_and(|there| there != (first != 0)) {
                return Ok(false);
            }
            if self.change(swap, key, first, value)? {
                return Ok(true);
            }
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
                let first = self.read(self.first(key));
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
                self.pool
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
            let first = self.read(self.first(key));
            if first != 0 {
                each(key, self.value(key, first));
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let pm = self.pool.pm();
        let broken = |what: String| Err(Fault::new(FaultKind::Structure, what));
        let (mut there, mut blocks) = (0, 0);
        for key in 0..KEYS {
            // ORDERING (all): Relaxed; no operation is under way.
            let words =
                [self.first(key), self.second(key)].map(|word| word.load(pm, Ordering::Relaxed));
            if words.iter().any(|word| word & FLAGS != 0) {
                return broken(format!(
                    "key {key}: {words:#x?} where no operation is under way"
                ));
            }
            let whole = match words[0] {
                0 => words[1] == 0,
                _ if single(key) => words[1] == 0,
                first => self.value(key, first) + 1 == words[1],
            };
            if !whole {
                return broken(format!("key {key}: {words:#x?} do not belong together"));
            }
            there += u64::from(words[0] != 0 && !single(key));
            blocks += u64::from(words[0] != 0 && boxed(key));
        }
        let counted = self.count().load(pm, Ordering::Relaxed);
        if counted != there {
            return broken(format!("{there} entries, {counted} counted"));
        }
        let live = self.heap.live_blocks();
        let held = self.swaps.held_blocks().len() as u64;
        if live != 2 + blocks + held {
            let what = format!(
                "{live} blocks are in use: descriptors, a node, {blocks} values, {held} to be recycled"
            );
            return Err(Fault::new(FaultKind::Leak, what));
        }
        verify_pool(&self.pool, false).map(|_| ())
    }

    fn close(mut self: Box<Self>) -> Result<(), Fault> {
        self.swaps.quiesce();
        // Dropping the pool, after its root, marks it clean.
        Ok(())
    }
}
