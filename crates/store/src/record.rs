//! Version records: one value of one key, from one commit on.
//!
//! ```text
//!  0 | offset of the previous version's record, 0 if there is none
//!  8 | stamp: which commit
//! 16 | value length (30) | apart (1) | expires (1) | CRC-32C (32) of index key, length and flags, expiry, and value
//! 24 | only of a value that expires: when, in ms since 1970 (48 bits)
//! 24 or 32 | value; or, if it is apart, the offsets of its segments of 1 MiB (the last is shorter)
//!
//! stamp | 0 (9) time stamp (55): of the commit   | 1 (1) slot (8) time stamp (55): pending   | 1 (1) 255 (8) 0 (55): dead
//! ```
//!
//! No single flipped bit makes one kind of stamp another that can be, but for a slot's number: no commit goes through slot 0
//! ([`slots`](crate::slots)), no slot has number 255, and no time stamp is 0.
//!
//! Values of up to [`WHOLE_MOST`] bytes are in one block with the head, so that readers get one slice. Longer ones have
//! segments, so that a pool needs no long runs of free chunks, and grows by little at a time while others go on.
//!
//! # Invariants
//! 1. But for the first two words a record never changes, and nothing leads to it before it is durable.
//! 2. The first two words of a record are in one line (blocks are aligned to 16 bytes).
//! 3. Along `previous`, time stamps fall strictly, dead records aside.

use crate::error::Damage;
use crate::sum;
use bristlecone_index::repr::within_one_line;
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media, POff, PWord, SpaceError};
use crossbeam_epoch::Guard;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::Ordering;

/// Most bytes a value may have.
pub(crate) const VALUE_MOST: usize = 512 << 20;
/// Longest value that is in one block.
pub(crate) const WHOLE_MOST: usize = SEGMENT;
/// Bytes of a segment.
const SEGMENT: usize = 1 << 20;
/// Bytes before a value that does not expire.
pub(crate) const HEADER: u64 = 24;
/// Least bytes of a record's block.
pub(crate) const MIN_BLOCK: u64 = 32;
/// Bytes of an expiry.
const EXPIRY: u64 = 8;
/// Largest time stamp.
pub(crate) const TS_MOST: u64 = (1 << 55) - 1;
/// Largest expiry.
pub(crate) const EXPIRY_MOST: u64 = (1 << 48) - 1;

const PENDING: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 55;
const DEAD: u64 = PENDING | 0xFF << SLOT_SHIFT;
/// A damaged record leads to the version before, and that one to its segments.
const DAMAGED_DEPTH: u32 = 2;
/// Flag: the value is not in the record's block. It is in segments; or there is none, if its length is 0: a tombstone.
const APART: u64 = 1 << 30;
/// Flag: there is an expiry.
const EXPIRES: u64 = 1 << 31;
const LEN: u64 = APART - 1;

/// The head of a record.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    pub previous: PWord,
    pub stamp: PWord,
    body: PWord,
    /// Bytes of the value, if it does not expire.
    expiry: PWord,
}

const _: () = assert!(size_of::<Header>() as u64 == MIN_BLOCK);
const _: () = assert!(HEADER + EXPIRY == MIN_BLOCK && VALUE_MOST as u64 <= LEN);

/// Whether a commit can have that time stamp: so many that no store comes to the last one.
pub(crate) fn is_time_stamp(ts: u64) -> bool {
    (1..TS_MOST / 2).contains(&ts)
}

/// Which commit a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// None: what wrote it was undone.
    Dead,
    /// That of the time stamp.
    At(u64),
    /// That of the time stamp, if the slot of the commit table says so or the time stamp has passed.
    Pending { slot: usize, ts: u64 },
}

impl Stamp {
    pub fn decode(word: u64) -> Self {
        let ts = word & TS_MOST;
        match word {
            DEAD => Self::Dead,
            _ if word & PENDING == 0 => Self::At(word & (PENDING - 1)),
            _ => Self::Pending {
                slot: (word >> SLOT_SHIFT) as usize & 0xFF,
                ts,
            },
        }
    }

    pub fn encode(self) -> u64 {
        match self {
            Self::Dead => DEAD,
            Self::At(ts) => ts,
            Self::Pending { slot, ts } => PENDING | (slot as u64) << SLOT_SHIFT | ts,
        }
    }

    /// The time stamp of a record that is not dead.
    pub fn ts(self) -> Option<u64> {
        match self {
            Self::Dead => None,
            Self::At(ts) | Self::Pending { ts, .. } => Some(ts),
        }
    }
}

/// What of a record never changes: its third word, and its expiry, 0 if it has none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    body: u64,
    expiry: u64,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("expiry", &self.expiry())
            .field("apart", &self.is_apart())
            .field("len", &self.len())
            .field("crc", &format_args!("{:#010x}", self.crc()))
            .finish()
    }
}

impl Terms {
    /// Those of a value that is to be stored, but for the checksum.
    fn new(value: Option<&[u8]>, expiry: u64) -> Self {
        // Callers have checked the length.
        let len = value.map_or(0, <[u8]>::len);
        let apart = u64::from(value.is_none() || len > WHOLE_MOST) * APART;
        let expires = u64::from(expiry != 0) * EXPIRES;
        Self {
            body: len as u64 & LEN | apart | expires,
            expiry: expiry.min(EXPIRY_MOST),
        }
    }

    fn with_crc(self, crc: u32) -> Self {
        Self {
            body: self.body & u64::from(u32::MAX) | u64::from(crc) << 32,
            ..self
        }
    }

    /// Length and flags, which the checksum is of.
    fn summed(&self) -> [u8; 4] {
        (self.body as u32).to_le_bytes()
    }

    /// The expiry as it is stored: of no bytes, if there is none.
    fn stored_expiry(&self) -> SmallVec<[u8; 8]> {
        let bytes = self.expiry.to_le_bytes();
        SmallVec::from_slice(if self.expires() { &bytes } else { &[] })
    }

    fn expires(&self) -> bool {
        self.body & EXPIRES != 0
    }

    /// Where the value or the offsets of its segments are in the record.
    fn value_at(&self) -> u64 {
        HEADER + u64::from(self.expires()) * EXPIRY
    }

    /// In ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.expiry
    }

    fn is_apart(&self) -> bool {
        self.body & APART != 0
    }

    /// Whether it says that there is no value.
    pub fn is_tombstone(&self) -> bool {
        self.is_apart() && self.len() == 0
    }

    fn is_segmented(&self) -> bool {
        self.is_apart() && self.len() > 0
    }

    /// Bytes of the value.
    pub fn len(&self) -> usize {
        (self.body & LEN) as usize
    }

    fn crc(&self) -> u32 {
        (self.body >> 32) as u32
    }

    /// Bytes of the record, segments included.
    pub fn bytes(&self) -> u64 {
        let in_segments = if self.is_segmented() { self.len() } else { 0 };
        self.block_bytes() + in_segments as u64
    }

    /// Bytes of the block that holds the head.
    fn block_bytes(&self) -> u64 {
        let rest = if self.is_segmented() {
            segments(self.len()) * size_of::<u64>()
        } else {
            self.len()
        };
        self.value_at() + rest as u64
    }

    /// Whether the record is one block.
    pub fn is_whole(&self) -> bool {
        !self.is_segmented()
    }

    /// Whether a record may be so.
    pub fn sound(&self) -> bool {
        self.len() <= VALUE_MOST
            && self.is_segmented() == (self.len() > WHOLE_MOST)
            && !(self.is_tombstone() && self.expires())
            && self.expires() == (1..=EXPIRY_MOST).contains(&self.expiry)
    }

    /// Whether a reader finds nothing, at the time that `now` gives, which is only asked where that matters.
    pub fn absent_by(&self, now: impl FnOnce() -> u64) -> bool {
        self.is_tombstone() || self.expiry() != 0 && self.expiry() <= now()
    }

    pub fn expired(&self, now: u64) -> bool {
        self.expiry() != 0 && self.expiry() <= now
    }
}

/// Bytes to allocate for the block with the head of the record of a value of `len` bytes.
fn block_bytes(len: usize, expires: bool) -> u64 {
    let head = HEADER + u64::from(expires) * EXPIRY;
    within_one_line(if len > WHOLE_MOST {
        head + segments(len) as u64 * 8
    } else {
        head + len as u64
    })
}

fn segments(len: usize) -> usize {
    len.div_ceil(SEGMENT)
}

/// A record that nothing leads to yet. Dropping it frees it.
pub(crate) struct Prepared<'h, M: Media> {
    heap: &'h Heap<M>,
    /// Where it is.
    pub off: u64,
    pub terms: Terms,
    segments: Vec<u64>,
    kept: bool,
}

impl<'h, M: Media> Prepared<'h, M> {
    /// A record whose head is to be in a block that was allocated.
    fn on(heap: &'h Heap<M>, head: POff<u8>) -> Self {
        Self {
            heap,
            off: head.get(),
            terms: Terms::default(),
            segments: Vec::new(),
            kept: false,
        }
    }

    fn reserve_segments(&mut self, len: usize) -> Result<(), SpaceError> {
        if len > WHOLE_MOST {
            for at in (0..len).step_by(SEGMENT) {
                let segment = self.heap.alloc((len - at).min(SEGMENT) as u64)?;
                self.segments.push(segment.get());
            }
        }
        Ok(())
    }

    /// Stores what commits it and what it follows, and flushes the head; the caller fences.
    pub fn stamp(&self, stamp: Stamp, previous: u64) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let header = header(pm, self.off)?;
        // ORDERING (both): Relaxed; nothing leads here, and what publishes the record orders them.
        header.previous.store(pm, previous, Ordering::Relaxed);
        header.stamp.store(pm, stamp.encode(), Ordering::Relaxed);
        // PERSIST: the head; fenced by the caller, before the index leads to it.
        pm.flush_of(header);
        Ok(())
    }

    /// Something leads to it from now on.
    pub fn keep(&mut self) -> u64 {
        self.kept = true;
        self.off
    }

    /// Stores what never changes, for the index key with that CRC-32C: a value of the length that it was reserved for, or a tombstone. All of
    /// it but the line of the head is flushed, nothing is fenced.
    pub fn fill(&mut self, key_sum: u32, value: Option<&[u8]>, expiry: u64) {
        let bytes = value.unwrap_or(&[]);
        let terms = Terms::new(value, expiry);
        let stored = terms.stored_expiry();
        let crc = sum::append(key_sum, &[&terms.summed(), &stored, bytes]);
        self.terms = terms.with_crc(crc);
        let pm = self.heap.pool().pm();
        let place = |off: u64| pm.base().wrapping_add(off as usize);
        let mut table = Vec::new();
        for (segment, part) in self.segments.iter().zip(bytes.chunks(SEGMENT)) {
            // SAFETY: 1. a block of that size, whose end is a multiple of 16; 2. reserved: nobody else's.
            unsafe { write_bytes(pm, place(*segment), part) };
            // PERSIST: the segment; fenced with the head.
            pm.flush(place(*segment), part.len());
            table.extend(segment.to_le_bytes());
        }
        let rest = if terms.is_segmented() { &table } else { bytes };
        let mut head = [0; MIN_BLOCK as usize];
        head[16..24].copy_from_slice(&self.terms.body.to_le_bytes());
        head[24..24 + stored.len()].copy_from_slice(&stored);
        let (at, len) = (place(self.off), terms.value_at() as usize);
        // SAFETY: (of both) 1. a block of that size, 16-aligned; 2. reserved: nobody else's.
        unsafe {
            write_bytes(pm, at, &head[..len]);
            write_bytes(pm, at.wrapping_add(len), rest);
        }
        let end = self.off + (len + rest.len()) as u64;
        let next = (self.off + 1).next_multiple_of(LINE as u64);
        if next < end {
            // PERSIST: what is not in the line of the head; fenced with that.
            pm.flush(place(next), (end - next) as usize);
        }
    }
}

impl<M: Media> Drop for Prepared<'_, M> {
    fn drop(&mut self) {
        if !self.kept {
            for segment in &self.segments {
                self.heap.free(POff::new(*segment));
            }
            self.heap.free(POff::new(self.off));
        }
    }
}

/// Makes the record of a value, or a tombstone, for the index key with that CRC-32C. All of it but the line of its head is flushed, nothing is fenced.
///
/// # Errors
/// [`SpaceError`]; nothing is allocated then.
pub(crate) fn prepare<'h, M: Media>(
    heap: &'h Heap<M>,
    key_sum: u32,
    value: Option<&[u8]>,
    expiry: u64,
) -> Result<Prepared<'h, M>, SpaceError> {
    let len = value.map_or(0, <[u8]>::len);
    let mut made = Prepared::on(heap, heap.alloc(block_bytes(len, expiry != 0))?);
    made.reserve_segments(len)?;
    made.fill(key_sum, value, expiry);
    Ok(made)
}

/// Reserves blocks for records of values of these lengths, which are yet to be filled, and gives each to `each`.
///
/// # Errors
/// [`SpaceError`]; some may have been given.
pub(crate) fn reserve<'h, M: Media>(
    heap: &'h Heap<M>,
    lens: impl Iterator<Item = usize> + Clone,
    mut each: impl FnMut(Prepared<'h, M>),
) -> Result<(), SpaceError> {
    if lens.clone().any(|len| len > WHOLE_MOST) {
        for len in lens {
            let mut made = Prepared::on(heap, heap.alloc(block_bytes(len, false))?);
            made.reserve_segments(len)?;
            each(made);
        }
        return Ok(());
    }
    let bytes = lens.map(|len| block_bytes(len, false));
    heap.alloc_each(bytes, |off| each(Prepared::on(heap, off)))
}

/// The head of the record at `off`, if there can be one.
///
/// # Errors
/// [`Damage`]
#[inline]
pub(crate) fn header<M: Media>(pm: &M, off: u64) -> Result<&Header, Damage> {
    if off < CHUNK || !off.is_multiple_of(16) || off.saturating_add(MIN_BLOCK) > pm.len() {
        return Err(Damage::new(format!("{off:#x} is no place of a record")));
    }
    // SAFETY: 1. inside the pool, which outlives the borrow of `pm`; 2. 16-aligned; 3. a header is all words, valid
    // for any bits, and stores to records are stores of words.
    Ok(unsafe { &*pm.base().wrapping_add(off as usize).cast_const().cast() })
}

impl Header {
    /// What never changes.
    #[inline]
    pub fn terms<M: Media>(&self, pm: &M) -> Terms {
        // ORDERING (both): Relaxed; what led here was loaded with Acquire after they were stored.
        let body = self.body.load(pm, Ordering::Relaxed);
        let expiry = match body & EXPIRES {
            0 => 0,
            _ => self.expiry.load(pm, Ordering::Relaxed),
        };
        Terms { body, expiry }
    }

    /// Which commit.
    #[inline]
    pub fn stamp<M: Media>(&self, pm: &M) -> Stamp {
        // ORDERING: Acquire; pairs with the Release of `set_stamp`.
        Stamp::decode(self.stamp.load(pm, Ordering::Acquire))
    }

    /// Says which commit, or that it is none; not flushed.
    pub fn set_stamp<M: Media>(&self, pm: &M, stamp: Stamp) {
        // ORDERING: Release; pairs with the Acquire of `stamp`.
        self.stamp.store(pm, stamp.encode(), Ordering::Release);
    }

    /// Offset of the version before.
    #[inline]
    pub fn previous<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `cut`.
        self.previous.load(pm, Ordering::Acquire)
    }

    /// Lets go of the version before. Not flushed: recovery does not follow it from a record that is committed.
    pub fn cut<M: Media>(&self, pm: &M) {
        // ORDERING: Release; pairs with the Acquire of `previous`: who finds nothing here also finds the horizon
        // that says why.
        self.previous.store(pm, 0, Ordering::Release);
    }
}

fn bytes_at<M: Media>(pm: &M, off: u64, len: usize) -> Result<&[u8], Damage> {
    if off < CHUNK || off.saturating_add(len as u64) > pm.len() {
        return Err(Damage::new(format!(
            "{off:#x} + {len} bytes leave the pool"
        )));
    }
    let at = pm.base().wrapping_add(off as usize).cast_const();
    if M::TRACED {
        pm.trace_load(at, len);
    }
    // SAFETY: 1. inside the pool, which outlives the borrow of `pm`; 2. a record's value does not change while a
    // pinned reader can reach it, and garbage bytes are as good as any where a damaged pool leads elsewhere.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Offsets of the segments of a record.
fn segment_offsets<M: Media>(pm: &M, off: u64, terms: &Terms) -> Result<Vec<u64>, Damage> {
    if !terms.is_segmented() {
        return Ok(Vec::new());
    }
    if terms.len() > VALUE_MOST {
        return Err(Damage::new(format!(
            "record {off:#x}: a value of {} bytes",
            terms.len()
        )));
    }
    let table = bytes_at(pm, off + terms.value_at(), segments(terms.len()) * 8)?;
    let (offsets, _) = table.as_chunks::<8>();
    Ok(offsets
        .iter()
        .map(|eight| u64::from_le_bytes(*eight))
        .collect())
}

/// Offset and length of each segment.
fn parts<M: Media>(pm: &M, off: u64, terms: &Terms) -> Result<Vec<(u64, usize)>, Damage> {
    let offsets = segment_offsets(pm, off, terms)?;
    let parts = offsets.into_iter().enumerate();
    Ok(parts
        .map(|(i, at)| (at, (terms.len() - i * SEGMENT).min(SEGMENT)))
        .collect())
}

/// Offsets of all blocks of the record at `off`.
///
/// # Errors
/// [`Damage`]
pub(crate) fn blocks<M: Media>(pm: &M, off: u64, terms: &Terms) -> Result<Vec<u64>, Damage> {
    let mut blocks = segment_offsets(pm, off, terms)?;
    blocks.push(off);
    Ok(blocks)
}

/// The value of the record at `off`: its place in the pool, or a copy if it has segments.
///
/// # Errors
/// [`Damage`]
#[inline]
pub(crate) fn value<'p, M: Media>(
    pm: &'p M,
    off: u64,
    terms: &Terms,
) -> Result<Cow<'p, [u8]>, Damage> {
    if !terms.is_segmented() {
        return bytes_at(pm, off + terms.value_at(), terms.len()).map(Cow::Borrowed);
    }
    let mut all = Vec::with_capacity(terms.len().min(VALUE_MOST));
    for (at, len) in parts(pm, off, terms)? {
        all.extend_from_slice(bytes_at(pm, at, len)?);
    }
    Ok(Cow::Owned(all))
}

/// Marks the blocks of the record at `off` as reached, for recovery.
///
/// # Errors
/// [`Damage`]
pub(crate) fn mark<M: Media>(
    heap: &Heap<M>,
    off: u64,
    terms: &Terms,
    guard: &Guard,
) -> Result<(), Damage> {
    let broken = |what| Damage::new(format!("record {off:#x}: {what}"));
    heap.check(off, terms.block_bytes()).map_err(broken)?;
    heap.mark(off, terms.block_bytes(), guard).map_err(broken)?;
    for (at, len) in parts(heap.pool().pm(), off, terms)? {
        heap.mark(at, len as u64, guard).map_err(broken)?;
    }
    Ok(())
}

/// Frees the record at `off` once readers have left. Nothing durable leads to it any more.
///
/// # Errors
/// [`Damage`]; nothing is freed then.
pub(crate) fn retire<M: Media>(
    heap: &Heap<M>,
    off: u64,
    terms: &Terms,
    guard: &Guard,
) -> Result<(), Damage> {
    // Nobody else's block is freed for a damaged length's sake.
    let segments = live_segments(heap, off, terms)?;
    heap.retire(POff::new(off), guard);
    for (segment, _) in segments {
        heap.retire(POff::new(segment), guard);
    }
    Ok(())
}

/// As [`parts`], all of which are live blocks of that size, as is the one that has their offsets.
fn live_segments<M: Media>(
    heap: &Heap<M>,
    off: u64,
    terms: &Terms,
) -> Result<Vec<(u64, usize)>, Damage> {
    if !terms.is_segmented() {
        return Ok(Vec::new());
    }
    let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
    let live = |at: u64, bytes: u64| {
        heap.check(at, bytes).map_err(broken)?;
        if heap.is_live(at) {
            Ok(())
        } else {
            Err(broken(format!("its block {at:#x} is free")))
        }
    };
    live(off, terms.block_bytes())?;
    let parts = parts(heap.pool().pm(), off, terms)?;
    for (at, len) in &parts {
        live(*at, *len as u64)?;
    }
    Ok(parts)
}

/// Marks what may be blocks of a damaged record at `off`, or of the version before it, so that nothing there is given out: its own,
/// and those that words of it lead to. What another record has marked stays that one's.
pub(crate) fn mark_damaged<M: Media>(heap: &Heap<M>, off: u64, guard: &Guard) {
    let mut look = vec![(off, 0)];
    while let Some((at, depth)) = look.pop() {
        let Some(bytes) = heap.block_bytes(at) else {
            continue;
        };
        // Marked before: that is all that is wanted.
        let _ = heap.mark(at, 0, guard);
        if depth == DAMAGED_DEPTH {
            continue;
        }
        let len = bytes.min(MIN_BLOCK + segments(VALUE_MOST) as u64 * 8) as usize;
        let Ok(bytes) = bytes_at(heap.pool().pm(), at, len) else {
            continue;
        };
        let (words, _) = bytes.as_chunks::<8>();
        look.extend(
            words
                .iter()
                .map(|word| (u64::from_le_bytes(*word), depth + 1)),
        );
    }
}

/// Checks the record at `off`: its blocks, and its checksum, which the key is part of.
///
/// # Errors
/// What is wrong.
pub(crate) fn check<M: Media>(heap: &Heap<M>, key: &[u8], off: u64) -> Result<Terms, Damage> {
    let pm = heap.pool().pm();
    let header = header(pm, off)?;
    let terms = header.terms(pm);
    let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
    if !terms.sound() {
        return Err(broken(format!("no record is {terms:?}")));
    }
    let live = |at: u64, bytes: u64| {
        heap.check(at, bytes).map_err(&broken)?;
        if heap.is_live(at) {
            Ok(())
        } else {
            Err(broken(format!("its block {at:#x} is free")))
        }
    };
    live(off, terms.block_bytes())?;
    for (at, len) in parts(pm, off, &terms)? {
        live(at, len as u64)?;
    }
    check_sum(pm, key, off, &terms)?;
    Ok(terms)
}

/// Compares the checksum of the record at `off`, which the key is part of.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_sum<M: Media>(
    pm: &M,
    key: &[u8],
    off: u64,
    terms: &Terms,
) -> Result<(), Damage> {
    sound_value(pm, key, off, terms).map(|_| ())
}

/// As [`value`], if the record's checksum is that of it and of the index key that leads to it.
///
/// # Errors
/// [`Damage`]
#[inline]
pub(crate) fn sound_value<'p, M: Media>(
    pm: &'p M,
    key: &[u8],
    off: u64,
    terms: &Terms,
) -> Result<Cow<'p, [u8]>, Damage> {
    let (value, found) = if terms.is_segmented() {
        let value = value(pm, off, terms)?;
        let crc = sum::append(
            crc32c::crc32c(key),
            &[&terms.summed(), &terms.stored_expiry(), &value],
        );
        (value, crc)
    } else {
        // An expiry lies before the value.
        let before = (terms.value_at() - HEADER) as usize;
        let bytes = bytes_at(pm, off + HEADER, before + terms.len())?;
        let crc = sum::of_three(key, &terms.summed(), bytes);
        (Cow::Borrowed(&bytes[before..]), crc)
    };
    if found == terms.crc() {
        return Ok(value);
    }
    Err(Damage::new(format!(
        "record {off:#x}: checksum {found:#010x}, expected {:#010x}",
        terms.crc()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_they_were_written() {
        for stamp in [
            Stamp::Dead,
            Stamp::At(1),
            Stamp::At(TS_MOST),
            Stamp::Pending { slot: 0, ts: 1 },
            Stamp::Pending {
                slot: 255,
                ts: TS_MOST,
            },
        ] {
            assert_eq!(Stamp::decode(stamp.encode()), stamp);
        }
        assert_eq!(Stamp::Dead.ts(), None);
        assert_eq!(Stamp::Pending { slot: 3, ts: 9 }.ts(), Some(9));
    }

    #[test]
    fn no_flipped_bit_makes_a_stamp_dead_or_a_committed_one_pending_under_a_slot() {
        for ts in [1, 2, 9, 1 << 30, (1 << 52) - 1] {
            for bit in 0..64 {
                let flipped = Stamp::decode(Stamp::At(ts).encode() ^ 1 << bit);
                assert!(
                    matches!(flipped, Stamp::At(_) | Stamp::Pending { slot: 0, .. }),
                    "{flipped:?}"
                );
                let pending = Stamp::Pending { slot: 63, ts };
                let flipped = Stamp::decode(pending.encode() ^ 1 << bit);
                let possible = match flipped {
                    Stamp::At(ts) => is_time_stamp(ts),
                    Stamp::Dead => true,
                    Stamp::Pending { .. } => false,
                };
                assert!(!possible, "{flipped:?}");
            }
        }
        for bit in 0..64 {
            match Stamp::decode(Stamp::Dead.encode() ^ 1 << bit) {
                Stamp::Dead => panic!("bit {bit}"),
                Stamp::At(ts) | Stamp::Pending { ts: ts @ 0, .. } => assert!(!is_time_stamp(ts)),
                Stamp::Pending { slot, .. } => assert_eq!(slot, 255),
            }
        }
    }
}
