//! The reserve: segments that are kept for a full pool, and rules for using them.
//!
//! ```text
//! collected segment --readers have left--> reserve: ready | leaving --> a log's next segment
//!                                             ^ full: what more there is goes back to the pool
//! chunk of the pool --------------------------+
//! ```
//!
//! # Invariants
//! 1. [`RESERVE`] segments are ready or leaving, or the pool is full. Freed segments fill the
//!    reserve first: a collected segment does not leave the tree while one is missing, and no
//!    append takes a chunk of the pool before all are there. Therefore collection gets back what it
//!    took in advance, whichever other thread looks for room.
//! 2. Insertions and copies take none of them, and removals take half. The others are for the
//!    thread that makes room: see `collect`.
//! 3. Room at the end of a log whose segment came from the reserve also belongs to the reserve.
//!    While a thread makes room, no other appends: the others wait and hold no lock. While more
//!    than one segment is missing, no thread inserts, because removals have taken the room that
//!    there is.
//!
//! # Concurrency
//! The lock of the spares comes after a log's and before the allocator's. A segment that is reused
//! here did not go through the allocator, so that its fence is issued here (ADR 5).
//!
//! # Crash states
//! Spare segments, ready or leaving, are free blocks, because nothing leads to them.

use super::log::{Logs, UNIT};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::Guard;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Number of segments that are kept for a full pool.
pub(super) const RESERVE: usize = 6;

/// Purpose of a record, which determines how much of the reserve it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Insertion or update.
    Put,
    /// Removal: it makes room in the end.
    Remove,
    /// Collection beside other threads, while there is room.
    Copy,
    /// Collection by the thread that makes room in a full pool.
    Collect,
    /// Bulk load: nothing leads to the log yet, so that one fence at the end is enough.
    Load,
}

impl Purpose {
    /// Returns how many spare segments it leaves.
    fn spares_left(self) -> usize {
        match self {
            Self::Put | Self::Copy | Self::Load => RESERVE,
            Self::Remove => RESERVE / 2,
            Self::Collect => 0,
        }
    }

    /// Returns true if the append waits while a thread makes room. A bulk load has logs of its own.
    pub(super) fn waits_for_room(self) -> bool {
        matches!(self, Self::Put | Self::Remove | Self::Copy)
    }

    /// Returns true if the append makes no room.
    pub(super) fn makes_no_room(self) -> bool {
        matches!(self, Self::Put | Self::Copy)
    }

    /// Returns true for an operation of the program.
    pub(super) fn is_operation(self) -> bool {
        matches!(self, Self::Put | Self::Remove)
    }
}

/// Reason why a record was not appended. Nothing has changed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no room.
    Full(SpaceError),
    /// Another thread is making room.
    Busy,
}

impl From<SpaceError> for Refusal {
    fn from(full: SpaceError) -> Self {
        Self::Full(full)
    }
}

impl Refusal {
    /// Returns the error for a thread that does not wait.
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
    /// Collected segments, each with a flag that becomes true when readers have left it.
    leaving: Vec<(u64, Arc<AtomicBool>)>,
}

impl Spares {
    /// Returns all of them.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        let leaving = self.leaving.iter().map(|(off, _)| *off);
        self.ready.iter().copied().chain(leaving)
    }

    /// Frees `n` ready segments, so that as many are missing.
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
            // ORDERING: Acquire; pairs with the Release in `keep_or_free`: the readers' last loads
            // come before.
            let free = left.load(Ordering::Acquire);
            if free {
                ready.push(*off);
            }
            !free
        });
    }
}

/// While this exists, other threads wait.
pub(super) struct Alone<'l>(&'l AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a thread that was refused meanwhile looks again after it has taken the
        // lock of the thread that makes room.
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<M: Media> Logs<M> {
    /// Refuses the appends of other threads while the result exists. For one thread at a time.
    pub(super) fn alone(&self) -> Alone<'_> {
        // ORDERING: Relaxed; a collecting thread takes a log's lock before it relies on the room
        // there, and an appending one reads this under that lock.
        self.making_room.store(true, Ordering::Relaxed);
        Alone(&self.making_room)
    }

    /// Returns true if more than one segment of the reserve is missing and the pool has none.
    pub(super) fn is_scarce(&self) -> bool {
        // ORDERING: Relaxed; one record more does no harm.
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

    /// Makes `most` segments ready, as far as the pool has them.
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

    /// Returns a segment to append to.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no segment for this purpose.
    pub(super) fn take_segment(&self, purpose: Purpose) -> Result<u64, SpaceError> {
        if purpose == Purpose::Load {
            return self.new_segment();
        }
        let mut spares = lock(&self.spares);
        let filled = self.fill(&mut spares, RESERVE + 1);
        let taken = (spares.ready.len() > purpose.spares_left())
            .then(|| spares.ready.pop())
            .flatten();
        self.note(&spares);
        match (taken, filled) {
            (Some(off), _) => {
                // ORDERING: Release; pairs with the Acquire fence with which a reader validates a
                // version: a late reader that sees a store of the new content also sees the version
                // that excludes it.
                fence(Ordering::Release);
                Ok(off)
            }
            (None, Err(full)) => Err(full),
            // More were asked for than any purpose leaves.
            (None, Ok(())) => self.new_segment(),
        }
    }

    /// Fills the reserve. Returns false if the pool is full.
    pub(super) fn fill_reserve(&self) -> bool {
        let mut spares = lock(&self.spares);
        self.fill(&mut spares, RESERVE).is_ok()
    }

    /// Returns true if an append for `purpose` will find a segment. Fills the reserve first.
    pub(super) fn has_room(&self, purpose: Purpose) -> bool {
        let mut spares = lock(&self.spares);
        let most = purpose.spares_left() + 1;
        let filled = self.fill(&mut spares, most.max(RESERVE));
        filled.is_ok() || spares.ready.len() >= most
    }

    /// Returns the number of ready spare segments.
    pub(super) fn ready(&self) -> usize {
        let mut spares = lock(&self.spares);
        spares.settle();
        spares.ready.len()
    }

    /// Takes a segment that no log has any more. It goes into the reserve if that is not full, and
    /// is freed otherwise; with a guard, once readers have left.
    pub(super) fn keep_or_free(&self, off: u64, guard: Option<&Guard>) {
        let left = Arc::new(AtomicBool::new(false));
        let kept = {
            let mut spares = lock(&self.spares);
            // ORDERING: Relaxed; the thread that makes room calls this itself. The segment that it
            // needs besides the reserve stays here, where no other tree takes it.
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
            // Without this, the closure would wait until this thread has retired more.
            guard.flush();
        }
    }

    /// Frees the ready segments that exceed the reserve.
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
