//! Checking the pool's own invariants.
//!
//! # Invariants
//! 1. Chunks = header chunks (the first of each region) + free chunks + chunks of roots; no chunk
//!    is in two runs.
//! 2. A chunk is in the volatile free set iff no durable word assigns it.
//! 3. An open root's allocator knows exactly the chunks that the tables give it, cut the same way.
//! 4. Both superblock copies are whole and equal, and say how long the pool is.

use super::Pool;
use crate::format::layout::{CHUNK, ChunkUse, REGION_CHUNKS, ROOTS};
use crate::format::superblock::Superblock;
use crate::media::Media;
use crate::sync::lock;
use std::fmt;

/// A broken invariant of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolViolation {
    /// Which, where, and what was found.
    pub what: String,
    /// True if only space is lost, or owned twice.
    pub leak: bool,
}

impl fmt::Display for PoolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for PoolViolation {}

/// Uses of a pool's chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReport {
    /// Chunks that hold the pool's own tables.
    pub header_chunks: u64,
    /// Chunks that belong to no root.
    pub free_chunks: u64,
    /// Chunks that belong to roots.
    pub owned_chunks: u64,
    /// Chunks (first chunks of runs) whose root was taken back: the next opening frees them, so
    /// there are none in a pool that was just opened.
    pub ownerless_chunks: u64,
    /// Chunks (first chunks of runs) of open roots in which no block is live.
    pub idle_chunks: u64,
}

impl<M: Media> Pool<M> {
    /// Checks the invariants of the pool itself (not of its roots' content). No thread may write
    /// meanwhile.
    ///
    /// # Errors
    /// The first [`PoolViolation`] found.
    pub fn verify(&self) -> Result<PoolReport, PoolViolation> {
        let broken = |what: String| PoolViolation { what, leak: false };
        let leaked = |what: String| PoolViolation { what, leak: true };
        self.verify_superblock().map_err(broken)?;
        let open = *lock(&self.open_roots);
        let mut used_slots = open;
        for index in 0..ROOTS {
            if self.root_at(index).map_err(broken)?.is_some() {
                used_slots |= 1 << index;
            }
        }
        let mut report = PoolReport::default();
        // (first chunk, use) of every assigned chunk, by root slot.
        let mut of_roots: Vec<(u8, u32, ChunkUse)> = Vec::new();
        {
            let space = lock(&self.space);
            let end = (self.pm.len() / CHUNK) as u32;
            let mut run_end = 0;
            for chunk in 0..end {
                let broken = |what: &str| broken(format!("chunk {chunk}: {what}"));
                let header = u64::from(chunk).is_multiple_of(REGION_CHUNKS);
                let used = self
                    .chunk_use(chunk)
                    .ok_or_else(|| broken("its chunk-table word fails its check"))?;
                let inside = chunk < run_end;
                if header != (used == ChunkUse::Header) {
                    return Err(broken(
                        "a header where none belongs, or none where one does",
                    ));
                }
                let owner = match used {
                    ChunkUse::Header => {
                        report.header_chunks += 1;
                        None
                    }
                    ChunkUse::Free if inside => {
                        report.owned_chunks += 1;
                        None
                    }
                    ChunkUse::Free => {
                        report.free_chunks += 1;
                        None
                    }
                    ChunkUse::Blocks { owner, .. }
                    | ChunkUse::Activated { owner, .. }
                    | ChunkUse::Run { owner, .. } => {
                        report.owned_chunks += 1;
                        Some(owner)
                    }
                };
                if inside && used != ChunkUse::Free {
                    return Err(leaked(format!("chunk {chunk}: assigned, and inside a run")));
                }
                if space.free.contains(&chunk) != (used == ChunkUse::Free && !inside) {
                    return Err(leaked(format!(
                        "chunk {chunk}: its word says {used:?}, the free set says otherwise"
                    )));
                }
                if let Some(owner) = owner {
                    if used_slots & 1 << owner == 0 {
                        report.ownerless_chunks += 1;
                    }
                    of_roots.push((owner, chunk, used));
                }
                if let ChunkUse::Run { chunks, .. } = used {
                    run_end = chunk.saturating_add(chunks);
                    if run_end > end {
                        return Err(broken("a run that leaves the pool"));
                    }
                }
            }
            if let Some(past) = space.free.range(end..).next() {
                return Err(leaked(format!("chunk {past} is free, past the pool's end")));
            }
        }
        for blocks in self.open_blocks() {
            let mine = of_roots
                .iter()
                .filter(|(owner, ..)| *owner == blocks.owner())
                .map(|(_, chunk, used)| (*chunk, *used));
            report.idle_chunks += blocks.verify(mine).map_err(leaked)?;
        }
        Ok(report)
    }

    fn verify_superblock(&self) -> Result<(), String> {
        let known = lock(&self.superblock).clone().with_copy(0);
        // A device may end with a part of a chunk.
        if self.pm.len() / CHUNK * CHUNK != known.size {
            return Err(format!(
                "the pool has {} bytes, its superblock says {}",
                self.pm.len(),
                known.size
            ));
        }
        for (name, copy) in ["A", "B"].into_iter().zip(Superblock::copies(&self.pm)) {
            if copy.as_ref() != Some(&known) {
                return Err(format!(
                    "superblock copy {name} is {copy:?}, expected {known:?}"
                ));
            }
        }
        Ok(())
    }
}
