//! Which chunks are free, growth, and giving space back.
//!
//! The persistent truth is the chunk tables (one word a chunk, changed by NAW). The free set here
//! is volatile and rebuilt from them at open. The lowest free chunk is taken first, so that the
//! tail empties and can be cut off.
//!
//! # Crash states
//! 1. A chunk assigned but nothing in it reachable: the owner's recovery finds no live block and
//!    frees it.
//! 2. The file grown but the superblock not yet: the next writer cuts the file back, so new space
//!    always starts as zeros.
//! 3. The superblock shrunk but the file not yet: as 2.

use super::{Held, Pool};
use crate::cell::PWord;
use crate::error::SpaceError;
use crate::format::activated;
use crate::format::layout::{
    CHUNK, CHUNK_TABLE, ChunkUse, INITIAL, MAX_RUN, REGION, REGION_CHUNKS,
};
use crate::media::{Media, Section};
use crate::planted;
use crate::sync::lock;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Growth steps are multiples of this, so that huge pages can back them.
const STEP: u64 = 2 << 20;
const MAX_STEP: u64 = 1 << 30;

const _: () = assert!(MAX_RUN as u64 * CHUNK <= MAX_STEP);

/// Volatile state of the space manager, under the pool's lock.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) free: BTreeSet<u32>,
    /// Free chunks that may have no space behind them.
    pub(super) holes: BTreeSet<u32>,
}

/// The space that [`Pool::compact`] freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Bytes of the pool before.
    pub before_bytes: u64,
    /// Bytes of the pool after.
    pub after_bytes: u64,
    /// Bytes of free chunks inside it that have no space behind them now.
    pub punched_bytes: u64,
}

impl<M: Media> Pool<M> {
    /// Returns the chunk-table word of `chunk`.
    pub(crate) fn chunk_word(&self, chunk: u32) -> &PWord {
        let region = u64::from(chunk) / REGION_CHUNKS * REGION;
        let at = region + CHUNK_TABLE + u64::from(chunk) % REGION_CHUNKS * 8;
        self.word_at(at)
    }

    /// Returns the use of `chunk`; `None` if its word is corrupt or the chunk is past the end.
    pub(crate) fn chunk_use(&self, chunk: u32) -> Option<ChunkUse> {
        if (u64::from(chunk) + 1) * CHUNK > self.pm.len() {
            return None;
        }
        // ORDERING: Acquire; pairs with the Release in `publish`.
        ChunkUse::decode(self.chunk_word(chunk).load(&self.pm, Ordering::Acquire))
    }

    /// Takes `chunks` adjacent chunks and marks them durably as `used`.
    ///
    /// # Errors
    /// [`SpaceError`] when the pool cannot grow; nothing has changed then.
    pub(crate) fn assign_chunks(&self, chunks: u32, used: ChunkUse) -> Result<u32, SpaceError> {
        if self.pm.read_only() {
            return Err(SpaceError::ReadOnly);
        }
        if chunks == 0 || chunks > MAX_RUN {
            return Err(SpaceError::TooLarge {
                wanted: u64::from(chunks) * CHUNK,
                most: u64::from(MAX_RUN) * CHUNK,
            });
        }
        // Memory of the pool is dropped for one that has the chunks, and while nobody gets any.
        let _section = Section::enter(self.pm.sections());
        let mut space = lock(&self.space);
        let first = loop {
            if let Some(first) = find_run(&space.free, chunks) {
                break first;
            }
            self.grow(&mut space, chunks)?;
        };
        // A hole gets its space back before a store can need it.
        if (first..first + chunks).any(|chunk| space.holes.contains(&chunk)) {
            self.pm
                .back(u64::from(first) * CHUNK, u64::from(chunks) * CHUNK)?;
        }
        for chunk in first..first + chunks {
            space.free.remove(&chunk);
            space.holes.remove(&chunk);
        }
        if let ChunkUse::Activated { class, .. } = used {
            self.prepare_activated(first, class);
        }
        if planted!(self.pm, "pool-assignment-lost") {
            let word = self.chunk_word(first);
            word.store(&self.pm, used.encode(), Ordering::Release);
            return Ok(first);
        }
        // PERSIST: the chunk's owner and class, before anything in it becomes reachable. The words
        // of a run's other chunks are 0 already.
        self.chunk_word(first).publish(&self.pm, used.encode());
        Ok(first)
    }

    /// Makes a chunk's head that of one without an active block, durably: before its word says that
    /// it has one.
    fn prepare_activated(&self, chunk: u32, class: u8) {
        let bytes = activated::head_bytes(class);
        for word in 0..bytes / 8 {
            // ORDERING: Relaxed; published with the chunk's word.
            self.word_at(activated::head_word(chunk, word as u32 * 64))
                .store(&self.pm, 0, Ordering::Relaxed);
        }
        let head = self.word_at(activated::head_word(chunk, 0));
        // PERSIST: no bit is set, before the chunk counts as one whose bits do.
        self.pm.flush(head.addr(), bytes as usize);
        self.pm.fence();
    }

    /// Returns the bytes of a chunk of activated blocks that are in no active one.
    pub(crate) fn free_bytes_of_activated(&self, chunk: u32, class: u8) -> u64 {
        let words = 0..activated::blocks_of(class).div_ceil(64);
        let active = words.map(|i| {
            // ORDERING: Relaxed; a statistic.
            let bits = self
                .word_at(activated::head_word(chunk, i * 64))
                .load(&self.pm, Ordering::Relaxed);
            u64::from(bits.count_ones())
        });
        CHUNK.saturating_sub(active.sum::<u64>() * activated::block_bytes(class))
    }

    /// Returns the first chunk number such that so many chunks below it are free, or among `held`.
    pub(crate) fn end_of(&self, held: &[Held], chunks: u32) -> u32 {
        let mut usable = lock(&self.space).free.clone();
        usable.extend(
            held.iter()
                .flat_map(|one| one.first..one.first + one.chunks),
        );
        match chunks.checked_sub(1) {
            None => 0,
            Some(last) => usable
                .into_iter()
                .nth(last as usize)
                .map_or(u32::MAX, |chunk| chunk + 1),
        }
    }

    /// Returns the bytes of free chunks that have space behind them.
    pub fn idle_bytes(&self) -> u64 {
        let space = lock(&self.space);
        (space.free.len() - space.holes.len()) as u64 * CHUNK
    }

    /// Gives back the chunks that begin at `first`. Nothing durable may lead there.
    pub(crate) fn release_chunks(&self, first: u32, chunks: u32) {
        let mut space = lock(&self.space);
        if planted!(self.pm, "pool-release-lost") {
            space.free.extend(first..first + chunks);
            return;
        }
        // PERSIST: the chunk is free, before it (or a run over it) is assigned again.
        self.chunk_word(first)
            .publish(&self.pm, ChunkUse::Free.encode());
        self.freed.note(self.pm.captured());
        space.free.extend(first..first + chunks);
    }

    fn grow(&self, space: &mut Space, chunks: u32) -> Result<(), SpaceError> {
        let mut superblock = lock(&self.superblock);
        let old = superblock.size;
        let step = (old / 128).clamp(u64::from(chunks) * CHUNK, MAX_STEP);
        let capacity = self.pm.capacity() / CHUNK * CHUNK;
        let wanted = (old + step).next_multiple_of(STEP);
        let needed = end_of_run(&space.free, (old / CHUNK) as u32, chunks);
        // Near the end of what can be addressed, take what is left.
        let new = if wanted > capacity && u64::from(needed) * CHUNK <= capacity {
            capacity
        } else {
            wanted
        };
        self.pm.grow(new)?;
        if planted!(self.pm, "pool-size-first") {
            (superblock.generation, superblock.size) = (superblock.generation + 1, new);
            superblock.write(&self.pm);
        }
        for chunk in (old / CHUNK) as u32..(new / CHUNK) as u32 {
            if u64::from(chunk) % REGION_CHUNKS == 0 {
                // PERSIST: the new region's header, before the superblock says that it exists.
                self.chunk_word(chunk)
                    .publish(&self.pm, ChunkUse::Header.encode());
            } else {
                space.free.insert(chunk);
            }
        }
        superblock.generation += 1;
        superblock.size = new;
        // PERSIST: (in `write`) the new size, before a chunk beyond the old one is assigned.
        superblock.write(&self.pm);
        Ok(())
    }

    /// Gives free space back: the free tail of the file is cut off, free chunks inside it become
    /// holes. Data does not move.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses; the pool is whole and usable then.
    pub fn compact(&self) -> Result<CompactReport, SpaceError> {
        if self.pm.read_only() {
            return Err(SpaceError::ReadOnly);
        }
        // A copy that is being made reads up to the length that it saw.
        let _tail = lock(&self.tail);
        {
            // Locked until the chunks are free: a root that is closed and opened again in between
            // would have them in another allocator.
            let allocators = lock(&self.blocks);
            for blocks in allocators.iter().flatten() {
                blocks.empty_caches();
                for (first, chunks) in blocks.take_empty() {
                    self.release_chunks(first, chunks);
                }
            }
        }
        let mut space = lock(&self.space);
        let mut superblock = lock(&self.superblock);
        let before = superblock.size;
        let mut end = (before / CHUNK) as u32;
        let floor = (INITIAL / CHUNK) as u32;
        while end > floor {
            let last = end - 1;
            let header = u64::from(last) % REGION_CHUNKS == 0;
            if !(header || space.free.contains(&last)) {
                break;
            }
            end = last;
        }
        let after = (u64::from(end) * CHUNK).next_multiple_of(STEP).min(before);
        let end = (after / CHUNK) as u32;
        if after < before {
            if planted!(self.pm, "pool-cut-first") {
                self.pm.shrink(after)?;
            }
            space.free.split_off(&end);
            space.holes.split_off(&end);
            superblock.generation += 1;
            superblock.size = after;
            // PERSIST: (in `write`) the smaller size, before the file is cut: a crash in between
            // leaves a file that is too long, which the next writer cuts.
            superblock.write(&self.pm);
            self.pm.commit().map_err(|e| {
                SpaceError::io(
                    "committing the new size",
                    std::io::Error::other(e.to_string()),
                )
            })?;
            self.pm.shrink(after)?;
        }
        let whole: BTreeSet<u32> = space.free.difference(&space.holes).copied().collect();
        for (first, chunks) in runs(&whole) {
            // Noted first: whatever becomes of the punching, the chunks are backed before use.
            space.holes.extend(first..first + chunks);
            self.pm
                .punch(u64::from(first) * CHUNK, u64::from(chunks) * CHUNK)?;
        }
        self.pm.trim()?;
        Ok(CompactReport {
            before_bytes: before,
            after_bytes: after,
            punched_bytes: space.holes.len() as u64 * CHUNK,
        })
    }
}

/// Maximal runs of adjacent chunks in `free`, ascending.
fn runs(free: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &chunk in free {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == chunk => *len += 1,
            _ => runs.push((chunk, 1)),
        }
    }
    runs
}

fn find_run(free: &BTreeSet<u32>, chunks: u32) -> Option<u32> {
    if chunks == 1 {
        return free.first().copied();
    }
    let (mut first, mut len) = (0, 0);
    for &chunk in free {
        if chunk == first + len {
            len += 1;
        } else {
            (first, len) = (chunk, 1);
        }
        if len == chunks {
            return Some(first);
        }
    }
    None
}

/// Returns where a run ends that has no room below `end`, the pool's end, and gets it by growth: it
/// may begin in what is free there, and does not lie across the header of a region.
fn end_of_run(free: &BTreeSet<u32>, end: u32, chunks: u32) -> u32 {
    let at_end = (0..end).rev().take_while(|chunk| free.contains(chunk));
    let first = end - at_end.count() as u32;
    let region_end = first.next_multiple_of(REGION_CHUNKS as u32);
    match first + chunks {
        past if past <= region_end => past,
        _ => region_end + 1 + chunks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_lowest_first() {
        let free: BTreeSet<u32> = [1, 2, 5, 6, 7, 9].into();
        assert_eq!(find_run(&free, 1), Some(1));
        assert_eq!(find_run(&free, 2), Some(1));
        assert_eq!(find_run(&free, 3), Some(5));
        assert_eq!(find_run(&free, 4), None);
        assert_eq!(runs(&free), [(1, 2), (5, 3), (9, 1)]);
    }

    #[test]
    fn a_run_that_needs_growth_begins_in_what_is_free_at_the_end() {
        let free = |chunks: std::ops::Range<u32>| chunks.collect();
        assert_eq!(end_of_run(&free(0..0), 32, 3), 35);
        assert_eq!(end_of_run(&free(30..32), 32, 3), 33);
        assert_eq!(end_of_run(&free(20..31), 32, 12), 44, "in use at the end");
        // As far as the region goes.
        assert_eq!(end_of_run(&free(1000..1020), 1020, 24), 1024);
        assert_eq!(end_of_run(&free(1000..1020), 1020, 25), 1050);
        assert_eq!(end_of_run(&free(1000..1024), 1024, 25), 1050);
        assert_eq!(end_of_run(&free(0..0), 1024, MAX_RUN), 2048);
        assert_eq!(end_of_run(&free(1025..1030), 1030, MAX_RUN), 2048);
    }
}
