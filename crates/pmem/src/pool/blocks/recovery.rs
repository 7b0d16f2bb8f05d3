//! Which blocks are live after an opening: marked by a walk of the structure, or loaded from a
//! clean close.

use super::chunk::ChunkState;
use super::{Blocks, Cache};
use crate::format::layout::ChunkUse;
use crate::sync::lock;
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering;

impl Blocks {
    /// Begins recovery: `chunks` are the root's, and none of their blocks is live.
    pub(crate) fn begin_recovery(&self, chunks: Vec<(u32, ChunkUse)>) {
        let guard = epoch::pin();
        for chunk in std::mem::take(&mut *lock(&self.owned)) {
            self.chunks.set(chunk, None, &guard);
        }
        for cache in &self.caches {
            *lock(cache) = Cache::default();
        }
        self.partial
            .iter()
            .for_each(|partial| lock(partial).clear());
        lock(&self.empty).clear();
        // ORDERING: Relaxed; recovery is alone.
        self.empty_count.store(0, Ordering::Relaxed);
        for (chunk, used) in chunks {
            let state = match used {
                ChunkUse::Blocks { class, .. } => ChunkState::blocks_of(class),
                ChunkUse::Run { chunks, .. } => ChunkState::run(chunks),
                ChunkUse::Free | ChunkUse::Header | ChunkUse::Activated { .. } => continue,
            };
            self.adopt(chunk, state, &guard);
        }
    }

    /// Marks the block at `off`, which holds at least `bytes` and ends by `end`, as reached.
    ///
    /// # Errors
    /// The reason in words: no such block, too small, or reached twice.
    pub(crate) fn mark(&self, off: u64, bytes: u64, end: u64, guard: &Guard) -> Result<(), String> {
        let (state, block) = self.locate(off, bytes, end, guard)?;
        if state.set_live(block) {
            Ok(())
        } else {
            Err(format!("block {off:#x} is reached twice"))
        }
    }

    /// Ends recovery: blocks without a mark are free, and chunks without a mark wait to go back to
    /// the pool.
    /// `captured`: how much the medium has captured so far. That may include what freed the others.
    pub(crate) fn finish_recovery(&self, captured: u64) {
        self.freed.note(captured);
        let guard = epoch::pin();
        let owned = lock(&self.owned).clone();
        for chunk in owned {
            let Some(state) = self.chunks.get(chunk, &guard) else {
                continue;
            };
            state.settle();
            state.freed.note(captured);
            // ORDERING: Relaxed; recovery is alone.
            let untaken = state.untaken.load(Ordering::Relaxed);
            if untaken == state.blocks {
                self.queue_empty(chunk);
            } else if untaken > 0 {
                lock(&self.partial[usize::from(state.class)]).push(chunk);
            }
        }
    }

    /// Appends the live bits of all chunks to `out`.
    ///
    /// ```text
    /// | chunks (u32) | chunk number (u32), live words (u64 ...) | ...
    /// ```
    pub(crate) fn save_marks(&self, out: &mut Vec<u8>) {
        let guard = epoch::pin();
        let owned = lock(&self.owned);
        let at = out.len();
        out.extend([0; 4]);
        let mut count = 0u32;
        for &chunk in owned.iter() {
            let Some(state) = self.chunks.get(chunk, &guard) else {
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

    /// Marks what [`save_marks`](Self::save_marks) saved. Returns the bytes consumed; `None` if
    /// they contradict the chunk tables.
    pub(crate) fn load_marks(&self, saved: &[u8]) -> Option<usize> {
        let guard = epoch::pin();
        let mut at = 4;
        let count = u32::from_le_bytes(saved.get(..4)?.try_into().ok()?);
        for _ in 0..count {
            let chunk = u32::from_le_bytes(saved.get(at..at + 4)?.try_into().ok()?);
            at += 4;
            let state = self.chunks.get(chunk, &guard)?;
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
}
