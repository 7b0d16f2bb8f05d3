//! Which blocks of a root's chunks are in use: the volatile half of its allocator (`heap/mod.rs`).
//!
//! It knows chunks by number only. [`Heap`](crate::heap::Heap) gets its chunks from the pool, and
//! returns them.
//!
//! # Concurrency
//! A shard of threads shares a cache, which has a lock of its own. The chunks of a class are under
//! that class's lock, which is held while the pool assigns a fresh one. The locks of `owned` and
//! `empty` are taken last.

mod chunk;
mod recovery;
mod vacate;

use crate::damage_is_expected;
use crate::error::SpaceError;
use crate::format::classes::CLASSES;
use crate::format::layout::{CHUNK, ChunkUse};
use crate::sync::lock;
use chunk::{ChunkState, ChunkStates, RUN};
use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::CachePadded;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use vacate::{Held, choose};

const SHARDS: usize = 32;

/// How far ahead of the blocks that are handed out a cache's blocks are prefetched.
const AHEAD: usize = 8;

/// Returns how many blocks of a class move between a cache and its chunks at a time.
fn batch(class: u8) -> usize {
    (32_768 / CLASSES[usize::from(class)]).clamp(1, 32) as usize
}

/// Returns the maximum number of blocks of a class in a cache. Blocks come back in bursts, when
/// readers leave.
fn max_cached(class: u8) -> usize {
    (32_768 / CLASSES[usize::from(class)]).clamp(2, 1024) as usize
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

/// Free blocks of a shard of threads, by class; the last one is handed out next.
#[derive(Debug, Default)]
pub(crate) struct Cache([Vec<u64>; CLASSES.len()]);

impl Cache {
    /// Takes a block of `class`, if there is one. `prefetch` is called with the offset of a block
    /// that will be handed out soon.
    #[inline]
    pub(crate) fn pop(&mut self, class: u8, prefetch: impl FnOnce(u64)) -> Option<u64> {
        let blocks = &mut self.0[usize::from(class)];
        let block = blocks.pop();
        if let Some(later) = blocks.len().checked_sub(AHEAD) {
            prefetch(blocks[later]);
        }
        block
    }
}

/// The state of all chunks of one root, shared with deferred frees.
#[derive(Debug)]
pub(crate) struct Blocks {
    owner: u8,
    chunks: ChunkStates,
    /// Per class: chunks that have untaken blocks.
    partial: [Mutex<Vec<u32>>; CLASSES.len()],
    caches: [CachePadded<Mutex<Cache>>; SHARDS],
    /// Every chunk (first chunk of a run) that has a state.
    owned: Mutex<Vec<u32>>,
    /// Chunks and runs without a taken block, which will go back to the pool.
    empty: Mutex<Vec<u32>>,
    empty_count: AtomicUsize,
    /// Whose turn it is to empty chunks.
    turn: Mutex<()>,
    freed: Arc<Freed>,
}

/// How much the medium had captured when blocks were freed, at the latest: those of a chunk, or of
/// all free chunks of the pool.
#[derive(Debug, Default)]
pub(crate) struct Freed(AtomicU64);

impl Freed {
    /// Blocks are free from now on, and what freed them was captured by `captured`.
    pub(crate) fn note(&self, captured: u64) {
        // ORDERING: Release; pairs with the Acquire in `last`: who gets such a block sees this.
        self.0.fetch_max(captured, Ordering::Release);
    }

    pub(crate) fn last(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `note`.
        self.0.load(Ordering::Acquire)
    }
}

/// Sizes of a root's allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of chunks that belong to the root.
    pub chunk_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// DRAM bytes of the volatile state.
    pub dram_bytes: u64,
}

impl Blocks {
    /// Returns the allocator of root slot `owner` in a pool that can grow to `chunks` chunks.
    pub(crate) fn new(owner: u8, chunks: usize, freed: Arc<Freed>) -> Self {
        Self {
            owner,
            chunks: ChunkStates::new(chunks),
            partial: std::array::from_fn(|_| Mutex::default()),
            caches: std::array::from_fn(|_| CachePadded::new(Mutex::default())),
            owned: Mutex::default(),
            empty: Mutex::default(),
            empty_count: AtomicUsize::new(0),
            turn: Mutex::default(),
            freed,
        }
    }

    fn adopt(&self, chunk: u32, state: ChunkState, guard: &Guard) {
        state.freed.note(self.freed.last());
        self.chunks.set(chunk, Some(state), guard);
        lock(&self.owned).push(chunk);
    }

    /// Returns what the medium had captured when the blocks of the chunk of `off` were freed, at
    /// the latest.
    pub(crate) fn freed(&self, off: u64) -> u64 {
        let guard = epoch::pin();
        let state = self.block(off, &guard).map(|(_, state, _)| state);
        // Not known is later than everything.
        state.map_or(u64::MAX, |state| state.freed.last())
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
    pub(crate) fn hand_out(&self, off: u64, guard: &Guard) {
        if let Some((_, state, block)) = self.block(off, guard) {
            let fresh = state.set_live(block);
            debug_assert!(fresh, "block {off:#x} handed out twice");
        }
    }

    /// Puts blocks that no thread can reach any more into this thread's cache. What freed them was
    /// captured by `captured`.
    pub(crate) fn recycle(&self, offs: &[u64], captured: u64, guard: &Guard) {
        let mut spilt: Vec<(u8, Vec<u64>)> = Vec::new();
        let mut caches = lock(&self.caches[shard()]);
        for &off in offs {
            let Some((chunk, state, _)) = self.block(off, guard) else {
                debug_assert!(false, "recycling {off:#x}, which is no block");
                continue;
            };
            state.freed.note(captured);
            let class = state.class;
            if class == RUN {
                state.give_back(0);
                self.queue_empty(chunk);
                continue;
            }
            if state.is_closed() {
                spilt.push((class, vec![off]));
                continue;
            }
            let cache = &mut caches.0[usize::from(class)];
            cache.push(off);
            let most = max_cached(class);
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
            if state.is_closed() {
                if untaken == state.blocks {
                    self.queue_empty(chunk);
                }
                continue;
            }
            if untaken == 1 {
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
                let offs = std::mem::take(&mut lock(cache).0[class]);
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

    /// Returns the bytes of owned chunks that are not live blocks.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.sum(|state| {
            u64::from(state.chunks) * CHUNK - u64::from(state.live_blocks()) * state.block_bytes
        })
    }

    /// Returns the root slot that it serves.
    pub(crate) fn owner(&self) -> u8 {
        self.owner
    }

    /// Checks that the allocator knows exactly the chunks of `durable`, cut the same way, and that
    /// each chunk's state agrees with itself. Returns how many have no live block.
    ///
    /// # Errors
    /// The reason in words.
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

    /// This thread's cache.
    #[inline]
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.caches[shard()])
    }

    /// Moves a batch of blocks from a chunk to this thread's cache; returns one of them. `assign`
    /// takes a fresh chunk from the pool.
    ///
    /// # Errors
    /// The error of `assign`, if no cache holds a block either.
    pub(crate) fn refill(
        &self,
        class: u8,
        guard: &Guard,
        assign: impl FnOnce() -> Result<u32, SpaceError>,
    ) -> Result<u64, SpaceError> {
        let mut partial = lock(&self.partial[usize::from(class)]);
        if partial.is_empty() {
            match assign() {
                Ok(chunk) => {
                    self.adopt(chunk, ChunkState::blocks_of(class), guard);
                    partial.push(chunk);
                }
                Err(e) => {
                    self.reopen_class(class, &mut partial, guard);
                    if partial.is_empty() {
                        drop(partial);
                        // Another thread's cache may still hold some.
                        return self.steal(class).ok_or(e);
                    }
                }
            }
        }
        let most = batch(class);
        let mut got = Vec::with_capacity(most);
        while got.len() < most
            && let Some(&chunk) = partial.last()
        {
            let Some(state) = self.chunks.get(chunk, guard) else {
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
        self.cache().0[usize::from(class)].extend(got);
        first.ok_or_else(|| {
            SpaceError::io(
                "allocating",
                std::io::Error::other("a partial chunk without a block"),
            )
        })
    }

    fn steal(&self, class: u8) -> Option<u64> {
        self.caches
            .iter()
            .find_map(|cache| lock(cache).0[usize::from(class)].pop())
    }

    /// Takes over a run that was just assigned, as one live block. Returns its offset.
    pub(crate) fn adopt_run(&self, first: u32, chunks: u32) -> u64 {
        let guard = epoch::pin();
        let state = ChunkState::run(chunks);
        state.take(1, |block| {
            state.set_live(block);
        });
        self.adopt(first, state, &guard);
        u64::from(first) * CHUNK
    }

    /// Returns true if chunks wait to go back to the pool ([`take_empty`](Self::take_empty)).
    #[inline]
    pub(crate) fn has_empty(&self) -> bool {
        // ORDERING: Relaxed; a hint.
        self.empty_count.load(Ordering::Relaxed) > 0
    }

    /// Marks a block as no longer live. Returns false if it was not live.
    pub(crate) fn clear_live(&self, off: u64, guard: &Guard) -> bool {
        let was = self
            .block(off, guard)
            .is_some_and(|(_, state, block)| state.clear_live(block));
        debug_assert!(
            was || damage_is_expected::asked(),
            "freeing {off:#x}, which is not live"
        );
        was
    }

    /// Checks that `off` is the start of a block with room for `bytes`, all below `end`.
    ///
    /// # Errors
    /// The reason in words.
    pub(crate) fn check(&self, off: u64, bytes: u64, end: u64) -> Result<(), String> {
        self.locate(off, bytes, end, &epoch::pin()).map(|_| ())
    }

    fn locate<'g>(
        &self,
        off: u64,
        bytes: u64,
        end: u64,
        guard: &'g Guard,
    ) -> Result<(&'g ChunkState, u32), String> {
        let Some((_, state, block)) = self.block(off, guard) else {
            return Err(format!("{off:#x} is not the start of a block of this root"));
        };
        if off.checked_add(bytes).is_none_or(|past| past > end) {
            return Err(format!(
                "{off:#x} + {bytes} bytes lie past the end of the pool"
            ));
        }
        let room = state.block_bytes;
        if bytes > room {
            return Err(format!(
                "{off:#x} is a block of {room} bytes where {bytes} are needed"
            ));
        }
        Ok((state, block))
    }

    /// Returns the bytes of the block at `off`, if it is one.
    pub(crate) fn block_bytes(&self, off: u64) -> Option<u64> {
        let guard = epoch::pin();
        self.block(off, &guard)
            .map(|(_, state, _)| state.block_bytes)
    }

    /// Returns true if the block at `off` is live.
    pub(crate) fn is_live(&self, off: u64) -> bool {
        let guard = epoch::pin();
        self.block(off, &guard)
            .is_some_and(|(_, state, block)| state.is_live(block))
    }

    /// Returns how many blocks are live.
    pub(crate) fn live_blocks(&self) -> u64 {
        self.sum(|state| u64::from(state.live_blocks()))
    }

    /// Returns the allocator's sizes.
    pub(crate) fn stats(&self) -> HeapStats {
        HeapStats {
            chunk_bytes: self.sum(|state| u64::from(state.chunks) * CHUNK),
            live_bytes: self.sum(|state| u64::from(state.live_blocks()) * state.block_bytes),
            dram_bytes: self.sum(ChunkState::dram_bytes),
        }
    }
}

#[cfg(test)]
mod tests;
