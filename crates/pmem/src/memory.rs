//! This process's memory, asked for before it is taken.
//!
//! An allocation that the system refuses ends a Rust program. Memory that grows with the data (a
//! pool's image, inner nodes) is therefore asked for in steps, and a step that leaves less than
//! [`HEADROOM`] for everything else is refused while it still can be, with an error.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::io;
use std::ptr::{NonNull, null_mut};

/// Bytes that a step leaves for the rest of the process: requests, replies, buffers.
pub const HEADROOM: usize = 32 << 20;

/// Access to memory that is stored to.
const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Maps anonymous memory at an address that the kernel chooses.
fn map(bytes: usize, access: ProtFlags) -> io::Result<NonNull<u8>> {
    // Miri knows no other access, and none of the calls below that change a mapping.
    let (access, flags) = if cfg!(miri) {
        (WRITABLE, MapFlags::PRIVATE)
    } else {
        (access, MapFlags::PRIVATE | MapFlags::NORESERVE)
    };
    // SAFETY: a fresh mapping, at an address that the kernel chooses, touches nothing of ours.
    let at = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, access, flags) }?;
    Ok(NonNull::new(at.cast()).expect("the kernel maps nothing at zero"))
}

/// Checks that the system would grant this process `bytes` more of private memory, and [`HEADROOM`]
/// beside it. Nothing is kept.
///
/// # Errors
/// The system's error: limits as those of `ulimit -d` and `ulimit -v` answer so.
pub fn ask(bytes: usize) -> io::Result<()> {
    let bytes = bytes.saturating_add(HEADROOM);
    if cfg!(miri) && bytes < 1 << 40 {
        return Ok(());
    }
    let at = map(bytes, WRITABLE)?;
    // SAFETY: the mapping was made above, and nobody else knows of it.
    unsafe { release(at, bytes) };
    Ok(())
}

/// Reserves `bytes` of address space, which read as zero and may not be stored to yet
/// ([`make_writable`]); they count for no limit of the process's memory.
///
/// # Errors
/// The system's error.
pub fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    map(bytes, ProtFlags::READ)
}

/// Lets `bytes` from `at` on be stored to.
///
/// # Errors
/// The system's error; nothing has changed then.
///
/// # Safety
/// The range is whole pages of one [`reserve`]d by the caller.
pub unsafe fn make_writable(at: NonNull<u8>, bytes: usize) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller owns the range, and more access harms no reader.
    unsafe { rustix::mm::mprotect(at.as_ptr().cast(), bytes, access) }?;
    Ok(())
}

/// Asks for huge pages behind a range. A refusal costs only speed.
///
/// # Safety
/// The range is whole pages of one [`reserve`]d by the caller.
pub unsafe fn prefer_huge_pages(at: NonNull<u8>, bytes: usize) {
    if !cfg!(miri) {
        // SAFETY: the caller owns the range, and the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// Gives a range back.
///
/// # Safety
/// It was [`reserve`]d with this length, and nothing leads into it any more.
pub unsafe fn release(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller owns the mapping, which nobody uses any more. It cannot fail on a whole
    // mapping.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), bytes) };
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
