//! A simulation's memory and state, which its medium and its owner share.

use super::buffer::Buffer;
use super::event::{Event, EventKind, Sink, Site};
use super::images::{Images, Memory};
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Panic payload of a thread that runs out of accesses
/// ([`Simulation::set_limit`](super::Simulation::set_limit)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSteps;

thread_local! {
    pub(super) static ATTACHED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Its address tells threads apart.
    static TOKEN: u8 = const { 0 };
}

pub(super) fn token() -> usize {
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}

/// The buffer, and the state that only the owning thread touches.
pub(super) struct Shared {
    pub(super) base: *mut u8,
    /// The memory behind `base`; removed when this is dropped.
    pub(super) buffer: Option<Buffer>,
    pub(super) capacity: u64,
    pub(super) len: AtomicU64,
    pub(super) read_only: AtomicBool,
    pub(super) tiny: AtomicBool,
    pub(super) keeps_unflushed: AtomicBool,
    pub(super) owner: usize,
    pub(super) state: RefCell<State>,
    pub(super) thread: Cell<u8>,
    pub(super) worker: Cell<Option<u8>>,
    pub(super) switch: Cell<Option<fn()>>,
    pub(super) steps: Cell<u64>,
    pub(super) limit: Cell<u64>,
}

pub(super) struct State {
    pub(super) images: Images,
    pub(super) sink: Option<Box<dyn Sink>>,
    pub(super) off: Vec<Site>,
    /// How often something in `off` was skipped.
    pub(super) skipped: u64,
    pub(super) planted: Option<&'static str>,
}

// SAFETY: 1. the buffer is only accessed through atomic words, by any thread; 2. `len` and the
// switches are atomic; 3. the cells are only reached through `Shared::owned`, which refuses
// every thread but the one that made the simulation; 4. dropping happens once, and `State` holds
// nothing that is bound to a thread but the sink, which `Simulation`'s drop removes on its own
// thread.
unsafe impl Send for Shared {}
// SAFETY: 1. to 4. as for `Send`.
unsafe impl Sync for Shared {}

pub(super) struct Words(*mut u8);

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
    pub(super) fn owned(&self) -> &Self {
        assert_eq!(
            self.owner,
            token(),
            "a simulation is used by the thread that made it"
        );
        self
    }

    pub(super) fn words(&self) -> Words {
        Words(self.base)
    }

    /// Lets another simulated thread run, and counts a step.
    #[inline]
    pub(super) fn step(&self) {
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

    pub(super) fn at(&self, addr: *const u8) -> u64 {
        (addr.addr() - self.base.addr()) as u64
    }

    /// Returns true for addresses in the buffer. Cells may also be outside any pool.
    pub(super) fn holds(&self, addr: *const u8) -> bool {
        (self.base.addr()..self.base.addr() + self.capacity as usize).contains(&addr.addr())
    }

    /// Panics if an access of the buffer leaves the pool: behind its end a mapping has no memory,
    /// and the buffer has.
    #[inline]
    #[track_caller]
    pub(super) fn bounded(&self, addr: *const u8, bytes: usize) {
        // ORDERING: Relaxed; one thread simulates all.
        let (end, len) = (
            self.at(addr) + bytes as u64,
            self.len.load(Ordering::Relaxed),
        );
        // Values that are dropped while a panic unwinds may still finish their accesses.
        if end > len && !std::thread::panicking() {
            panic!(
                "access to {:#x}, past the pool's end at {len:#x}",
                end - bytes as u64
            );
        }
    }

    pub(super) fn emit(
        &self,
        state: &mut State,
        kind: EventKind,
        site: &'static Location<'static>,
    ) {
        if let Some(sink) = &mut state.sink {
            sink.event(&Event {
                kind,
                thread: self.thread.get(),
                site,
            });
        }
    }

    pub(super) fn resize(&self, to: u64, site: &'static Location<'static>) {
        let mut state = self.owned().state.borrow_mut();
        // ORDERING: Relaxed; one thread simulates all.
        let from = self.len.swap(to, Ordering::Relaxed);
        state.images.log_length(from);
        self.emit(&mut state, EventKind::Resize { from, to }, site);
    }

    pub(super) fn zero(&self, at: u64, bytes: u64, site: &'static Location<'static>) {
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
    // Values that are dropped while a panic unwinds may still finish their accesses.
    if !std::thread::panicking() {
        std::panic::panic_any(OutOfSteps);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Holders of references into the buffer share ownership of this value, so there are none
        // left.
        if let Some(buffer) = self.buffer.take() {
            buffer.give_back(&self.state.get_mut().images.written);
        }
    }
}
