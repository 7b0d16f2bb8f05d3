//! Micro-logs (`docs/design.md`, "Allocation"): records of a few words or a few nodes, for the
//! designs that log.
//!
//! ```text
//! area   | magic "MICROLOG" | slots (u32), payload words of a slot (u32) | unused ... to 64 |
//!        | slot 0 | slot 1 | ...
//! slot   | head | payload word 0 | payload word 1 | ...          whole lines, none of them shared
//! head   | 0: disarmed
//!        | kind (8 bits) | payload words in use (24 bits) | "mlog" (32 bits): armed
//! redo   | what the design wants: say, a leaf and its new sibling, or pairs of place and new value
//! undo   | offset | bytes | content ... |  once for every range of a before-image
//! ```
//!
//! The area is one block of a root's heap, which a root word leads to. Slots are handed out in
//! volatile memory. A slot is *armed* by the store of its head and *disarmed* by storing 0 there.
//! Recovery reads the heads: the design applies an armed *redo* record, and an armed *undo* record
//! is copied back. Both may be repeated, so a crash inside recovery changes nothing.
//!
//! # Invariants
//! 1. A slot's lines hold nothing of another slot; a record is never longer than its slot.
//! 2. A head is stored only after the payload that it covers is durable, except payload in the
//!    head's own line, which is stored before the head and so is durable no later.
//! 3. Payload is stored only while the durable head is 0: a slot is free again only after its
//!    disarming is durable.
//!
//! So a head that says "armed" covers a whole record, and no checksum is needed to tell a torn one.
//!
//! # Concurrency
//! A slot belongs to one thread. [`Logs::take`] waits while none is free, so the owner of a slot
//! must not wait for a thread that may be waiting for one: locks are taken before the slot. No two
//! armed undo records cover the same word: a range's lock is held from before the record is armed
//! until it is disarmed.
//!
//! # Crash states
//! 1. *Before the head*: the payload does not count.
//! 2. *Armed*: recovery applies the record (redo) or undoes what was changed since (undo).
//! 3. *Recovery*: a record that was applied in part is still armed, and is applied again.
//!
//! # Persist cost
//! | step | lines | fences |
//! | --- | --- | --- |
//! | arming up to 7 words | 1 | 1 |
//! | arming more | the record's | 2 |
//! | disarming | 1 | 1 |

use crate::cell::{PWord, write_bytes};
use crate::error::SpaceError;
use crate::format::layout::CHUNK;
use crate::heap::Heap;
use crate::media::{LINE, Media};
use crate::off::POff;
use crate::pool::Pool;
use crate::sync::{give_way, lock, worker};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const MAGIC: u64 = u64::from_le_bytes(*b"MICROLOG");
const TAG: u64 = (u32::from_le_bytes(*b"mlog") as u64) << 32;
/// Payload words that share the head's line. A record of at most that many is armed by one fence.
/// Lines that were flushed before become durable *with* the record, not before it.
pub const NEAR: usize = LINE / 8 - 1;
/// Maximum number of payload words of a slot: 64 KiB.
const MAX_WORDS: usize = 8 << 10;
const MAX_SLOTS: u32 = 1 << 10;
/// Number of words copied at a time.
const COPIED: usize = LINE;

/// The purpose of an armed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Redo = 1,
    Undo = 2,
}

/// Part of a before-image: its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset in the pool, 8-aligned.
    pub off: u64,
    /// Bytes, a multiple of 8.
    pub bytes: u64,
}

/// An armed record, as recovery found it.
#[derive(Clone, Copy, Debug)]
pub enum Record<'r> {
    /// Words of the design's own. The design applies and flushes them; the log fences.
    Redo(&'r [u64]),
    /// Ranges that will be copied back. They lie inside the pool, outside its header and the log;
    /// the design must check that they are its own.
    Undo(&'r [Range]),
}

/// Returns the payload words of a before-image of `ranges` ranges with `bytes` bytes in all.
#[must_use]
pub const fn image_words(ranges: usize, bytes: usize) -> usize {
    2 * ranges + bytes.div_ceil(8)
}

/// The logs of one root. See the module's head.
pub struct Logs<M: Media> {
    pool: Arc<Pool<M>>,
    /// Offset of the area.
    at: u64,
    slots: u32,
    words: usize,
    free: Mutex<Vec<u32>>,
}

impl<M: Media> std::fmt::Debug for Logs<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs")
            .field("at", &format_args!("{:#x}", self.at))
            .field("slots", &self.slots)
            .field("words", &self.words)
            .finish_non_exhaustive()
    }
}

/// Returns the bytes from one slot to the next.
const fn stride(words: usize) -> u64 {
    ((1 + words) * 8).next_multiple_of(LINE) as u64
}

/// Returns the bytes of an area.
const fn area(slots: u32, words: usize) -> u64 {
    LINE as u64 + slots as u64 * stride(words)
}

impl<M: Media> Logs<M> {
    fn over(pool: &Arc<Pool<M>>, at: u64, slots: u32, words: usize) -> Self {
        Self {
            pool: Arc::clone(pool),
            at,
            slots,
            words,
            // The last one is taken first.
            free: Mutex::new((0..slots).rev().collect()),
        }
    }

    /// Makes an area of `slots` slots for records of up to `words` payload words, none armed. It is
    /// flushed, not fenced: the caller fences before anything durable leads to it.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room. Nothing has changed then.
    ///
    /// # Panics
    /// If there are no slots, or more or longer ones than a log can have: a bug in the design.
    pub fn create(heap: &Heap<M>, slots: u32, words: usize) -> Result<Self, SpaceError> {
        assert!(
            (1..=MAX_SLOTS).contains(&slots) && (1..=MAX_WORDS).contains(&words),
            "{slots} log slots of {words} words"
        );
        let at = heap.alloc(area(slots, words))?.get();
        let logs = Self::over(heap.pool(), at, slots, words);
        let pm = logs.pm();
        // ORDERING (all): Relaxed; nothing leads to the area yet.
        logs.word(at).store(pm, MAGIC, Ordering::Relaxed);
        let shape = u64::from(slots) | (words as u64) << 32;
        logs.word(at + 8).store(pm, shape, Ordering::Relaxed);
        // PERSIST: the area's header; the caller fences it before a root word leads to it.
        pm.flush(logs.word(at).addr(), 16);
        for slot in 0..slots {
            let head = logs.head(slot);
            head.store(pm, 0, Ordering::Relaxed);
            // PERSIST: the disarmed slot, whatever the block held; the caller fences it too.
            pm.flush_of(head);
        }
        Ok(logs)
    }

    /// Opens the logs at `at`, which came from the pool, for records of up to `needed` payload
    /// words. Call it between [`Heap::begin_recovery`] and the walk.
    ///
    /// # Errors
    /// The reason in words.
    pub fn open(heap: &Heap<M>, at: u64, needed: usize) -> Result<Self, String> {
        let wrong = |what: String| format!("log area {at:#x}: {what}");
        heap.check(at, LINE as u64).map_err(wrong)?;
        let logs = Self::over(heap.pool(), at, 0, 0);
        let pm = logs.pm();
        // ORDERING (both): Relaxed; the structure is being opened.
        let magic = logs.word(at).load(pm, Ordering::Relaxed);
        let shape = logs.word(at + 8).load(pm, Ordering::Relaxed);
        let (slots, words) = (shape as u32, (shape >> 32) as usize);
        if magic != MAGIC
            || !(1..=MAX_SLOTS).contains(&slots)
            || !(needed.max(1)..=MAX_WORDS).contains(&words)
        {
            return Err(wrong(format!(
                "magic {magic:#x}, {slots} slots of {words} words, where records take {needed}"
            )));
        }
        heap.check(at, area(slots, words)).map_err(wrong)?;
        Ok(Self::over(heap.pool(), at, slots, words))
    }

    /// Marks the area as reached; [`Heap::mark`] for the rest of the structure follows.
    ///
    /// # Errors
    /// The reason in words.
    pub fn mark(&self, heap: &Heap<M>, guard: &Guard) -> Result<(), String> {
        heap.mark(self.at, area(self.slots, self.words), guard)
    }

    /// Returns the offset of the area: the content of the root word, and the block that `verify`
    /// finds live.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the maximum number of payload words of a record.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// Frees the area. Nothing durable leads to it, and no slot is taken.
    pub fn free(self, heap: &Heap<M>) {
        heap.free(POff::new(self.at));
    }

    #[inline]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the word at `at`, which is in the area or was checked to be in the pool.
    #[inline]
    fn word(&self, at: u64) -> &PWord {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.pm().len(), "{at:#x}");
        // SAFETY: 1. `at` is inside the pool: the area's block came from the allocator or `open`
        // checked it, and `ranges` checks the ranges of records; 2. it is 8-aligned, likewise; 3.
        // any bits are a valid PWord; 4. the mapping lives as long as `self.pool`.
        unsafe {
            &*self
                .pm()
                .base()
                .wrapping_add(at as usize)
                .cast_const()
                .cast()
        }
    }

    #[inline]
    fn slot_at(&self, slot: u32) -> u64 {
        self.at + LINE as u64 + u64::from(slot) * stride(self.words)
    }

    #[inline]
    fn head(&self, slot: u32) -> &PWord {
        self.word(self.slot_at(slot))
    }

    /// Takes a free slot; waits while there is none. A thread gets its last slot again if it can,
    /// since its caches have the slot's lines. Where crash states are explored, every thread gets
    /// the slot that was released last.
    #[must_use]
    pub fn take(&self) -> Slot<'_, M> {
        let own = (worker() % self.slots as usize) as u32;
        let take = |free: &mut Vec<u32>| {
            let at = (!self.pm().tiny())
                .then(|| free.iter().rposition(|slot| *slot == own))
                .flatten();
            at.map(|at| free.swap_remove(at)).or_else(|| free.pop())
        };
        loop {
            if let Some(slot) = take(&mut lock(&self.free)) {
                return Slot {
                    logs: self,
                    slot,
                    used: 0,
                    armed: false,
                };
            }
            if !give_way() {
                std::thread::yield_now();
            }
        }
    }

    /// Applies every armed record and disarms it. A redo record is given to `apply`, which makes
    /// its changes and flushes them. An undo record is copied back if `apply` accepts its ranges.
    /// Returns how many records there were. Call it while no other thread works, before anything
    /// that a record may cover is read.
    ///
    /// # Errors
    /// The reason in words, whether a record is wrong or `apply` refused it.
    pub fn recover(
        &self,
        mut apply: impl FnMut(Record<'_>) -> Result<(), String>,
    ) -> Result<u64, String> {
        let pm = self.pm();
        let mut records = 0;
        for slot in 0..self.slots {
            let wrong = |what: String| format!("log slot {slot}: {what}");
            // ORDERING: Relaxed; the structure is being opened.
            let head = self.head(slot).load(pm, Ordering::Relaxed);
            if head == 0 {
                continue;
            }
            let words = (head >> 8 & 0xFF_FFFF) as usize;
            if head & 0xFFFF_FFFF << 32 != TAG || words > self.words {
                return Err(wrong(format!("head {head:#x} of no record")));
            }
            let at = self.slot_at(slot) + 8;
            match head as u8 {
                kind if kind == Kind::Redo as u8 => {
                    let words: Vec<u64> = (0..words as u64)
                        // ORDERING: Relaxed; as above.
                        .map(|i| self.word(at + i * 8).load(pm, Ordering::Relaxed))
                        .collect();
                    apply(Record::Redo(&words)).map_err(wrong)?;
                }
                kind if kind == Kind::Undo as u8 => {
                    let ranges = self.ranges(at, words).map_err(wrong)?;
                    apply(Record::Undo(&ranges)).map_err(wrong)?;
                    let mut from = at;
                    for range in ranges {
                        from += 16;
                        self.copy(from, range.off, range.bytes);
                        // PERSIST: the restored range, before its record is disarmed.
                        pm.flush(self.word(range.off).addr(), range.bytes as usize);
                        from += range.bytes;
                    }
                }
                _ => return Err(wrong(format!("head {head:#x} of no kind"))),
            }
            // PERSIST: the record's changes, before it is disarmed.
            pm.fence();
            // PERSIST: (in `publish`) the disarmed head, before what the record covered changes
            // again.
            self.head(slot).publish(pm, 0);
            records += 1;
        }
        Ok(records)
    }

    /// Returns the ranges of the undo record whose payload is the `words` words at `at`.
    fn ranges(&self, at: u64, words: usize) -> Result<Vec<Range>, String> {
        let pm = self.pm();
        let (mut from, end) = (at, at + words as u64 * 8);
        let mut ranges = Vec::new();
        while from + 16 <= end {
            // ORDERING (both): Relaxed; the structure is being opened.
            let off = self.word(from).load(pm, Ordering::Relaxed);
            let bytes = self.word(from + 8).load(pm, Ordering::Relaxed);
            from += 16;
            let inside = off >= CHUNK
                && off.is_multiple_of(8)
                && bytes.is_multiple_of(8)
                && bytes > 0
                && bytes <= end - from
                && off.checked_add(bytes).is_some_and(|end| end <= pm.len());
            let area_end = self.at + area(self.slots, self.words);
            if !inside || (off < area_end && off + bytes > self.at) {
                return Err(format!("an image of {bytes} bytes at {off:#x}"));
            }
            from += bytes;
            ranges.push(Range { off, bytes });
        }
        if from == end && !ranges.is_empty() {
            Ok(ranges)
        } else {
            Err(format!("{words} words are no images"))
        }
    }

    /// Copies `bytes` bytes from one place of the pool to another. Neither flushes nor fences.
    fn copy(&self, from: u64, to: u64, bytes: u64) {
        let pm = self.pm();
        let mut done = 0;
        while done < bytes {
            let mut buffer = [0u8; COPIED * 8];
            let part = (bytes - done).min(buffer.len() as u64);
            for (i, eight) in buffer[..part as usize].chunks_exact_mut(8).enumerate() {
                let word = self.word(from + done + i as u64 * 8);
                // ORDERING: Relaxed; the copying thread has both places to itself.
                eight.copy_from_slice(&word.load(pm, Ordering::Relaxed).to_le_bytes());
            }
            let dst = pm.base().wrapping_add((to + done) as usize);
            // SAFETY: 1. both ends are whole words inside the pool: a slot of the area, or a range
            // that `ranges` checked or that the caller of `arm_images` gave; 2. the slot is the
            // caller's, and the caller has locked the range (or recovery is alone).
            unsafe { write_bytes(pm, dst, &buffer[..part as usize]) };
            done += part;
        }
    }
}

/// A slot that this thread has. It is free again when it is dropped disarmed.
pub struct Slot<'l, M: Media> {
    logs: &'l Logs<M>,
    slot: u32,
    /// Payload words written.
    used: usize,
    armed: bool,
}

impl<M: Media> std::fmt::Debug for Slot<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("slot", &self.slot)
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Slot<'_, M> {
    /// Arms a redo record of these words: from its return until [`disarm`](Self::disarm), recovery
    /// hands them to the design. Lines that the caller flushed before are durable on return, but
    /// not before the record counts.
    ///
    /// # Panics
    /// If the record is longer than a slot or the slot is armed: a bug in the design.
    #[track_caller]
    pub fn arm(&mut self, words: &[u64]) {
        self.arm_flushed(words);
        // PERSIST: the record, before anything that it covers changes.
        self.logs.pm().fence();
    }

    /// Arms a record as [`arm`](Self::arm) does, without its fence: the record is flushed, and
    /// counts from the caller's next fence at the latest. For designs that fence something else
    /// before what the record covers changes.
    ///
    /// # Panics
    /// As there.
    #[track_caller]
    pub fn arm_flushed(&mut self, words: &[u64]) {
        assert!(
            words.len() <= self.logs.words && !self.armed,
            "{} words for {self:?}",
            words.len()
        );
        for (i, word) in words.iter().enumerate() {
            self.put(i, *word);
        }
        self.used = words.len();
        self.arm_as(Kind::Redo);
    }

    /// Writes payload word `i` of the record that [`arm_put`](Self::arm_put) will arm, so that a
    /// design can write its record in place.
    ///
    /// # Panics
    /// If the slot is shorter: a bug in the design.
    #[inline]
    pub fn put(&mut self, i: usize, word: u64) {
        // ORDERING: Relaxed; read by recovery and by this thread only.
        self.payload(i)
            .store(self.logs.pm(), word, Ordering::Relaxed);
        debug_assert!(!self.armed, "{self:?} is armed");
    }

    /// Returns payload word `i`, as it was put.
    ///
    /// # Panics
    /// If the slot is shorter: a bug in the design.
    #[inline]
    #[must_use]
    pub fn get(&self, i: usize) -> u64 {
        // ORDERING: Relaxed; as in `put`.
        self.payload(i).load(self.logs.pm(), Ordering::Relaxed)
    }

    #[inline]
    fn payload(&self, i: usize) -> &PWord {
        assert!(i < self.logs.words, "payload word {i} for {self:?}");
        self.logs
            .word(self.logs.slot_at(self.slot) + 8 + i as u64 * 8)
    }

    /// Arms a record as [`arm`](Self::arm) does, of the first `words` payload words as they were
    /// put.
    ///
    /// # Panics
    /// If the record is longer than a slot or the slot is armed: a bug in the design.
    pub fn arm_put(&mut self, words: usize) {
        assert!(
            words <= self.logs.words && !self.armed,
            "{words} words for {self:?}"
        );
        self.used = words;
        self.arm_as(Kind::Redo);
        // PERSIST: the record, before anything that it covers changes.
        self.logs.pm().fence();
    }

    /// Arms an undo record with the present content of these ranges, which no other thread may
    /// change: from its return until [`disarm`](Self::disarm), recovery copies it back. Lines that
    /// the caller flushed before are durable on return.
    ///
    /// # Panics
    /// If the images do not fit into a slot ([`image_words`]), the ranges are not whole words, or
    /// the slot is armed: a bug in the design.
    pub fn arm_images(&mut self, ranges: &[Range]) {
        let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
        assert!(
            !self.armed && image_words(ranges.len(), bytes as usize) <= self.logs.words,
            "{bytes} bytes for {self:?}"
        );
        let pm = self.logs.pm();
        let at = self.logs.slot_at(self.slot) + 8;
        let mut used = 0;
        for range in ranges {
            assert!(
                (range.off | range.bytes).is_multiple_of(8) && range.off + range.bytes <= pm.len(),
                "{range:?} is not of whole words in the pool"
            );
            let head = at + used as u64 * 8;
            // ORDERING (both): Relaxed; read by recovery only.
            self.logs.word(head).store(pm, range.off, Ordering::Relaxed);
            self.logs
                .word(head + 8)
                .store(pm, range.bytes, Ordering::Relaxed);
            self.logs.copy(range.off, head + 16, range.bytes);
            used += 2 + range.bytes as usize / 8;
        }
        self.used = used;
        self.arm_as(Kind::Undo);
        // PERSIST: the record, before anything that it covers changes.
        pm.fence();
    }

    /// Stores the head, once the payload is durable (invariant 2), and flushes it.
    #[track_caller]
    fn arm_as(&mut self, kind: Kind) {
        let pm = self.logs.pm();
        if self.used > NEAR {
            let at = self.logs.slot_at(self.slot) + LINE as u64;
            let rest = (self.used - NEAR) * 8;
            // PERSIST: the payload, except for the head's own line, before the head that covers it.
            pm.flush(self.logs.word(at).addr(), rest);
            pm.fence();
        }
        // PERSIST: the payload in the head's own line, durable no later than the head.
        pm.store_fence();
        let head = kind as u64 | (self.used as u64) << 8 | TAG;
        // ORDERING: Relaxed; read by recovery only.
        self.logs.head(self.slot).store(pm, head, Ordering::Relaxed);
        // PERSIST: the head; the caller fences it.
        pm.flush_of(self.logs.head(self.slot));
        self.armed = true;
    }

    /// Disarms the slot. The caller has flushed *and fenced* the words that the record covers:
    /// after a redo record, applied; after an undo record, changed for good.
    #[track_caller]
    pub fn disarm(&mut self) {
        self.disarm_flushed();
        // PERSIST: the disarmed head, before the words that the record covers change again and
        // before the slot is used again.
        self.logs.pm().fence();
    }

    /// Disarms as [`disarm`](Self::disarm) does, without its fence: the record may count until the
    /// caller's next fence. For designs that fence before they change the covered words in another
    /// way, and before they drop the slot.
    #[track_caller]
    pub fn disarm_flushed(&mut self) {
        debug_assert!(self.armed, "{self:?} is disarmed");
        let head = self.logs.head(self.slot);
        // ORDERING: Relaxed; read by recovery only.
        head.store(self.logs.pm(), 0, Ordering::Relaxed);
        // PERSIST: the disarmed head; the caller fences it.
        self.logs.pm().flush_of(head);
        self.armed = false;
    }
}

impl<M: Media> Drop for Slot<'_, M> {
    fn drop(&mut self) {
        // Only a panic drops an armed slot, and recovery must see it.
        if !self.armed {
            lock(&self.logs.free).push(self.slot);
        }
    }
}

#[cfg(test)]
mod tests;
