//! The allocator of activated blocks: a map whose values are in blocks of several sizes.
//!
//! ```text
//! root word 0 --> descriptor area
//! root word 1 --> table | owner word of key 0 | owner word of key 1 | ...   (a line each)
//! owner word  --> block | value | ... | value (last word) |   (64, 192 or 16,384 bytes, by key)
//!                 0 for a missing key
//! ```
//!
//! Every change is a swap of one owner word. It recycles the old block or, if it fails, the new
//! one. Recovery does not read the table. The check reads it afterwards: a block is active if and
//! only if an owner word leads to it, or an ended swap has still to recycle it.
//!
//! # Crash states
//! 1. The states of the swap in flight, with its blocks.
//! 2. The states of a chunk that is being assigned.

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::heap::activated::Activated;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pmwcas::{DescriptorPool, Policy};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::give_way;
use bristlecone_pmem::{Media, PWord, Pool};
use crossbeam_epoch as epoch;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ROOT: &str = "activated";
/// Root word: the descriptor area.
const DESCRIPTORS: usize = 0;
/// Root word: the table.
const TABLE: usize = 1;
const KEYS: u64 = 48;
const LINE: u64 = 64;

/// Activated blocks as a subject.
#[derive(Clone, Copy, Debug)]
pub struct ActivatedSubject;

fn kind() -> RootKind {
    RootKind {
        design: "activated".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: LINE as u32,
    }
}

/// Returns the bytes of a key's block. One of the classes has few blocks in a chunk.
fn bytes(key: u64) -> u64 {
    [64, 192, 16_384][key as usize % 3]
}

/// Returns the place of the last word of a key's value in its block. In a block of several lines it
/// is not in the first one.
fn last_word(key: u64) -> u64 {
    [8, 184, 8_192][key as usize % 3]
}

impl Subject for ActivatedSubject {
    fn name(&self) -> String {
        "activated".into()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = make_pool()?;
        let root = pool.create_root(ROOT, &kind()).map_err(progress)?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let blocks = Activated::of(&root);
        let swaps = DescriptorPool::create(&heap, 1, 4, 1, Box::new(blocks.clone()));
        let swaps = swaps.map_err(progress)?;
        let table = heap.alloc(KEYS * LINE).map_err(progress)?.get();
        let live = LiveActivated {
            swaps,
            blocks,
            table,
            root,
            pool,
        };
        let pm = live.pool.pm();
        for key in 0..KEYS {
            // ORDERING (all): Relaxed; one thread, and nothing leads to the table yet.
            live.owner(key).store(pm, 0, Ordering::Relaxed);
            // PERSIST: the empty table; fenced by `publish`, before the root counts.
            pm.flush_of(live.owner(key));
        }
        live.root.word(TABLE).store(pm, table, Ordering::Relaxed);
        let word = live.root.word(DESCRIPTORS);
        word.store(pm, live.swaps.offset(), Ordering::Relaxed);
        // PERSIST: the root words of descriptors and table, in one line; fenced by `publish` too.
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

fn recover(pool: Arc<Pool<Sim>>, root: Root<Sim>) -> Result<LiveActivated, String> {
    let guard = epoch::pin();
    let heap = root.heap();
    heap.begin_recovery();
    // ORDERING (both): Relaxed; the root is being opened.
    let at = root.word(DESCRIPTORS).load(pool.pm(), Ordering::Relaxed);
    let table = root.word(TABLE).load(pool.pm(), Ordering::Relaxed);
    let blocks = Activated::of(&root);
    let (swaps, _) = DescriptorPool::open(&heap, at, Box::new(blocks.clone()))?;
    swaps.mark(&heap, &guard)?;
    heap.mark(table, KEYS * LINE, &guard)?;
    heap.finish_recovery();
    Ok(LiveActivated {
        swaps,
        blocks,
        table,
        root,
        pool,
    })
}

struct LiveActivated {
    swaps: DescriptorPool<Sim>,
    blocks: Activated<Sim>,
    table: u64,
    root: Root<Sim>,
    pool: Arc<Pool<Sim>>,
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

impl LiveActivated {
    /// Returns the word at `at`, in the table or in a block.
    fn word(&self, at: u64) -> &PWord {
        let pm = self.pool.pm();
        assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "{at:#x}");
        // SAFETY: 1. the word is inside the pool and 8-aligned, as asserted; 2. any bits are a
        // valid PWord;
        // 3. the mapping lives as long as the pool, which `self` holds.
        unsafe { &*pm.base().wrapping_add(at as usize).cast_const().cast() }
    }

    fn owner(&self, key: u64) -> &PWord {
        self.word(self.table + key * LINE)
    }

    /// Returns the value in a key's block.
    fn value(&self, key: u64, block: u64) -> Result<u64, Fault> {
        let pm = self.pool.pm();
        // ORDERING (both): Acquire; pairs with the compare-and-swap that installs the block in its
        // owner word, after the stores of `new_block`.
        let first = self.word(block).load(pm, Ordering::Acquire);
        let last = self
            .word(block + last_word(key))
            .load(pm, Ordering::Acquire);
        if first == last {
            Ok(first)
        } else {
            let what = format!(
                "key {key}: block {block:#x} begins with {first:#x} and ends with {last:#x}"
            );
            Err(Fault::new(FaultKind::Structure, what))
        }
    }

    /// Returns a new block with `value`, flushed but not fenced.
    fn new_block(&self, key: u64, value: u64) -> Result<u64, Fault> {
        let pm = self.pool.pm();
        let block = self.blocks.reserve(bytes(key)).map_err(progress)?.get();
        for at in [block, block + last_word(key)] {
            // ORDERING: Relaxed; the swap publishes it.
            self.word(at).store(pm, value, Ordering::Relaxed);
            // PERSIST: the value; fenced with the descriptor, before a word leads to it.
            pm.flush_of(self.word(at));
        }
        Ok(block)
    }

    /// Sets a key to `value`, or removes it. Returns false if the key exists against `there`.
    fn put(&self, key: u64, value: Option<u64>, there: Option<bool>) -> Result<bool, Fault> {
        loop {
            // Allocates before this thread is pinned, since a pin would keep descriptors from
            // coming back.
            let Ok(mut swap) = self.swaps.allocate_descriptor() else {
                // Another thread of the schedule, or another test of the process, holds back the
                // epoch.
                if !give_way() {
                    std::thread::yield_now();
                }
                continue;
            };
            let _guard = epoch::pin();
            let old = self.swaps.read(self.owner(key));
            if there.is_some_and(|there| there != (old != 0)) {
                return Ok(false);
            }
            let new = value.map_or(Ok(0), |value| self.new_block(key, value))?;
            swap.add_word_with(self.owner(key), old, new, Policy::FreeOne)
                .map_err(progress)?;
            if swap.execute().map_err(progress)? {
                return Ok(true);
            }
        }
    }
}

impl Live for LiveActivated {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        let done = match *op {
            Op::Insert(key, value) => self.put(key, Some(value), Some(false))?,
            Op::Upsert(key, value) => self.put(key, Some(value), None)?,
            Op::Update(key, value) => self.put(key, Some(value), Some(true))?,
            Op::Remove(key) => self.put(key, None, Some(true))?,
            Op::Get(key) => {
                let _guard = epoch::pin();
                let block = self.swaps.read(self.owner(key));
                let value = (block != 0).then(|| self.value(key, block));
                return Ok(Reply::Found(value.transpose()?));
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
                (self.pool.compact()).map_err(|e| progress(format!("{op:?}: {e}")))?;
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
            let block = self.swaps.read(self.owner(key));
            if block != 0 {
                each(key, self.value(key, block)?);
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let leak = |what: String| Err(Fault::new(FaultKind::Leak, what));
        let mut led = BTreeSet::new();
        for key in 0..KEYS {
            let block = (self.swaps.check(self.owner(key)))
                .map_err(|what| Fault::new(FaultKind::Structure, format!("key {key}: {what}")))?;
            if block == 0 {
                continue;
            }
            if let Err(what) = self.blocks.check(block, bytes(key)) {
                return leak(format!(
                    "key {key} is in a block that is not its own: {what}"
                ));
            }
            if !led.insert(block) {
                return leak(format!("two keys are in block {block:#x}"));
            }
        }
        let held = self.swaps.held_blocks();
        if let Some(block) = held.iter().find(|block| led.contains(block)) {
            return leak(format!("block {block:#x} has a key and is to be recycled"));
        }
        let active = self.blocks.active_blocks();
        let lost = active
            .iter()
            .find(|block| !led.contains(block) && !held.contains(block));
        if let Some(block) = lost {
            return leak(format!(
                "block {block:#x} is active, and nothing leads to it"
            ));
        }
        verify_pool(&self.pool, false).map(|_| ())
    }

    fn close(mut self: Box<Self>) -> Result<(), Fault> {
        self.swaps.quiesce();
        self.blocks.give_back_empty();
        // Dropping the pool, after its root, marks it clean.
        Ok(())
    }
}
