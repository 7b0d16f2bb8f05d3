//! Descriptors and room, and waiting for either while others hold it.

use super::BzTree;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pmwcas::Descriptor;
use bristlecone_pmem::sync::{PATIENT_TURNS, pause, simulates};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::io::{self, ErrorKind};
use std::sync::TryLockError;

/// How often a thread that is out of space checks whether blocks have come back.
const ROUNDS: usize = 64;

/// Returns true if this thread is pinned, so that descriptors wait for it.
fn pinned() -> bool {
    epoch::is_pinned() && !simulates()
}

/// Returns the error for descriptors that do not come back.
#[cold]
fn busy() -> SpaceError {
    let what = "threads that read, or have stopped, keep all of them";
    SpaceError::Io {
        doing: "taking a descriptor",
        source: io::Error::new(ErrorKind::TimedOut, what),
    }
}

/// Returns true for an error about room that may come back, or that thawing does not need.
pub(super) fn no_room(e: &SpaceError) -> bool {
    match e {
        SpaceError::Capacity { .. } => true,
        SpaceError::Io { source, .. } => {
            !matches!(source.kind(), ErrorKind::InvalidData | ErrorKind::TimedOut)
        }
        _ => false,
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Returns a descriptor. The caller should not be pinned.
    ///
    /// # Errors
    /// No descriptor comes back for some six seconds. Fails at once if the caller is pinned, since
    /// descriptors may be waiting for it.
    #[inline]
    pub(super) fn descriptor(&self) -> Result<Descriptor<'_, M>, SpaceError> {
        match self.swaps.try_allocate_descriptor() {
            Some(descriptor) => Ok(descriptor),
            None => self.wait_for_descriptor(),
        }
    }

    #[cold]
    fn wait_for_descriptor(&self) -> Result<Descriptor<'_, M>, SpaceError> {
        if pinned() {
            return Err(busy());
        }
        self.swaps.allocate_descriptor().map_err(|_| busy())
    }

    /// Returns two descriptors. Tries `turns` times, and holds none while it waits for
    /// long.
    ///
    /// # Errors
    /// As [`descriptor`](Self::descriptor).
    #[allow(clippy::type_complexity)] // a pair
    pub(super) fn descriptors(
        &self,
        turns: usize,
    ) -> Result<(Descriptor<'_, M>, Descriptor<'_, M>), SpaceError> {
        for turn in 0..turns {
            let first = self.swaps.try_allocate_descriptor();
            if let Some(first) = first
                && let Some(second) = self.swaps.try_allocate_descriptor()
            {
                return Ok((first, second));
            }
            if pinned() {
                break;
            }
            self.swaps.recycle_ready();
            pause(turn);
        }
        Err(busy())
    }

    /// Makes room after space was refused: recycles blocks of ended operations, as far as readers
    /// have left, or waits for a thread that does so. Returns true if the caller may try again. The
    /// caller is not pinned.
    pub(super) fn make_room(&self) -> bool {
        let mut waited = false;
        for turn in 0..PATIENT_TURNS {
            // One thread at a time; blocks that it frees serve the others.
            let _turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    waited = true;
                    pause(turn);
                    continue;
                }
            };
            // A few epochs are two grace periods, unless a thread stays pinned.
            for round in 0..ROUNDS {
                if self.swaps.recycle_ready() > 0 {
                    return true;
                }
                // A hint, as other threads may be at work.
                if self.swaps.held_blocks().is_empty() {
                    break;
                }
                pause(round);
            }
            break;
        }
        waited
    }

    /// Executes what needs room, once more if room was refused and some has come back. The caller
    /// is not pinned.
    pub(super) fn with_room<T>(
        &self,
        make: impl Fn() -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        match make() {
            Err(e) if no_room(&e) && self.make_room() => make(),
            done => done,
        }
    }
}
