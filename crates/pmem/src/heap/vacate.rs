//! Emptying chunks, so that a pool can become smaller.

use super::Heap;
use crate::media::Media;
use crate::pool::choose;
use crate::sync::lock;
use std::fmt;
use std::sync::MutexGuard;

/// Chunks of a root that are being emptied, since [`Heap::vacate`] until this is dropped: no block
/// of theirs is handed out. Their owner moves the live blocks.
///
/// Nothing durable says so. After a crash the chunks are like all others.
#[must_use = "the chunks are in use again when it is dropped"]
pub struct Vacating<'h, M: Media> {
    heap: &'h Heap<M>,
    _turn: MutexGuard<'h, ()>,
}

impl<M: Media> Vacating<'_, M> {
    /// Returns whether the block at `off` is to be moved.
    #[must_use]
    pub fn is_leaving(&self, off: u64) -> bool {
        self.heap.blocks.is_closed(off)
    }
}

impl<M: Media> Drop for Vacating<'_, M> {
    fn drop(&mut self) {
        self.heap.blocks.reopen();
        if !self.heap.pool.pm().read_only() {
            self.heap.release_empty();
        }
    }
}

impl<M: Media> fmt::Debug for Vacating<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vacating").finish_non_exhaustive()
    }
}

impl<M: Media> Heap<M> {
    /// Chooses chunks to empty, such that the root's other ones, and free ones below them, have
    /// room for what is moved. Waits for another thread that does so. Blocks that do not move stay
    /// where they are.
    ///
    /// # Examples
    /// ```
    /// use bristlecone_pmem::media::Dram;
    /// use bristlecone_pmem::pool::{DataKind, RootKind};
    /// use bristlecone_pmem::{Pool, PoolOptions};
    ///
    /// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
    /// let kind = RootKind {
    ///     design: "example".into(),
    ///     keys: DataKind::U64,
    ///     values: DataKind::U64,
    ///     node_bytes: 4096,
    /// };
    /// let heap = pool.create_root("root", &kind)?.heap();
    /// let blocks: Vec<_> = (0..64).map(|_| heap.alloc(4096)).collect::<Result<_, _>>()?;
    /// // All but one block of each chunk.
    /// for (i, block) in blocks.iter().enumerate().filter(|(i, _)| i % 16 != 0) {
    ///     heap.free(*block);
    /// }
    /// let vacating = heap.vacate();
    /// let leaving = blocks.iter().step_by(16).filter(|block| vacating.is_leaving(block.get()));
    /// assert_eq!(leaving.count(), 3, "the fourth has room for them");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vacate(&self) -> Vacating<'_, M> {
        let turn = lock(self.blocks.turn());
        let held = self.blocks.held();
        let chosen = choose(&held, |chunks| self.pool.end_of(&held, chunks));
        self.blocks.close(&chosen);
        Vacating {
            heap: self,
            _turn: turn,
        }
    }
}
