//! `Simulation`: the owner's side of a simulated memory.

use super::buffer::{ALIGN, Buffer};
use super::event::{Event, Sink, Site, Trace};
use super::images::{Decision, Images, Mark, Memory, Strategy};
use super::persistency::Pending;
use super::shared::{ATTACHED, Shared, State, token};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
    /// Returns zeroed memory in which a pool can grow to `capacity` bytes (rounded up to 2 MiB).
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
            keeps_unflushed: AtomicBool::new(false),
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

    /// Sets whether trees that are made or opened from here on shrink their limits
    /// ([`Instrument::tiny`](crate::media::Instrument::tiny)), which is the default: exploring
    /// needs rare paths, measuring the usual ones.
    pub fn set_tiny(&self, tiny: bool) {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.tiny.store(tiny, Ordering::Relaxed);
    }

    /// Sets whether memory holds what a killed process had stored and not flushed
    /// ([`Media::keeps_unflushed`](crate::media::Media::keeps_unflushed)). It does not after a
    /// power cut, which is the default.
    pub fn set_keeps_unflushed(&self, keeps: bool) {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.keeps_unflushed.store(keeps, Ordering::Relaxed);
    }

    /// Passes events to `sink` from here on. Returns the sink before.
    pub fn set_sink(&self, sink: Option<Box<dyn Sink>>) -> Option<Box<dyn Sink>> {
        std::mem::replace(&mut self.shared.state.borrow_mut().sink, sink)
    }

    /// Keeps events (except loads) from here on, until [`take_trace`](Self::take_trace).
    pub fn start_trace(&self) {
        self.set_sink(Some(Box::new(Trace::default())));
    }

    /// Returns the events since [`start_trace`](Self::start_trace).
    pub fn take_trace(&self) -> Vec<Event> {
        self.set_sink(None)
            .and_then(|sink| sink.into_any().downcast::<Trace>().ok())
            .map_or_else(Vec::new, |trace| trace.events)
    }

    /// Sets the simulated thread of the next events.
    pub fn set_thread(&self, thread: u8) {
        self.shared.thread.set(thread);
    }

    /// Sets the simulated thread of workers
    /// ([`Instrument::run_as_worker`](crate::media::Instrument::run_as_worker)) from here on;
    /// `None` means the one that starts them.
    pub fn set_worker(&self, thread: Option<u8>) {
        self.shared.worker.set(thread);
    }

    /// Sets a function that is called before every access, flush and fence: a scheduler's switching
    /// point.
    pub fn set_switch(&self, switch: Option<fn()>) {
        self.shared.switch.set(switch);
    }

    /// Makes flushes, fences and store fences at these sites do nothing. They are not reported.
    pub fn switch_off(&self, sites: &[Site]) {
        self.shared.state.borrow_mut().off = sites.to_vec();
    }

    /// Returns how often something that is switched off was skipped.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.shared.state.borrow().skipped
    }

    /// Makes [`Instrument::planted`](crate::media::Instrument::planted) true for only this fault.
    pub fn plant(&self, fault: Option<&'static str>) {
        self.shared.state.borrow_mut().planted = fault;
    }

    /// Sets the number of accesses, flushes and fences after which the thread panics with
    /// [`OutOfSteps`](super::OutOfSteps).
    pub fn set_limit(&self, steps: u64) {
        self.shared.steps.set(0);
        self.shared.limit.set(steps);
    }

    /// Returns the number of accesses, flushes and fences since [`set_limit`](Self::set_limit).
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.steps.get()
    }

    /// Stops or resumes all writing by what is open, even for closing: the effect of a crash on a
    /// process.
    pub fn set_frozen(&self, frozen: bool) {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.read_only.store(frozen, Ordering::Relaxed);
    }

    /// Returns the bytes of the pool.
    #[must_use]
    pub fn len(&self) -> u64 {
        // ORDERING: Relaxed; one thread simulates all.
        self.shared.len.load(Ordering::Relaxed)
    }

    /// Returns true before a pool was made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the word at byte offset `word * 8` in memory.
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

    /// Starts or stops noting every change, so that it can be rolled back.
    pub fn note_changes(&self, on: bool) {
        self.shared.state.borrow_mut().images.recording_undo = on;
    }

    /// Returns a point to roll back to.
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

    /// Opens the words with pending stores, in addition to those that are open: the crash may have
    /// kept each of the stores. With `newest`, only images count that kept the store of that
    /// number. Returns the argument for [`close`](Self::close).
    pub fn expose(&self, pending: &Pending, newest: Option<u32>) -> usize {
        let mut state = self.shared.state.borrow_mut();
        state.images.expose(&self.shared.words(), pending, newest)
    }

    /// Ends an [`expose`](Self::expose). Its decisions must have been rolled back.
    pub fn close(&self, from: usize) {
        self.shared.state.borrow_mut().images.close(from);
    }

    /// Sets how open words are decided from here on.
    pub fn set_strategy(&self, strategy: Strategy) {
        self.shared.state.borrow_mut().images.set_strategy(strategy);
    }

    /// Depth-first: returns the number of decisions of the present image.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.state.borrow().images.depth()
    }

    /// Depth-first: returns true if the runs on the images are not determined by them, so that some
    /// images may have been left out.
    #[must_use]
    pub fn diverged(&self) -> bool {
        self.shared.state.borrow().images.diverged()
    }

    /// Depth-first: begins a run below the first `base` decisions.
    pub fn begin_image(&self, base: usize) {
        self.shared.state.borrow_mut().images.begin(base);
    }

    /// Depth-first: turns to the next image below the first `base` decisions. Returns false if
    /// there is none.
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

    /// Returns the decisions since `mark`.
    #[must_use]
    pub fn decisions(&self, mark: Mark) -> Vec<Decision> {
        self.shared.state.borrow().images.decisions(mark)
    }

    /// Returns the decisions so far, in order, for another thread to read.
    #[must_use]
    pub fn decided(&self) -> Arc<Mutex<Vec<Decision>>> {
        Arc::clone(&self.shared.state.borrow().images.decided)
    }

    /// Decides words as they were decided before. Returns false if the decisions are another
    /// image's: a word has nothing to decide, or not that many stores.
    pub fn impose(&self, decisions: &[Decision]) -> bool {
        let mut state = self.shared.state.borrow_mut();
        state.images.impose(&self.shared.words(), decisions)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // Another thread may drop the shared state, but it must not drop the sink.
        if Arc::strong_count(&self.shared) == 1 {
            self.shared.state.borrow_mut().sink = None;
        }
    }
}
