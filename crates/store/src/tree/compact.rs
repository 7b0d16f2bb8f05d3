//! Making the pool smaller after much was removed: on demand, and by the sweep's thread.

use super::Core;
use crate::error::WriteError;
use bristlecone_index::clustered;
use bristlecone_pmem::Media;
use bristlecone_pmem::heap::HeapStats;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of free blocks that are not worth the thread's work.
const FEW: u64 = 16 << 20;

/// What the sweep's thread knows of earlier attempts.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// Bytes of free blocks that the last one left.
    left: AtomicU64,
}

impl<M: Media> Core<M> {
    /// Makes the tree smaller, and then the pool, unless `stops` says otherwise first.
    ///
    /// # Errors
    /// The first [`WriteError`]: a page is damaged, or the file system refuses; what can be given
    /// back all the same is.
    pub(super) fn compact(&self, stops: &dyn Fn() -> bool) -> Result<(), WriteError> {
        self.sound()?;
        let compacted = self.tree.compact(stops);
        // Blocks that were kept for readers at the durable mark are free then.
        self.make_durable(self.applied())?;
        match compacted {
            Ok(_) | Err(clustered::ReadError::Space(_)) => Ok(()),
            Err(e) => Err(super::read_error(None, e).into()),
        }
    }

    /// Makes tree and pool smaller, if more than half of the tree's space is free.
    ///
    /// # Errors
    /// As of [`compact`](Self::compact).
    pub(super) fn compact_if_worth_it(&self) -> Result<(), WriteError> {
        let left = &self.compaction.left;
        // ORDERING (both): Relaxed; only the sweep's thread uses it.
        if !is_worth_it(self.tree.space(), left.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let compacted = self.compact(&|| self.control.is_stopped());
        let given = self.tree.pool().compact();
        left.store(free(self.tree.space()), Ordering::Relaxed);
        compacted?;
        given?;
        Ok(())
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
