//! `Sim`: a pool in a buffer whose every access is reported, and whose crashes can be tried out.
//!
//! | part | does |
//! | --- | --- |
//! | `buffer.rs` | the memory, used again by later simulations |
//! | `event.rs` | what is reported, with thread and call site |
//! | `persistency.rs` | models: which stores a crash may lose |
//! | `images.rs` | the images that a crash may leave, decided lazily, undone by their own trace |
//!
//! A [`Simulation`] belongs to one thread. While it is attached, `Pool::<Sim>` on that thread opens its
//! buffer. The crash-state explorer, the device model and the mutation of persist sites stand on it
//! (`docs/design.md`, "Media").
//!
//! Simulated threads are told apart by [`Simulation::set_thread`]; a switch function, called before each
//! access, lets a deterministic scheduler interleave them.

mod buffer;
mod event;
mod images;
mod persistency;

pub use event::{Event, EventKind, Sink, Site, SiteKind, Trace};
pub use images::{Decision, Mark, Strategy};
pub use persistency::{Model, Pending, PendingStore, line_of};

use super::{LINE, Media, MediaOptions, MediumKind, Traced};
use crate::error::{CommitError, OpenError, SpaceError};
use buffer::{ALIGN, Buffer};
use images::{Images, Memory};
use std::cell::{Cell, RefCell, RefMut};
use std::marker::PhantomData;
use std::panic::Location;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the thread that runs out of [`Simulation::set_limit`] accesses panics with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSteps;

thread_local! {
    static ATTACHED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Its address tells threads apart.
    static TOKEN: u8 = const { 0 };
}

fn token() -> usize {
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}

/// The buffer, and the state that only the owning thread touches.
struct Shared {
    base: *mut u8,
    /// What `base` leads into; taken when this is dropped.
    buffer: Option<Buffer>,
    capacity: u64,
    len: AtomicU64,
    read_only: AtomicBool,
    tiny: AtomicBool,
    owner: usize,
    state: RefCell<State>,
    thread: Cell<u8>,
    worker: Cell<Option<u8>>,
    switch: Cell<Option<fn()>>,
    steps: Cell<u64>,
    limit: Cell<u64>,
}

struct State {
    images: Images,
    sink: Option<Box<dyn Sink>>,
    off: Vec<Site>,
    /// How often something in `off` was left out.
    skipped: u64,
    planted: Option<&'static str>,
}

// SAFETY: 1. the buffer is only accessed through atomic words, by any thread; 2. `len` and `read_only`
// are atomic; 3. the cells are only reached through `Shared::owned`, which refuses every thread but
// the one that made the simulation; 4. dropping happens once, and `State` holds nothing that is bound
// to a thread but the sink, which `Simulation`'s drop takes out on its own thread.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

struct Words(*mut u8);

impl Words {
    fn word(&self, word: u32) -> &AtomicU64 {
        // SAFETY: 1. callers pass words below the capacity that `Shared` allocated; 2. 8-aligned;
        // 3. all access to the buffer is atomic; 4. the buffer outlives the borrow.
        unsafe { AtomicU64::from_ptr(self.0.cast::<u64>().wrapping_add(word as usize)) }
    }
}

impl Memory for Words {
    // ORDERING (both): Relaxed; one thread simulates all.
    fn get(&self, word: u32) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    fn set(&self, word: u32, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }
}

impl Shared {
    fn owned(&self) -> &Self {
        assert_eq!(
            self.owner,
            token(),
            "a simulation is used by the thread that made it"
        );
        self
    }

    fn words(&self) -> Words {
        Words(self.base)
    }

    /// Lets another simulated thread run, and counts a step.
    #[inline]
    fn step(&self) {
        let this = self.owned();
        if let Some(switch) = this.switch.get() {
            let me = this.thread.get();
            switch();
            this.thread.set(me);
        }
        let steps = this.steps.get() + 1;
        this.steps.set(steps);
        if steps > this.limit.get() {
            out_of_steps();
        }
    }

    fn at(&self, addr: *const u8) -> u64 {
        (addr.addr() - self.base.addr()) as u64
    }

    /// True for addresses in the buffer. Cells may also live outside any pool.
    fn holds(&self, addr: *const u8) -> bool {
        (self.base.addr()..self.base.addr() + self.capacity as usize).contains(&addr.addr())
    }

    /// Panics if an access of the buffer leaves the pool: behind its end a mapping has nothing, but the
    /// buffer has.
    #[inline]
    #[track_caller]
    fn bounded(&self, addr: *const u8, bytes: usize) {
        // ORDERING: Relaxed; one thread simulates all.
        let (end, len) = (
            self.at(addr) + bytes as u64,
            self.len.load(Ordering::Relaxed),
        );
        // What is dropped while a panic unwinds may still finish its accesses.
        if end > len && !std::thread::panicking() {
            panic!(
                "access to {:#x}, past the pool's end at {len:#x}",
                end - bytes as u64
            );
        }
    }

    fn emit(&self, state: &mut State, kind: EventKind, site: &'static Location<'static>) {
        if let Some(sink) = &mut state.sink {
            sink.event(&Event {
                kind,
                thread: self.thread.get(),
                site,
            });
        }
    }

    fn resize(&self, to: u64, site: &'static Location<'static>) {
        let mut state = self.owned().state.borrow_mut();
        // ORDERING: Relaxed; one thread simulates all.
        let from = self.len.swap(to, Ordering::Relaxed);
        state.images.log_length(from);
        self.emit(&mut state, EventKind::Resize { from, to }, site);
    }

    fn zero(&self, at: u64, bytes: u64, site: &'static Location<'static>) {
        let words = self.words();
        let mut state = self.owned().state.borrow_mut();
        state.images.touch(&words, at, bytes);
        for word in (at / 8) as u32..((at + bytes) / 8) as u32 {
            let old = words.get(word);
            if old != 0 {
                state.images.log_word(word, old);
                words.set(word, 0);
            }
        }
        self.emit(&mut state, EventKind::Zero { at, bytes }, site);
    }
}

#[cold]
fn out_of_steps() {
    // What is dropped while a panic unwinds may still finish its accesses.
    if !std::thread::panicking() {
        std::panic::panic_any(OutOfSteps);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever leads into the buffer shares ownership of this value.
        if let Some(buffer) = self.buffer.take() {
            buffer.give_back(&self.state.get_mut().images.written);
        }
    }
}

/// A simulated persistent memory. Cheap to clone; bound to the thread that made it.
#[derive(Clone)]
pub struct Simulation {
    shared: Arc<Shared>,
    bound: PhantomData<Rc<()>>,
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("capacity", &self.shared.capacity)
            .finish_non_exhaustive()
    }
}

/// While it lives, `Sim::open` on this thread opens the simulation.
#[derive(Debug)]
#[must_use = "dropping it detaches the simulation"]
pub struct Attached {
    bound: PhantomData<Rc<()>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        ATTACHED.with(|attached| attached.replace(None));
    }
}

impl Simulation {
    /// Zeroed memory that a pool can grow to `capacity` bytes in (rounded up to 2 MiB).
    ///
    /// # Panics
    /// If `capacity` is no possible size of memory.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity.max(1).next_multiple_of(ALIGN as u64);
        let buffer = Buffer::new(capacity as usize);
        let shared = Shared {
            base: buffer.base(),
            buffer: Some(buffer),
            capacity,
            len: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
            tiny: AtomicBool::new(true),
            owner: token(),
            state: RefCell::new(State {
                images: Images::new((capacity / 8) as usize),
                sink: None,
                off: Vec::new(),
                skipped: 0,
                planted: None,
            }),
            thread: Cell::new(0),
            worker: Cell::new(None),
            switch: Cell::new(None),
            steps: Cell::new(0),
            limit: Cell::new(u64::MAX),
        };
        Self {
            shared: Arc::new(shared),
            bound: PhantomData,
        }
    }

    /// Makes `Sim::open` on this thread open this simulation, until the guard is dropped.
    pub fn attach(&self) -> Attached {
        ATTACHED.with(|attached| attached.replace(Some(Arc::clone(&self.shared))));
        Attached { bound: PhantomData }
    }

    /// Whether trees that are made or opened from here on shrink their limits ([`Media::tiny`]), as they do
    /// unless told otherwise: exploring wants rare paths, measuring wants the usual ones.
    pub fn set_tiny(&self, tiny: bool) {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.tiny.store(tiny, Ordering::Relaxed);
    }

    /// Gives events to `sink` from here on; returns the sink before.
    pub fn set_sink(&self, sink: Option<Box<dyn Sink>>) -> Option<Box<dyn Sink>> {
        std::mem::replace(&mut self.shared.state.borrow_mut().sink, sink)
    }

    /// Keeps events (but loads) from here on, until [`take_trace`](Self::take_trace).
    pub fn start_trace(&self) {
        self.set_sink(Some(Box::new(Trace::default())));
    }

    /// What was kept since [`start_trace`](Self::start_trace).
    pub fn take_trace(&self) -> Vec<Event> {
        self.set_sink(None)
            .and_then(|sink| sink.into_any().downcast::<Trace>().ok())
            .map_or_else(Vec::new, |trace| trace.events)
    }

    /// The simulated thread that the next events belong to.
    pub fn set_thread(&self, thread: u8) {
        self.shared.thread.set(thread);
    }

    /// The simulated thread that workers are ([`Media::as_worker`]) from here on; `None`: the one that
    /// starts them.
    pub fn set_worker(&self, thread: Option<u8>) {
        self.shared.worker.set(thread);
    }

    /// Called before every access, flush and fence: a scheduler's switching point.
    pub fn set_switch(&self, switch: Option<fn()>) {
        self.shared.switch.set(switch);
    }

    /// Flushes, fences and store fences at these sites do nothing and are not reported.
    pub fn switch_off(&self, sites: &[Site]) {
        self.shared.state.borrow_mut().off = sites.to_vec();
    }

    /// How often something that is switched off was left out.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.shared.state.borrow().skipped
    }

    /// Makes [`Media::planted`] true for this fault alone.
    pub fn plant(&self, fault: Option<&'static str>) {
        self.shared.state.borrow_mut().planted = fault;
    }

    /// Accesses, flushes and fences from here on before the thread panics with [`OutOfSteps`].
    pub fn set_limit(&self, steps: u64) {
        self.shared.steps.set(0);
        self.shared.limit.set(steps);
    }

    /// Accesses, flushes and fences since [`set_limit`](Self::set_limit).
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.steps.get()
    }

    /// Nothing that is open writes any more, even to close itself: what a crash does to a process.
    pub fn set_frozen(&self, frozen: bool) {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.read_only.store(frozen, Ordering::Relaxed);
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn len(&self) -> u64 {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.len.load(Ordering::Relaxed)
    }

    /// True before a pool was made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at byte offset `word * 8`, as it is in memory.
    #[must_use]
    pub fn word(&self, word: u32) -> u64 {
        assert!(u64::from(word) * 8 < self.shared.capacity, "word {word}");
        self.shared.words().get(word)
    }

    /// Changes a word behind the program's back; undone like any store.
    pub fn set_word(&self, word: u32, value: u64) {
        assert!(u64::from(word) * 8 < self.shared.capacity, "word {word}");
        let mut state = self.shared.state.borrow_mut();
        let words = self.shared.words();
        state.images.log_word(word, words.get(word));
        words.set(word, value);
    }

    /// Changes the pool's length behind the program's back; undone like any other change.
    pub fn set_len(&self, len: u64) {
        let mut state = self.shared.state.borrow_mut();
        state.images.log_length(self.len());
        // ORDERING: Relaxed; one thread simulates all.
        self.shared
            .len
            .store(len.min(self.shared.capacity), Ordering::Relaxed);
    }

    /// Zeroes a range behind the program's back; undone like any other change.
    pub fn zero(&self, at: u64, bytes: u64) {
        for word in (at / 8) as u32..((at + bytes) / 8) as u32 {
            if self.word(word) != 0 {
                self.set_word(word, 0);
            }
        }
    }

    /// Notes every change from here on, so that it can be rolled back; or stops to.
    pub fn note_changes(&self, on: bool) {
        self.shared.state.borrow_mut().images.recording_undo = on;
    }

    /// A point to roll back to.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.shared.state.borrow().images.mark()
    }

    /// Undoes every change since `mark`.
    pub fn roll_back(&self, mark: Mark) {
        let mut state = self.shared.state.borrow_mut();
        if let Some(len) = state.images.roll_back(&self.shared.words(), mark) {
            // ORDERING: Relaxed; one thread simulates all.
            self.shared.len.store(len, Ordering::Relaxed);
        }
    }

    /// Leaves open which of the pending stores the crash kept, in addition to what is open. `newest`:
    /// only images that kept the store of that number. Returns what to give to [`close`](Self::close).
    pub fn expose(&self, pending: &Pending, newest: Option<u32>) -> usize {
        let mut state = self.shared.state.borrow_mut();
        state.images.expose(&self.shared.words(), pending, newest)
    }

    /// Ends what [`expose`](Self::expose) began. Its decisions must have been rolled back.
    pub fn close(&self, from: usize) {
        self.shared.state.borrow_mut().images.close(from);
    }

    /// How open words are decided from here on.
    pub fn set_strategy(&self, strategy: Strategy) {
        self.shared.state.borrow_mut().images.set_strategy(strategy);
    }

    /// Depth-first: the number of decisions that the present image took.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.state.borrow().images.depth()
    }

    /// Depth-first: true if what runs on the images is not determined by them, so that some may have been
    /// left out.
    #[must_use]
    pub fn diverged(&self) -> bool {
        self.shared.state.borrow().images.diverged()
    }

    /// Depth-first: begins a run below the first `base` decisions.
    pub fn begin_image(&self, base: usize) {
        self.shared.state.borrow_mut().images.begin(base);
    }

    /// Depth-first: turns to the next image below the first `base` decisions; false if there is none.
    #[must_use]
    pub fn next_image(&self, base: usize) -> bool {
        self.shared.state.borrow_mut().images.advance(base)
    }

    /// Depth-first: forgets the choices below the first `base` decisions.
    pub fn forget_below(&self, base: usize) {
        self.shared.state.borrow_mut().images.forget_below(base);
    }

    /// Decides every word that is still open.
    pub fn decide_rest(&self) {
        let mut state = self.shared.state.borrow_mut();
        state.images.decide_rest(&self.shared.words());
    }

    /// What was decided since `mark`.
    #[must_use]
    pub fn decisions(&self, mark: Mark) -> Vec<Decision> {
        self.shared.state.borrow().images.decisions(mark)
    }

    /// What is decided at any time, in order, for another thread to look at.
    #[must_use]
    pub fn decided(&self) -> Arc<Mutex<Vec<Decision>>> {
        Arc::clone(&self.shared.state.borrow().images.decided)
    }

    /// Decides words as they were decided before. False if they are the decisions of another image: a word
    /// has nothing to decide, or not that many stores.
    pub fn impose(&self, decisions: &[Decision]) -> bool {
        let mut state = self.shared.state.borrow_mut();
        state.images.impose(&self.shared.words(), decisions)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // What is left may be dropped by another thread; the sink must not be.
        if Arc::strong_count(&self.shared) == 1 {
            self.shared.state.borrow_mut().sink = None;
        }
    }
}

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
    /// Counts an access and decides what it reads. `None` if that is outside the buffer.
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

impl Media for Sim {
    const TRACED: bool = true;
    type Dram = Traced;

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

    /// True when frozen, and while a panic drops what was open.
    fn read_only(&self) -> bool {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.read_only.load(Ordering::Relaxed) || std::thread::panicking()
    }

    fn sync(&self) -> Result<(), CommitError> {
        Ok(())
    }

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

    fn as_worker(&self, work: &mut dyn FnMut()) -> bool {
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
