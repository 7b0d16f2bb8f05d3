//! Scan-recovered allocation: no persist per block (`docs/design.md`, "Allocation").
//!
//! Persistent state is only which chunk belongs to which root and how it is cut (the chunk table).
//! Which blocks are in use is volatile: recovery walks the structure and [marks](Heap::mark) what
//! it reaches; a clean close saves the marks instead. So allocating or freeing a block costs no
//! flush and no fence, but for one persist when a fresh chunk is assigned (every 256 leaves).
//!
//! ```text
//! alloc: thread's cache -> chunk with untaken blocks -> free chunk (persist) -> pool grows
//! free:  readers leave (epoch) -> thread's cache -> chunk -> chunk all free -> pool (persist)
//! ```
//!
//! # Invariants
//! 1. Blocks are aligned to their size where that is a power of two, else to the largest power of
//!    two that divides it (256 for a 768-byte leaf); chunks are aligned to 64 KiB.
//! 2. A block is in exactly one of: the structure (live), a cache, the epoch's hands, its chunk.
//! 3. After recovery a block is live if and only if the structure reaches it: nothing leaks.
//!
//! # Crash states
//! Whatever was allocated and not linked, or unlinked and not yet free, is simply not reached by
//! the walk. A chunk whose blocks are all unreached is given back to the pool.

pub mod activated;
mod chunk;

/// For tests that write to damaged pools. There a structure may own a block twice and so free it twice, or split two
/// leaves at the same key, which is taken in stride; everywhere else that is a mistake that debug builds stop at.
#[doc(hidden)]
pub mod damage_is_expected {
    use std::cell::Cell;

    thread_local! {
        static ASKED: Cell<bool> = const { Cell::new(false) };
    }

    /// From now on, by this thread.
    pub fn here() {
        ASKED.set(true);
    }

    /// Whether this thread has asked for that.
    pub fn asked() -> bool {
        ASKED.get()
    }
}

use crate::error::SpaceError;
use crate::media::{LINE, Media, cpu};
use crate::off::POff;
use crate::pool::layout::{CHUNK, ChunkUse};
use crate::pool::{MAX_RUN, Pool};
use crate::sync::lock;
use chunk::{ChunkState, ChunkStates, RUN};
use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::CachePadded;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

/// Block sizes in bytes. Larger blocks take whole chunks.
pub const CLASSES: [u64; 21] = [
    16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
    12288, 16384, 32768,
];

/// The largest block in bytes.
pub const MAX_BLOCK: u64 = MAX_RUN as u64 * CHUNK;

const SHARDS: usize = 32;

/// What small blocks are multiples of, and the largest of these.
const GRAIN: u64 = 16;
const SMALL: u64 = 256;

/// The class of each number of grains.
const CLASS_OF_SMALL: [u8; (SMALL / GRAIN) as usize + 1] = {
    let mut classes = [0; (SMALL / GRAIN) as usize + 1];
    let mut grains = 0;
    while grains < classes.len() {
        let mut class = 0;
        while CLASSES[class] < grains as u64 * GRAIN {
            class += 1;
        }
        classes[grains] = class as u8;
        grains += 1;
    }
    classes
};

/// The class of the smallest block that holds `bytes`; `None` if it takes whole chunks.
#[inline]
fn class_of(bytes: u64) -> Option<u8> {
    if bytes <= SMALL {
        return Some(CLASS_OF_SMALL[bytes.div_ceil(GRAIN) as usize]);
    }
    // At most 21 entries: the position always fits.
    let class = CLASSES.partition_point(|size| *size < bytes);
    (class < CLASSES.len()).then_some(class as u8)
}

/// How many blocks of a class move between a cache and its chunks at a time.
fn batch(class: u8) -> usize {
    (32_768 / CLASSES[usize::from(class)]).clamp(1, 32) as usize
}

/// How many blocks of a class a cache holds: what readers leave behind comes in bursts.
fn cached_most(class: u8) -> usize {
    (32_768 / CLASSES[usize::from(class)]).clamp(2, 1024) as usize
}

/// Orders a block's last use before its next: a search that came too late and sees a store to the new
/// content also sees the version that says so.
#[inline]
fn announce_reuse() {
    // ORDERING: Release; pairs with the Acquire fence with which a reader validates a version.
    fence(Ordering::Release);
}

/// This thread's cache number.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed; any distribution of numbers will do.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.with(|mine| *mine)
}

/// How many blocks ahead of those that are handed out a cache's blocks are asked for.
const AHEAD: usize = 8;

/// A root's allocator: the volatile part, shared with deferred frees.
#[derive(Debug)]
pub(crate) struct Core {
    owner: u8,
    chunks: ChunkStates,
    /// Per class: chunks that have untaken blocks.
    partial: [Mutex<Vec<u32>>; CLASSES.len()],
    caches: [CachePadded<Mutex<[Vec<u64>; CLASSES.len()]>>; SHARDS],
    /// Every chunk (first chunk of a run) that has a state.
    owned: Mutex<Vec<u32>>,
    /// Chunks and runs without a taken block, waiting to be given back to the pool.
    empty: Mutex<Vec<u32>>,
    empty_count: AtomicUsize,
}

impl Core {
    /// The allocator of root slot `owner` in a pool that can grow to `chunks` chunks.
    pub(crate) fn new(owner: u8, chunks: usize) -> Self {
        Self {
            owner,
            chunks: ChunkStates::new(chunks),
            partial: std::array::from_fn(|_| Mutex::default()),
            caches: std::array::from_fn(|_| CachePadded::new(Mutex::default())),
            owned: Mutex::default(),
            empty: Mutex::default(),
            empty_count: AtomicUsize::new(0),
        }
    }

    fn adopt(&self, chunk: u32, state: ChunkState, guard: &Guard) {
        self.chunks.set(chunk, Some(state), guard);
        lock(&self.owned).push(chunk);
    }

    /// Splits an offset into its chunk's state and the block's number.
    fn block<'g>(&self, off: u64, guard: &'g Guard) -> Option<(u32, &'g ChunkState, u32)> {
        let chunk = u32::try_from(off / CHUNK).ok()?;
        let state = self.chunks.get(chunk, guard)?;
        let within = off % CHUNK;
        let block = within / state.block_bytes;
        (within.is_multiple_of(state.block_bytes) && block < u64::from(state.blocks)).then_some((
            chunk,
            state,
            block as u32,
        ))
    }

    /// Marks a block that leaves a cache as live.
    #[inline]
    fn hand_out(&self, off: u64, guard: &Guard) {
        if let Some((_, state, block)) = self.block(off, guard) {
            let fresh = state.set_live(block);
            debug_assert!(fresh, "block {off:#x} handed out twice");
        }
    }

    /// Blocks that no one can reach any more go back to this thread's cache.
    fn recycle(&self, offs: &[u64], guard: &Guard) {
        let mut spilt: Vec<(u8, Vec<u64>)> = Vec::new();
        let mut caches = lock(&self.caches[shard()]);
        for &off in offs {
            let Some((chunk, state, _)) = self.block(off, guard) else {
                debug_assert!(false, "recycling {off:#x}, which is no block");
                continue;
            };
            let class = state.class;
            if class == RUN {
                state.give_back(0);
                self.queue_empty(chunk);
                continue;
            }
            let cache = &mut caches[usize::from(class)];
            cache.push(off);
            let most = cached_most(class);
            if cache.len() > most {
                spilt.push((class, cache.drain(..most / 2).collect()));
            }
        }
        drop(caches);
        for (class, offs) in spilt {
            self.return_blocks(class, &offs, guard);
        }
    }

    fn return_blocks(&self, class: u8, offs: &[u64], guard: &Guard) {
        if offs.is_empty() {
            return;
        }
        let mut partial = lock(&self.partial[usize::from(class)]);
        for &off in offs {
            let Some((chunk, state, block)) = self.block(off, guard) else {
                continue;
            };
            let untaken = state.give_back(block);
            if untaken == 1 && state.blocks > 1 || state.blocks == untaken && state.blocks == 1 {
                partial.push(chunk);
            }
            // One empty chunk is kept, so that a leaf going back and forth costs no persist.
            if untaken == state.blocks && partial.len() > 1 {
                partial.retain(|c| *c != chunk);
                self.queue_empty(chunk);
            }
        }
    }

    fn queue_empty(&self, chunk: u32) {
        lock(&self.empty).push(chunk);
        // ORDERING: Relaxed; a hint that the queue is worth looking at.
        self.empty_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts all cached blocks back into their chunks.
    pub(crate) fn empty_caches(&self) {
        let guard = epoch::pin();
        for cache in &self.caches {
            for class in 0..CLASSES.len() {
                let offs = std::mem::take(&mut lock(cache)[class]);
                self.return_blocks(class as u8, &offs, &guard);
            }
        }
        for partial in &self.partial {
            let mut partial = lock(partial);
            partial.retain(|&chunk| {
                let empty = self
                    .chunks
                    .get(chunk, &guard)
                    // ORDERING: Relaxed; under the class lock.
                    .is_some_and(|state| state.untaken.load(Ordering::Relaxed) == state.blocks);
                if empty {
                    self.queue_empty(chunk);
                }
                !empty
            });
        }
    }

    /// Takes the queue of empty chunks, as runs (first chunk, length); the caller releases them.
    pub(crate) fn take_empty(&self) -> Vec<(u32, u32)> {
        let guard = epoch::pin();
        // In order of place, so that the same run makes the same stores.
        let queued: BTreeSet<u32> = std::mem::take(&mut *lock(&self.empty))
            .into_iter()
            .collect();
        // ORDERING: Relaxed; a hint.
        self.empty_count.fetch_sub(queued.len(), Ordering::Relaxed);
        lock(&self.owned).retain(|chunk| !queued.contains(chunk));
        let mut runs = Vec::with_capacity(queued.len());
        for chunk in queued {
            if let Some(state) = self.chunks.get(chunk, &guard) {
                runs.push((chunk, state.chunks));
                self.chunks.set(chunk, None, &guard);
            }
        }
        runs
    }

    /// Bytes of owned chunks that are not live blocks.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.sum(|state| {
            u64::from(state.chunks) * CHUNK - u64::from(state.live_blocks()) * state.block_bytes
        })
    }

    /// The root slot that it serves.
    pub(crate) fn owner(&self) -> u8 {
        self.owner
    }

    /// Checks that the allocator knows exactly the chunks of `durable`, cut the same way, and that each
    /// chunk's state agrees with itself. Returns how many have no live block.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn verify(
        &self,
        durable: impl Iterator<Item = (u32, ChunkUse)>,
    ) -> Result<u64, String> {
        let guard = epoch::pin();
        let owned: HashSet<u32> = lock(&self.owned).iter().copied().collect();
        let (mut idle, mut seen) = (0, 0);
        for (chunk, used) in durable {
            if matches!(used, ChunkUse::Activated { .. }) {
                continue;
            }
            let broken = |what: &str| format!("chunk {chunk} of root slot {}: {what}", self.owner);
            let state = self.chunks.get(chunk, &guard);
            let Some(state) = state.filter(|_| owned.contains(&chunk)) else {
                return Err(broken("its allocator does not know it"));
            };
            let (class, chunks) = match used {
                ChunkUse::Blocks { class, .. } => (class, 1),
                ChunkUse::Run { chunks, .. } => (RUN, chunks),
                ChunkUse::Free | ChunkUse::Header | ChunkUse::Activated { .. } => continue,
            };
            if (state.class, state.chunks) != (class, chunks) {
                return Err(broken("its allocator cuts it otherwise"));
            }
            state.verify().map_err(|what| broken(&what))?;
            idle += u64::from(state.live_blocks() == 0);
            seen += 1;
        }
        if seen == owned.len() {
            Ok(idle)
        } else {
            Err(format!(
                "root slot {}: its allocator knows {} chunks, {seen} are assigned to it",
                self.owner,
                owned.len()
            ))
        }
    }

    fn sum(&self, f: impl Fn(&ChunkState) -> u64) -> u64 {
        let guard = epoch::pin();
        lock(&self.owned)
            .iter()
            .filter_map(|c| self.chunks.get(*c, &guard))
            .map(f)
            .sum()
    }
}

/// What a root's allocator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of chunks that belong to the root.
    pub chunk_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// DRAM bytes of the volatile state.
    pub dram_bytes: u64,
}

/// A root's allocator. See the module's head.
pub struct Heap<M: Media> {
    pool: Arc<Pool<M>>,
    core: Arc<Core>,
}

impl<M: Media> Clone for Heap<M> {
    fn clone(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            core: Arc::clone(&self.core),
        }
    }
}

impl<M: Media> std::fmt::Debug for Heap<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap")
            .field("owner", &self.core.owner)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Heap<M> {
    pub(crate) fn of(pool: &Arc<Pool<M>>, owner: u8) -> Self {
        Self {
            pool: Arc::clone(pool),
            core: pool.heap_core(owner),
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// A block of at least `bytes` bytes. Its content is arbitrary. Costs no persist unless a fresh
    /// chunk is needed (one line, one fence).
    ///
    /// # Errors
    /// [`SpaceError`] when the pool cannot grow or the block would be larger than [`MAX_BLOCK`].
    pub fn alloc(&self, bytes: u64) -> Result<POff<u8>, SpaceError> {
        match class_of(bytes) {
            Some(class) => self.alloc_block(class),
            None => self.alloc_run(bytes),
        }
    }

    fn alloc_block(&self, class: u8) -> Result<POff<u8>, SpaceError> {
        let guard = epoch::pin();
        let cached = {
            let cache = &mut lock(&self.core.caches[shard()])[usize::from(class)];
            let cached = cache.pop();
            // Who writes to blocks one after the other finds them in the cache.
            if let Some(later) = cache.len().checked_sub(AHEAD) {
                let place = self.pool.pm().base().wrapping_add(cache[later] as usize);
                cpu::prefetch(place, LINE);
            }
            cached
        };
        let off = match cached {
            Some(off) => off,
            None => self.refill(class, &guard)?,
        };
        self.core.hand_out(off, &guard);
        announce_reuse();
        Ok(POff::new(off))
    }

    /// Allocates blocks of at least these sizes, as [`alloc`](Self::alloc) does one, and asks for the first line of each: for who is going to
    /// write to all of them.
    ///
    /// # Errors
    /// As of [`alloc`](Self::alloc); some may have been given to `each` then.
    pub fn alloc_each(
        &self,
        sizes: impl Iterator<Item = u64>,
        mut each: impl FnMut(POff<u8>),
    ) -> Result<(), SpaceError> {
        let guard = epoch::pin();
        let shard = &self.core.caches[shard()];
        let mut caches = lock(shard);
        for bytes in sizes {
            let cached = class_of(bytes).and_then(|class| caches[usize::from(class)].pop());
            let off = match cached {
                Some(off) => {
                    self.core.hand_out(off, &guard);
                    POff::new(off)
                }
                None => {
                    drop(caches);
                    let off = self.alloc(bytes)?;
                    caches = lock(shard);
                    off
                }
            };
            cpu::prefetch(self.pool.pm().base().wrapping_add(off.get() as usize), LINE);
            each(off);
        }
        announce_reuse();
        Ok(())
    }

    /// Moves a batch from a chunk to this thread's cache; returns one of them.
    fn refill(&self, class: u8, guard: &Guard) -> Result<u64, SpaceError> {
        self.release_empty();
        let mut partial = lock(&self.core.partial[usize::from(class)]);
        if partial.is_empty() {
            let used = ChunkUse::Blocks {
                owner: self.core.owner,
                class,
            };
            let chunk = match self.pool.assign_chunks(1, used) {
                Ok(chunk) => chunk,
                Err(e) => {
                    drop(partial);
                    // Another thread's cache may still hold some.
                    return self.steal(class).ok_or(e);
                }
            };
            self.core.adopt(chunk, ChunkState::blocks_of(class), guard);
            partial.push(chunk);
        }
        let most = batch(class);
        let mut got = Vec::with_capacity(most);
        while got.len() < most
            && let Some(&chunk) = partial.last()
        {
            let Some(state) = self.core.chunks.get(chunk, guard) else {
                return Err(SpaceError::io(
                    "allocating",
                    std::io::Error::other(format!("chunk {chunk} lost its state")),
                ));
            };
            let (start, before) = (u64::from(chunk) * CHUNK, got.len());
            state.take(most - got.len(), |block| {
                got.push(start + u64::from(block) * state.block_bytes)
            });
            // ORDERING: Relaxed; under the class lock.
            if state.untaken.load(Ordering::Relaxed) == 0 {
                partial.pop();
            } else if got.len() == before {
                break;
            }
        }
        drop(partial);
        // The cache is popped from its end: lowest address first.
        got.reverse();
        let first = got.pop();
        lock(&self.core.caches[shard()])[usize::from(class)].extend(got);
        first.ok_or_else(|| {
            SpaceError::io(
                "allocating",
                std::io::Error::other("a partial chunk without a block"),
            )
        })
    }

    fn steal(&self, class: u8) -> Option<u64> {
        self.core
            .caches
            .iter()
            .find_map(|cache| lock(cache)[usize::from(class)].pop())
    }

    fn alloc_run(&self, bytes: u64) -> Result<POff<u8>, SpaceError> {
        if bytes > MAX_BLOCK {
            return Err(SpaceError::TooLarge {
                wanted: bytes,
                most: MAX_BLOCK,
            });
        }
        self.release_empty();
        let chunks = bytes.div_ceil(CHUNK) as u32;
        let first = self.pool.assign_chunks(
            chunks,
            ChunkUse::Run {
                owner: self.core.owner,
                chunks,
            },
        )?;
        let guard = epoch::pin();
        let state = ChunkState::run(chunks);
        state.take(1, |block| {
            state.set_live(block);
        });
        self.core.adopt(first, state, &guard);
        announce_reuse();
        Ok(POff::new(u64::from(first) * CHUNK))
    }

    /// Gives empty chunks back to the pool (one line, one fence each).
    fn release_empty(&self) {
        // ORDERING: Relaxed; a hint.
        if self.core.empty_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (chunk, chunks) in self.core.take_empty() {
            self.pool.release_chunks(chunk, chunks);
        }
    }

    /// Frees a block that was never reachable.
    pub fn free(&self, off: POff<u8>) {
        let guard = epoch::pin();
        if self.unlive(off, &guard) {
            self.core.recycle(&[off.get()], &guard);
            self.release_empty();
        }
    }

    /// Frees a block that readers may still be in: it is reused once those pinned now have left.
    /// That it is unreachable must be durable already.
    pub fn retire(&self, off: POff<u8>, guard: &Guard) {
        if self.unlive(off, guard) {
            self.defer(move |core, guard| core.recycle(&[off.get()], guard), guard);
        }
    }

    /// As [`retire`](Self::retire), of several blocks.
    pub fn retire_all(&self, mut offs: Vec<u64>, guard: &Guard) {
        offs.retain(|off| self.unlive(POff::new(*off), guard));
        if !offs.is_empty() {
            self.defer(move |core, guard| core.recycle(&offs, guard), guard);
        }
    }

    /// Calls `recycle` once readers have left.
    fn defer(&self, recycle: impl FnOnce(&Core, &Guard) + Send + 'static, guard: &Guard) {
        let core = Arc::clone(&self.core);
        guard.defer(move || {
            // Pinning here would collect again: on a thread that is exiting, each pin is a new
            // participant's first, and the recursion ends with the stack.
            // SAFETY: 1. the collector runs this while the thread is pinned, so no state of a
            // chunk that was reachable since is freed; 2. nothing is deferred through it.
            let guard = unsafe { epoch::unprotected() };
            recycle(&core, guard);
        });
        self.release_empty();
    }

    fn unlive(&self, off: POff<u8>, guard: &Guard) -> bool {
        let was = self
            .core
            .block(off.get(), guard)
            .is_some_and(|(_, state, b)| state.clear_live(b));
        debug_assert!(
            was || damage_is_expected::asked(),
            "freeing {off:?}, which is not live"
        );
        was
    }

    /// Checks that `off` is the start of a block of this root with room for `bytes`.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, off: u64, bytes: u64) -> Result<(), String> {
        let guard = epoch::pin();
        self.locate(off, bytes, &guard).map(|_| ())
    }

    /// Bytes of the block at `off`, if it is one.
    pub fn block_bytes(&self, off: u64) -> Option<u64> {
        let guard = epoch::pin();
        self.core
            .block(off, &guard)
            .map(|(_, state, _)| state.block_bytes)
    }

    fn locate<'g>(
        &self,
        off: u64,
        bytes: u64,
        guard: &'g Guard,
    ) -> Result<(&'g ChunkState, u32), String> {
        let Some((_, state, block)) = self.core.block(off, guard) else {
            return Err(format!("{off:#x} is not the start of a block of this root"));
        };
        if off
            .checked_add(bytes)
            .is_none_or(|end| end > self.pool.pm().len())
        {
            return Err(format!(
                "{off:#x} + {bytes} bytes lie past the end of the pool"
            ));
        }
        if bytes > state.block_bytes {
            return Err(format!(
                "{off:#x} is a block of {} bytes where {bytes} are needed",
                state.block_bytes
            ));
        }
        Ok((state, block))
    }

    /// Begins recovery: the root's chunks are known, none of their blocks is live.
    pub fn begin_recovery(&self) {
        let guard = epoch::pin();
        for chunk in std::mem::take(&mut *lock(&self.core.owned)) {
            self.core.chunks.set(chunk, None, &guard);
        }
        self.core
            .caches
            .iter()
            .for_each(|cache| lock(cache).iter_mut().for_each(Vec::clear));
        self.core
            .partial
            .iter()
            .for_each(|partial| lock(partial).clear());
        lock(&self.core.empty).clear();
        // ORDERING: Relaxed; recovery is alone.
        self.core.empty_count.store(0, Ordering::Relaxed);
        for (chunk, used) in self.pool.chunks_of(self.core.owner) {
            let state = match used {
                ChunkUse::Blocks { class, .. } => ChunkState::blocks_of(class),
                ChunkUse::Run { chunks, .. } => ChunkState::run(chunks),
                ChunkUse::Free | ChunkUse::Header | ChunkUse::Activated { .. } => continue,
            };
            self.core.adopt(chunk, state, &guard);
        }
    }

    /// Marks the block at `off`, which holds at least `bytes`, as reached. May be called from many
    /// threads.
    ///
    /// # Errors
    /// What is wrong, in words: no such block, too small, or reached twice.
    pub fn mark(&self, off: u64, bytes: u64, guard: &Guard) -> Result<(), String> {
        let (state, block) = self.locate(off, bytes, guard)?;
        if state.set_live(block) {
            Ok(())
        } else {
            Err(format!("block {off:#x} is reached twice"))
        }
    }

    /// True if the block at `off` is live.
    pub fn is_live(&self, off: u64) -> bool {
        let guard = epoch::pin();
        self.core
            .block(off, &guard)
            .is_some_and(|(_, state, block)| state.is_live(block))
    }

    /// How many blocks are live.
    pub fn live_blocks(&self) -> u64 {
        self.core.sum(|state| u64::from(state.live_blocks()))
    }

    /// Ends recovery: what was not marked is free; chunks without a mark go back to the pool.
    pub fn finish_recovery(&self) {
        let guard = epoch::pin();
        let owned = lock(&self.core.owned).clone();
        for chunk in owned {
            let Some(state) = self.core.chunks.get(chunk, &guard) else {
                continue;
            };
            state.settle();
            // ORDERING: Relaxed; recovery is alone.
            let untaken = state.untaken.load(Ordering::Relaxed);
            if untaken == state.blocks {
                self.core.queue_empty(chunk);
            } else if untaken > 0 {
                lock(&self.core.partial[usize::from(state.class)]).push(chunk);
            }
        }
        if !self.pool.pm().read_only() {
            self.release_empty();
        }
    }

    /// The live bits of all chunks, for a clean close.
    ///
    /// ```text
    /// | chunks (u32) | chunk number (u32), live words (u64 ...) | ...
    /// ```
    pub fn save_marks(&self, out: &mut Vec<u8>) {
        let guard = epoch::pin();
        let owned = lock(&self.core.owned);
        let at = out.len();
        out.extend([0; 4]);
        let mut count = 0u32;
        for &chunk in owned.iter() {
            let Some(state) = self.core.chunks.get(chunk, &guard) else {
                continue;
            };
            if state.live_blocks() == 0 {
                continue;
            }
            count += 1;
            out.extend(chunk.to_le_bytes());
            for word in state.live_words() {
                out.extend(word.to_le_bytes());
            }
        }
        out[at..at + 4].copy_from_slice(&count.to_le_bytes());
    }

    /// Marks what [`save_marks`](Self::save_marks) saved, between `begin_recovery` and
    /// `finish_recovery`. Returns the bytes consumed; `None` if they contradict the chunk tables.
    pub fn load_marks(&self, saved: &[u8]) -> Option<usize> {
        let guard = epoch::pin();
        let mut at = 4;
        let count = u32::from_le_bytes(saved.get(..4)?.try_into().ok()?);
        for _ in 0..count {
            let chunk = u32::from_le_bytes(saved.get(at..at + 4)?.try_into().ok()?);
            at += 4;
            let state = self.core.chunks.get(chunk, &guard)?;
            let bytes = state.blocks.div_ceil(64) as usize * 8;
            let words = saved.get(at..at + bytes)?.chunks_exact(8).map(|word| {
                let mut eight = [0; 8];
                eight.copy_from_slice(word);
                u64::from_le_bytes(eight)
            });
            at += bytes;
            if !state.load_live(words) {
                return None;
            }
        }
        Some(at)
    }

    /// What the allocator holds.
    pub fn stats(&self) -> HeapStats {
        HeapStats {
            chunk_bytes: self.core.sum(|state| u64::from(state.chunks) * CHUNK),
            live_bytes: self
                .core
                .sum(|state| u64::from(state.live_blocks()) * state.block_bytes),
            dram_bytes: self.core.sum(ChunkState::dram_bytes),
        }
    }

    /// Puts cached blocks back and gives empty chunks to the pool.
    pub fn trim(&self) {
        self.core.empty_caches();
        self.release_empty();
    }
}

#[cfg(test)]
mod tests;
