//! Activated allocation: a persistent bit per block, so that recovery needs no walk
//! (`docs/design.md`, "Allocation").
//!
//! It serves structures that must open at once, whatever their size. A block passes through three
//! stages (section 6.1 of the BzTree paper):
//!
//! ```text
//! free --reserve--> reserved --activate--> active --release--> released --reuse--> free
//!                      |  volatile: gone after a crash |  persistent  |  a descriptor still names it
//!                      +--cancel--> free
//! ```
//!
//! Handing a block to its owner word and activating it are one step: the block is the new value of
//! a word of a multi-word swap, with a [`Policy`](crate::pmwcas::Policy) that recycles it if the
//! swap fails. The swap activates it after its descriptor is durable and before it is decided,
//! without a fence of its own. So in any crash state a block is active and owned, or it is free, or
//! a descriptor names it and recovery frees it.
//!
//! ```text
//! chunk | head: one bit a block, set if it is active; whole lines | block 0 | block 1 | ...
//! ```
//!
//! A block is aligned to lines, not to its size.
//!
//! # Invariants
//! 1. A set bit is durable before a swap that hands the block over can succeed; it is durably
//!    cleared before the descriptor that names the block is free, and only after that may the block
//!    be reserved again.
//! 2. A block's volatile bit is set while it is reserved, active or released. It is made from the
//!    persistent one when its chunk is first read, and before any bit of the chunk is cleared. So a
//!    chunk that has not been read since the pool was opened holds no released block, and it may be
//!    read for the first time at any moment.
//! 3. A chunk that may have free blocks is some thread's current one, or in its class's stack, or
//!    held by a thread on its way there. It is in the stack at most once.
//!
//! # Concurrency
//! The only lock is the pool's: a thread takes it once for every chunk that is assigned, and after
//! an opening once for every 256 chunks that are read. A thread that is stopped anywhere else
//! withholds the free blocks of at most one chunk.
//!
//! # Costs
//! `reserve`, `cancel` and `reuse`: none. A fresh chunk: its head, one line (two for 64-byte
//! blocks) and a fence, and the pool's persist. Activation: a line, no fence. Release: a line, a
//! fence. Opening: nothing; the first reservations of a class read its chunks, the last one first,
//! until one has a free block, each chunk once.
//!
//! # Crash states
//! 1. *Reserved*: the bit is clear; nothing to do.
//! 2. *Activated, not decided or failed*: a descriptor names the block; its recovery releases it.
//! 3. *Released, descriptor not free yet*: released again.
//! 4. *A chunk assigned, no block of it active*: it stays the root's; its blocks are reserved
//!    later.

use super::{HeapStats, Recycle, damage_is_expected};
use crate::cell::PWord;
use crate::error::SpaceError;
pub use crate::format::activated::MAX_ACTIVATED;
use crate::format::activated::{self, CLASS_END, block_bytes, blocks_of, class_of, head_bytes};
use crate::format::layout::{CHUNK, ChunkUse};
use crate::media::Media;
use crate::off::POff;
use crate::pool::{Pool, Root};
use crate::sync::worker;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

const CURRENT: usize = 32;
/// Number of chunk words that are read at a time.
const LOOKED_AT: u32 = 256;

/// Volatile state of one chunk.
#[derive(Debug)]
struct State {
    class: u8,
    /// Set for each block that is not free.
    taken: Box<[AtomicU64]>,
    /// True if it is in its class's stack.
    queued: AtomicBool,
    /// The chunk below it there.
    next: AtomicU32,
}

impl State {
    /// Takes the lowest free block.
    fn take(&self) -> Option<u32> {
        let blocks = blocks_of(self.class);
        for (i, word) in self.taken.iter().enumerate() {
            // ORDERING: Relaxed; a hint, which the step below checks.
            let mut bits = word.load(Ordering::Relaxed);
            loop {
                let bit = (!bits).trailing_zeros();
                let block = i as u32 * 64 + bit;
                if bits == u64::MAX || block >= blocks {
                    break;
                }
                // ORDERING: Acquire; pairs with the Release in `give_back`: the block's last use
                // came before.
                let before = word.fetch_or(1 << bit, Ordering::Acquire);
                if before & 1 << bit == 0 {
                    return Some(block);
                }
                bits = before;
            }
        }
        None
    }

    fn give_back(&self, block: u32) {
        let bit = 1 << (block % 64);
        // ORDERING: Release; pairs with the Acquire in `take`.
        let before = self.taken[block as usize / 64].fetch_and(!bit, Ordering::Release);
        debug_assert!(
            before & bit != 0 || damage_is_expected::asked(),
            "block {block} given back twice"
        );
    }

    /// Gives a block back that may already be free.
    fn give_back_again(&self, block: u32) {
        // ORDERING: Release; as above.
        self.taken[block as usize / 64].fetch_and(!(1 << (block % 64)), Ordering::Release);
    }

    fn taken(&self) -> u32 {
        let words = self.taken.iter();
        // ORDERING: Relaxed; exact only if no other thread works.
        words
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }
}

/// Chunks with free blocks, linked through their states.
///
/// ```text
/// top | changes (u32) | chunk (u32), 0 for none |      changes: an entry that left and came back is another one
/// ```
#[derive(Debug, Default)]
struct Stack {
    top: CachePadded<AtomicU64>,
}

#[derive(Debug)]
struct Core {
    owner: u8,
    /// By chunk. A state is made when the chunk is first read, and never removed while the root is
    /// open.
    states: Box<[AtomicPtr<State>]>,
    /// No chunk from here on has a state: the table is as long as the pool could become.
    high: AtomicU32,
    /// By class.
    stacks: [Stack; CLASS_END],
    /// By thread and class: the chunk it takes blocks from, 0 for none.
    current: Box<[CachePadded<[AtomicU32; CLASS_END]>]>,
    /// By class: chunks from it on were looked at, are being, or were assigned since the root was
    /// opened.
    cursors: [AtomicU32; CLASS_END],
}

impl Core {
    fn known(&self, chunk: u32) -> Option<&State> {
        // ORDERING: Acquire; pairs with the Release with which `Activated::state` puts it there.
        let state = self.states.get(chunk as usize)?.load(Ordering::Acquire);
        // SAFETY: 1. a non-null pointer came from `Box::into_raw`; 2. only `drop` frees it.
        unsafe { state.as_ref() }
    }

    /// Puts `chunk` into its class's stack, if it is not there.
    fn push(&self, chunk: u32, state: &State) {
        // ORDERING: AcqRel; pairs with the swap in `pop`: one entry at a time.
        if state.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let top = &self.stacks[usize::from(state.class)].top;
        // ORDERING: Relaxed; the exchange decides.
        let mut seen = top.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed; published by the exchange.
            state.next.store(seen as u32, Ordering::Relaxed);
            let new = changed(seen, chunk);
            // ORDERING: Release; pairs with the Acquire in `pop`.
            match top.compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => seen = found,
            }
        }
    }

    fn pop(&self, class: u8) -> Option<(u32, &State)> {
        let top = &self.stacks[usize::from(class)].top;
        // ORDERING (this and the exchange): Acquire; pairs with the Release in `push`.
        let mut seen = top.load(Ordering::Acquire);
        loop {
            let chunk = seen as u32;
            let state = self.known(chunk).filter(|_| chunk != 0)?;
            // ORDERING: Relaxed; if it is another entry's by now, the exchange fails.
            let new = changed(seen, state.next.load(Ordering::Relaxed));
            match top.compare_exchange_weak(seen, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    // ORDERING: AcqRel; pairs with the swap in `push`, and is one itself: if a
                    // thread gave a block back and did not push because the chunk was still queued,
                    // a thread that looks for a block after this sees that block.
                    state.queued.swap(false, Ordering::AcqRel);
                    return Some((chunk, state));
                }
                Err(found) => seen = found,
            }
        }
    }
}

/// Returns the next value of a stack's top.
fn changed(top: u64, chunk: u32) -> u64 {
    ((top >> 32).wrapping_add(1) << 32) | u64::from(chunk)
}

impl Drop for Core {
    fn drop(&mut self) {
        let high = *self.high.get_mut() as usize;
        for state in &mut self.states[..high] {
            let state = *state.get_mut();
            if !state.is_null() {
                // SAFETY: 1. the pointer came from `Box::into_raw` in `Activated::state`; 2.
                // `&mut self`: no other thread has it.
                drop(unsafe { Box::from_raw(state) });
            }
        }
    }
}

/// A root's allocator of activated blocks. See the module's head.
pub struct Activated<M: Media> {
    pool: Arc<Pool<M>>,
    core: Arc<Core>,
}

impl<M: Media> Clone for Activated<M> {
    fn clone(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            core: Arc::clone(&self.core),
        }
    }
}

impl<M: Media> fmt::Debug for Activated<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activated")
            .field("owner", &self.core.owner)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Activated<M> {
    /// Returns the allocator of `root`'s activated blocks, for a new root or one that was just
    /// opened. Only one may be made while the root is open; it can be cloned. Nothing is read.
    #[must_use]
    pub fn of(root: &Root<M>) -> Self {
        let pool = root.pool();
        let chunks = (pool.pm().capacity().max(pool.pm().len()) / CHUNK) as usize;
        // SAFETY: all zeros is a valid AtomicPtr (null).
        let states = unsafe { Box::new_zeroed_slice(chunks).assume_init() };
        let none = || CachePadded::new([const { AtomicU32::new(0) }; CLASS_END]);
        Self {
            core: Arc::new(Core {
                owner: root.number(),
                states,
                high: AtomicU32::new(0),
                stacks: std::array::from_fn(|_| Stack::default()),
                current: (0..CURRENT).map(|_| none()).collect(),
                cursors: std::array::from_fn(|_| AtomicU32::new((pool.size() / CHUNK) as u32)),
            }),
            pool: Arc::clone(pool),
        }
    }

    fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the class of `chunk` if it has activated blocks.
    fn class_of_chunk(&self, chunk: u32) -> Option<u8> {
        match self.pool.chunk_use(chunk)? {
            ChunkUse::Activated { owner, class } if owner == self.core.owner => Some(class),
            _ => None,
        }
    }

    /// Returns the word of `chunk`'s head with the bit of `block`.
    fn head_word(&self, chunk: u32, block: u32) -> &PWord {
        self.pool.word_at(activated::head_word(chunk, block))
    }

    /// Returns the state of `chunk`, made from its head if it has none yet, or `None` if it has no
    /// activated blocks.
    fn state(&self, chunk: u32) -> Option<&State> {
        let core = &self.core;
        if let Some(state) = core.known(chunk) {
            return Some(state);
        }
        let class = self.class_of_chunk(chunk)?;
        let blocks = blocks_of(class);
        let words = (0..blocks.div_ceil(64)).map(|i| {
            // ORDERING: Relaxed; no bit of a chunk without a state changes (invariant 2), and the
            // exchange below decides whose copy counts.
            let bits = (self.head_word(chunk, i * 64)).load(self.pm(), Ordering::Relaxed);
            let here = (blocks - i * 64).min(64);
            AtomicU64::new(bits & (u64::MAX >> (64 - here)))
        });
        let state = Box::into_raw(Box::new(State {
            class,
            taken: words.collect(),
            queued: AtomicBool::new(false),
            next: AtomicU32::new(0),
        }));
        // ORDERING: Relaxed; only `drop` reads it, and the thread that alone frees chunks.
        core.high.fetch_max(chunk + 1, Ordering::Relaxed);
        let slot = &core.states[chunk as usize];
        // ORDERING: AcqRel; pairs with the Acquire in `known`: a thread that clears a bit has seen
        // the copy of it.
        let put = slot.compare_exchange(
            std::ptr::null_mut(),
            state,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if put.is_err() {
            // SAFETY: 1. from `Box::into_raw` above; 2. it was not published.
            drop(unsafe { Box::from_raw(state) });
            return core.known(chunk);
        }
        let state = core.known(chunk)?;
        if state.taken() < blocks {
            core.push(chunk, state);
        }
        Some(state)
    }

    /// Returns the chunk of an offset, the number of the block in it, and the block's class.
    fn locate(&self, off: u64) -> Option<(u32, u32, u8)> {
        let chunk = u32::try_from(off / CHUNK).ok()?;
        let class = match self.core.known(chunk) {
            Some(state) => state.class,
            None => self.class_of_chunk(chunk)?,
        };
        let within = (off % CHUNK).checked_sub(head_bytes(class))?;
        let block = (within / block_bytes(class)) as u32;
        (within.is_multiple_of(block_bytes(class)) && block < blocks_of(class))
            .then_some((chunk, block, class))
    }

    fn current(&self, class: u8) -> &AtomicU32 {
        // Explored crash states do not depend on which thread explores them.
        let thread = if self.pm().tiny() { 0 } else { worker() };
        &self.core.current[thread % CURRENT][usize::from(class)]
    }

    /// Reserves a block of at least `bytes` bytes, at the start of a line. Its content is
    /// arbitrary. After a crash it is free unless it was activated.
    ///
    /// # Errors
    /// [`SpaceError`] when the pool cannot grow, or the block would be larger than
    /// [`MAX_ACTIVATED`].
    pub fn reserve(&self, bytes: u64) -> Result<POff<u8>, SpaceError> {
        let class = class_of(bytes)?;
        let current = self.current(class);
        // ORDERING (all of `current`): Relaxed; a hint which chunk to try. The chunk's state orders
        // the rest.
        let chunk = current.load(Ordering::Relaxed);
        let state = self.core.known(chunk);
        if let Some(block) = state.and_then(State::take) {
            return Ok(place(chunk, block, class));
        }
        loop {
            if let Some(found) = self.pop_into(current, class) {
                return Ok(found);
            }
            if self.look(class) {
                continue;
            }
            let used = ChunkUse::Activated {
                owner: self.core.owner,
                class,
            };
            match self.pool.assign_chunks(1, used) {
                Ok(chunk) => {
                    // Its state puts it into the stack.
                    self.state(chunk);
                }
                Err(e) => return self.steal(class).ok_or(e),
            }
        }
    }

    /// Takes a block of a chunk from the stack, and makes the chunk the thread's current one.
    fn pop_into(&self, current: &AtomicU32, class: u8) -> Option<POff<u8>> {
        loop {
            let (chunk, state) = self.core.pop(class)?;
            let Some(block) = state.take() else {
                continue;
            };
            // ORDERING: AcqRel; the one before was put there by this swap.
            let before = current.swap(chunk, Ordering::AcqRel);
            // It may have free blocks (invariant 3): some came back, or a thread with the same
            // number has put it there.
            if before != chunk
                && let Some(state) = self.core.known(before)
                && state.taken() < blocks_of(class)
            {
                self.core.push(before, state);
            }
            return Some(place(chunk, block, class));
        }
    }

    /// Reads chunks of `class` that have not been read, until one has a free block. Returns false
    /// if none has.
    fn look(&self, class: u8) -> bool {
        let cursor = &self.core.cursors[usize::from(class)];
        loop {
            // ORDERING (both): Relaxed; it only matters that each chunk is read.
            let claimed = cursor.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |end| {
                (end > 0).then(|| end.saturating_sub(LOOKED_AT))
            });
            let Ok(end) = claimed else {
                return false;
            };
            let mut any = false;
            let chunks = end.saturating_sub(LOOKED_AT)..end;
            for (chunk, used) in self.pool.chunk_uses(chunks) {
                let mine = used
                    == ChunkUse::Activated {
                        owner: self.core.owner,
                        class,
                    };
                let state = mine.then(|| self.state(chunk)).flatten();
                any |= state.is_some_and(|state| state.taken() < blocks_of(class));
            }
            if any {
                return true;
            }
        }
    }

    /// Takes a block of another thread's current chunk, when the pool has no more chunks.
    fn steal(&self, class: u8) -> Option<POff<u8>> {
        self.core.current.iter().find_map(|current| {
            let chunk = current[usize::from(class)].load(Ordering::Relaxed);
            let block = self.core.known(chunk)?.take()?;
            Some(place(chunk, block, class))
        })
    }

    /// Gives back a reserved block that no other thread has seen.
    pub fn cancel(&self, block: POff<u8>) {
        debug_assert!(!self.is_active(block.get()), "{block:?} was activated");
        self.reuse(block.get());
    }

    /// Activates a reserved block that nothing leads to yet, for structures that are built before
    /// their root is published. The bit is flushed, and the caller fences. After a crash in
    /// between, the caller decides whether to [`retain`](Self::retain) the block.
    pub fn activate_unowned(&self, block: POff<u8>) {
        self.activate(block.get());
    }

    /// Checks that `off` is an active block of this root with room for `bytes`.
    ///
    /// # Errors
    /// The reason in words.
    pub fn check(&self, off: u64, bytes: u64) -> Result<(), String> {
        let Some((chunk, block, class)) = self.locate(off) else {
            return Err(format!("{off:#x} is not the start of a block of this root"));
        };
        if bytes > block_bytes(class) {
            return Err(format!(
                "{off:#x} is a block of {} bytes where {bytes} are needed",
                block_bytes(class)
            ));
        }
        if self.bit(chunk, block) {
            Ok(())
        } else {
            Err(format!("{off:#x} is a block that is not active"))
        }
    }

    fn bit(&self, chunk: u32, block: u32) -> bool {
        // ORDERING: Acquire; pairs with the exchange in `set_bit`.
        let bits = self
            .head_word(chunk, block)
            .load(self.pm(), Ordering::Acquire);
        bits & 1 << (block % 64) != 0
    }

    /// Returns the bytes of the block at `off`, if it is one.
    #[must_use]
    pub fn block_bytes(&self, off: u64) -> Option<u64> {
        self.locate(off).map(|(_, _, class)| block_bytes(class))
    }

    /// Returns true if there is an active block at `off`.
    #[must_use]
    pub fn is_active(&self, off: u64) -> bool {
        self.check(off, 1).is_ok()
    }

    /// Changes a block's bit. Returns false if it had that value.
    fn set_bit(&self, chunk: u32, block: u32, active: bool) -> bool {
        let word = self.head_word(chunk, block);
        let bit = 1 << (block % 64);
        // ORDERING: Acquire; pairs with the exchange below.
        let mut seen = word.load(self.pm(), Ordering::Acquire);
        loop {
            let new = if active { seen | bit } else { seen & !bit };
            if new == seen {
                return false;
            }
            // ORDERING: AcqRel; pairs with the other changes of the word.
            match word.compare_exchange(self.pm(), seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(found) => seen = found,
            }
        }
    }

    /// Returns the chunks of these blocks, with their classes.
    fn chunks(&self) -> Vec<(u32, u8)> {
        let all = self.pool.chunks_of(self.core.owner).into_iter();
        all.filter_map(|(chunk, used)| match used {
            ChunkUse::Activated { class, .. } => Some((chunk, class)),
            _ => None,
        })
        .collect()
    }

    /// Returns all active blocks, by place. For checks, while no other thread works.
    #[must_use]
    pub fn active_blocks(&self) -> Vec<u64> {
        let mut active = Vec::new();
        for (chunk, class) in self.chunks() {
            let blocks = (0..blocks_of(class)).filter(|block| self.bit(chunk, *block));
            active.extend(blocks.map(|block| place(chunk, block, class).get()));
        }
        active
    }

    /// Frees every active block except those that `keep` names, durably. For use after a crash
    /// during building, before the first reservation.
    pub fn retain(&self, keep: impl Fn(u64) -> bool) {
        let mut any = false;
        for block in self.active_blocks() {
            if let Some((chunk, number, _)) = self.locate(block).filter(|_| !keep(block)) {
                self.set_bit(chunk, number, false);
                // PERSIST: the cleared bit; fenced with the others.
                self.pm().flush_of(self.head_word(chunk, number));
                self.recovered(block);
                any = true;
            }
        }
        if any {
            // PERSIST: all cleared bits, before anything can be built in the blocks again.
            self.pm().fence();
        }
    }

    /// Gives chunks without an active block back to the pool, for a clean close. No block is
    /// reserved, and this is the last use of the allocator.
    pub fn give_back_empty(&self) {
        for (chunk, class) in self.chunks() {
            if (0..blocks_of(class)).any(|block| self.bit(chunk, block)) {
                continue;
            }
            debug_assert!(
                self.core
                    .known(chunk)
                    .is_none_or(|state| state.taken() == 0),
                "chunk {chunk}: a block is reserved at a clean close"
            );
            self.pool.release_chunks(chunk, 1);
        }
    }

    /// Returns the allocator's sizes. Reserved and released blocks count as free.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let chunks = self.chunks();
        let live = (chunks.iter())
            .map(|(chunk, class)| CHUNK - self.pool.free_bytes_of_activated(*chunk, *class));
        let state_bytes = |(chunk, _): &(u32, u8)| {
            let state = self.core.known(*chunk);
            state.map_or(0, |state| size_of::<State>() + state.taken.len() * 8) as u64
        };
        HeapStats {
            chunk_bytes: chunks.len() as u64 * CHUNK,
            live_bytes: live.sum(),
            dram_bytes: chunks.iter().map(state_bytes).sum(),
        }
    }
}

impl<M: Media> Recycle for Activated<M> {
    fn check(&self, block: u64) -> Result<(), String> {
        if self.locate(block).is_some() {
            Ok(())
        } else {
            Err(format!(
                "{block:#x} is not the start of a block of this root"
            ))
        }
    }

    fn activate(&self, block: u64) {
        let Some((chunk, number, _)) = self.locate(block) else {
            debug_assert!(false, "activating {block:#x}, which is no block");
            return;
        };
        self.set_bit(chunk, number, true);
        // PERSIST: the bit, flushed by every thread that may decide the swap; it fences the bit
        // before it does (invariant 1).
        self.pm().flush_of(self.head_word(chunk, number));
    }

    fn release(&self, block: u64) {
        let Some((chunk, number, _)) = self.locate(block) else {
            debug_assert!(false, "releasing {block:#x}, which is no block");
            return;
        };
        // Invariant 2: the old bit is copied first.
        self.state(chunk);
        if self.set_bit(chunk, number, false) {
            // PERSIST: the cleared bit, before the descriptor no longer names the block (invariant
            // 1).
            self.pm().persist(self.head_word(chunk, number));
        }
    }

    fn recovered(&self, block: u64) {
        // A chunk that was not read is copied in its present state.
        if let Some((chunk, number, _)) = self.locate(block)
            && let Some(state) = self.core.known(chunk)
        {
            state.give_back_again(number);
            self.core.push(chunk, state);
        }
    }

    fn reuse(&self, block: u64) {
        if let Some((chunk, number, _)) = self.locate(block)
            && let Some(state) = self.state(chunk)
        {
            state.give_back(number);
            self.core.push(chunk, state);
        }
    }
}

/// Returns the place of a block.
fn place(chunk: u32, block: u32, class: u8) -> POff<u8> {
    POff::new(activated::place(chunk, block, class))
}

#[cfg(test)]
mod tests;
