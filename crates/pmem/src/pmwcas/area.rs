//! The pool of descriptors: its area in the pool, and the volatile state beside it.

use super::encoding::{
    Entry, GENERATION, MAX_PER_THREAD, MAX_THREADS, MAX_WORDS, Policy, State, Status,
};
use super::error::WordError;
use super::lists::{Counters, Counts, Lists};
use super::operation::Scratch;
use crate::cell::PWord;
use crate::error::SpaceError;
use crate::format::layout::{CHUNK, REGION};
use crate::heap::{Heap, Recycle};
use crate::media::{LINE, Media};
use crate::planted;
use crate::pool::Pool;
use crossbeam_epoch::Guard;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"PMWCAS01");

/// A pool of descriptors, through which multi-word swaps on one root's words go. See the module's
/// head.
pub struct DescriptorPool<M: Media> {
    pub(super) pool: Arc<Pool<M>>,
    /// Offset of the area.
    pub(super) at: u64,
    pub(super) descriptors: usize,
    pub(super) per_thread: usize,
    pub(super) words: usize,
    pub(super) lists: Arc<Lists>,
    /// By descriptor: the generation of its next use.
    pub(super) next: Box<[AtomicU64]>,
    /// By descriptor: attempts of helpers to install a pointer to it.
    pub(super) attempts: Box<[AtomicU32]>,
    pub(super) counters: Counters,
    pub(super) scratch: Scratch,
    pub(super) recycle: Box<dyn Recycle>,
}

impl<M: Media> fmt::Debug for DescriptorPool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorPool")
            .field("at", &format_args!("{:#x}", self.at))
            .field("descriptors", &self.descriptors)
            .field("words", &self.words)
            .finish_non_exhaustive()
    }
}

/// Returns the bytes from one descriptor to the next.
const fn stride(words: usize) -> u64 {
    (words.div_ceil(2) * LINE) as u64
}

/// Returns the bytes of an area for `threads` threads with `per_thread` descriptors of `words`
/// words each.
#[must_use]
pub const fn bytes(threads: usize, per_thread: usize, words: usize) -> u64 {
    LINE as u64 + (threads * per_thread) as u64 * stride(words)
}

impl<M: Media> DescriptorPool<M> {
    pub(super) fn over(
        pool: &Arc<Pool<M>>,
        at: u64,
        descriptors: usize,
        per_thread: usize,
        words: usize,
        recycle: Box<dyn Recycle>,
    ) -> Self {
        Self {
            pool: Arc::clone(pool),
            at,
            descriptors,
            per_thread,
            words,
            lists: Arc::new(Lists::all_free(descriptors, per_thread)),
            next: (0..descriptors).map(|_| AtomicU64::new(1)).collect(),
            attempts: (0..descriptors).map(|_| AtomicU32::new(0)).collect(),
            counters: Counters::new(),
            scratch: Scratch::of(descriptors),
            recycle,
        }
    }

    /// Makes an area in `heap`, with `per_thread` descriptors of up to `words` words for each of
    /// `threads` threads. It is flushed, not fenced: the caller fences before anything durable
    /// leads to it. Blocks that policies recycle go to `recycle`.
    ///
    /// One thread needs more descriptors than it uses while it stays pinned, and some 60 to never
    /// wait for one. It uses other threads' too, as far as those leave them.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room. Nothing has changed then.
    ///
    /// # Panics
    /// If one of the numbers is 0 or past its limit: a bug in the caller.
    pub fn create(
        heap: &Heap<M>,
        threads: usize,
        per_thread: usize,
        words: usize,
        recycle: Box<dyn Recycle>,
    ) -> Result<Self, SpaceError> {
        assert!(
            (1..=MAX_THREADS).contains(&threads)
                && (1..=MAX_PER_THREAD).contains(&per_thread)
                && (1..=MAX_WORDS).contains(&words),
            "{per_thread} descriptors of {words} words for {threads} threads"
        );
        let descriptors = threads * per_thread;
        let at = heap.alloc(bytes(threads, per_thread, words))?.get();
        let this = Self::over(heap.pool(), at, descriptors, per_thread, words, recycle);
        let pm = this.pm();
        // ORDERING (all): Relaxed; nothing leads to the area yet.
        this.word(at).store(pm, MAGIC, Ordering::Relaxed);
        let shape = descriptors as u64 | (words as u64) << 32 | (per_thread as u64) << 48;
        this.word(at + 8).store(pm, shape, Ordering::Relaxed);
        // PERSIST: the area's header; the caller fences it before a root word leads to it.
        pm.flush(this.word(at).addr(), 16);
        // The generations of pools begin at different places.
        let (seed, _) = this.pool.uuid().as_u64_pair();
        for number in 0..descriptors {
            let generation = seed.wrapping_add(at).wrapping_add(number as u64) & GENERATION;
            let free = Status::new(State::Free, generation, 0, 0);
            this.status(number).store(pm, free.0, Ordering::Relaxed);
            for line in 1..words.div_ceil(2) {
                let word = this.generation(number, line);
                word.store(pm, generation, Ordering::Relaxed);
            }
            // PERSIST: the free descriptor, whatever the block held; the caller fences it too.
            pm.flush(this.status(number).addr(), stride(words) as usize);
            let next = generation.wrapping_add(1) & GENERATION;
            this.next[number].store(next, Ordering::Relaxed);
        }
        Ok(this)
    }

    /// Marks the area as reached; [`Heap::mark`] for the rest of the structure follows.
    ///
    /// # Errors
    /// The reason in words.
    pub fn mark(&self, heap: &Heap<M>, guard: &Guard) -> Result<(), String> {
        heap.mark(self.at, self.bytes(), guard)
    }

    /// Returns the bytes of the area.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes(self.descriptors, 1, self.words)
    }

    /// Returns the offset of the area, which the owner keeps.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the maximum number of words of an operation.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// Returns the number of descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Returns counts of the operations since the pool was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.sum()
    }

    #[inline]
    pub(super) fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the word at `at`: of the area, or at a place that `place_of` or recovery checked.
    #[inline]
    pub(super) fn word(&self, at: u64) -> &PWord {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.pm().len(), "{at:#x}");
        // SAFETY: 1. `at` is inside the pool: the area's block came from the allocator or `open`
        // checked it, and places are checked when they are added or recovered; 2. it is 8-aligned,
        // likewise; 3. any bits are a valid PWord; 4. the mapping lives as long as `self.pool`, and
        // chunks of blocks that a pinned thread may still compare are not freed (module's head).
        unsafe {
            &*self
                .pm()
                .base()
                .wrapping_add(at as usize)
                .cast_const()
                .cast()
        }
    }

    /// Flushes a word where anything is durable; each caller names what it precedes.
    #[inline]
    #[track_caller]
    pub(super) fn flush(&self, word: &PWord) {
        if M::PERSISTENT {
            self.pm().flush_of(word);
        }
    }

    /// Fences where anything is durable; each caller names what it precedes.
    #[inline]
    #[track_caller]
    pub(super) fn fence(&self) {
        if M::PERSISTENT {
            self.pm().fence();
        }
    }

    /// Flushes a word and fences; each caller names what it precedes.
    #[inline]
    #[track_caller]
    pub(super) fn persist(&self, word: &PWord) {
        self.flush(word);
        self.fence();
    }

    pub(super) fn descriptor_at(&self, number: usize) -> u64 {
        debug_assert!(number < self.descriptors, "descriptor {number}");
        self.at + LINE as u64 + number as u64 * stride(self.words)
    }

    #[inline]
    pub(super) fn status(&self, number: usize) -> &PWord {
        self.word(self.descriptor_at(number))
    }

    /// Returns the word that says which use line `line` (from 1) belongs to.
    pub(super) fn generation(&self, number: usize, line: usize) -> &PWord {
        debug_assert!(line > 0);
        self.word(self.descriptor_at(number) + (line * LINE) as u64)
    }

    /// Returns the offset of a word that may be swapped.
    pub(super) fn place_of(&self, word: &PWord) -> Result<u64, WordError> {
        let addr = word.addr().addr();
        let pm = self.pm();
        let foreign = WordError::Foreign(addr);
        let at = addr.checked_sub(pm.base().addr()).ok_or(foreign)? as u64;
        if self.swappable(at, pm.len()) {
            Ok(at)
        } else {
            Err(foreign)
        }
    }

    /// Returns true for an aligned place below `end` that is neither in a region's header nor in
    /// the area.
    pub(super) fn swappable(&self, at: u64, end: u64) -> bool {
        at % REGION >= CHUNK
            && at.is_multiple_of(8)
            && at.checked_add(8).is_some_and(|past| past <= end)
            && (at + 8 <= self.at || at >= self.at + self.bytes())
    }

    /// Returns the word `field` (place, old, new) of an entry.
    pub(super) fn field(&self, number: usize, entry: usize, field: usize) -> &PWord {
        let word = entry / 2 * 8 + 1 + entry % 2 * 3 + field;
        self.word(self.descriptor_at(number) + word as u64 * 8)
    }

    /// Returns the place of an entry of a descriptor that is not being written.
    #[inline]
    pub(super) fn place(&self, number: usize, entry: usize) -> u64 {
        // ORDERING: Relaxed; as in `entry`.
        self.field(number, entry, 0)
            .load(self.pm(), Ordering::Relaxed)
    }

    /// Returns an entry of a descriptor that is not being written.
    #[inline]
    pub(super) fn entry(&self, number: usize, entry: usize) -> Entry {
        // ORDERING (all): Relaxed; the pointer or status that led here was read with Acquire.
        let field = |field| {
            self.field(number, entry, field)
                .load(self.pm(), Ordering::Relaxed)
        };
        Entry {
            place: field(0),
            old: field(1),
            new: field(2),
        }
    }

    pub(super) fn write_entry(&self, number: usize, i: usize, entry: &Entry) {
        for (field, value) in [entry.place, entry.old, entry.new].into_iter().enumerate() {
            // ORDERING: Relaxed; the status, stored after it, has Release.
            self.field(number, i, field)
                .store(self.pm(), value, Ordering::Relaxed);
        }
    }

    /// Returns the blocks that the policies of an operation with that status recycle.
    pub(super) fn blocks(&self, number: usize, status: Status) -> impl Iterator<Item = u64> {
        let succeeded = status.is(State::Succeeded);
        let blocks = (0..status.count()).map(move |i| {
            let entry = self.entry(number, i);
            match status.policy(i) {
                Policy::FreeOne if succeeded && planted!(self.pm(), "pmwcas-not-recycled") => 0,
                Policy::FreeOne if succeeded => entry.old,
                Policy::FreeOne => entry.new,
                Policy::FreeOldOnSuccess if succeeded => entry.old,
                Policy::FreeNewOnFailure if !succeeded => entry.new,
                _ => 0,
            }
        });
        blocks.filter(|block| *block != 0)
    }

    /// Returns the blocks to which an operation with that status gives an owner if it succeeds.
    pub(super) fn new_blocks(&self, number: usize, status: Status) -> impl Iterator<Item = u64> {
        let frees = move |i: &usize| status.policy(*i).frees_new();
        let blocks = (0..status.count()).filter(frees);
        blocks
            .map(move |i| self.entry(number, i).new)
            .filter(|block| *block != 0)
    }
}

/// For pools whose operations have no policy but [`Policy::None`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlocks;

impl Recycle for NoBlocks {
    fn reuse(&self, _block: u64) {}
}
