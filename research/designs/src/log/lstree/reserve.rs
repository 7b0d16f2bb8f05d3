//! The reserve: segments that are kept for when the pool is full, and who may take which.
//!
//! ```text
//! collected segment --readers have left--> reserve: ready | leaving --> a log's next segment
//!                                             ^ full: what more there is goes back to the pool
//! chunk of the pool --------------------------+
//! ```
//!
//! # Invariants
//! 1. [`RESERVE`] segments are ready or leaving, or the pool is full. What becomes free fills the reserve first: a
//!    collected segment does not leave the tree as long as one is missing, and no append takes a chunk of the
//!    pool before all are there. So what collection took in advance it gets back, whoever else looks for room.
//! 2. Who inserts or copies takes none of them, who removes half; the others are for who makes room: see `collect`.
//! 3. Room at the end of a log whose segment came out of the reserve is the reserve's too. While someone makes room
//!    no one else appends: who would waits, holding no lock. While more than one segment is missing, no one
//!    inserts: what room there is removals have taken for themselves.
//!
//! # Concurrency
//! The lock of the spares comes after a log's and before the allocator's. A segment that is handed out here did not go
//! through the allocator since it was last used, so that its fence is issued here (ADR 5).
//!
//! # Crash states
//! Spare segments, ready or leaving, are blocks that nothing leads to.

use super::log::{Logs, UNIT};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::Guard;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Segments that are kept for when the pool is full.
pub(super) const RESERVE: usize = 6;

/// What a record is appended for, which says how much of the reserve it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Insertion or update.
    Put,
    /// Removal: it makes room in the end.
    Remove,
    /// Collection beside others, while there is room.
    Copy,
    /// Collection by who makes room in a full pool.
    Collect,
    /// Bulk load: nothing leads to the log yet, so that one fence at the end does.
    Load,
}

impl Purpose {
    /// Spare segments that it leaves alone.
    fn leaves(self) -> usize {
        match self {
            Self::Put | Self::Copy | Self::Load => RESERVE,
            Self::Remove => RESERVE / 2,
            Self::Collect => 0,
        }
    }

    /// True for what waits while someone makes room. What is loaded is in logs of its own.
    pub(super) fn stands_back(self) -> bool {
        matches!(self, Self::Put | Self::Remove | Self::Copy)
    }

    /// True for what makes no room.
    pub(super) fn is_put_off(self) -> bool {
        matches!(self, Self::Put | Self::Copy)
    }

    /// True for an operation of the program's.
    pub(super) fn is_operation(self) -> bool {
        matches!(self, Self::Put | Self::Remove)
    }
}

/// Why a record was not appended; nothing has changed then.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no room.
    Full(SpaceError),
    /// Someone is making room.
    Busy,
}

impl From<SpaceError> for Refusal {
    fn from(full: SpaceError) -> Self {
        Self::Full(full)
    }
}

impl Refusal {
    /// The error of who does not stand back.
    pub(super) fn into_error(self) -> SpaceError {
        match self {
            Self::Full(full) => full,
            Self::Busy => SpaceError::io("appending to a log", std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Segments that are in no log.
#[derive(Debug, Default)]
pub(super) struct Spares {
    ready: Vec<u64>,
    /// Collected ones, each with what becomes true when readers have left it.
    leaving: Vec<(u64, Arc<AtomicBool>)>,
}

impl Spares {
    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        let leaving = self.leaving.iter().map(|(off, _)| *off);
        self.ready.iter().copied().chain(leaving)
    }

    /// Frees `n` that are ready, so that as many are missing.
    #[cfg(test)]
    pub(super) fn forget_ready<M: Media>(&mut self, heap: &bristlecone_pmem::Heap<M>, n: usize) {
        let kept = self.ready.len() - n;
        for off in self.ready.split_off(kept) {
            heap.free(POff::new(off));
        }
    }

    fn settle(&mut self) {
        let ready = &mut self.ready;
        self.leaving.retain(|(off, left)| {
            // ORDERING: Acquire; pairs with the Release in `put_by`: the readers' last loads come before.
            let free = left.load(Ordering::Acquire);
            if free {
                ready.push(*off);
            }
            !free
        });
    }
}

/// As long as it is there, others stand back.
pub(super) struct Alone<'l>(&'l AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; who was refused meanwhile looks again when it has had the lock of who makes room.
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<M: Media> Logs<M> {
    /// Makes others stand back: their appends are refused. For one at a time.
    pub(super) fn alone(&self) -> Alone<'_> {
        // ORDERING: Relaxed; who collects takes a log's lock before it relies on the room there, and who appends
        // looks under that lock.
        self.making_room.store(true, Ordering::Relaxed);
        Alone(&self.making_room)
    }

    /// More than one segment of the reserve is missing, and the pool has none.
    pub(super) fn is_scarce(&self) -> bool {
        // ORDERING: Relaxed; one record that slips through is little.
        self.scarce.load(Ordering::Relaxed)
    }

    fn note(&self, spares: &Spares) {
        let scarce = spares.all().count() < RESERVE - 1;
        // ORDERING: Relaxed; see `is_scarce`.
        self.scarce.store(scarce, Ordering::Relaxed);
    }

    fn new_segment(&self) -> Result<u64, SpaceError> {
        let off = self.heap.alloc(self.segment)?;
        if u32::try_from(off.get() / UNIT).is_err() {
            self.heap.free(off);
            return Err(SpaceError::Capacity {
                wanted: off.get() + self.segment,
                capacity: (1 << 32) * UNIT,
            });
        }
        Ok(off.get())
    }

    /// Sees that there are `most` ready, as far as the pool has them.
    fn fill(&self, spares: &mut Spares, most: usize) -> Result<(), SpaceError> {
        spares.settle();
        let filled = loop {
            if spares.ready.len() >= most {
                break Ok(());
            }
            match self.new_segment() {
                Ok(off) => spares.ready.push(off),
                Err(full) => break Err(full),
            }
        };
        self.note(spares);
        filled
    }

    /// A segment to append to.
    ///
    /// # Errors
    /// [`SpaceError`] when there is none for this purpose.
    pub(super) fn take_segment(&self, purpose: Purpose) -> Result<u64, SpaceError> {
        if purpose == Purpose::Load {
            return self.new_segment();
        }
        let mut spares = lock(&self.spares);
        let filled = self.fill(&mut spares, RESERVE + 1);
        let taken = (spares.ready.len() > purpose.leaves())
            .then(|| spares.ready.pop())
            .flatten();
        self.note(&spares);
        match (taken, filled) {
            (Some(off), _) => {
                // ORDERING: Release; pairs with the Acquire fence with which a reader validates a version: one that
                // came too late and sees a store of the new content also sees the version that says so.
                fence(Ordering::Release);
                Ok(off)
            }
            (None, Err(full)) => Err(full),
            // As many as were asked for are more than any purpose leaves.
            (None, Ok(())) => self.new_segment(),
        }
    }

    /// Fills the reserve; false if the pool is full.
    pub(super) fn fill_reserve(&self) -> bool {
        let mut spares = lock(&self.spares);
        self.fill(&mut spares, RESERVE).is_ok()
    }

    /// True if who appends for `purpose` will find a segment. The reserve is filled first.
    pub(super) fn has_room(&self, purpose: Purpose) -> bool {
        let mut spares = lock(&self.spares);
        let most = purpose.leaves() + 1;
        let filled = self.fill(&mut spares, most.max(RESERVE));
        filled.is_ok() || spares.ready.len() >= most
    }

    /// Spare segments that are ready.
    pub(super) fn ready(&self) -> usize {
        let mut spares = lock(&self.spares);
        spares.settle();
        spares.ready.len()
    }

    /// Takes a segment that no log has any more: into the reserve if that is not full, else it is freed; with a guard
    /// when readers have left.
    pub(super) fn put_by(&self, off: u64, guard: Option<&Guard>) {
        let left = Arc::new(AtomicBool::new(false));
        let kept = {
            let mut spares = lock(&self.spares);
            // ORDERING: Relaxed; who makes room calls this itself. What it needs besides the reserve stays here,
            // where no other tree takes it.
            let more = usize::from(self.making_room.load(Ordering::Relaxed));
            let missing = spares.all().count() < RESERVE + more;
            if missing {
                match guard {
                    Some(_) => spares.leaving.push((off, Arc::clone(&left))),
                    None => spares.ready.push(off),
                }
                self.note(&spares);
            }
            missing
        };
        match guard {
            // ORDERING: Release; pairs with the Acquire in `settle`.
            Some(guard) if kept => guard.defer(move || left.store(true, Ordering::Release)),
            Some(guard) => self.heap.retire(POff::new(off), guard),
            None if kept => {}
            None => self.heap.free(POff::new(off)),
        }
        if let Some(guard) = guard {
            // Or it waits among what this thread has retired for more of that.
            guard.flush();
        }
    }

    /// Frees what is ready besides the reserve.
    pub(super) fn free_extra_spares(&self) {
        let extra = {
            let mut spares = lock(&self.spares);
            let keep = spares.ready.len().min(RESERVE);
            spares.ready.split_off(keep)
        };
        for off in extra {
            self.heap.free(POff::new(off));
        }
        self.heap.trim();
    }
}
