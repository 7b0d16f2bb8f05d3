//! Flush and fence instructions, chosen at run time.
//!
//! | processor | flush | fence | store fence |
//! | --- | --- | --- | --- |
//! | x86-64 | `clwb`, else `clflushopt`, else `clflush` | `sfence` | none needed (total store order) |
//! | AArch64 | `dc cvap` if the kernel reports it, else `dc cvac` | `dsb ish` | `dmb ishst` |
//! | others | refused when a durable medium is opened | | |
//!
//! Where the platform's persistence domain includes the caches, flushes are skipped and only the
//! fence stays: a store still in the store buffer is not durable.

use super::LINE;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Instruction for writing back a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushKind {
    /// `clwb`: write back, may keep the line.
    Clwb,
    /// `clflushopt`: write back and evict, unordered.
    ClflushOpt,
    /// `clflush`: write back and evict, ordered.
    Clflush,
    /// `dc cvap`: clean to the point of persistence.
    DcCvap,
    /// `dc cvac`: clean to the point of coherency.
    DcCvac,
    /// Nothing: the caches are inside the persistence domain.
    None,
}

impl FlushKind {
    /// Returns the instruction's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::DcCvac => "dc cvac",
            Self::None => "none",
        }
    }
}

/// Returns the best flush instruction that this processor has, or `None` if it has none that we
/// know.
#[must_use]
pub fn detect() -> Option<FlushKind> {
    static DETECTED: OnceLock<Option<FlushKind>> = OnceLock::new();
    *DETECTED.get_or_init(detect_now)
}

#[cfg(target_arch = "x86_64")]
fn detect_now() -> Option<FlushKind> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 7 exists if leaf 0 says so; leaf 1 always does on x86-64.
    let max_leaf = __cpuid(0).eax;
    if max_leaf >= 7 {
        let ebx = __cpuid_count(7, 0).ebx;
        if ebx & (1 << 24) != 0 {
            return Some(FlushKind::Clwb);
        }
        if ebx & (1 << 23) != 0 {
            return Some(FlushKind::ClflushOpt);
        }
    }
    // CLFSH, bit 19 of leaf 1's edx.
    (__cpuid(1).edx & (1 << 19) != 0).then_some(FlushKind::Clflush)
}

#[cfg(target_arch = "aarch64")]
fn detect_now() -> Option<FlushKind> {
    // HWCAP_DCPOP: the kernel allows `dc cvap` in user space.
    const HWCAP_DCPOP: usize = 1 << 16;
    let (hwcap, _) = rustix::param::linux_hwcap();
    Some(if hwcap & HWCAP_DCPOP != 0 {
        FlushKind::DcCvap
    } else {
        FlushKind::DcCvac
    })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect_now() -> Option<FlushKind> {
    None
}

/// Returns true if the kernel says that every persistent region's domain includes the processor's
/// caches.
#[must_use]
pub fn caches_are_persistent() -> bool {
    static PERSISTENT: OnceLock<bool> = OnceLock::new();
    *PERSISTENT.get_or_init(|| {
        let Ok(buses) = std::fs::read_dir("/sys/bus/nd/devices") else {
            return false;
        };
        let mut regions = 0;
        for device in buses.flatten() {
            let Ok(domain) = std::fs::read_to_string(device.path().join("persistence_domain"))
            else {
                continue;
            };
            regions += 1;
            if domain.trim() != "cpu_cache" {
                return false;
            }
        }
        regions > 0
    })
}

/// Writes back every line of `addr..addr + len`.
///
/// Flushing is harmless for any mapped address; an unmapped one faults, so callers pass an address
/// that they hold a reference to.
#[inline(always)]
pub fn flush(kind: FlushKind, addr: *const u8, len: usize) {
    if kind == FlushKind::None || len == 0 {
        return;
    }
    let first = addr.addr() & !(LINE - 1);
    let last = (addr.addr() + len - 1) & !(LINE - 1);
    let mut line = first;
    loop {
        flush_line(kind, addr.with_addr(line));
        if line == last {
            return;
        }
        line += LINE;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn flush_line(kind: FlushKind, line: *const u8) {
    use std::arch::asm;
    // SAFETY: 1. `line` is in a mapped line (it holds a byte of the caller's range); 2. the
    // instruction exists, since `kind` came from `detect`; 3. it changes no register and no memory
    // content, and the compiler must not move stores past it (no `nomem` option).
    unsafe {
        match kind {
            FlushKind::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
            FlushKind::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            FlushKind::Clflush => {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            FlushKind::DcCvap | FlushKind::DcCvac | FlushKind::None => {}
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn flush_line(kind: FlushKind, line: *const u8) {
    use std::arch::asm;
    // SAFETY: 1. `line` is in a mapped line (it holds a byte of the caller's range); 2. Linux lets
    // user space clean lines (`dc cvac`), and `dc cvap` where HWCAP_DCPOP was seen; 3. it changes
    // no register and no memory content, and the compiler must not move stores past it.
    unsafe {
        match kind {
            // `dc cvap, x` by its encoding, so that assemblers without ARMv8.2 take it.
            FlushKind::DcCvap => asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack)),
            FlushKind::DcCvac => asm!("dc cvac, {}", in(reg) line, options(nostack)),
            _ => {}
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn flush_line(_kind: FlushKind, _line: *const u8) {}

/// Orders earlier flushes before later stores.
#[inline(always)]
pub fn persist_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` is part of x86-64's baseline and touches no memory; without `nomem` the
    // compiler keeps stores on their side of it.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `dsb ish` is part of the baseline and touches no memory; completion of `dc` needs
    // `dsb`, not `dmb`.
    unsafe {
        std::arch::asm!("dsb ish", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders two stores. On x86-64 only the compiler has to be told.
#[inline(always)]
pub fn store_fence() {
    if cfg!(target_arch = "x86_64") {
        // ORDERING: keeps the compiler from reordering the stores; the processor does not.
        compiler_fence(Ordering::SeqCst);
    } else {
        // ORDERING: Release orders the earlier store before the later one (`dmb ish` on AArch64).
        fence(Ordering::Release);
    }
}

/// Prefetches the lines of `addr..addr + len`. Never faults.
#[inline(always)]
pub fn prefetch(addr: *const u8, len: usize) {
    let mut offset = 0;
    while offset < len {
        let line = addr.wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is a hint; it cannot fault whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch is a hint; it cannot fault whatever the address, and changes nothing.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
        }
        let _ = line;
        offset += LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_can_flush() {
        let kind = detect().expect("x86-64 and AArch64 always have a flush");
        let buffer = [7u8; 300];
        flush(kind, buffer.as_ptr().wrapping_add(5), 290);
        persist_fence();
        store_fence();
        prefetch(buffer.as_ptr(), 300);
        prefetch(std::ptr::null(), 64);
        assert!(buffer.iter().all(|b| *b == 7), "a flush changes no content");
        assert_ne!(kind.name(), "none");
    }
}
