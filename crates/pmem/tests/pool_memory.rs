//! A root that is closed leaves nothing of its allocator in memory. The file has one test, so that
//! no other one allocates meanwhile.

#[path = "all/pool_support/mod.rs"]
mod pool_support;

use pool_support::{dram, kind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with a count of the bytes that are in use.
struct Counted;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: 1. both calls go to the system's allocator, with the arguments that the caller gave; 2.
// counting does not allocate.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // ORDERING: Relaxed; a count.
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // ORDERING: Relaxed; a count.
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[test]
fn roots_that_are_opened_and_closed_take_no_more_memory_each_time() {
    let pool = dram();
    pool.create_root("r", &kind()).unwrap().publish();
    let mut first = 0;
    for round in 0..100 {
        let root = pool.open_root("r", None).unwrap();
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        for bytes in [16, 64, 4096, 100_000] {
            heap.alloc(bytes).unwrap();
        }
        drop((heap, root));
        // ORDERING: Relaxed; one thread.
        let in_use = IN_USE.load(Ordering::Relaxed);
        match round {
            0..20 => first = in_use.max(first),
            _ => assert!(in_use < first + (64 << 10), "{first}, then {in_use} bytes"),
        }
    }
}
