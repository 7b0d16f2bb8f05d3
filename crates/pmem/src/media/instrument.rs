//! Hooks of tools into code that runs on a medium: tracing, scheduling and planted faults.
//!
//! | tool | uses |
//! | --- | --- |
//! | crash-state explorer | the trace of loads and stores, `interleave`, `run_as_worker`, `tiny`, planted faults |
//! | device model | the trace, and reports of structures in DRAM ([`DramTrace`]) |
//!
//! Media implement [`Instrument`] only if the feature `explore` is on, and all but the simulated
//! one leave its methods as they are. Without the feature there is one implementation for all
//! media, whose constants are false and whose methods are empty and inlined, so that a product
//! contains nothing of the hooks.

use super::DramTrace;

/// Hooks into code that runs on a medium. Every method may be left as it is.
pub trait Instrument: Sized {
    /// True only for a medium that wants every load and store of a persistent word reported to
    /// [`trace_store`](Self::trace_store) and [`trace_load`](Self::trace_load). Cells compile to
    /// plain atomics where it is false.
    const TRACED: bool = false;

    /// How structures in DRAM that serve this medium report their accesses:
    /// [`Untraced`](super::Untraced) for all but a simulated one.
    type Dram: DramTrace;

    /// Announces a store to `width` bytes, which will be read for the trace.
    #[inline(always)]
    fn trace_touch(&self, addr: *const u8, width: usize) {
        let _ = (addr, width);
    }

    /// Reports a store of `width` bytes that replaces `old` by `new`.
    #[inline(always)]
    #[track_caller]
    fn trace_store(&self, addr: *const u8, width: usize, old: u128, new: u128) {
        let _ = (addr, width, old, new);
    }

    /// Reports a store of the bytes `new` at `addr`.
    #[inline(always)]
    #[track_caller]
    fn trace_store_bytes(&self, addr: *const u8, new: &[u8]) {
        let _ = (addr, new);
    }

    /// Reports a load of `width` bytes.
    #[inline(always)]
    #[track_caller]
    fn trace_load(&self, addr: *const u8, width: usize) {
        let _ = (addr, width);
    }

    /// A point between two steps on volatile memory (taking a leaf's lock, say) where a simulated
    /// medium may let another thread run.
    #[inline(always)]
    fn interleave(&self) {}

    /// Runs `work` to its end as a thread of its own where threads are simulated: another thread's
    /// fence does not make durable what it flushes. Returns false without running `work` on media
    /// that are used by the system's threads.
    #[inline(always)]
    fn run_as_worker(&self, work: &mut dyn FnMut()) -> bool {
        let _ = work;
        false
    }

    /// Returns true if limits that decide how rare a path is (entries of a volatile node, sizes to
    /// grow to) should be as small as possible, so that little work takes all paths.
    #[inline(always)]
    fn tiny(&self) -> bool {
        false
    }

    /// Returns true if the fault of that name is to be made here. Products ask through
    /// [`planted!`](crate::planted).
    #[cfg(feature = "explore")]
    #[inline(always)]
    fn planted(&self, fault: &str) -> bool {
        let _ = fault;
        false
    }
}

#[cfg(not(feature = "explore"))]
impl<M: super::Media> Instrument for M {
    type Dram = super::Untraced;
}

/// True if the crash-state explorer has planted the fault of that name in the medium; `false`, at
/// no cost, in a build without the feature `explore`.
///
/// Tests of the explorer make known mistakes in this way (`docs/crash.md`, "Known mistakes"): each
/// fault must be found.
#[cfg(feature = "explore")]
#[macro_export]
macro_rules! planted {
    ($pm:expr, $fault:expr) => {
        $pm.planted($fault)
    };
}

/// True if the crash-state explorer has planted the fault of that name in the medium; `false`, at
/// no cost, in a build without the feature `explore`.
#[cfg(not(feature = "explore"))]
#[macro_export]
macro_rules! planted {
    ($pm:expr, $fault:expr) => {{
        let _ = (&$pm, $fault);
        false
    }};
}
