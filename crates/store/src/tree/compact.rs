//! Making the pool smaller after much was removed: on demand, and by the sweep's thread.

use super::Core;
use crate::error::WriteError;
use bristlecone_index::clustered;
use bristlecone_pmem::Media;
use bristlecone_pmem::heap::HeapStats;
use bristlecone_pmem::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes of free blocks that are not worth the thread's work.
const FEW: u64 = 16 << 20;

/// How often the thread looks: it reads the state of every chunk.
const EVERY: Duration = Duration::from_secs(5);

/// The sweep's thread's record of its last attempt.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When it looked.
    at: Option<Instant>,
    /// Bytes of free blocks that it left.
    left: u64,
}

impl<M: Media> Core<M> {
    /// Makes the tree smaller, unless `stops` says otherwise first. `fills`: its pages are filled
    /// up, which writes most of them.
    ///
    /// # Errors
    /// The first [`WriteError`]: a page is damaged, or the file system refuses; what can be given
    /// back all the same is.
    pub(super) fn compact(&self, fills: bool, stops: &dyn Fn() -> bool) -> Result<(), WriteError> {
        self.sound()?;
        let compacted = self.tree.compact(fills, stops);
        // Blocks that were kept for readers at the durable mark are free then.
        self.make_durable(self.applied())?;
        match compacted {
            Ok(_) | Err(clustered::ReadError::Space(_)) => Ok(()),
            Err(e) => Err(super::read_error(None, e).into()),
        }
    }

    /// Makes tree and pool smaller, if more than half of the tree's space is free, or the pool's.
    ///
    /// # Errors
    /// As of [`compact`](Self::compact).
    pub(super) fn compact_if_worth_it(&self) -> Result<(), WriteError> {
        let mut seen = lock(&self.compaction.seen);
        if seen.at.is_some_and(|at| at.elapsed() < EVERY) {
            return Ok(());
        }
        seen.at = Some(Instant::now());
        let (space, pool) = (self.tree.space(), self.tree.pool());
        seen.left = seen.left.min(free(space));
        let mut compacted = Ok(());
        if is_worth_it(space, seen.left) {
            compacted = self.compact(false, &|| self.control.is_stopped());
            seen.left = free(self.tree.space());
        } else if pool.idle_bytes() <= FEW.max(space.chunk_bytes) {
            return Ok(());
        }
        if !self.control.is_stopped() {
            pool.compact()?;
        }
        compacted
    }
}

fn free(space: HeapStats) -> u64 {
    space.chunk_bytes.saturating_sub(space.live_bytes)
}

/// Whether to move what is live. `left`: bytes of free blocks that doing so left the last time.
fn is_worth_it(space: HeapStats, left: u64) -> bool {
    let free = free(space);
    free > FEW.max(space.live_bytes) && free > left.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_free_space_is_left_alone_and_so_is_what_could_not_be_freed() {
        let space = |live_mib: u64, free_mib: u64| HeapStats {
            chunk_bytes: (live_mib + free_mib) << 20,
            live_bytes: live_mib << 20,
            ..HeapStats::default()
        };
        assert!(is_worth_it(space(10, 90), 0));
        assert!(!is_worth_it(space(60, 40), 0), "less than half is free");
        assert!(!is_worth_it(space(1, 15), 0), "it is little");
        assert!(!is_worth_it(space(10, 90), 80 << 20), "readers keep it");
        assert!(is_worth_it(space(10, 170), 80 << 20));
    }
}
