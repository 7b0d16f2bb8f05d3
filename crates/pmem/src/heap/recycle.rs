//! Activating and freeing the blocks that the words of a multi-word swap lead to.

/// An allocator to which the multi-word swap returns the blocks that a
/// [`Policy`](crate::pmwcas::Policy) frees.
///
/// Blocks come back in two steps, so that a crash between them neither loses a block nor frees it
/// twice: between them, the descriptor is made durably free. An allocator whose state is all
/// volatile, such as [`Heap`](super::Heap), does nothing in the first. An allocator that loads
/// saved marks instead of walking must not do so if
/// [`Recovered::released`](crate::pmwcas::Recovered::released) is not 0: those blocks are marked.
pub trait Recycle: Send + Sync {
    /// Checks that `block`, which came from the pool's content, is one that can be recycled. It is
    /// an aligned offset in the pool, outside its header and the descriptors; nothing else about it
    /// has been checked.
    ///
    /// # Errors
    /// The reason in words.
    fn check(&self, block: u64) -> Result<(), String> {
        let _ = block;
        Ok(())
    }

    /// Makes `block` durably taken, except for the fence, which follows: the operation that names
    /// it as a new value is durable and may succeed. Every thread that may decide the operation
    /// calls this.
    fn activate(&self, block: u64) {
        let _ = block;
    }

    /// Makes `block` durably free without handing it out yet: no thread can reach it any more.
    /// Durable when it returns. May be called again for the same block after a crash.
    fn release(&self, block: u64) {
        let _ = block;
    }

    /// Lets `block` be handed out, for which recovery called [`release`](Self::release): the
    /// descriptor that named it is durably free. Allocators that make their free lists after
    /// recovery have nothing to do.
    fn recovered(&self, block: u64) {
        let _ = block;
    }

    /// Lets `block` be handed out. Not called in recovery.
    fn reuse(&self, block: u64);
}
