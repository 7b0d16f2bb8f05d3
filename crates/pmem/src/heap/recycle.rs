//! How a multi-word swap activates and frees the blocks that its words lead to.

/// An allocator to which the multi-word swap returns the blocks that a
/// [`Policy`](crate::pmwcas::Policy) frees.
///
/// Blocks come back in two steps, so that a crash between them neither loses a block nor frees it
/// twice: between them, the descriptor is made durably free. An allocator whose state is all
/// volatile, as [`Heap`](super::Heap)'s is, has nothing to do in the first. One that loads saved
/// marks instead of walking does not if [`Recovered::released`](crate::pmwcas::Recovered::released)
/// is not 0: those blocks are marked.
pub trait Recycle: Send + Sync {
    /// Checks that `block`, which came from the pool's content, is one that can be recycled. It is
    /// an aligned offset in the pool, outside its header and the descriptors; nothing more is known
    /// of it.
    ///
    /// # Errors
    /// A message that says what is wrong.
    fn check(&self, block: u64) -> Result<(), String> {
        let _ = block;
        Ok(())
    }

    /// The operation that names `block` as a new value is durable, and may succeed: make it durably
    /// taken, but for the fence, which follows. By every thread that may decide the operation.
    fn activate(&self, block: u64) {
        let _ = block;
    }

    /// No thread can reach `block` any more: make it durably free, but do not hand it out yet.
    /// Durable when it returns. May come again for the same block after a crash.
    fn release(&self, block: u64) {
        let _ = block;
    }

    /// A block that [`release`](Self::release) was called for in recovery may be handed out: the
    /// descriptor that named it is durably free. Allocators that make their free lists after
    /// recovery have nothing to do.
    fn recovered(&self, block: u64) {
        let _ = block;
    }

    /// `block` may be handed out. Not called in recovery.
    fn reuse(&self, block: u64);
}
