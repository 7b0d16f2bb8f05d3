//! The mapping table: from page number to the head of the page's chain (Levandoski et al. 2013,
//! section II.B).
//!
//! ```text
//! segments[0] -> | slot 0 | slot 1 | ...  FIRST slots
//! segments[1] -> | ...                    2 x FIRST slots        each made when a page of it is first needed
//! segments[i] -> | ...                    2^i x FIRST slots
//!
//! slot | head of the page's chain, if the page is there
//!      | number of the next free page, if it is free
//! ```
//!
//! # Invariants
//! 1. Only compare-and-swap changes a slot, unless no other thread knows the page.
//! 2. A page's number is reused only once every thread that was pinned when the page left the tree
//!    has left. So a compare-and-swap by a pinned thread never mistakes one page for another.
//! 3. There is no page 0.

use super::page::Head;
use crate::sync::{AtomicPtr, AtomicU64};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr;
use std::sync::atomic::Ordering;

/// A page's number; 0 for none.
pub(super) type PageId = u32;

/// Number of slots of the first segment. Tests have few, so that the table grows there too.
const FIRST: u64 = if cfg!(test) { 16 } else { 1 << 14 };
/// Enough for all 32-bit numbers.
const SEGMENTS: usize = 33 - FIRST.ilog2() as usize;

/// A slot of a segment.
type Slot = AtomicPtr<Head>;

/// The mapping table.
#[derive(Debug)]
pub(super) struct Table {
    segments: [AtomicPtr<Slot>; SEGMENTS],
    /// The next number that was never used.
    next: AtomicU64,
    /// First free page (low half), and the number of changes of that (high half).
    free: AtomicU64,
}

/// Returns the segment of a page's slot, and the index in it.
#[inline(always)]
fn place(page: PageId) -> (usize, usize) {
    let n = u64::from(page) + FIRST;
    let segment = n.ilog2() - FIRST.ilog2();
    (segment as usize, (n - (FIRST << segment)) as usize)
}

fn layout(segment: usize) -> Layout {
    // Far below the limits of a layout: at most 2^33 slots.
    Layout::array::<Slot>((FIRST as usize) << segment).unwrap_or_else(|_| Layout::new::<Slot>())
}

impl Table {
    /// Returns a table without pages.
    pub fn new() -> Self {
        let table = Self {
            segments: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS],
            next: AtomicU64::new(1),
            free: AtomicU64::new(0),
        };
        table.make_segment(0);
        table
    }

    /// Makes a segment unless another thread has made it.
    fn make_segment(&self, segment: usize) {
        let layout = layout(segment);
        // SAFETY: a segment has 1 slot at least, so the layout is not empty.
        let made = unsafe { alloc_zeroed(layout) }.cast::<Slot>();
        if made.is_null() {
            handle_alloc_error(layout);
        }
        // ORDERING: Release; pairs with the Acquire of `slot`: zeros before the pointer to them.
        let set = self.segments[segment].compare_exchange(
            ptr::null_mut(),
            made,
            Ordering::Release,
            Ordering::Relaxed,
        );
        if set.is_err() {
            // SAFETY: 1. made above, with this layout; 2. no other thread has seen it.
            unsafe { dealloc(made.cast(), layout) };
        }
    }

    #[inline(always)]
    fn slot(&self, page: PageId) -> &Slot {
        let (segment, at) = place(page);
        // ORDERING: Acquire; pairs with the Release of `make_segment`.
        let slots = self.segments[segment].load(Ordering::Acquire);
        debug_assert!(!slots.is_null(), "page {page} was never given out");
        // SAFETY: 1. a page's number comes from `take`, by way of an Acquire of the word that led
        // to it, and `take` made the segment first; 2. `place` stays inside the segment; 3. zeroed
        // memory is a slot of null; 4. segments live as long as the table.
        unsafe { &*slots.add(at) }
    }

    /// Returns the head of a page's chain. The caller is pinned, or has the table alone.
    #[inline(always)]
    pub fn head(&self, page: PageId) -> *const Head {
        // ORDERING: Acquire; pairs with the Release of `install` and `set`: the installed node is
        // seen whole.
        self.slot(page).load(Ordering::Acquire)
    }

    /// Sets the head of a page that no other thread knows.
    pub fn set(&self, page: PageId, head: *const Head) {
        // ORDERING: Release; pairs with the Acquire of `head`. Other threads can know the number
        // only afterwards.
        self.slot(page).store(head.cast_mut(), Ordering::Release);
    }

    /// Exchanges the head of a page's chain. Returns false if it was no longer `old`.
    #[inline]
    pub fn install(&self, page: PageId, old: *const Head, new: *const Head) -> bool {
        // ORDERING: AcqRel on success; the Release pairs with the Acquire of `head`, and the
        // Acquire with earlier installs. Relaxed on failure, after which it is read again.
        self.slot(page)
            .compare_exchange(
                old.cast_mut(),
                new.cast_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Takes a page's number that no other thread has. The caller sets its head before anything
    /// leads to it.
    pub fn take(&self) -> PageId {
        loop {
            // ORDERING: Acquire (here and in the exchange below); pairs with the Release of
            // `release`: the free page's slot has the number of the next.
            let free = self.free.load(Ordering::Acquire);
            let page = free as u32;
            if page == 0 {
                break;
            }
            // If another thread takes it meanwhile, this reads any value and the exchange fails.
            // ORDERING: Relaxed; see above.
            let next = self.slot(page).load(Ordering::Relaxed).addr() as u32;
            if self.exchange_free(free, next) {
                return page;
            }
        }
        loop {
            // ORDERING: Relaxed (both); only the number matters.
            let next = self.next.load(Ordering::Relaxed);
            let page = u32::try_from(next).unwrap_or_else(|_| panic!("4 billion pages"));
            let more =
                self.next
                    .compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed);
            if more.is_ok() {
                let (segment, _) = place(page);
                // ORDERING: Acquire; as in `slot`.
                if self.segments[segment].load(Ordering::Acquire).is_null() {
                    self.make_segment(segment);
                }
                return page;
            }
        }
    }

    /// Releases a page's number, which nothing leads to and no pinned thread can know.
    pub fn release(&self, page: PageId) {
        loop {
            // ORDERING: Relaxed; the exchange compares it.
            let free = self.free.load(Ordering::Relaxed);
            let link = ptr::without_provenance_mut(free as u32 as usize);
            // ORDERING: Relaxed; `exchange_free` publishes it.
            self.slot(page).store(link, Ordering::Relaxed);
            if self.exchange_free(free, page) {
                return;
            }
        }
    }

    fn exchange_free(&self, old: u64, first: PageId) -> bool {
        let changes = (old >> 32).wrapping_add(1) << 32;
        // ORDERING: AcqRel; pairs with itself and with the load in `take`: a thread that sees a
        // page free sees its link.
        self.free
            .compare_exchange(
                old,
                changes | u64::from(first),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Returns the table's bytes in DRAM.
    pub fn bytes(&self) -> u64 {
        let there = self.segments.iter().enumerate();
        there
            // ORDERING: Relaxed; only its existence matters.
            .filter(|(_, segment)| !segment.load(Ordering::Relaxed).is_null())
            .map(|(i, _)| layout(i).size() as u64)
            .sum()
    }

    /// Returns the number of free page numbers.
    #[cfg(test)]
    pub fn free_pages(&self) -> usize {
        // ORDERING: Relaxed; the caller has the table alone.
        let mut page = self.free.load(Ordering::Relaxed) as u32;
        let mut n = 0;
        while page != 0 {
            n += 1;
            page = self.slot(page).load(Ordering::Relaxed).addr() as u32;
        }
        n
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for (i, segment) in self.segments.iter().enumerate() {
            // ORDERING: Relaxed; no other thread has the table.
            let slots = segment.load(Ordering::Relaxed);
            if !slots.is_null() {
                // SAFETY: 1. made by `make_segment` with this layout; 2. no other thread has the
                // table.
                unsafe { dealloc(slots.cast(), layout(i)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_places_of_their_own() {
        let mut last = (0, 0);
        for page in 1..100_000 {
            let at = place(page);
            let follows = at == (last.0, last.1 + 1) || at == (last.0 + 1, 0);
            assert!(follows, "page {page}: {at:?} after {last:?}");
            assert!(at.1 < (FIRST as usize) << at.0);
            last = at;
        }
        assert!(place(u32::MAX).0 < SEGMENTS);
    }

    #[test]
    fn numbers_are_used_again() {
        let table = Table::new();
        let taken: Vec<_> = (0..1000).map(|_| table.take()).collect();
        assert!(taken.is_sorted() && taken[0] == 1 && taken[999] == 1000);
        for page in &taken {
            table.release(*page);
        }
        assert_eq!(table.free_pages(), 1000);
        let mut again: Vec<_> = (0..1000).map(|_| table.take()).collect();
        again.sort_unstable();
        assert_eq!(again, taken);
        assert_eq!((table.free_pages(), table.take()), (0, 1001));
        assert!(table.bytes() >= 1000 * 8);
    }
}
