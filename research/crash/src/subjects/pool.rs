//! The pool and its allocator: a map whose entries are roots.
//!
//! ```text
//! key n -> root "n" -- word 0 --> block | v | f(v, 1) | f(v, 2) | ...
//! ```
//!
//! The block's size depends on the value, from the smallest class to runs of chunks, so that the
//! pool grows, returns chunks and shrinks. Small blocks are written in every word, larger ones in
//! their first and last line, where another block's content would show if a block were handed out
//! twice.
//!
//! | operation | does |
//! | --- | --- |
//! | insert | root and block built under an unpublished root, then published |
//! | update | another block, NAW of word 0, the old block freed |
//! | remove | the root unpublished, then its block and chunks freed |
//! | compact | [`Pool::compact`] |
//! | reopen | clean shutdown |
//!
//! [`PoolSubject::regions`] starts just below the end of the first region and takes hundreds of
//! chunks at a time, so that regions with chunk tables of their own come and go.

use super::{open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::heap::CLASSES;
use bristlecone_pmem::media::Instrument;
use bristlecone_pmem::media::{LINE, MediaOptions, Sim};
use bristlecone_pmem::pool::layout::{CHUNK, REGION};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::{Access, Heap, Media, POff, PWord, Pool};
use crossbeam_epoch as epoch;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Root word: offset of the block.
const BLOCK: usize = 0;
/// Size up to which a block is written in every word.
const MAX_WHOLE: u64 = 256;

/// Size of a value's block, by the value modulo their number.
const SIZES: [u64; 8] = [
    16,
    256,
    48,
    4096,
    CHUNK / 2,
    CHUNK,
    CHUNK * 3 - 64,
    CHUNK * 7,
];
/// The sizes that fill regions.
const LARGE: [u64; 4] = [256, 300 * CHUNK, CHUNK, 400 * CHUNK];

/// The pool as a subject.
#[derive(Debug)]
pub struct PoolSubject {
    name: &'static str,
    initial: u64,
    capacity: u64,
    sizes: &'static [u64],
    keys: u64,
}

impl PoolSubject {
    /// Returns a pool that begins at its default size.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: "pool",
            initial: 0,
            capacity: 16 << 20,
            sizes: &SIZES,
            keys: 16,
        }
    }

    /// Returns a pool that fills regions.
    #[must_use]
    pub fn regions() -> Self {
        Self {
            name: "pool-regions",
            initial: REGION - (2 << 20),
            capacity: 6 * REGION,
            sizes: &LARGE,
            keys: 4,
        }
    }

    fn live(&self, pool: Arc<Pool<Sim>>) -> LivePool {
        LivePool {
            roots: RefCell::default(),
            sizes: self.sizes,
            settled: Cell::new(true),
            pool,
        }
    }
}

impl Default for PoolSubject {
    fn default() -> Self {
        Self::new()
    }
}

fn kind() -> RootKind {
    RootKind {
        design: "pool-subject".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 0,
    }
}

impl Subject for PoolSubject {
    fn name(&self) -> String {
        self.name.into()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        if self.initial > 0 {
            // The pool takes all of an existing file, as it takes a whole device.
            let options = MediaOptions {
                access: Access::Create,
                ..MediaOptions::default()
            };
            Sim::open(Path::new(super::PATH), self.initial, &options)
                .map_err(|e| Fault::new(FaultKind::Progress, e.to_string()))?;
        }
        Ok(Box::new(self.live(super::make_pool()?)))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let live = self.live(pool);
        live.recover()
            .map_err(|what| Fault::new(FaultKind::Recovery, what))?;
        Ok(Opened::Live(Box::new(live)))
    }

    /// The threads would share one map of open roots. The trees drive the pool from many threads.
    fn concurrent(&self) -> bool {
        false
    }

    fn max_key(&self) -> u64 {
        self.keys - 1
    }
}

/// An open root.
struct Entry {
    /// Offset of its block.
    block: u64,
    heap: Heap<Sim>,
    root: Root<Sim>,
}

struct LivePool {
    roots: RefCell<BTreeMap<u64, Entry>>,
    sizes: &'static [u64],
    /// True if no operation was done since the pool was opened.
    settled: Cell<bool>,
    pool: Arc<Pool<Sim>>,
}

/// Returns word `i` of the block of a value. For small values, only the first word can be 0.
fn content(value: u64, i: u64) -> u64 {
    value ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the numbers of the words that are written in a block of `bytes` bytes.
fn written(bytes: u64) -> impl Iterator<Item = u64> {
    let (words, line) = (bytes / 8, LINE as u64 / 8);
    let head = if bytes <= MAX_WHOLE { words } else { line };
    (0..head).chain(words.max(head + line) - line..words)
}

impl LivePool {
    fn bytes_of(&self, value: u64) -> u64 {
        self.sizes[(value % self.sizes.len() as u64) as usize]
    }

    /// Returns word `i` of the block at `block`, which must be at least `i * 8 + 8` bytes long.
    fn word(&self, block: u64, i: u64) -> &PWord {
        let pm = self.pool.pm();
        debug_assert!(block + i * 8 + 8 <= pm.len(), "blocks are in the pool");
        // SAFETY: 1. the block came from the allocator, or `Heap::check` accepted it at recovery,
        // so it is inside the pool, and the word is inside the block; 2. blocks are 8-aligned; 3.
        // any bits are a valid PWord; 4. the mapping lives as long as the pool, which `self` holds.
        unsafe {
            &*pm.base()
                .wrapping_add((block + i * 8) as usize)
                .cast::<PWord>()
        }
    }

    /// Returns a block that holds `value`. It is flushed but not fenced.
    fn make(&self, heap: &Heap<Sim>, value: u64) -> Result<u64, String> {
        let bytes = self.bytes_of(value);
        let block = heap.alloc(bytes).map_err(|e| e.to_string())?.get();
        let pm = self.pool.pm();
        for i in written(bytes) {
            // ORDERING: Relaxed; the word that leads here is stored with Release.
            self.word(block, i)
                .store(pm, content(value, i), Ordering::Relaxed);
        }
        // PERSIST: the block's first words, fenced by the caller before anything leads there.
        pm.flush_of(self.word(block, 0));
        let mut line = block / LINE as u64;
        for i in written(bytes) {
            let at = (block + i * 8) / LINE as u64;
            if at != line {
                line = at;
                // PERSIST: the block's next line, fenced by the caller too.
                pm.flush_of(self.word(block, i));
            }
        }
        Ok(block)
    }

    /// Returns the value in a block.
    fn value(&self, key: u64, block: u64) -> Result<u64, Fault> {
        let pm = self.pool.pm();
        // ORDERING (both): Relaxed; one thread.
        let value = self.word(block, 0).load(pm, Ordering::Relaxed);
        for i in written(self.bytes_of(value)) {
            let found = self.word(block, i).load(pm, Ordering::Relaxed);
            if found != content(value, i) {
                return Err(Fault::new(
                    FaultKind::Torn,
                    format!("root {key}: word {i} of {value}'s block {block:#x} is {found:#x}"),
                ));
            }
        }
        Ok(value)
    }

    fn insert(&self, key: u64, value: u64) -> Result<Reply, String> {
        let root = match self.pool.create_root(&key.to_string(), &kind()) {
            Ok(root) => root,
            Err(RootError::Exists(_)) => return Ok(Reply::Refused),
            Err(e) => return Err(e.to_string()),
        };
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let block = self.make(&heap, value)?;
        let pm = self.pool.pm();
        // ORDERING: Release; keeps the block's stores before the word that leads to the block. This
        // subject has one thread, so no load on another one pairs with it.
        root.word(BLOCK).store(pm, block, Ordering::Release);
        // PERSIST: the word that leads to the block; fenced with the block by `publish`, before the
        // root counts.
        pm.flush_of(root.word(BLOCK));
        root.publish();
        let entry = Entry { block, heap, root };
        self.roots.borrow_mut().insert(key, entry);
        Ok(Reply::Done)
    }

    fn update(&self, key: u64, value: u64) -> Result<Reply, String> {
        let mut roots = self.roots.borrow_mut();
        let Some(entry) = roots.get_mut(&key) else {
            return Ok(Reply::Refused);
        };
        let block = self.make(&entry.heap, value)?;
        let pm = self.pool.pm();
        // PERSIST: the block, before the word that leads to it.
        pm.fence();
        // PERSIST: (in `publish`) the new block counts, before the old one is freed.
        entry.root.word(BLOCK).publish(pm, block);
        // The subject has one thread, so no reader is in the old block.
        entry.heap.free(POff::new(entry.block));
        entry.block = block;
        Ok(Reply::Done)
    }

    fn remove(&self, key: u64) -> Reply {
        let Some(entry) = self.roots.borrow_mut().remove(&key) else {
            return Reply::Refused;
        };
        let planted = self.pool.pm().planted("pool-release-first");
        if !planted {
            entry.root.unpublish();
        }
        entry.heap.free(POff::new(entry.block));
        // All chunks go back, so that the slot can be used again.
        entry.heap.trim();
        if planted {
            entry.root.unpublish();
        }
        Reply::Done
    }

    /// Opens all roots and marks their blocks.
    fn recover(&self) -> Result<(), String> {
        let guard = epoch::pin();
        let mut roots = self.roots.borrow_mut();
        for info in self.pool.roots() {
            let wrong = |what: String| format!("root {:?}: {what}", info.name);
            let key: u64 = info.name.parse().map_err(|e| wrong(format!("{e}")))?;
            let root = self
                .pool
                .open_root(&info.name, Some(&kind()))
                .map_err(|e| e.to_string())?;
            let heap = root.heap();
            heap.begin_recovery();
            // ORDERING (both): Relaxed; the pool is being opened.
            let block = root.word(BLOCK).load(self.pool.pm(), Ordering::Relaxed);
            heap.check(block, 16).map_err(wrong)?;
            let value = self.word(block, 0).load(self.pool.pm(), Ordering::Relaxed);
            heap.mark(block, self.bytes_of(value), &guard)
                .map_err(wrong)?;
            heap.finish_recovery();
            if roots.insert(key, Entry { block, heap, root }).is_some() {
                return Err(wrong("there twice".into()));
            }
        }
        Ok(())
    }
}

impl Live for LivePool {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.settled.set(false);
        let there = |key| self.roots.borrow().contains_key(&key);
        let done = match *op {
            Op::Insert(key, value) => self.insert(key, value),
            Op::Update(key, value) => self.update(key, value),
            Op::Upsert(key, value) if there(key) => self.update(key, value),
            Op::Upsert(key, value) => self.insert(key, value),
            Op::Remove(key) => Ok(self.remove(key)),
            Op::Get(key) => {
                let block = self.roots.borrow().get(&key).map(|entry| entry.block);
                let found = block.map(|block| self.value(key, block)).transpose()?;
                Ok(Reply::Found(found))
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => super::batch_keys(first, step, count)
                .try_for_each(|key| self.insert(key, value).map(|_| ()))
                .map(|()| Reply::Done),
            Op::Compact => match self.pool.compact() {
                Ok(_) => Ok(Reply::Done),
                Err(e) => Err(e.to_string()),
            },
            Op::Reopen => Err("the explorer closes and opens".into()),
        };
        done.map_err(|what| Fault::new(FaultKind::Progress, format!("{op:?}: {what}")))
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        for (key, entry) in self.roots.borrow().iter() {
            each(*key, self.value(*key, entry.block)?);
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let leak = |what: String| Err(Fault::new(FaultKind::Leak, what));
        let report = verify_pool(&self.pool, self.settled.get())?;
        let roots = self.roots.borrow();
        let published = self.pool.roots().len();
        if published != roots.len() {
            let what = format!("{published} roots are published, {} open", roots.len());
            return Err(Fault::new(FaultKind::Structure, what));
        }
        let mut used = report.header_chunks * CHUNK;
        for (key, entry) in roots.iter() {
            let Entry { block, heap, root } = entry;
            // ORDERING: Relaxed; one thread.
            let word = root.word(BLOCK).load(self.pool.pm(), Ordering::Relaxed);
            if word != *block {
                let what = format!("root {key} leads to {word:#x}, expected {block:#x}");
                return Err(Fault::new(FaultKind::Structure, what));
            }
            let live = heap.live_blocks();
            if live != 1 || !heap.is_live(*block) {
                return leak(format!(
                    "root {key}: {live} blocks are in use; its block {block:#x} is{} among them",
                    if heap.is_live(*block) { "" } else { " not" }
                ));
            }
            let bytes = self.bytes_of(self.value(*key, *block)?);
            let class = CLASSES.iter().copied().find(|class| *class >= bytes);
            let expected = class.unwrap_or(bytes.next_multiple_of(CHUNK));
            if heap.block_bytes(*block) != Some(expected) {
                return leak(format!("root {key}: its block is not of {expected} bytes"));
            }
            used += expected;
        }
        let found = self.pool.info().used_bytes;
        if found != used {
            return leak(format!("{found} bytes are in use, {used} are reached"));
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // Dropping the pool, after its roots, marks it clean.
        Ok(())
    }
}
