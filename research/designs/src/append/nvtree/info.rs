//! The volatile part of a leaf: its lock, the count that bounds searches, and its statistics.
//!
//! Readers take the boundary of their search from [`LeafInfo::count`]. It is raised after the fence
//! that made the leaf's own counter durable. Therefore no reader sees what a crash can undo, and
//! none waits.

use super::leaf::{Leaf, Shape};
use crate::sync::wait;
use crate::version_lock::VersionWord;
use bristlecone_pmem::Media;
use crossbeam_utils::Backoff;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bit of the count: a removal is setting a flag in place, which may not be durable yet.
const NEGATING: u32 = 1 << 31;

/// The volatile part of a leaf. PLNs lead to it, and it is freed through the epoch.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct LeafInfo {
    /// Held by a thread that changes the leaf; obsolete once the leaf is out of the list.
    pub lock: VersionWord,
    /// Number of durable elements.
    count: AtomicU32,
    /// Number of live keys. Changed under the lock.
    live: AtomicU32,
    /// Offset of the leaf.
    pub off: u64,
    /// Layout of the leaf.
    pub shape: Shape,
    /// `Size_LN`: the size that the last resizing asked for. The leaf fills the allocator's block
    /// for it.
    pub size: u32,
    /// `nWrites_LN`: appended elements. Changed under the lock.
    writes: AtomicU64,
    /// `nReads_LN`: searches.
    reads: AtomicU64,
}

/// Initial statistics of a new leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub writes: u64,
    pub reads: u64,
}

impl Traffic {
    /// Table 3: returns the share of each half of a split leaf.
    pub(super) fn half(self) -> Self {
        Self {
            writes: self.writes / 2,
            reads: self.reads / 2,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            writes: self.writes + other.writes,
            reads: self.reads + other.reads,
        }
    }
}

impl LeafInfo {
    pub(super) fn new(off: u64, shape: Shape, size: u64, count: u32, live: u32) -> Self {
        Self {
            lock: VersionWord::new(),
            count: AtomicU32::new(count),
            live: AtomicU32::new(live),
            off,
            shape,
            size: size as u32,
            writes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    pub(super) fn with_traffic(self, traffic: Traffic) -> Self {
        Self {
            writes: AtomicU64::new(traffic.writes),
            reads: AtomicU64::new(traffic.reads),
            ..self
        }
    }

    /// Returns the number of elements that may be read. Waits, which is rare, while a removal sets
    /// a flag in place.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        // ORDERING: Acquire; pairs with the Release of `publish`, so that the elements are visible.
        let count = self.count.load(Ordering::Acquire);
        if count & NEGATING == 0 {
            return count as usize;
        }
        let backoff = Backoff::new();
        loop {
            wait(&backoff);
            // ORDERING: Acquire; as above.
            let count = self.count.load(Ordering::Acquire);
            if count & NEGATING == 0 {
                return count as usize;
            }
        }
    }

    /// Returns true if no flag that was read since [`count`](Self::count) can be one that was being
    /// changed.
    #[inline(always)]
    pub(super) fn flags_settled(&self) -> bool {
        // ORDERING: Acquire fence; pairs with the Release fence of `begin_negating`. A reader of
        // the changed flag sees the bit set, or cleared again once the flag is durable.
        fence(Ordering::Acquire);
        self.count.load(Ordering::Relaxed) & NEGATING == 0
    }

    /// Returns the number of elements. For the holder of the lock.
    #[inline(always)]
    pub(super) fn elements(&self) -> usize {
        // ORDERING: Relaxed; under the lock.
        (self.count.load(Ordering::Relaxed) & !NEGATING) as usize
    }

    /// Makes `count` durable elements visible to readers. Under the lock.
    #[inline(always)]
    pub(super) fn publish(&self, count: usize) {
        // ORDERING: Release; pairs with the Acquire of `count`.
        self.count.store(count as u32, Ordering::Release);
    }

    /// Makes readers wait until the changed flag is durable. Under the lock.
    pub(super) fn begin_negating(&self) {
        let count = self.elements() as u32;
        // ORDERING: Relaxed, then a Release fence; pairs with the fence of `flags_settled`.
        self.count.store(count | NEGATING, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Returns the number of free elements. For the holder of the lock.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.shape.capacity as usize - self.elements()
    }

    pub(super) fn live(&self) -> u32 {
        // ORDERING: Relaxed; under the lock, or a statistic.
        self.live.load(Ordering::Relaxed)
    }

    /// Sets the number of live keys. Under the lock.
    pub(super) fn set_live(&self, live: u32) {
        // ORDERING: Relaxed; as above.
        self.live.store(live, Ordering::Relaxed);
    }

    pub(super) fn traffic(&self) -> Traffic {
        // ORDERING (both): Relaxed; statistics.
        Traffic {
            writes: self.writes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
        }
    }

    /// Counts appended elements. Under the lock.
    #[inline(always)]
    pub(super) fn count_writes(&self, elements: u64) {
        // ORDERING (both): Relaxed; a statistic, changed under the lock.
        let before = self.writes.load(Ordering::Relaxed);
        self.writes.store(before + elements, Ordering::Relaxed);
    }

    /// Counts searches. Of two threads at once, one may not be counted; this is a statistic.
    #[inline(always)]
    pub(super) fn count_reads(&self, searches: u64) {
        // ORDERING (both): Relaxed; as above.
        let before = self.reads.load(Ordering::Relaxed);
        self.reads.store(before + searches, Ordering::Relaxed);
    }

    /// Returns the leaf itself.
    #[inline(always)]
    pub(super) fn leaf<'t, M: Media>(&self, pm: &'t M) -> Leaf<'t, M> {
        // SAFETY: the offset is a leaf's block, with `shape.lines` lines in the pool: the allocator
        // gave both, or recovery checked them.
        unsafe { Leaf::at(pm, self.off, self.shape) }
    }
}
