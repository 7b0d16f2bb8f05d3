//! This process's memory, asked for before it is taken.
//!
//! An allocation that the system refuses ends a Rust program. What grows with the data (a pool's image in
//! memory, inner nodes) is therefore asked for in steps, and a step that leaves less than
//! [`HEADROOM`] for everything else is refused while it still can be, with an error.

use rustix::mm::{MapFlags, ProtFlags};
use std::io;

/// Bytes that a step leaves for the rest of the process: requests, replies, buffers.
pub const HEADROOM: usize = 32 << 20;

/// Whether the system would grant this process `bytes` more of private memory, and [`HEADROOM`] beside
/// it. Nothing is kept.
///
/// # Errors
/// What the system said: limits as those of `ulimit -d` and `ulimit -v` answer so.
pub fn ask(bytes: usize) -> io::Result<()> {
    let bytes = bytes.saturating_add(HEADROOM);
    // SAFETY: a fresh anonymous mapping at an address that the kernel chooses touches nothing of ours.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the mapping was made above, and nobody else knows of it.
    unsafe { rustix::mm::munmap(at, bytes) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_cannot_be_had_is_refused() {
        assert!(super::ask(1 << 20).is_ok());
        // More than any address space.
        let error = super::ask(usize::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    }
}
