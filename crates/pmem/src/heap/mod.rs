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
//! A block that was allocated and not linked, or unlinked and not yet free, is simply not reached
//! by the walk. A chunk whose blocks are all unreached is given back to the pool.

pub mod activated;
mod recycle;
mod vacate;

#[doc(hidden)]
pub use crate::damage_is_expected;
pub use crate::format::classes::CLASSES;
pub use crate::pool::HeapStats;
pub use recycle::Recycle;
pub use vacate::Vacating;

use crate::error::SpaceError;
use crate::format::classes::class_of;
use crate::format::layout::{CHUNK, ChunkUse, MAX_RUN, REGION};
use crate::media::{LINE, Media, cpu};
use crate::off::POff;
use crate::pool::{Blocks, Pool, Root};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The largest block in bytes.
pub const MAX_BLOCK: u64 = MAX_RUN as u64 * CHUNK;

/// Orders a block's last use before its next: a late search that sees a store to the new content
/// also sees the version that excludes it.
#[inline]
fn announce_reuse() {
    // ORDERING: Release; pairs with the Acquire fence with which a reader validates a version.
    fence(Ordering::Release);
}

/// A root's allocator. See the module's head.
pub struct Heap<M: Media> {
    pool: Arc<Pool<M>>,
    blocks: Arc<Blocks>,
}

impl<M: Media> Clone for Heap<M> {
    fn clone(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            blocks: Arc::clone(&self.blocks),
        }
    }
}

impl<M: Media> std::fmt::Debug for Heap<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap")
            .field("owner", &self.blocks.owner())
            .finish_non_exhaustive()
    }
}

impl<M: Media> Root<M> {
    /// Returns the allocator of this root's blocks.
    pub fn heap(&self) -> Heap<M> {
        Heap {
            pool: Arc::clone(self.pool()),
            blocks: self.pool().blocks_of(self.number()),
        }
    }
}

impl<M: Media> Heap<M> {
    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// Allocates a block of at least `bytes` bytes. Its content is arbitrary. Costs no persist
    /// unless a fresh chunk is needed (one line, one fence).
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
        // A thread that writes to one block after the other then finds the next ones in the
        // processor's cache.
        let cached = (self.blocks.cache()).pop(class, |later| self.prefetch(later));
        let off = match cached {
            Some(off) => off,
            None => self.refill(class, &guard)?,
        };
        self.blocks.hand_out(off, &guard);
        announce_reuse();
        Ok(POff::new(off))
    }

    /// Prefetches the first line of a block.
    #[inline]
    fn prefetch(&self, off: u64) {
        cpu::prefetch(self.pool.pm().base().wrapping_add(off as usize), LINE);
    }

    /// Allocates blocks of at least these sizes, as [`alloc`](Self::alloc) does one, and prefetches
    /// the first line of each, for a caller that will write to all of them.
    ///
    /// # Errors
    /// As of [`alloc`](Self::alloc); some may have been given to `each` then.
    pub fn alloc_each(
        &self,
        sizes: impl Iterator<Item = u64>,
        mut each: impl FnMut(POff<u8>),
    ) -> Result<(), SpaceError> {
        let guard = epoch::pin();
        let mut cache = self.blocks.cache();
        for bytes in sizes {
            let cached = class_of(bytes).and_then(|class| cache.pop(class, |_| {}));
            let off = match cached {
                Some(off) => {
                    self.blocks.hand_out(off, &guard);
                    POff::new(off)
                }
                None => {
                    drop(cache);
                    let off = self.alloc(bytes)?;
                    cache = self.blocks.cache();
                    off
                }
            };
            self.prefetch(off.get());
            each(off);
        }
        announce_reuse();
        Ok(())
    }

    /// Moves a batch from a chunk to this thread's cache. Returns one of them.
    fn refill(&self, class: u8, guard: &Guard) -> Result<u64, SpaceError> {
        self.release_empty();
        let owner = self.blocks.owner();
        self.blocks.refill(class, guard, || {
            self.pool
                .assign_chunks(1, ChunkUse::Blocks { owner, class })
        })
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
        let owner = self.blocks.owner();
        let run = ChunkUse::Run { owner, chunks };
        let first = self.pool.assign_chunks(chunks, run)?;
        let off = self.blocks.adopt_run(first, chunks);
        announce_reuse();
        Ok(POff::new(off))
    }

    /// Gives empty chunks back to the pool (one line, one fence each).
    fn release_empty(&self) {
        if !self.blocks.has_empty() {
            return;
        }
        for (chunk, chunks) in self.blocks.take_empty() {
            self.pool.release_chunks(chunk, chunks);
        }
    }

    /// Frees a block that was never reachable.
    pub fn free(&self, off: POff<u8>) {
        let guard = epoch::pin();
        if self.blocks.clear_live(off.get(), &guard) {
            let captured = self.pool.pm().captured();
            self.blocks.recycle(&[off.get()], captured, &guard);
            self.release_empty();
        }
    }

    /// Frees a block that readers may still be in. It is reused once all threads that are pinned
    /// now have left. That it is unreachable must be durable already.
    pub fn retire(&self, off: POff<u8>, guard: &Guard) {
        if self.blocks.clear_live(off.get(), guard) {
            self.defer(
                move |blocks, captured, guard| blocks.recycle(&[off.get()], captured, guard),
                guard,
            );
        }
    }

    /// As [`retire`](Self::retire), of several blocks.
    pub fn retire_all(&self, mut offs: Vec<u64>, guard: &Guard) {
        offs.retain(|off| self.blocks.clear_live(*off, guard));
        if !offs.is_empty() {
            let recycle = move |blocks: &Blocks, captured, guard: &Guard| {
                blocks.recycle(&offs, captured, guard);
            };
            self.defer(recycle, guard);
        }
    }

    /// Calls `recycle` once readers have left, with what the medium has captured by now.
    fn defer(&self, recycle: impl FnOnce(&Blocks, u64, &Guard) + Send + 'static, guard: &Guard) {
        let blocks = Arc::clone(&self.blocks);
        // That the blocks are unreachable was fenced before.
        let captured = self.pool.pm().captured();
        guard.defer(move || {
            // Pinning here would collect again: on a thread that is exiting, each pin is a new
            // participant's first, and the recursion ends with the stack. SAFETY: 1. the collector
            // runs this while the thread is pinned, so no state of a chunk that was reachable since
            // is freed; 2. nothing is deferred through it.
            let guard = unsafe { epoch::unprotected() };
            recycle(&blocks, captured, guard);
        });
        self.release_empty();
    }

    /// Returns what the medium had [captured](Media::captured) when the block at `off`, which was
    /// allocated since, was freed, or later, for [`Media::flush_fresh`].
    #[must_use]
    pub fn freed(&self, off: u64) -> u64 {
        self.blocks.freed(off)
    }

    /// Checks that `off` is the start of a block of this root with room for `bytes`. In a pool that
    /// is [salvaged](Pool::salvage) nobody knows: a block may start wherever one of so many bytes
    /// does in some chunk.
    ///
    /// # Errors
    /// The reason in words.
    pub fn check(&self, off: u64, bytes: u64) -> Result<(), String> {
        if !self.pool.is_salvaged() {
            return self.blocks.check(off, bytes, self.pool.pm().len());
        }
        let within = off % CHUNK;
        let starts = |class: &u64| *class >= bytes && within.is_multiple_of(*class);
        let fits = self.room(off).is_some_and(|room| bytes <= room);
        if !fits || within != 0 && !CLASSES.iter().any(starts) {
            return Err(format!(
                "{off:#x} is not the start of a block of {bytes} bytes"
            ));
        }
        Ok(())
    }

    /// Returns the bytes that a block at `off` may have in a pool that is salvaged.
    fn room(&self, off: u64) -> Option<u64> {
        let body = self.body(off / REGION);
        body.contains(&off).then(|| match off % CHUNK {
            // It may be a run.
            0 => body.end - off,
            within => (CHUNK - within).min(body.end - off),
        })
    }

    /// Returns where the blocks of a region may be in a pool that is salvaged: behind its header,
    /// wherever the pool ends.
    fn body(&self, region: u64) -> Range<u64> {
        let start = region * REGION;
        start.saturating_add(CHUNK)..start.saturating_add(REGION).min(self.pool.pm().len())
    }

    /// Returns the bytes of the block at `off`, if it is one. In a pool that is salvaged, those
    /// that it may have.
    pub fn block_bytes(&self, off: u64) -> Option<u64> {
        match self.pool.is_salvaged() {
            true => self.room(off),
            false => self.blocks.block_bytes(off),
        }
    }

    /// Returns the parts of the pool that the root has, as they are now, in order. In a pool that
    /// is salvaged, those that it may have.
    #[must_use]
    pub fn extents(&self) -> Vec<Range<u64>> {
        if self.pool.is_salvaged() {
            let regions = 0..self.pool.pm().len().div_ceil(REGION);
            return regions.map(|region| self.body(region)).collect();
        }
        let mut extents: Vec<Range<u64>> = Vec::new();
        for (chunk, used) in self.pool.chunks_of(self.blocks.owner()) {
            let chunks = match used {
                ChunkUse::Run { chunks, .. } => chunks,
                _ => 1,
            };
            let start = u64::from(chunk) * CHUNK;
            let end = start + u64::from(chunks) * CHUNK;
            match extents.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => extents.push(start..end),
            }
        }
        extents
    }

    /// Returns whether the root has the chunk at `offset`.
    #[must_use]
    pub fn owns(&self, offset: u64) -> bool {
        let mine = self.blocks.owner();
        let chunk = (offset / CHUNK) as u32;
        for first in (chunk.saturating_sub(MAX_RUN - 1)..=chunk).rev() {
            match self.pool.chunk_use(first) {
                // Perhaps inside a run.
                Some(ChunkUse::Free) => {}
                Some(ChunkUse::Blocks { owner, .. } | ChunkUse::Activated { owner, .. }) => {
                    return first == chunk && owner == mine;
                }
                Some(ChunkUse::Run { owner, chunks }) => {
                    return owner == mine && chunk < first + chunks;
                }
                Some(ChunkUse::Header) | None => return false,
            }
        }
        false
    }

    /// Begins recovery: the root's chunks are known, and none of their blocks is live.
    pub fn begin_recovery(&self) {
        let chunks = match self.pool.is_salvaged() {
            true => Vec::new(),
            false => self.pool.chunks_of(self.blocks.owner()),
        };
        self.blocks.begin_recovery(chunks);
    }

    /// Marks the block at `off`, which holds at least `bytes`, as reached. May be called from many
    /// threads. In a pool that is salvaged, where nothing is allocated, it only
    /// [checks](Self::check) it.
    ///
    /// # Errors
    /// The reason in words: no such block, too small, or reached twice.
    pub fn mark(&self, off: u64, bytes: u64, guard: &Guard) -> Result<(), String> {
        if self.pool.is_salvaged() {
            return self.check(off, bytes);
        }
        self.blocks.mark(off, bytes, self.pool.pm().len(), guard)
    }

    /// Returns true if the block at `off` is live.
    pub fn is_live(&self, off: u64) -> bool {
        self.blocks.is_live(off)
    }

    /// Returns how many blocks are live.
    pub fn live_blocks(&self) -> u64 {
        self.blocks.live_blocks()
    }

    /// Ends recovery: blocks without a mark are free, and chunks without a mark go back to the
    /// pool.
    pub fn finish_recovery(&self) {
        // Unmarked blocks may have been unlinked by a change that is not durable yet.
        self.blocks.finish_recovery(self.pool.pm().captured());
        if !self.pool.pm().read_only() {
            self.release_empty();
        }
    }

    /// Appends the live bits of all chunks to `out`, for a clean close.
    pub fn save_marks(&self, out: &mut Vec<u8>) {
        self.blocks.save_marks(out);
    }

    /// Marks the blocks that [`save_marks`](Self::save_marks) saved, between `begin_recovery` and
    /// `finish_recovery`. Returns the bytes consumed, or `None` if they contradict the chunk
    /// tables.
    pub fn load_marks(&self, saved: &[u8]) -> Option<usize> {
        self.blocks.load_marks(saved)
    }

    /// Returns the allocator's sizes.
    pub fn stats(&self) -> HeapStats {
        self.blocks.stats()
    }

    /// Puts cached blocks back and gives empty chunks to the pool.
    pub fn trim(&self) {
        self.blocks.empty_caches();
        self.release_empty();
    }
}

impl<M: Media> Recycle for Heap<M> {
    fn reuse(&self, block: u64) {
        self.free(POff::new(block));
    }
}

#[cfg(test)]
mod tests;
