//! Persistent multi-word compare-and-swap (PMwCAS, after section 2.3 of the BzTree paper): up to
//! [`MOST_WORDS`] words of a pool change together or not at all, for all threads and after any crash.
//!
//! ```text
//! area        | magic "PMWCAS01" | descriptors (u32), words of each (u16), of a thread (u16) | unused ... to 64 |
//!             | descriptor 0 | descriptor 1 | ...
//! descriptor  | status     | entry 0 (place, old, new) | entry 1 | unused |     whole lines, none shared
//!             | generation | entry 2                   | entry 3 | unused |     one line for every two words
//! status      dirty (bit 63) | generation (36 bits from 24) | policies (2 bits each from 8) | words (4 bits from 3) |
//!             state (0..3): free, undecided, succeeded, failed
//!
//! word        bit 63 dirty | 62 descriptor | 61 conditional | 61 bits of value
//! descriptor  62       | generation (36 bits from 16) | number of the descriptor (16 bits)
//! conditional 61       | generation (20 bits from 41) | attempt (22 bits from 19) | number (16 from 3) | entry (3 bits)
//! ```
//!
//! The area is one block of a root's heap, which the owner keeps the offset of. A word's *value* has 61 bits; the
//! three above them are this module's, and are seen by nobody who reads through [`DescriptorPool::read`].
//!
//! # Protocol
//! | step | lines | fences | why there |
//! | --- | --- | --- | --- |
//! | entries in order of place; store fence; generation and status "undecided" | one per two words | 1 | recovery finds the descriptor of any pointer |
//! | phase 1: a pointer into the first word, RDCSS of one into each other, then all flushed | the words' | 1 | recovery finds all words of an operation that succeeded |
//! | status "succeeded", dirty; flushed; dirty bit cleared | 1 | 1 | no new value is seen of an operation that a crash takes back |
//! | phase 2: pointers replaced by values, flushed | the words' | 1 | the descriptor may be used again |
//!
//! All words share a fence in either phase. One word without a recycling policy needs no status: its descriptor
//! says "succeeded" from the start, and the pointer in the word decides (three lines, three fences). An operation
//! that fails does not persist that: "undecided" and "failed" are rolled back alike. It takes the first fence, and
//! a second one if a pointer was installed.
//!
//! The paper sets the dirty bit on pointers and on new values too, and whoever meets it flushes. Here it is on
//! statuses alone (invariant 3 says why that is enough): that saves two compare-and-swaps a word, and a mistake
//! that the bit invites where no descriptor stands behind the value: who flushed a value late may clear the
//! bit of an equal value stored since, which no one has flushed. Pointers are never equal again.
//!
//! # Invariants
//! 1. Words hold pointers to a descriptor only between its flush (with entries sorted) and the fence that ends
//!    phase 2; whoever took the last one out has flushed and fenced the word while pinned.
//! 2. A descriptor's entries change only when no thread that could have met a pointer to it is pinned any more.
//! 3. A status "succeeded" is durable before the first new value is stored. So values that phase 2 stores need
//!    no dirty bit: until they are durable, the descriptor, which is not used again, stands for them.
//!    For the same reason pointers have none: who decides the status has flushed all of them itself.
//! 4. A line of a descriptor after the first counts only if its generation is the status's: a use that
//!    was not durable as a whole is told from one that was, with one fence for all lines.
//! 5. A descriptor with a policy is durably free before its blocks may be used again, and before its entries change.
//! 6. Each attempt to install has a conditional pointer of its own, so that completing one attempt late cannot
//!    complete another one, made after the operation was decided (Harris et al. have a descriptor for each). The
//!    first word takes none by the operation's own thread: before a pointer is there, no one else can decide.
//!
//! # Concurrency
//! Nothing here waits (what the epochs run for others on this thread may: a heap's locks, say): a thread that meets a pointer helps the operation to its end, in order of places, and one that
//! meets a dirty status, or the pointer of a single word, flushes and fences it itself before it goes on. Late helpers do no harm:
//! phase 1 installs only what RDCSS finds undecided, and what a late attempt left is taken out again,
//! flushed and fenced, by whoever meets it.
//!
//! Descriptors come back through epochs, *twice*: a thread pinned when an operation ended may still
//! put a pointer to it into a word for a moment, where a thread pinned an epoch later meets it. After the second
//! grace period that one has gone too. A thread stopped for ever while pinned keeps descriptors from
//! coming back, no operation from ending; when none is left, [`DescriptorPool::allocate_descriptor`] moves the
//! epoch on a bounded number of times and then answers [`Exhausted`].
//!
//! Blocks that hold target words must go back by a [`Policy`], or after *two* grace periods of their own, once no word
//! leads to them: a late helper may still compare them, and put a conditional pointer into one that has the old value.
//! One [`Heap::retire`] is too little. Who reads a word in such a block, or adds it to an operation, stays pinned from when it
//! learnt of the block until [`Descriptor::execute`] returns, whose own pin begins too late for that.
//!
//! All operations on a word go through one pool of descriptors.
//!
//! On a medium that is made durable by commits, "durable" is what the next commit takes along: an operation's caller
//! commits before it acknowledges, and so does who acts on what [`read`](DescriptorPool::read) gave it.
//!
//! # Crash states
//! 1. *Before the descriptor's fence*: its lines may not belong together (invariant 4) and no word leads to it.
//! 2. *Undecided or failed*: any subset of the words holds pointers; recovery puts old values back.
//! 3. *Succeeded*: recovery puts new values for pointers and old ones for conditional pointers, which only a late
//!    attempt can have left.
//! 4. *Ended, not used again*: no word leads there; recovery changes no word. A place that has become something
//!    else since is compared, and not changed: a pointer carries the generation, which begins at random.
//! 5. *In recovery*: nothing is changed before all descriptors were checked. Every step may be repeated; policies' blocks are
//!    released before their descriptor is free. In the end all descriptors are, so that whatever a damaged file's
//!    words hold leads to no operation but those begun since, and of these to none that the word is not part of.

mod descriptor;
mod lists;
mod protocol;
mod recovery;
#[cfg(test)]
mod tests;

pub use descriptor::Descriptor;
pub use recovery::Recovered;

use crate::cell::PWord;
use crate::error::SpaceError;
use crate::heap::Heap;
use crate::media::{LINE, Media};
use crate::off::POff;
use crate::pool::Pool;
use crate::pool::layout::{CHUNK, REGION};
use crossbeam_epoch::Guard;
use descriptor::{GENERATION, Scratch, State, Status};
use lists::{Counters, Lists};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most words of an operation.
pub const MOST_WORDS: usize = 8;
/// Most threads that a pool of descriptors is divided among; more threads share.
pub const MOST_THREADS: usize = 1024;
/// Most descriptors of a thread.
pub const MOST_PER_THREAD: usize = 64;
/// The bits of a word that values cannot use.
pub const FLAGS: u64 = DIRTY | MULTI | CONDITIONAL;

pub(crate) const DIRTY: u64 = 1 << 63;
pub(crate) const MULTI: u64 = 1 << 62;
pub(crate) const CONDITIONAL: u64 = 1 << 61;
const MAGIC: u64 = u64::from_le_bytes(*b"PMWCAS01");

/// What happens to the blocks that a word's old and new value lead to. A value of 0 leads nowhere. A new block is
/// [activated](Recycle::activate) by the two policies that would free it: with the others it is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Nothing: they are no pointers, or the owner sees to it.
    #[default]
    None = 0,
    /// The old one is recycled if the operation succeeds, the new one if it fails.
    FreeOne = 1,
    /// The old one is recycled if the operation succeeds.
    FreeOldOnSuccess = 2,
    /// The new one is recycled if the operation fails.
    FreeNewOnFailure = 3,
}

impl Policy {
    /// True if it recycles the old block of an operation that succeeded.
    fn frees_old(self) -> bool {
        matches!(self, Self::FreeOne | Self::FreeOldOnSuccess)
    }

    /// True if it recycles the new block of one that failed.
    fn frees_new(self) -> bool {
        matches!(self, Self::FreeOne | Self::FreeNewOnFailure)
    }
}

/// Where blocks go that a [`Policy`] recycles.
///
/// Two steps, so that a crash between them neither loses a block nor frees it twice: between them, the
/// descriptor is made durably free. An allocator whose state is all volatile, as [`Heap`]'s is, has nothing to
/// do in the first. One that loads saved marks instead of walking does not if [`Recovered::released`] is not 0: those
/// blocks are marked.
pub trait Recycle: Send + Sync {
    /// Checks that `block`, which came from the pool's content, is one that can be recycled. It is an aligned offset in
    /// the pool, outside its header and the descriptors; nothing more is known of it.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn check(&self, block: u64) -> Result<(), String> {
        let _ = block;
        Ok(())
    }

    /// The operation that names `block` as a new value is durable, and may succeed: make it durably taken, but for
    /// the fence, which follows. By every thread that may decide the operation.
    fn activate(&self, block: u64) {
        let _ = block;
    }

    /// No thread can reach `block` any more: make it durably free, but do not hand it out yet. Durable when it returns.
    /// May come again for the same block after a crash.
    fn release(&self, block: u64) {
        let _ = block;
    }

    /// A block that [`release`](Self::release) was called for in recovery may be handed out: the descriptor that named it
    /// is durably free. Allocators that make their free lists after recovery have nothing to do.
    fn recovered(&self, block: u64) {
        let _ = block;
    }

    /// `block` may be handed out. Not called in recovery.
    fn reuse(&self, block: u64);
}

impl<M: Media> Recycle for Heap<M> {
    fn reuse(&self, block: u64) {
        self.free(POff::new(block));
    }
}

/// For pools whose operations have no policy but [`Policy::None`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlocks;

impl Recycle for NoBlocks {
    fn reuse(&self, _block: u64) {}
}

/// Why a word cannot be part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordError {
    /// The word is part of it already.
    Duplicate(u64),
    /// The descriptor has no room for more than this many words.
    TooMany(usize),
    /// The value uses the bits of [`FLAGS`].
    Flagged(u64),
    /// The address is not in the pool, or is in its header or in the descriptors themselves.
    Foreign(usize),
    /// The word is not part of the operation.
    Absent(usize),
    /// The word's new value was not reserved, or was given already.
    NotReserved(u64),
    /// The policies would recycle the block at this offset although the word keeps it, or twice.
    Recycled(u64),
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate(at) => {
                write!(f, "the word at {at:#x} is part of the operation already")
            }
            Self::TooMany(most) => write!(f, "a descriptor of this pool has room for {most} words"),
            Self::Flagged(value) => write!(f, "the value {value:#x} uses bits 61 to 63"),
            Self::Foreign(addr) => {
                write!(f, "{addr:#x} is the address of no word that can be swapped")
            }
            Self::Absent(addr) => write!(
                f,
                "the word at address {addr:#x} is not part of the operation"
            ),
            Self::Recycled(block) => write!(
                f,
                "the block at {block:#x} would be recycled though the word keeps it, or twice"
            ),
            Self::NotReserved(at) => write!(f, "the new value of the word at {at:#x} is not open"),
        }
    }
}

impl std::error::Error for WordError {}

/// Why an operation was not begun. Its descriptor was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecuteError {
    /// It has no words.
    Empty,
    /// The new value of the word at this offset was reserved and never given.
    Unfilled(u64),
}

impl fmt::Display for ExecuteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("an operation without words"),
            Self::Unfilled(at) => write!(f, "the word at {at:#x} was given no new value"),
        }
    }
}

impl std::error::Error for ExecuteError {}

/// No descriptor came back, however often the epoch was asked to move on: too few for what is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// How many there are.
    pub descriptors: usize,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} descriptors are in use, or may still be looked at by a pinned thread",
            self.descriptors
        )
    }
}

impl std::error::Error for Exhausted {}

/// What was done since the pool was opened; of threads that share a counter, some may go uncounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations executed.
    pub attempts: u64,
    /// Those that succeeded.
    pub successes: u64,
    /// Those that failed.
    pub failures: u64,
    /// Times that a thread helped another one's operation.
    pub helps: u64,
    /// Words of the operations executed.
    pub words: u64,
}

/// A pool of descriptors: what multi-word swaps on one root's words go through. See the module's head.
pub struct DescriptorPool<M: Media> {
    pool: Arc<Pool<M>>,
    /// Offset of the area.
    at: u64,
    descriptors: usize,
    per_thread: usize,
    words: usize,
    lists: Arc<Lists>,
    /// By descriptor: the generation of its next use.
    next: Box<[AtomicU64]>,
    /// By descriptor: attempts of helpers to install a pointer to it.
    attempts: Box<[AtomicU32]>,
    counters: Counters,
    scratch: Scratch,
    recycle: Box<dyn Recycle>,
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

/// Bytes from one descriptor to the next.
const fn stride(words: usize) -> u64 {
    (words.div_ceil(2) * LINE) as u64
}

/// Bytes of an area for `threads` threads with `per_thread` descriptors of `words` words each.
#[must_use]
pub const fn bytes(threads: usize, per_thread: usize, words: usize) -> u64 {
    LINE as u64 + (threads * per_thread) as u64 * stride(words)
}

impl<M: Media> DescriptorPool<M> {
    fn over(
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

    /// Makes an area in `heap`, with `per_thread` descriptors of up to `words` words for each of `threads` threads.
    /// It is flushed, not fenced: the caller fences before anything durable leads to it. Blocks that policies
    /// recycle go to `recycle`.
    ///
    /// One thread needs more descriptors than it uses while it stays pinned, and some 60 to never wait for one; it uses
    /// other threads' too, as far as those leave them.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room; nothing has changed then.
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
            (1..=MOST_THREADS).contains(&threads)
                && (1..=MOST_PER_THREAD).contains(&per_thread)
                && (1..=MOST_WORDS).contains(&words),
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
        // PERSIST: the area's header; fenced by the caller before a root word leads to it.
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
            // PERSIST: the descriptor is free, whatever the block held; likewise.
            pm.flush(this.status(number).addr(), stride(words) as usize);
            let next = generation.wrapping_add(1) & GENERATION;
            this.next[number].store(next, Ordering::Relaxed);
        }
        Ok(this)
    }

    /// The pool of descriptors at `at`, which came from the pool's content, *recovered*: no word holds a pointer
    /// when it returns. Call it between [`Heap::begin_recovery`] and the
    /// walk, alone, before any of its words is read; again if a crash came in between.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn open(
        heap: &Heap<M>,
        at: u64,
        recycle: Box<dyn Recycle>,
    ) -> Result<(Self, Recovered), String> {
        let wrong = |what: String| format!("descriptor area {at:#x}: {what}");
        heap.check(at, LINE as u64).map_err(wrong)?;
        if !at.is_multiple_of(LINE as u64) {
            return Err(wrong("not at the start of a line".into()));
        }
        let header = Self::over(heap.pool(), at, 1, 1, 1, Box::new(NoBlocks));
        // ORDERING (both): Relaxed; the structure is being opened.
        let magic = header.word(at).load(header.pm(), Ordering::Relaxed);
        let shape = header.word(at + 8).load(header.pm(), Ordering::Relaxed);
        let (descriptors, words) = (shape as u32 as usize, (shape >> 32) as u16 as usize);
        let per_thread = (shape >> 48) as usize;
        if magic != MAGIC
            || !(1..=MOST_THREADS * MOST_PER_THREAD).contains(&descriptors)
            || !(1..=MOST_WORDS).contains(&words)
            || !(1..=MOST_PER_THREAD).contains(&per_thread)
            || descriptors > MOST_THREADS * per_thread
        {
            return Err(wrong(format!(
                "magic {magic:#x}, {descriptors} descriptors of {words} words, {per_thread} a thread"
            )));
        }
        heap.check(at, bytes(descriptors, 1, words))
            .map_err(wrong)?;
        let this = Self::over(heap.pool(), at, descriptors, per_thread, words, recycle);
        let recovered = this.recover().map_err(wrong)?;
        Ok((this, recovered))
    }

    /// Marks the area as reached; [`Heap::mark`] for the rest of the structure follows.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn mark(&self, heap: &Heap<M>, guard: &Guard) -> Result<(), String> {
        heap.mark(self.at, self.bytes(), guard)
    }

    /// Bytes of the area.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes(self.descriptors, 1, self.words)
    }

    /// Offset of the area: what the owner keeps.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Most words of an operation.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// How many descriptors there are.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// What was done since the pool was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.sum()
    }

    #[inline]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// The word at `at`: of the area, or a place that `place_of` or recovery checked.
    #[inline]
    fn word(&self, at: u64) -> &PWord {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.pm().len(), "{at:#x}");
        // SAFETY: 1. `at` is inside the pool: the area is a block that the allocator or `open` vouched for, and
        // places are checked when they are added or recovered; 2. it is 8-aligned, likewise; 3. any bits are a valid
        // PWord; 4. the mapping lives as long as `self.pool`, and chunks of blocks that a pinned thread may still
        // compare are not given back (module's head).
        unsafe {
            &*self
                .pm()
                .base()
                .wrapping_add(at as usize)
                .cast_const()
                .cast()
        }
    }

    /// Flushes a word where anything is durable; the caller says why.
    #[inline]
    #[track_caller]
    fn flush(&self, word: &PWord) {
        if M::PERSISTENT {
            self.pm().flush_of(word);
        }
    }

    /// Fences where anything is durable; the caller says why.
    #[inline]
    #[track_caller]
    fn fence(&self) {
        if M::PERSISTENT {
            self.pm().fence();
        }
    }

    /// Flushes a word and fences; likewise.
    #[inline]
    #[track_caller]
    fn persist(&self, word: &PWord) {
        self.flush(word);
        self.fence();
    }

    fn descriptor_at(&self, number: usize) -> u64 {
        debug_assert!(number < self.descriptors, "descriptor {number}");
        self.at + LINE as u64 + number as u64 * stride(self.words)
    }

    #[inline]
    fn status(&self, number: usize) -> &PWord {
        self.word(self.descriptor_at(number))
    }

    /// The word that says which use line `line` (from 1) belongs to.
    fn generation(&self, number: usize, line: usize) -> &PWord {
        debug_assert!(line > 0);
        self.word(self.descriptor_at(number) + (line * LINE) as u64)
    }

    /// The offset of a word that may be swapped.
    fn place_of(&self, word: &PWord) -> Result<u64, WordError> {
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

    /// True for an aligned place below `end` that is neither in a region's header nor in the area.
    fn swappable(&self, at: u64, end: u64) -> bool {
        at % REGION >= CHUNK
            && at.is_multiple_of(8)
            && at.checked_add(8).is_some_and(|past| past <= end)
            && (at + 8 <= self.at || at >= self.at + self.bytes())
    }
}
