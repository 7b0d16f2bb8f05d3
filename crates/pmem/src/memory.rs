//! Asking for this process's memory before it is needed.
//!
//! An allocation that the system refuses ends a Rust program. Memory that grows with the data (a
//! pool's image, inner nodes) is therefore asked for in steps. A step that would leave less than
//! [`HEADROOM`] for everything else is refused in time, with an error.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::io;
use std::path::Path;
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
    // SAFETY: a fresh mapping, at an address that the kernel chooses, overlaps no memory of this
    // process.
    let at = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, access, flags) }?;
    Ok(NonNull::new(at.cast()).expect("the kernel maps nothing at zero"))
}

/// Checks that the system would grant this process `bytes` more of private memory, and [`HEADROOM`]
/// beside it. Keeps nothing.
///
/// # Errors
/// The system's error; limits such as those of `ulimit -d` and `ulimit -v` cause it.
pub fn ask(bytes: usize) -> io::Result<()> {
    let bytes = bytes.saturating_add(HEADROOM);
    if cfg!(miri) && bytes < 1 << 40 {
        return Ok(());
    }
    let at = map(bytes, WRITABLE)?;
    // SAFETY: 1. the mapping was made above with this length; 2. nothing else knows of it.
    unsafe { release(at, bytes) };
    Ok(())
}

/// Returns how many bytes of this process are in memory, or `None` where the system does not tell.
#[must_use]
pub fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns how many bytes of memory this process can have: the machine's, or what its control
/// groups leave of that. `None` where the system does not tell.
#[must_use]
pub fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        kib.checked_mul(1024)
    });
    let group = read("/proc/self/cgroup").and_then(|groups| {
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        // Each group also has the limits of those above it.
        let above = Path::new(path).ancestors();
        let limit = |group: &Path| {
            let group = group.strip_prefix("/").unwrap_or(group);
            let limit = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
            read(limit.to_str()?)?.trim().parse::<u64>().ok()
        };
        above.filter_map(limit).min()
    });
    machine.into_iter().chain(group).min()
}

/// Reserves `bytes` of address space, which read as zero and may not be stored to yet
/// ([`make_writable`]). They count towards no limit of the process's memory.
///
/// # Errors
/// The system's error.
pub fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    map(bytes, ProtFlags::READ)
}

/// Makes `bytes` from `at` on writable.
///
/// # Errors
/// The system's error. Nothing has changed then.
///
/// # Safety
/// The range is whole pages of one that the caller [`reserve`]d.
pub unsafe fn make_writable(at: NonNull<u8>, bytes: usize) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: 1. the caller promises that the range is whole pages of its own reservation; 2. more
    // access harms no reader.
    unsafe { rustix::mm::mprotect(at.as_ptr().cast(), bytes, access) }?;
    Ok(())
}

/// Asks for huge pages behind a range. A refusal costs only speed.
///
/// # Safety
/// The range is whole pages of one that the caller [`reserve`]d.
pub unsafe fn prefer_huge_pages(at: NonNull<u8>, bytes: usize) {
    if !cfg!(miri) {
        // SAFETY: 1. the caller promises that the range is whole pages of its own reservation; 2.
        // the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// Unmaps a range.
///
/// # Safety
/// It was [`reserve`]d with this length, and nothing leads into it any more.
pub unsafe fn release(at: NonNull<u8>, bytes: usize) {
    // SAFETY: 1. the caller promises that it reserved the range with this length, which makes it a
    // whole mapping, for which the call cannot fail; 2. it promises that nothing leads into it any
    // more.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_that_is_touched_is_resident() {
        let before = super::resident().expect("Linux tells");
        let touched = vec![1_u8; 64 << 20];
        let after = super::resident().expect("Linux tells");
        assert!(after > before + (32 << 20), "{before} to {after}");
        assert_eq!(
            touched
                .iter()
                .step_by(4096)
                .map(|b| u64::from(*b))
                .sum::<u64>(),
            16384
        );
        let available = super::available().expect("Linux tells");
        assert!(available > after, "{available}");
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        assert!(super::ask(1 << 20).is_ok());
        // More than any address space.
        let error = super::ask(usize::MAX / 2).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    }
}
