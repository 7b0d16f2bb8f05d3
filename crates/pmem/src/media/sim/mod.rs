//! `Sim`: a pool in a buffer whose every access is reported, and whose crashes can be tried out.
//!
//! | part | does |
//! | --- | --- |
//! | `shared.rs`, `simulation.rs` | the simulation, and its owner's operations |
//! | `buffer.rs` | the memory, which later simulations reuse |
//! | `event.rs` | the reports, with thread and call site |
//! | `persistency.rs` | models: which stores a crash may lose |
//! | `images.rs` | the images that a crash may leave, decided lazily, undone by their own trace |
//!
//! A [`Simulation`] belongs to one thread. While it is attached, `Pool::<Sim>` on that thread opens
//! its buffer. The crash-state explorer, the device model and the mutation of persist sites stand
//! on it (`docs/design.md`, "Media").
//!
//! Simulated threads are told apart by [`Simulation::set_thread`]; a switch function, called before
//! each access, lets a deterministic scheduler interleave them.

mod buffer;
mod event;
mod images;
mod persistency;
mod shared;
mod simulation;

pub use event::{Event, EventKind, Sink, Site, SiteKind, Trace};
pub use images::{Decision, Mark, Strategy};
pub use persistency::{Model, Pending, PendingStore, line_of};
pub use shared::OutOfSteps;
pub use simulation::{Attached, Simulation};

use super::{Instrument, LINE, Media, MediaOptions, MediumKind, Traced};
use crate::error::{CommitError, OpenError, SpaceError};
use images::Memory;
use shared::{ATTACHED, Shared, State};
use std::cell::RefMut;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The medium of a [`Simulation`]. See the module's head.
pub struct Sim {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

impl Sim {
    /// Counts an access and decides the words that it reads. Returns `None` if that is outside the
    /// buffer.
    #[inline]
    #[track_caller]
    fn touch(&self, addr: *const u8, width: usize) -> Option<RefMut<'_, State>> {
        self.shared.step();
        if !self.shared.holds(addr) {
            return None;
        }
        self.shared.bounded(addr, width);
        let words = self.shared.words();
        let mut state = self.shared.state.borrow_mut();
        state
            .images
            .touch(&words, self.shared.at(addr), width as u64);
        Some(state)
    }

    #[inline]
    fn instruction(&self, kind: EventKind, of: SiteKind, site: &'static Location<'static>) {
        let mut state = self.shared.state.borrow_mut();
        if !state.off.is_empty() && Site::any(&state.off, site, of) {
            state.skipped += 1;
            return;
        }
        self.shared.emit(&mut state, kind, site);
    }
}

// SAFETY: 1, 2. the buffer is aligned, as long as the capacity, initialised, and freed only when
// nothing shares it any more; accesses past `len` panic; 3. it is the simulation's, whose owner
// changes it, through atomic words, only while it explores crashes and nothing is open; 4, 5. the
// explorer decides what survives; the program itself sees stores at once; 6. one thread uses it
// (`Shared::owned`).
unsafe impl Media for Sim {
    /// Opens the simulation that is attached to this thread; `path` is only a name for messages.
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let attached = ATTACHED.with(|attached| attached.borrow().clone());
        let shared = attached.ok_or_else(|| OpenError::Unsupported {
            path: path.to_path_buf(),
            what: "no simulation is attached to this thread (Simulation::attach)".into(),
        })?;
        // ORDERING: Relaxed; one thread simulates all.
        let len = shared.len.load(Ordering::Relaxed);
        let sim = Self { shared };
        if options.access == super::Access::Create && len < initial {
            sim.grow(initial).map_err(|e| OpenError::Unsupported {
                path: path.to_path_buf(),
                what: e.to_string(),
            })?;
        }
        Ok(sim)
    }

    fn kind(&self) -> MediumKind {
        MediumKind::Sim
    }

    #[track_caller]
    fn flush(&self, addr: *const u8, len: usize) {
        self.shared.step();
        if len == 0 || !self.shared.holds(addr) {
            return;
        }
        self.shared.bounded(addr, len);
        let at = self.shared.at(addr);
        let line = LINE as u64;
        for line in (at / line..=(at + len as u64 - 1) / line).map(|n| n * line) {
            self.instruction(
                EventKind::Flush { line },
                SiteKind::Flush,
                Location::caller(),
            );
        }
    }

    #[track_caller]
    fn fence(&self) {
        self.shared.step();
        self.instruction(EventKind::Fence, SiteKind::Fence, Location::caller());
    }

    #[track_caller]
    fn store_fence(&self) {
        self.shared.step();
        self.instruction(
            EventKind::StoreFence,
            SiteKind::StoreFence,
            Location::caller(),
        );
    }

    fn base(&self) -> *mut u8 {
        self.shared.base
    }

    fn len(&self) -> u64 {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.len.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> u64 {
        self.shared.capacity
    }

    #[track_caller]
    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        let (from, capacity) = (self.len(), self.capacity());
        if len > capacity {
            return Err(SpaceError::Capacity {
                wanted: len,
                capacity,
            });
        }
        if len > from {
            self.shared.resize(len, Location::caller());
        }
        Ok(())
    }

    #[track_caller]
    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        let from = self.len();
        if len < from {
            let site = Location::caller();
            // Bytes past the end are zero when the pool grows again.
            self.shared.zero(len, from - len, site);
            self.shared.resize(len, site);
        }
        Ok(())
    }

    #[track_caller]
    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        let end = (offset + len).min(self.len());
        if offset < end {
            self.shared.zero(offset, end - offset, Location::caller());
        }
        Ok(())
    }

    /// Returns true when frozen, and while a panic drops what was open.
    fn read_only(&self) -> bool {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.read_only.load(Ordering::Relaxed) || std::thread::panicking()
    }

    fn keeps_unflushed(&self) -> bool {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.keeps_unflushed.load(Ordering::Relaxed)
    }

    fn sync(&self) -> Result<(), CommitError> {
        Ok(())
    }
}

impl Instrument for Sim {
    const TRACED: bool = true;
    type Dram = Traced;

    #[track_caller]
    fn trace_touch(&self, addr: *const u8, width: usize) {
        self.touch(addr, width);
    }

    #[track_caller]
    fn trace_store(&self, addr: *const u8, width: usize, old: u128, new: u128) {
        if !self.shared.holds(addr) {
            return;
        }
        let at = self.shared.at(addr);
        let word = (at / 8) as u32;
        let mut state = self.shared.owned().state.borrow_mut();
        state.images.log_word(word, old as u64);
        let kind = if width == 16 {
            state.images.log_word(word + 1, (old >> 64) as u64);
            EventKind::Store16 { at, old, new }
        } else {
            let (old, new) = (old as u64, new as u64);
            EventKind::Store { at, old, new }
        };
        self.shared.emit(&mut state, kind, Location::caller());
    }

    #[track_caller]
    fn trace_store_bytes(&self, addr: *const u8, new: &[u8]) {
        let site = Location::caller();
        drop(self.touch(addr, new.len().next_multiple_of(8)));
        let words = self.shared.words();
        let at = self.shared.at(addr);
        let mut state = self.shared.state.borrow_mut();
        for (i, bytes) in new.chunks(8).enumerate() {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            let at = at + i as u64 * 8;
            let word = (at / 8) as u32;
            let (old, new) = (words.get(word), u64::from_le_bytes(eight));
            state.images.log_word(word, old);
            self.shared
                .emit(&mut state, EventKind::Store { at, old, new }, site);
        }
    }

    #[track_caller]
    fn trace_load(&self, addr: *const u8, width: usize) {
        if let Some(mut state) = self.touch(addr, width)
            && state.sink.is_some()
        {
            let (at, bytes) = (self.shared.at(addr), width as u32);
            self.shared.emit(
                &mut state,
                EventKind::Load { at, bytes },
                Location::caller(),
            );
        }
    }

    fn interleave(&self) {
        self.shared.step();
    }

    fn run_as_worker(&self, work: &mut dyn FnMut()) -> bool {
        let shared = self.shared.owned();
        let me = shared.thread.get();
        shared.thread.set(shared.worker.get().unwrap_or(me));
        work();
        shared.thread.set(me);
        true
    }

    fn tiny(&self) -> bool {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.tiny.load(Ordering::Relaxed)
    }

    fn planted(&self, fault: &str) -> bool {
        self.shared.owned().state.borrow().planted == Some(fault)
    }
}
