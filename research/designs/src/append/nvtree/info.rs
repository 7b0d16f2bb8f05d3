//! What is kept of each leaf in DRAM: its lock, the count that readers go by, and its statistics.
//!
//! Readers take the boundary of their search from [`LeafInfo::count`], which is raised after the fence
//! that made the leaf's own counter durable: no one sees what a crash can undo, and no reader waits.

use super::leaf::{Leaf, Shape};
use crate::sync::wait;
use crate::version_lock::VersionWord;
use bristlecone_pmem::Media;
use crossbeam_utils::Backoff;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bit of the count: a flag is being changed in place, and may not be durable yet.
const NEGATING: u32 = 1 << 31;

/// The volatile part of a leaf. PLNs lead to it; it is freed through the epoch.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct LeafInfo {
    /// Held by whoever changes the leaf; obsolete once the leaf is out of the list.
    pub lock: VersionWord,
    /// Durable elements.
    count: AtomicU32,
    /// Keys that are there. Changed under the lock.
    live: AtomicU32,
    /// Offset of the leaf.
    pub off: u64,
    /// Its layout.
    pub shape: Shape,
    /// `Size_LN`: what the last resizing asked for; the leaf fills the allocator's block for it.
    pub size: u32,
    /// `nWrites_LN`: elements appended. Changed under the lock.
    writes: AtomicU64,
    /// `nReads_LN`: searches.
    reads: AtomicU64,
}

/// What a new leaf's statistics begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub writes: u64,
    pub reads: u64,
}

impl Traffic {
    /// Table 3: the share of each half of a split leaf.
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

    /// Elements that may be read; waits while a flag is being changed in place (rare).
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        // ORDERING: Acquire; pairs with the Release of `publish`, so that the elements are seen.
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

    /// True if no flag that was read since [`count`](Self::count) can be one that is being changed.
    #[inline(always)]
    pub(super) fn flags_settled(&self) -> bool {
        // ORDERING: Acquire fence; pairs with the Release fence of `begin_negating`: whoever has read
        // the changed flag sees the bit, or that it is gone again, when the flag is durable.
        fence(Ordering::Acquire);
        self.count.load(Ordering::Relaxed) & NEGATING == 0
    }

    /// Elements, for the holder of the lock.
    #[inline(always)]
    pub(super) fn elements(&self) -> usize {
        // ORDERING: Relaxed; under the lock.
        (self.count.load(Ordering::Relaxed) & !NEGATING) as usize
    }

    /// Lets readers see `count` elements, which are durable. Under the lock.
    #[inline(always)]
    pub(super) fn publish(&self, count: usize) {
        // ORDERING: Release; pairs with the Acquire of `count`.
        self.count.store(count as u32, Ordering::Release);
    }

    /// From here on readers wait, until the flag that changes is durable. Under the lock.
    pub(super) fn begin_negating(&self) {
        let count = self.elements() as u32;
        // ORDERING: Relaxed, then a Release fence; pairs with the fence of `flags_settled`.
        self.count.store(count | NEGATING, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Room that is left, for the holder of the lock.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.shape.capacity as usize - self.elements()
    }

    pub(super) fn live(&self) -> u32 {
        // ORDERING: Relaxed; under the lock, or a statistic.
        self.live.load(Ordering::Relaxed)
    }

    /// Under the lock.
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

    /// Counts elements appended. Under the lock.
    #[inline(always)]
    pub(super) fn count_writes(&self, elements: u64) {
        // ORDERING (both): Relaxed; a statistic, changed under the lock.
        let before = self.writes.load(Ordering::Relaxed);
        self.writes.store(before + elements, Ordering::Relaxed);
    }

    /// Counts searches. Two threads at once may count one: it is a statistic.
    #[inline(always)]
    pub(super) fn count_reads(&self, searches: u64) {
        // ORDERING (both): Relaxed; as above.
        let before = self.reads.load(Ordering::Relaxed);
        self.reads.store(before + searches, Ordering::Relaxed);
    }

    /// The leaf itself.
    #[inline(always)]
    pub(super) fn leaf<'t, M: Media>(&self, pm: &'t M) -> Leaf<'t, M> {
        // SAFETY: offset and shape came from the allocator, or were checked by recovery.
        unsafe { Leaf::at(pm, self.off, self.shape) }
    }
}
