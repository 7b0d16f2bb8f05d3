//! Buffers of simulations. Freed buffers are reused: an exploration makes tens of thousands of
//! simulations, and each changes a few pages of megabytes.
//!
//! # Invariant
//! A free buffer holds zeros: its last owner reports which pages were written ([`Written`]), and
//! only those are cleared.

use crate::sync::lock;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Mutex;

/// Alignment of a buffer: huge pages, chunks and nodes are all aligned in it.
pub(super) const ALIGN: usize = 2 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Words of a page.
const PAGE_WORDS: u32 = (PAGE / 8) as u32;
/// The largest buffer that is kept for later.
const LARGEST_KEPT: usize = 128 << 20;
/// Maximum number of buffers that are kept.
const MAX_KEPT: usize = 16;

/// The free buffers, the last freed ones at the end.
static FREE: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Zeroed memory, aligned to [`ALIGN`].
#[derive(Debug)]
pub(super) struct Buffer {
    allocated: *mut u8,
    capacity: usize,
}

// SAFETY: the owner of the value owns the memory.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Returns zeroed memory of `capacity` bytes, a multiple of [`ALIGN`].
    pub(super) fn new(capacity: usize) -> Self {
        let free = {
            let mut free = lock(&FREE);
            let same = free.iter().rposition(|buffer| buffer.capacity == capacity);
            same.map(|i| free.swap_remove(i))
        };
        free.unwrap_or_else(|| Self::allocate(capacity))
    }

    /// An allocation aligned to more than a page would be zeroed by hand, all of it; one that is
    /// not is mapped, and costs nothing until it is touched.
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity.saturating_add(ALIGN), 16).expect("a size of memory")
    }

    fn allocate(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let allocated = unsafe { alloc_zeroed(layout) };
        if allocated.is_null() {
            handle_alloc_error(layout);
        }
        Self {
            allocated,
            capacity,
        }
    }

    pub(super) fn base(&self) -> *mut u8 {
        let aligned = self.allocated.addr().next_multiple_of(ALIGN);
        self.allocated.wrapping_add(aligned - self.allocated.addr())
    }

    /// Clears the written pages and keeps the buffer for later.
    pub(super) fn give_back(self, written: &Written) {
        if self.capacity > LARGEST_KEPT {
            return;
        }
        for page in written.pages() {
            let at = page * PAGE;
            debug_assert!(at + PAGE <= self.capacity);
            // SAFETY: 1. the page is inside the allocation; 2. `self` is the only way into it; 3.
            // any bytes may be there.
            unsafe { self.base().wrapping_add(at).write_bytes(0, PAGE) }
        }
        let mut free = lock(&FREE);
        if free.len() >= MAX_KEPT {
            free.remove(0);
        }
        free.push(self);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: 1. allocated with this layout; 2. freed once, here; 3. it is owned, so no other
        // reference leads into it.
        unsafe { dealloc(self.allocated, Self::layout(self.capacity)) }
    }
}

/// The pages of a buffer that were written.
#[derive(Debug)]
pub(super) struct Written(Vec<bool>);

impl Written {
    /// Returns no pages, for a buffer of `words` words.
    pub(super) fn new(words: usize) -> Self {
        Self(vec![false; words.div_ceil(PAGE_WORDS as usize)])
    }

    /// Notes that the page of `word` was written.
    #[inline]
    pub(super) fn add(&mut self, word: u32) {
        self.0[(word / PAGE_WORDS) as usize] = true;
    }

    fn pages(&self) -> impl Iterator<Item = usize> {
        let pages = self.0.iter().enumerate();
        pages.filter(|(_, written)| **written).map(|(page, _)| page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test's simulation is of this size.
    const BYTES: usize = 10 * ALIGN;

    #[test]
    fn a_buffer_is_used_again_and_holds_zeros() {
        let first = Buffer::new(BYTES);
        assert!(first.base().addr().is_multiple_of(ALIGN));
        let base = first.base();
        let mut written = Written::new(BYTES / 8);
        for word in [0, 511, 512, 70_000, BYTES / 8 - 1] {
            // SAFETY: 1. inside the buffer; 2. 8-aligned; 3. this test owns the buffer.
            unsafe { base.cast::<u64>().add(word).write(u64::MAX) }
            written.add(word as u32);
        }
        assert_eq!(written.pages().count(), 4);
        first.give_back(&written);
        let second = Buffer::new(BYTES);
        assert_eq!(second.base(), base, "the same one");
        // SAFETY: these are the buffer's own bytes, which nothing changes meanwhile.
        let all = unsafe { std::slice::from_raw_parts(second.base(), BYTES) };
        assert!(all.iter().all(|byte| *byte == 0));
    }
}
