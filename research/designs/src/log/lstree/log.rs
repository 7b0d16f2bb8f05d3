//! The logs: queues of segments in the pool. Records are appended to the last segment, and the
//! first segment is collected.
//!
//! ```text
//! directory | link to log 0, generation of log 0 | link to log 1, generation of log 1 | ...     32 logs
//! segment   | magic, CRC-32C of generation | generation | link | ...          one line
//!           | record | record | ...
//! link      | next segment / 256 (32) | parity (1) | records (15) | bytes used / 32 (16) |
//!           0 in the last segment
//! ```
//!
//! Generations in the directory have the check of a [`link`] too.
//!
//! A segment is a block of the root's heap, aligned to its size of 64 KiB, a whole chunk. Collected
//! segments are free at once, for this log or another. So the logs move through the pool in
//! circles, and pools grow.
//!
//! # Invariants
//! 1. The directory's head and the links lead to the segments of a log. All but the last are
//!    sealed: their link has the number of records and their end, so that damage can be told from
//!    an end.
//! 2. Generations are unique in a root. Log *i* uses those that are *i* modulo 32, in ascending
//!    order, and the directory's word is at least as large as any that was used.
//! 3. All records before the end of a log are durable, since appends hold the log's lock until they
//!    are. (A record that is not durable, with another one behind it, would look like the end.)
//!
//! `reserve` decides which segment an append may take, and when it has to wait.
//!
//! # Crash states
//! 1. *Append*: the record is whole or not there. The next append overwrites a part of one; see
//!    `clear_ends`.
//! 2. *New segment*, before the link is durable: the block is free, because nothing leads to it.
//!    Its generation is not used again.
//! 3. *Collected segment*: before the head's NAW the log still has it, and the copied records are
//!    there twice, with equal sequence numbers. After the NAW its block is free, because nothing
//!    leads to it.

use super::record::{Draft, HALF_LINE, Reader};
use super::reserve::{Purpose, Refusal, Spares};
use crate::link;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, POff, SpaceError};
use crossbeam_epoch::Guard;
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Number of logs that a root has room for.
pub(super) const LOGS: usize = 32;
/// Bytes of the directory.
pub(super) const DIRECTORY: u64 = LOGS as u64 * 16;
/// Bytes before the first record of a segment.
pub(super) const SEGMENT_HEADER: u64 = 64;
/// Segments are at multiples of this, which is also the unit of links.
pub(super) const UNIT: u64 = 256;

/// Number of times that writers look for garbage while a segment fills.
const LOOKS: u64 = 16;

const MAGIC: u64 = u32::from_le_bytes(*b"LSEG") as u64;
/// The bit of a link that makes the number of its ones even.
const PARITY: u32 = 31;
const _: () = assert!(CHUNK / HALF_LINE < 1 << 15, "a segment's records");

/// A segment of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) off: u64,
    pub(super) generation: u64,
    /// Where the segment's records end.
    pub(super) used: u64,
    pub(super) records: u64,
}

/// Link of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) next: u64,
    pub(super) used: u64,
    pub(super) records: u64,
}

impl Link {
    fn pack(self) -> u64 {
        let link = (self.next / UNIT) << 32 | self.records << 16 | (self.used / HALF_LINE);
        link::evened(link, PARITY)
    }

    /// Returns `Ok(None)` for the last segment.
    fn unpack(word: u64) -> Result<Option<Self>, String> {
        if !link::is_even(word) {
            return Err(format!("its link {word:#x} fails its check"));
        }
        Ok((word != 0).then_some(Self {
            next: (word >> 32) * UNIT,
            used: (word & 0xFFFF) * HALF_LINE,
            records: word >> 16 & 0x7FFF,
        }))
    }
}

/// The part of a log that appends change.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) segments: VecDeque<Segment>,
    /// The generation used last.
    pub(super) generation: u64,
    /// Bytes appended since a writer last looked for garbage.
    unlooked: u64,
}

impl State {
    /// Returns the place of a record of `bytes` in the last segment, if it fits.
    fn place(&self, bytes: u64, segment: u64) -> Option<u64> {
        let tail = self.segments.back()?;
        let at = align(tail.used, bytes);
        (at + bytes <= segment).then_some(at)
    }
}

/// Returns the first place from `used` on for a record of `bytes`.
pub(super) fn align(used: u64, bytes: u64) -> u64 {
    used.next_multiple_of(if bytes <= HALF_LINE {
        HALF_LINE
    } else {
        2 * HALF_LINE
    })
}

/// One log.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) state: Mutex<State>,
    /// Held by the thread that collects.
    pub(super) collecting: Mutex<()>,
    /// Number of sealed segments.
    pub(super) sealed: AtomicU64,
    /// Bytes of records that the mapping table leads to.
    pub(super) live: AtomicI64,
}

/// An appended, durable record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) off: u64,
    pub(super) log: usize,
    /// True if it is time to look for garbage.
    pub(super) look: bool,
}

/// The logs of a tree.
#[derive(Debug)]
pub(super) struct Logs<M: Media> {
    logs: Box<[CachePadded<Log>]>,
    pub(super) heap: Heap<M>,
    /// Offset of the directory.
    pub(super) directory: u64,
    /// Bytes of a segment.
    pub(super) segment: u64,
    /// Salt that sets this tree's records apart from those that another tree left in the same
    /// memory.
    pub(super) salt: u64,
    /// Directory of the logs that these logs will replace. Used generations are recorded there too,
    /// since a crash may come before the replacement.
    elder: Option<u64>,
    pub(super) spares: Mutex<Spares>,
    /// True while a thread makes room; all others wait.
    pub(super) making_room: AtomicBool,
    /// True if too much of the reserve is missing for insertions.
    pub(super) scarce: AtomicBool,
    /// Bytes of records appended since the tree was opened.
    pub(super) appended: AtomicU64,
}

/// Returns the first word of a segment.
fn magic(generation: u64, salt: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&generation.to_le_bytes());
    bytes[8..].copy_from_slice(&salt.to_le_bytes());
    u64::from(crc32c::crc32c(&bytes)) << 32 | MAGIC
}

impl<M: Media> Logs<M> {
    /// Returns logs without segments, whose next generations follow `generations`.
    pub(super) fn new(
        heap: &Heap<M>,
        directory: u64,
        (segment, salt): (u64, u64),
        generations: [u64; LOGS],
    ) -> Self {
        let logs = generations.map(|generation| {
            let state = State {
                generation,
                ..State::default()
            };
            CachePadded::new(Log {
                state: Mutex::new(state),
                ..Log::default()
            })
        });
        Self {
            logs: Box::new(logs),
            heap: heap.clone(),
            directory,
            segment,
            salt,
            elder: None,
            spares: Mutex::default(),
            making_room: AtomicBool::new(false),
            scarce: AtomicBool::new(false),
            appended: AtomicU64::new(0),
        }
    }

    /// Returns logs that will replace these.
    pub(super) fn replacement(&self, directory: u64) -> Self {
        let generations = std::array::from_fn(|log| lock(&self.log(log).state).generation);
        Self {
            elder: Some(self.directory),
            ..Self::new(
                &self.heap,
                directory,
                (self.segment, self.salt),
                generations,
            )
        }
    }

    /// Skips the generations that `other`, which is discarded, has used.
    pub(super) fn skip_generations_of(&self, other: &Self) {
        for log in 0..LOGS {
            lock(&self.log(log).state).generation = lock(&other.log(log).state).generation;
        }
    }

    /// Returns the salt of a segment's records.
    pub(super) fn salt_of(&self, generation: u64) -> u32 {
        if self.pm().planted("lstree-salt-of-the-tree") {
            return self.salt as u32;
        }
        // Mixed, since a sum under a salt with one other bit is that of a record with one other
        // bit, which `mend_at` would turn back.
        let mixed = generation.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed as u32 ^ self.salt as u32
    }

    /// Returns the generations before the first of each log.
    pub(super) fn no_generations() -> [u64; LOGS] {
        std::array::from_fn(|log| log as u64)
    }

    pub(super) fn log(&self, log: usize) -> &Log {
        &self.logs[log]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Log> {
        self.logs.iter().map(|log| &**log)
    }

    pub(super) fn pm(&self) -> &M {
        self.heap.pool().pm()
    }

    pub(super) fn reader(&self) -> Reader<'_, M> {
        Reader::new(self.pm(), self.segment)
    }

    /// Returns where the directory has the head of a log.
    fn head_at(&self, log: usize) -> u64 {
        self.directory + log as u64 * 16
    }

    /// Records that a log has used a generation. Flushes it.
    fn record_generation(&self, directory: u64, log: usize, generation: u64) {
        let word = self.reader().cell(directory + log as u64 * 16 + 8);
        // ORDERING: Relaxed; read by recovery only.
        word.store(self.pm(), link::word(generation), Ordering::Relaxed);
        // PERSIST: the used generation, before a record has its salt; the caller fences it.
        self.pm().flush_of(word);
    }

    /// Writes a directory of logs without segments. Flushes it.
    pub(super) fn write_directory(&self) {
        let (pm, reader) = (self.pm(), self.reader());
        for log in 0..LOGS {
            let at = self.head_at(log);
            // ORDERING (both): Relaxed; nothing leads there yet.
            reader.cell(at).store(pm, 0, Ordering::Relaxed);
            let generation = lock(&self.log(log).state).generation;
            let generation = link::word(generation);
            reader.cell(at + 8).store(pm, generation, Ordering::Relaxed);
        }
        // PERSIST: the directory, fenced before the root's word that leads to it.
        pm.flush(
            pm.base().wrapping_add(self.directory as usize),
            DIRECTORY as usize,
        );
    }

    /// Returns the head and generation of a log from the directory.
    ///
    /// # Errors
    /// The reason in words.
    pub(super) fn read_directory(&self, log: usize) -> Result<(u64, u64), String> {
        let (pm, reader, at) = (self.pm(), self.reader(), self.head_at(log));
        // ORDERING: Relaxed; the tree is being opened or verified.
        let word = |at| link::checked(reader.cell(at).load(pm, Ordering::Relaxed));
        Ok((word(at)?, word(at + 8)?))
    }

    /// Returns the generation and link of the segment at `off`.
    ///
    /// # Errors
    /// In words: there is no segment, or its link is damaged.
    pub(super) fn read_segment(&self, off: u64) -> Result<(u64, Option<Link>), String> {
        let (pm, reader) = (self.pm(), self.reader());
        // ORDERING (all): Relaxed; the tree is being opened or verified.
        let word = |i: u64| reader.cell(off + i * 8).load(pm, Ordering::Relaxed);
        let generation = word(1);
        if word(0) != magic(generation, self.salt) {
            return Err("it has no header".into());
        }
        Ok((generation, Link::unpack(word(2))?))
    }

    /// Appends a record to log `log`, or to another one if that needs a new segment and there is
    /// none. The record is durable when this returns (except for [`Purpose::Load`]).
    ///
    /// # Errors
    /// [`Refusal`] when there is no room, or a thread is making some. Nothing has changed then.
    #[inline]
    pub(super) fn append(
        &self,
        log: usize,
        draft: &mut Draft,
        purpose: Purpose,
    ) -> Result<Written, Refusal> {
        let full = match self.append_to(log, draft, purpose) {
            Err(Refusal::Full(full)) => full,
            done => return done,
        };
        // Another log's last segment may have room.
        for other in (0..LOGS).filter(|other| *other != log) {
            let state = lock(&self.log(other).state);
            if state.place(draft.bytes(), self.segment).is_some() {
                drop(state);
                if let Ok(written) = self.append_to(other, draft, purpose) {
                    return Ok(written);
                }
            }
        }
        Err(full.into())
    }

    fn append_to(
        &self,
        log: usize,
        draft: &mut Draft,
        purpose: Purpose,
    ) -> Result<Written, Refusal> {
        let pm = self.pm();
        let of = self.log(log);
        let mut state = lock(&of.state);
        // ORDERING: Relaxed; the log's lock orders it, see `alone`.
        if purpose.waits_for_room() && self.making_room.load(Ordering::Relaxed) {
            return Err(Refusal::Busy);
        }
        if purpose.makes_no_room() && self.is_scarce() {
            let (wanted, capacity) = (pm.len() + self.segment, pm.capacity());
            return Err(SpaceError::Capacity { wanted, capacity }.into());
        }
        let bytes = draft.bytes();
        if state.place(bytes, self.segment).is_none() {
            self.roll(log, &mut state, purpose)?;
        }
        let at = state.place(bytes, self.segment);
        let (Some(at), Some(tail)) = (at, state.segments.back_mut()) else {
            let most = self.segment - SEGMENT_HEADER;
            let wanted = bytes;
            return Err(SpaceError::TooLarge { wanted, most }.into());
        };
        let off = tail.off + at;
        let to = pm.base().wrapping_add(off as usize);
        let record = draft.seal(pm, self.salt_of(tail.generation));
        // SAFETY: 1. the segment is a block of the pool, and the record fits into it at a multiple
        // of 32; 2. the log's lock is held, and nothing leads to the record yet.
        unsafe { bristlecone_pmem::cell::write_bytes(pm, to, record) };
        // PERSIST: the record, which makes the operation durable, before the mapping table leads to
        // it (other threads must not see what a crash can undo), and before the log's lock is
        // released (invariant 3).
        pm.flush(to, bytes as usize);
        if purpose != Purpose::Load {
            pm.fence();
        }
        tail.used = (at + bytes).next_multiple_of(HALF_LINE);
        tail.records += 1;
        let footprint = bytes.next_multiple_of(HALF_LINE);
        // ORDERING (both): Relaxed; estimates.
        of.live.fetch_add(footprint as i64, Ordering::Relaxed);
        self.appended.fetch_add(footprint, Ordering::Relaxed);
        state.unlooked += footprint;
        let look = purpose.is_operation() && state.unlooked >= self.segment / LOOKS;
        if look {
            state.unlooked = 0;
        }
        Ok(Written { off, log, look })
    }

    /// Gives the first logs their first segments. Flushes them; publishing the directory fences
    /// them.
    ///
    /// # Errors
    /// [`SpaceError`]. Some logs may then have a segment.
    pub(super) fn begin(&self, logs: usize) -> Result<(), SpaceError> {
        (0..logs).try_for_each(|log| {
            let mut state = lock(&self.log(log).state);
            if state.segments.is_empty() {
                self.roll(log, &mut state, Purpose::Load)?;
            }
            Ok(())
        })
    }

    /// Gives a log another segment.
    fn roll(&self, log: usize, state: &mut State, purpose: Purpose) -> Result<(), SpaceError> {
        let (pm, reader) = (self.pm(), self.reader());
        let off = self.take_segment(purpose)?;
        let generation = state.generation + LOGS as u64;
        let cell = |i: u64| reader.cell(off + i * 8);
        // ORDERING (all): Relaxed; nothing leads there yet.
        cell(0).store(pm, magic(generation, self.salt), Ordering::Relaxed);
        cell(1).store(pm, generation, Ordering::Relaxed);
        cell(2).store(pm, 0, Ordering::Relaxed);
        self.record_generation(self.directory, log, generation);
        if let Some(elder) = self.elder {
            self.record_generation(elder, log, generation);
        }
        // PERSIST: the segment's header and its used generation, before anything leads to it.
        pm.flush(cell(0).addr(), SEGMENT_HEADER as usize);
        pm.fence();
        let (leads, word) = match state.segments.back() {
            None => (reader.cell(self.head_at(log)), link::word(off)),
            Some(tail) => {
                let link = Link {
                    next: off,
                    used: tail.used,
                    records: tail.records,
                };
                (reader.cell(tail.off + 16), link.pack())
            }
        };
        // ORDERING: Relaxed; read by recovery only.
        leads.store(pm, word, Ordering::Relaxed);
        // PERSIST: the link to the segment, fenced with the first record in it, or by a bulk load.
        pm.flush_of(leads);
        if !state.segments.is_empty() {
            // ORDERING: Relaxed; an estimate.
            self.log(log).sealed.fetch_add(1, Ordering::Relaxed);
        }
        state.generation = generation;
        // Another whole segment is sealed, so the next writer looks for garbage.
        state.unlooked = self.segment;
        state.segments.push_back(Segment {
            off,
            generation,
            used: SEGMENT_HEADER,
            records: 0,
        });
        Ok(())
    }

    /// Removes the collected first segment from a log and keeps or frees it; with a guard, once
    /// readers have left. Calls `left` when the removal is durable. The caller holds `collecting`.
    pub(super) fn drop_head(&self, log: usize, guard: Option<&Guard>, left: impl FnOnce()) {
        let (pm, reader) = (self.pm(), self.reader());
        let dropped = {
            let mut state = lock(&self.log(log).state);
            let (Some(head), Some(next)) = (state.segments.front(), state.segments.get(1)) else {
                return;
            };
            let (head, next) = (head.off, next.off);
            // PERSIST: (in `publish`) the log begins with the next segment, before this one's
            // memory is used again. The copies of its records are durable (`append`).
            reader.cell(self.head_at(log)).publish(pm, link::word(next));
            state.segments.pop_front();
            head
        };
        // ORDERING: Relaxed; an estimate.
        self.log(log).sealed.fetch_sub(1, Ordering::Relaxed);
        left();
        self.keep_or_free(dropped, guard);
    }

    /// Makes a log begin with its second segment, durably; for a planted fault.
    pub(super) fn pass_head(&self, log: usize) {
        let state = lock(&self.log(log).state);
        if let Some(next) = state.segments.get(1) {
            let head = self.reader().cell(self.head_at(log));
            head.publish(self.pm(), link::word(next.off));
        }
    }

    /// Invalidates parts of records that a crash left behind the ends of the logs. A new record
    /// written over such a part may have words in common with it, and a second crash could then
    /// complete the old record. Without its checksum it stays incomplete, and no other record has
    /// that checksum.
    pub(super) fn clear_ends(&self) {
        let (pm, reader) = (self.pm(), self.reader());
        let mut cleared = false;
        for log in self.all() {
            let state = lock(&log.state);
            let Some(tail) = state.segments.back() else {
                continue;
            };
            // The places of the next short record and the next long one.
            for bytes in [HALF_LINE, 2 * HALF_LINE] {
                let at = align(tail.used, bytes);
                if at + HALF_LINE > self.segment {
                    continue;
                }
                let word = reader.cell(tail.off + at);
                // ORDERING (both): Relaxed; the tree is being opened.
                if word.load(pm, Ordering::Relaxed) != 0 {
                    word.store(pm, 0, Ordering::Relaxed);
                    // PERSIST: the cleared word; no record is there, before another is written over
                    // it.
                    pm.flush_of(word);
                    cleared = true;
                }
            }
        }
        if cleared {
            pm.fence();
        }
    }

    /// Adopts segments that recovery found.
    pub(super) fn adopt(&mut self, log: usize, generation: u64, segments: VecDeque<Segment>) {
        let of = &mut self.logs[log];
        of.sealed = AtomicU64::new(segments.len().saturating_sub(1) as u64);
        of.state = Mutex::new(State {
            segments,
            generation,
            unlooked: 0,
        });
    }

    /// Frees all segments, spares and the directory, which nothing leads to; with a guard, once
    /// readers have left.
    pub(super) fn discard(&self, guard: Option<&Guard>) {
        let mut blocks: Vec<u64> = std::mem::take(&mut *lock(&self.spares)).all().collect();
        for log in self.all() {
            blocks.extend(lock(&log.state).segments.drain(..).map(|s| s.off));
        }
        blocks.push(self.directory);
        for block in blocks {
            match guard {
                Some(guard) => self.heap.retire(POff::new(block), guard),
                None => self.heap.free(POff::new(block)),
            }
        }
    }

    /// Returns the sealed bytes that are not live, and the live bytes.
    pub(super) fn garbage(&self) -> (u64, u64) {
        let (mut sealed, mut live) = (0, 0);
        for log in self.all() {
            // ORDERING (both): Relaxed; estimates.
            sealed += log.sealed.load(Ordering::Relaxed) * self.segment;
            live += log.live.load(Ordering::Relaxed).max(0) as u64;
        }
        (sealed.saturating_sub(live), live)
    }

    /// Returns the log with the most garbage, among those with a sealed segment.
    pub(super) fn fullest(&self) -> Option<usize> {
        (0..LOGS)
            .filter(|log| self.log(*log).sealed.load(Ordering::Relaxed) > 0)
            .max_by_key(|log| {
                let log = self.log(*log);
                // ORDERING (both): Relaxed; estimates.
                (log.sealed.load(Ordering::Relaxed) * self.segment) as i64
                    - log.live.load(Ordering::Relaxed)
            })
    }
}
