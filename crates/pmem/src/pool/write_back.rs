//! After a kill: what the process had not flushed is in the caches, where the next one sees it.

use super::Pool;
use crate::format::layout::{CHUNK, ChunkUse};
use crate::media::Media;
use crate::planted;
use crate::sync::lock;

impl<M: Media> Pool<M> {
    /// Makes all durable that is in use. What a killed process had not flushed may be in the caches
    /// only: recovery would build on it, and readers would see it, and a power failure after that
    /// would take it away. After a clean close that is only the superblock which says so.
    ///
    /// # Crash states
    /// A power failure meanwhile leaves what one at the time of the kill could have left.
    pub(super) fn write_back(&self) {
        if planted!(self.pm, "pool-kill-forgotten") {
            return;
        }
        if self.was_clean {
            if !planted!(self.pm, "pool-closed-unkept") {
                lock(&self.superblock).keep(&self.pm);
            }
            return;
        }
        let end = (self.size() / CHUNK) as u32;
        let mut chunk = 0;
        while chunk < end {
            let (is_free, chunks) = match self.sound_use(chunk, end) {
                Ok(ChunkUse::Free) => (true, 1),
                Ok(ChunkUse::Run { chunks, .. }) => (false, chunks),
                _ => (false, 1),
            };
            if !is_free {
                let at = (self.pm.base()).wrapping_add(chunk as usize * CHUNK as usize);
                // PERSIST: what the killed process left, before anything is decided by it.
                self.pm
                    .flush(at.cast_const(), chunks as usize * CHUNK as usize);
            }
            chunk += chunks;
        }
        self.pm.fence();
    }
}
