//! Memory of inner nodes: one reserved range, handed out from its start, with a free list.
//!
//! ```text
//! base (2 MiB aligned)                       writable         capacity
//! | node 0 | node 1 | ... | next |  untouched  |  readable, zero  |
//! ```
//!
//! # Invariants
//! 1. The range is mapped and readable for as long as the arena lives, so following a handle below
//!    the capacity never faults, whatever the node's state.
//! 2. A node's memory only ever holds a node. Pages that were never touched read as zero, which is
//!    a valid node.
//! 3. Memory beyond `writable` does not count towards the process's memory limit (`ulimit -d`); a
//!    large range would leave nothing for the rest. It is made writable in steps, before a split
//!    needs it ([`Arena::ensure`]), so that the split can be refused.
//! 4. A freed node comes back to `free` through the epoch collector, when no reader can be in it.
//!
//! Pages are committed by the first touch; huge pages are asked for, since a lookup touches one
//! node per level and would otherwise miss in the TLB as often as in the cache. The first step may
//! get one once it is full: to zero a huge page takes a good part of the time to open a database.

use bristlecone_pmem::memory;
use bristlecone_pmem::sync::lock;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes asked for first; halved until the system grants it.
pub(crate) const RESERVE: usize = if cfg!(miri) { 4 * HUGE } else { 64 << 30 };
/// Minimum to work with. Short-lived indexes reserve this little and get no huge pages, since
/// zeroing those would cost more than a small index ever gains.
const LEAST: usize = if cfg!(miri) { HUGE } else { 64 << 20 };
const HUGE: usize = 2 << 20;

/// Returns how much to reserve for the inner nodes over leaves that may take `leaf_bytes`. Nodes
/// are not merged before they are empty, so there may be as many as leaves of 256 bytes, and nodes
/// above them.
pub(crate) fn room_for(leaf_bytes: u64) -> usize {
    usize::try_from(leaf_bytes.saturating_mul(2))
        .map_or(RESERVE, |bytes| bytes.clamp(LEAST, RESERVE))
}

/// Types that an arena can hold.
///
/// # Safety
/// All zero is a valid value; every field is atomic (shared references may be handed out freely);
/// dropping does nothing.
pub(crate) unsafe trait Node: Send + Sync {}

#[derive(Debug)]
struct Space {
    /// Freed nodes that no reader is in.
    free: Vec<u32>,
    /// First node that has never been handed out.
    next: u32,
    /// Bytes that may be stored to.
    writable: usize,
}

/// First step, for a fresh arena. Later steps are an eighth of the writable bytes, if that is more.
const STEP: usize = HUGE;
/// Number of nodes that [`Arena::ensure`] makes sure of: far more than the splits of all threads
/// can take at a time.
const ENSURED: u32 = 1024;

/// A range of memory that holds nodes of one type. See the module's head.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    base: NonNull<T>,
    /// The mapping, which `base` is aligned within.
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    capacity: u32,
    space: Mutex<Space>,
    /// Heap bytes of byte-string separators.
    separator_bytes: AtomicU64,
    holds: PhantomData<T>,
}

// SAFETY: 1. the mapping belongs to this value until drop and is not bound to a thread; 2. nodes
// are `Node`s: all atomic; 3. the rest is behind a mutex or atomic.
unsafe impl<T: Node> Send for Arena<T> {}
// SAFETY: 1. to 3. as for `Send`.
unsafe impl<T: Node> Sync for Arena<T> {}

impl<T: Node> Arena<T> {
    /// Reserves `bytes` of address space, or as much of it as the system grants.
    ///
    /// # Errors
    /// The system's error when it would not even grant 64 MiB.
    pub(crate) fn reserve(bytes: usize) -> io::Result<Self> {
        let mut bytes = bytes.max(LEAST);
        let spare = if bytes == LEAST { take_spare() } else { None };
        let mapping = loop {
            if let Some(spare) = spare {
                break spare;
            }
            match memory::reserve(bytes + HUGE) {
                Ok(at) => break at,
                Err(_) if bytes / 2 >= LEAST => bytes /= 2,
                Err(e) => return Err(e),
            }
        };
        // SAFETY: a huge page more than is used was mapped, so the aligned address is inside.
        let aligned = unsafe { mapping.add(mapping.align_offset(HUGE)) };
        let arena = Self {
            base: aligned.cast(),
            mapping,
            mapping_bytes: bytes + HUGE,
            capacity: u32::try_from(bytes / size_of::<T>()).unwrap_or(u32::MAX),
            space: Mutex::new(Space {
                free: Vec::new(),
                next: 0,
                writable: if spare.is_some() { STEP } else { 0 },
            }),
            separator_bytes: AtomicU64::new(0),
            holds: PhantomData,
        };
        // If this fails, dropping the arena unmaps the range.
        arena.make_writable(&mut lock(&arena.space), STEP)?;
        Ok(arena)
    }

    /// Makes the first `bytes` of the range writable.
    ///
    /// # Errors
    /// The system's error, if that would leave too little memory for the rest of the process.
    fn make_writable(&self, space: &mut Space, bytes: usize) -> io::Result<()> {
        let whole = self.mapping_bytes - HUGE;
        let bytes = bytes.next_multiple_of(HUGE).min(whole);
        let from = space.writable;
        if bytes <= from {
            return Ok(());
        }
        memory::ask(bytes - from)?;
        // SAFETY: the range is inside the mapping, which this value owns, and whole pages.
        unsafe { memory::make_writable(self.base.cast::<u8>().add(from), bytes - from) }?;
        space.writable = bytes;
        if from == STEP && whole > LEAST {
            // SAFETY: as above.
            unsafe { memory::prefer_huge_pages(self.base.cast(), whole) };
        }
        Ok(())
    }

    /// Makes sure that the next splits find room for their nodes, and `more` nodes.
    ///
    /// # Errors
    /// The system's error when it granted no more memory.
    pub(crate) fn ensure(&self, more: u32) -> io::Result<()> {
        let ensured = ENSURED.saturating_add(more);
        let mut space = lock(&self.space);
        if space.free.len() >= ensured as usize {
            return Ok(());
        }
        let wanted = (space.next.saturating_add(ensured)).min(self.capacity) as usize;
        let wanted = wanted * size_of::<T>();
        if wanted <= space.writable {
            return Ok(());
        }
        let step = space.writable / 8;
        let roomy = space.writable + step.max(STEP);
        (self.make_writable(&mut space, roomy.max(wanted)))
            .or_else(|_| self.make_writable(&mut space, wanted))
    }

    /// Returns the address of node 0.
    pub(crate) fn base(&self) -> NonNull<T> {
        self.base
    }

    /// Returns the bound of all handles.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns a node that no other thread can reach: fresh (all zero) or used before.
    ///
    /// After [`ensure`](Self::ensure) there is room. Otherwise, if the system grants no more memory
    /// or the range is used up (64 GiB hold inner nodes for over 2^32 leaves), this ends the
    /// process, as the global allocator does.
    pub(crate) fn allocate(&self) -> u32 {
        let mut space = lock(&self.space);
        if let Some(handle) = space.free.pop() {
            return handle;
        }
        let handle = space.next;
        let end = (handle as usize + 1) * size_of::<T>();
        let grown = end <= space.writable || self.make_writable(&mut space, end).is_ok();
        if handle == self.capacity || !grown {
            drop(space);
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>());
        }
        space.next = handle + 1;
        handle
    }

    /// Frees a node. No thread can reach it any more, and no reader is in it.
    pub(crate) fn free(&self, handle: u32) {
        let mut space = lock(&self.space);
        debug_assert!(handle < space.next, "freed what was never handed out");
        space.free.push(handle);
    }

    /// Counts heap bytes of separators, up or (wrapping) down.
    pub(crate) fn count_separator_bytes(&self, change: isize) {
        if change != 0 {
            // ORDERING: Relaxed; a statistic.
            self.separator_bytes
                .fetch_add(change as u64, Ordering::Relaxed);
        }
    }

    /// Returns the bound of all handles that were ever handed out.
    pub(crate) fn handed_out(&self) -> u32 {
        lock(&self.space).next
    }

    /// Returns the number of nodes that are handed out (or wait for readers to leave), and the
    /// bytes of every node ever handed out and of the separators on the heap.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let space = lock(&self.space);
        let nodes = u64::from(space.next) - space.free.len() as u64;
        let bytes = u64::from(space.next) * size_of::<T>() as u64;
        // ORDERING: Relaxed; a statistic.
        (nodes, bytes + self.separator_bytes.load(Ordering::Relaxed))
    }
}

/// Freed mappings of the minimum size, all zero and writable like fresh ones. Short-lived indexes
/// (recovery after recovery in the crash-state explorer) would otherwise spend their time in the
/// kernel.
static SPARE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Maximum number of kept mappings.
const SPARES: usize = 4;
/// A mapping is kept only if at most this much was used; the rest of it is zero.
const SPARE_USED: usize = 64 << 10;

fn take_spare() -> Option<NonNull<u8>> {
    let spare = lock(&SPARE).pop()?;
    NonNull::new(std::ptr::with_exposed_provenance_mut(spare))
}

impl<T> Arena<T> {
    /// Keeps the mapping for the next arena. Returns false if it is not suitable, or enough are
    /// kept.
    fn spare(&mut self) -> bool {
        let space = lock(&self.space);
        let (used, writable) = (space.next as usize * size_of::<T>(), space.writable);
        drop(space);
        if self.mapping_bytes != LEAST + HUGE || used > SPARE_USED || writable != STEP {
            return false;
        }
        let mut spare = lock(&SPARE);
        if spare.len() == SPARES {
            return false;
        }
        // SAFETY: 1. the nodes handed out are inside the mapping; 2. `&mut self`: no other thread
        // is left in it; 3. they are plain atomics, which need no drop.
        unsafe { self.base.cast::<u8>().write_bytes(0, used) };
        spare.push(self.mapping.as_ptr().expose_provenance());
        true
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        if self.spare() {
            return;
        }
        // SAFETY: 1. the mapping was made by `reserve` and belongs to this value alone; 2. holders
        // of references into it share ownership of this value, so none are left.
        unsafe { memory::release(self.mapping, self.mapping_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[repr(C, align(64))]
    struct Cell([AtomicU32; 16]);

    // SAFETY: 1. atomics only; 2. zero is valid; 3. nothing to drop.
    unsafe impl Node for Cell {}

    /// All of the range was writable at once. It counted as the process's data, and `ulimit -d`
    /// left nothing for the rest.
    #[test]
    fn the_range_becomes_writable_in_steps_as_it_is_used() {
        let arena = Arena::<Cell>::reserve(RESERVE).expect("address space");
        let writable = || lock(&arena.space).writable;
        assert_eq!(writable(), STEP);
        let nodes = (STEP / size_of::<Cell>()) as u32;
        for _ in 0..nodes - ENSURED {
            arena.allocate();
        }
        arena.ensure(0).expect("memory");
        assert_eq!(writable(), STEP, "there are enough");
        arena.allocate();
        arena.ensure(0).expect("memory");
        assert_eq!(writable(), 2 * STEP);
        // Without `ensure` before.
        for _ in 0..3 * nodes {
            arena.allocate();
        }
        assert_eq!(writable(), 4 * STEP);
        // SAFETY: 1. handed out above; 2. mapped; 3. zero is valid.
        let cell = unsafe { arena.base().add(4 * nodes as usize - 1024).as_ref() };
        cell.0[0].store(1, Ordering::Relaxed);
    }

    #[test]
    fn hands_out_distinct_zeroed_aligned_nodes_and_reuses_them() {
        let arena = Arena::<Cell>::reserve(RESERVE).expect("address space");
        assert_eq!(arena.base().as_ptr().addr() % HUGE, 0);
        assert!(arena.capacity() >= (LEAST / 64) as u32);
        let handles: Vec<u32> = (0..1000).map(|_| arena.allocate()).collect();
        assert_eq!(handles, (0..1000).collect::<Vec<_>>());
        // SAFETY: 1. below the capacity; 2. mapped; 3. zero is valid.
        let cell = unsafe { arena.base().add(999).as_ref() };
        assert_eq!(cell.0[15].load(Ordering::Relaxed), 0);
        cell.0[15].store(5, Ordering::Relaxed);
        assert_eq!(arena.usage(), (1000, 64_000));
        arena.free(17);
        assert_eq!(arena.usage(), (999, 64_000));
        assert_eq!(arena.allocate(), 17);
        assert_eq!(arena.allocate(), 1000);
    }
}
