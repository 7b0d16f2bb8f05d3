//! Version records: one value of one key, from one commit on.
//!
//! ```text
//!  0 | offset of the previous version's record, 0 if there is none
//!  8 | stamp: which commit
//! 16 | value length (30) | apart (1) | expires (1) | CRC-32C (32) of index key, length and flags, expiry, value
//! 24 | only in a record that expires: when, in ms since 1970 (48 bits)
//! 24 or 32 | the value; if it is apart, the offsets of its segments of 1 MiB (the last is shorter)
//!
//! stamp | 0 (9) timestamp (55): committed | 1 (1) slot (8) timestamp (55): pending | 1 (1) 255 (8) 0 (55): dead
//! ```
//!
//! A value that is *apart* is not in the record's block. One of length 0 does not exist: the record
//! is a tombstone.
//!
//! No single flipped bit turns one kind of stamp into another valid one, except for a slot's
//! number: no commit uses slot 0 ([`slots`](crate::slots)), no slot has number 255, and no
//! timestamp is 0.
//!
//! Values of up to [`MAX_INLINE_BYTES`] bytes are in one block with the head, so readers get one
//! slice. Longer values are in segments, so that a pool needs no long runs of free chunks, and
//! grows by little at a time while other threads go on.
//!
//! # Invariants
//! 1. Except for its first two words a record never changes, and nothing leads to it before it is
//!    durable.
//! 2. The head is in one line: blocks of 32 bytes are aligned to 32, and larger records have blocks
//!    of 64 bytes or more.
//! 3. Along `previous`, timestamps strictly decrease. Dead records do not count.

mod meta;
mod prepared;
mod stamp;

pub(crate) use meta::Meta;
pub(crate) use prepared::{Prepared, prepare, reserve};
pub(crate) use stamp::{Stamp, is_valid_timestamp};

use crate::checksum;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media, POff, PWord};
use bristlecone_store::{Damage, MAX_VALUE_BYTES};
use crossbeam_epoch::Guard;
use meta::{EXPIRES, segments};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// Longest value that is in one block with the head.
pub(crate) const MAX_INLINE_BYTES: usize = SEGMENT;
/// Longest value whose checksum opening compares, in bytes: it is not to read all long values of a
/// store.
pub(crate) const MAX_VERIFIED_BYTES: usize = 4096;
/// Bytes of a segment.
const SEGMENT: usize = 1 << 20;
/// Bytes before a value that does not expire.
const HEADER: u64 = 24;
/// Smallest block of a record.
pub(crate) const MIN_BLOCK: u64 = 32;
/// Bytes of an expiry.
const EXPIRY: u64 = 8;
/// Largest timestamp that fits into a stamp.
pub(crate) const MAX_TIMESTAMP: u64 = (1 << 55) - 1;
/// Largest expiry.
const MAX_EXPIRY: u64 = (1 << 48) - 1;
/// How far `mark_damaged` follows words: to the version before, and to that one's segments.
const DAMAGED_DEPTH: u32 = 2;

/// The head of a record.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    pub previous: PWord,
    pub stamp: PWord,
    body: PWord,
    /// The first bytes of the value if the record does not expire.
    expiry: PWord,
}

const _: () = assert!(size_of::<Header>() as u64 == MIN_BLOCK && HEADER + EXPIRY == MIN_BLOCK);

/// Returns the head of the record at `off`.
///
/// # Errors
/// [`Damage`]
#[inline]
pub(crate) fn header<M: Media>(pm: &M, off: u64) -> Result<&Header, Damage> {
    if off < CHUNK || !off.is_multiple_of(16) || off.saturating_add(MIN_BLOCK) > pm.len() {
        return Err(Damage::new(format!("{off:#x} is no place of a record")));
    }
    // SAFETY: 1. inside the pool, which outlives the borrow of `pm`; 2. 16-aligned; 3. a header is
    // all words, valid for any bits, and stores to records are stores of words.
    Ok(unsafe { &*pm.base().wrapping_add(off as usize).cast_const().cast() })
}

impl Header {
    /// Returns the record's metadata.
    #[inline]
    pub fn meta<M: Media>(&self, pm: &M) -> Meta {
        // ORDERING (both): Relaxed; they were stored before the record was published, and its
        // offset was loaded with Acquire.
        let body = self.body.load(pm, Ordering::Relaxed);
        let expiry = match body & EXPIRES {
            0 => 0,
            _ => self.expiry.load(pm, Ordering::Relaxed),
        };
        Meta { body, expiry }
    }

    /// Returns the record's stamp.
    #[inline]
    pub fn stamp<M: Media>(&self, pm: &M) -> Stamp {
        // ORDERING: Acquire; pairs with the Release of `set_stamp`.
        Stamp::decode(self.stamp.load(pm, Ordering::Acquire))
    }

    /// Stores the record's stamp; the caller flushes it.
    pub fn set_stamp<M: Media>(&self, pm: &M, stamp: Stamp) {
        // ORDERING: Release; pairs with the Acquire of `stamp`.
        self.stamp.store(pm, stamp.encode(), Ordering::Release);
    }

    /// Returns the offset of the version before; 0 for none.
    #[inline]
    pub fn previous<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `cut`.
        self.previous.load(pm, Ordering::Acquire)
    }

    /// Unlinks the version before. Not flushed, since recovery ignores `previous` of committed
    /// records.
    pub fn cut<M: Media>(&self, pm: &M) {
        // ORDERING: Release; pairs with the Acquire of `previous`: a reader that finds 0 here also
        // sees the horizon that permitted it.
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
    // SAFETY: 1. inside the pool, which outlives the borrow of `pm`; 2. a record's value does not
    // change while a pinned reader can reach it, and if a damaged pool leads elsewhere, any bytes
    // will do.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Returns the offsets of a record's segments.
fn segment_offsets<M: Media>(pm: &M, off: u64, meta: &Meta) -> Result<Vec<u64>, Damage> {
    if !meta.is_segmented() {
        return Ok(Vec::new());
    }
    if meta.len() > MAX_VALUE_BYTES {
        return Err(Damage::new(format!(
            "record {off:#x}: a value of {} bytes",
            meta.len()
        )));
    }
    let table = bytes_at(pm, off + meta.value_at(), segments(meta.len()) * 8)?;
    let (offsets, _) = table.as_chunks::<8>();
    Ok(offsets
        .iter()
        .map(|eight| u64::from_le_bytes(*eight))
        .collect())
}

/// Returns offset and length of each segment.
fn parts<M: Media>(pm: &M, off: u64, meta: &Meta) -> Result<Vec<(u64, usize)>, Damage> {
    let offsets = segment_offsets(pm, off, meta)?;
    let parts = offsets.into_iter().enumerate();
    Ok(parts
        .map(|(i, at)| (at, (meta.len() - i * SEGMENT).min(SEGMENT)))
        .collect())
}

/// Returns the offsets of all blocks of the record at `off`.
///
/// # Errors
/// [`Damage`]
pub(crate) fn blocks<M: Media>(pm: &M, off: u64, meta: &Meta) -> Result<Vec<u64>, Damage> {
    let mut blocks = segment_offsets(pm, off, meta)?;
    blocks.push(off);
    Ok(blocks)
}

/// Returns the value of the record at `off`: a slice of the pool, or a copy if it has segments.
/// Compares no checksum.
///
/// # Errors
/// [`Damage`]
#[inline]
pub(crate) fn value<'p, M: Media>(
    pm: &'p M,
    off: u64,
    meta: &Meta,
) -> Result<Cow<'p, [u8]>, Damage> {
    if !meta.is_segmented() {
        return bytes_at(pm, off + meta.value_at(), meta.len()).map(Cow::Borrowed);
    }
    let mut all = Vec::with_capacity(meta.len().min(MAX_VALUE_BYTES));
    for (at, len) in parts(pm, off, meta)? {
        all.extend_from_slice(bytes_at(pm, at, len)?);
    }
    Ok(Cow::Owned(all))
}

/// Marks the blocks of the record at `off` as in use, for recovery.
///
/// # Errors
/// [`Damage`]
pub(crate) fn mark<M: Media>(
    heap: &Heap<M>,
    off: u64,
    meta: &Meta,
    guard: &Guard,
) -> Result<(), Damage> {
    let broken = |what| Damage::new(format!("record {off:#x}: {what}"));
    heap.check(off, meta.block_bytes()).map_err(broken)?;
    heap.mark(off, meta.block_bytes(), guard).map_err(broken)?;
    for (at, len) in parts(heap.pool().pm(), off, meta)? {
        heap.mark(at, len as u64, guard).map_err(broken)?;
    }
    Ok(())
}

/// Frees the record at `off` once readers have left. Nothing durable may lead to it any more.
///
/// # Errors
/// [`Damage`]; nothing is freed then.
pub(crate) fn retire<M: Media>(
    heap: &Heap<M>,
    off: u64,
    meta: &Meta,
    guard: &Guard,
) -> Result<(), Damage> {
    // A damaged length must not free another record's blocks.
    let segments = live_segments(heap, off, meta)?;
    heap.retire(POff::new(off), guard);
    for (segment, _) in segments {
        heap.retire(POff::new(segment), guard);
    }
    Ok(())
}

/// As [`parts`], and checks that they and the block with their offsets are live blocks of the right
/// sizes.
fn live_segments<M: Media>(
    heap: &Heap<M>,
    off: u64,
    meta: &Meta,
) -> Result<Vec<(u64, usize)>, Damage> {
    if !meta.is_segmented() {
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
    live(off, meta.block_bytes())?;
    let parts = parts(heap.pool().pm(), off, meta)?;
    for (at, len) in &parts {
        live(*at, *len as u64)?;
    }
    Ok(parts)
}

/// Marks what may be blocks of a damaged record at `off` or of the version before it, so that they
/// are not allocated: its own block, and those that its words lead to. A block that another record
/// has marked stays that record's.
pub(crate) fn mark_damaged<M: Media>(heap: &Heap<M>, off: u64, guard: &Guard) {
    let mut look = vec![(off, 0)];
    while let Some((at, depth)) = look.pop() {
        let Some(bytes) = heap.block_bytes(at) else {
            continue;
        };
        // An error means that it is marked already, which will do.
        let _ = heap.mark(at, 0, guard);
        if depth == DAMAGED_DEPTH {
            continue;
        }
        let len = bytes.min(MIN_BLOCK + segments(MAX_VALUE_BYTES) as u64 * 8) as usize;
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

/// Checks the record at `off`: its blocks, and its checksum, which covers the key.
///
/// # Errors
/// [`Damage`]
pub(crate) fn check<M: Media>(heap: &Heap<M>, key: &[u8], off: u64) -> Result<Meta, Damage> {
    let pm = heap.pool().pm();
    let header = header(pm, off)?;
    let meta = header.meta(pm);
    let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
    if !meta.is_valid() {
        return Err(broken(format!("no record is {meta:?}")));
    }
    let live = |at: u64, bytes: u64| {
        heap.check(at, bytes).map_err(&broken)?;
        if heap.is_live(at) {
            Ok(())
        } else {
            Err(broken(format!("its block {at:#x} is free")))
        }
    };
    live(off, meta.block_bytes())?;
    for (at, len) in parts(pm, off, &meta)? {
        live(at, len as u64)?;
    }
    verify_checksum(pm, key, off, &meta)?;
    Ok(meta)
}

/// Compares the checksum of the record at `off`, which covers the key.
///
/// # Errors
/// [`Damage`]
pub(crate) fn verify_checksum<M: Media>(
    pm: &M,
    key: &[u8],
    off: u64,
    meta: &Meta,
) -> Result<(), Damage> {
    verified_value(pm, key, off, meta).map(|_| ())
}

/// As [`value`], and compares the checksum, which covers the index key that leads to the record.
///
/// # Errors
/// [`Damage`]
// Always: the readers of an engine would share one copy, a call for each value that is read.
#[inline(always)]
pub(crate) fn verified_value<'p, M: Media>(
    pm: &'p M,
    key: &[u8],
    off: u64,
    meta: &Meta,
) -> Result<Cow<'p, [u8]>, Damage> {
    if meta.is_segmented() {
        return verified_segments(pm, key, off, meta);
    }
    // An expiry lies before the value.
    let before = (meta.value_at() - HEADER) as usize;
    let bytes = bytes_at(pm, off + HEADER, before + meta.len())?;
    let found = checksum::of_three(key, &meta.summed(), bytes);
    if found != meta.crc() {
        return Err(wrong_checksum(off, found, meta));
    }
    Ok(Cow::Borrowed(&bytes[before..]))
}

/// As [`verified_value`], of a value in segments. Apart, so that the other is short.
#[cold]
fn verified_segments<'p, M: Media>(
    pm: &'p M,
    key: &[u8],
    off: u64,
    meta: &Meta,
) -> Result<Cow<'p, [u8]>, Damage> {
    let value = value(pm, off, meta)?;
    let found = checksum::append(
        crc32c::crc32c(key),
        &[&meta.summed(), &meta.stored_expiry(), &value],
    );
    if found != meta.crc() {
        return Err(wrong_checksum(off, found, meta));
    }
    Ok(value)
}

#[cold]
fn wrong_checksum(off: u64, found: u32, meta: &Meta) -> Damage {
    Damage::new(format!(
        "record {off:#x}: checksum {found:#010x}, expected {:#010x}",
        meta.crc()
    ))
}
