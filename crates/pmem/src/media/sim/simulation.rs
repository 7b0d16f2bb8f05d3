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

    /// Whether trees that are made or opened from here on shrink their limits
    /// ([`Instrument::tiny`](crate::media::Instrument::tiny)), as they do unless told otherwise:
    /// exploring wants rare paths, measuring wants the usual ones.
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

    /// The events since [`start_trace`](Self::start_trace).
    pub fn take_trace(&self) -> Vec<Event> {
        self.set_sink(None)
            .and_then(|sink| sink.into_any().downcast::<Trace>().ok())
            .map_or_else(Vec::new, |trace| trace.events)
    }

    /// The simulated thread that the next events belong to.
    pub fn set_thread(&self, thread: u8) {
        self.shared.thread.set(thread);
    }

    /// The simulated thread that workers are
    /// ([`Instrument::run_as_worker`](crate::media::Instrument::run_as_worker)) from here on;
    /// `None`: the one that starts them.
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

    /// Makes [`Instrument::planted`](crate::media::Instrument::planted) true for this fault alone.
    pub fn plant(&self, fault: Option<&'static str>) {
        self.shared.state.borrow_mut().planted = fault;
    }

    /// Accesses, flushes and fences from here on before the thread panics with [`OutOfSteps`](super::OutOfSteps).
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

    /// Leaves open which of the pending stores the crash kept, in addition to what is open.
    /// `newest`: only images that kept the store of that number. Returns what to give to
    /// [`close`](Self::close).
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

    /// Depth-first: true if what runs on the images is not determined by them, so that some may
    /// have been left out.
    #[must_use]
    pub fn diverged(&self) -> bool {
        self.shared.state.borrow().images.diverged()
    }

    /// Depth-first: begins a run below the first `base` decisions.
    pub fn begin_image(&self, base: usize) {
        self.shared.state.borrow_mut().images.begin(base);
    }

    /// Depth-first: turns to the next image below the first `base` decisions; false if there is
    /// none.
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

    /// The decisions so far, in order, for another thread to look at.
    #[must_use]
    pub fn decided(&self) -> Arc<Mutex<Vec<Decision>>> {
        Arc::clone(&self.shared.state.borrow().images.decided)
    }

    /// Decides words as they were decided before. False if they are the decisions of another image:
    /// a word has nothing to decide, or not that many stores.
    pub fn impose(&self, decisions: &[Decision]) -> bool {
        let mut state = self.shared.state.borrow_mut();
        state.images.impose(&self.shared.words(), decisions)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // The shared state may be dropped by another thread; the sink must not be.
        if Arc::strong_count(&self.shared) == 1 {
            self.shared.state.borrow_mut().sink = None;
        }
    }
}
