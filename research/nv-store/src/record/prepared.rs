//! Writing records.

use super::meta::{Meta, block_bytes};
use super::{MAX_INLINE_BYTES, MIN_BLOCK, SEGMENT, Stamp, header};
use crate::checksum;
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Heap, Media, POff, SpaceError};
use bristlecone_store::Damage;
use std::sync::atomic::Ordering;

/// A record that nothing leads to yet. Dropping it frees its blocks.
pub(crate) struct Prepared<'h, M: Media> {
    heap: &'h Heap<M>,
    /// Its offset in the pool.
    pub off: u64,
    pub meta: Meta,
    segments: Vec<u64>,
    published: bool,
}

impl<'h, M: Media> Prepared<'h, M> {
    /// A record to be written to the block at `head`.
    fn on(heap: &'h Heap<M>, head: POff<u8>) -> Self {
        Self {
            heap,
            off: head.get(),
            meta: Meta::default(),
            segments: Vec::new(),
            published: false,
        }
    }

    fn reserve_segments(&mut self, len: usize) -> Result<(), SpaceError> {
        if len > MAX_INLINE_BYTES {
            for at in (0..len).step_by(SEGMENT) {
                let segment = self.heap.alloc((len - at).min(SEGMENT) as u64)?;
                self.segments.push(segment.get());
            }
        }
        Ok(())
    }

    /// Stores the stamp and the offset of the version before, and flushes the head's line; the
    /// caller fences.
    pub fn stamp(&self, stamp: Stamp, previous: u64) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let header = header(pm, self.off)?;
        // ORDERING (both): Relaxed; nothing leads here yet. The index entry's publication orders
        // them before it.
        header.previous.store(pm, previous, Ordering::Relaxed);
        header.stamp.store(pm, stamp.encode(), Ordering::Relaxed);
        // PERSIST: the head's line, with the metadata that `fill` stored. The caller fences it
        // before the index leads to it.
        pm.flush_of(header);
        Ok(())
    }

    /// Hands the record over to the index, which leads to it from now on: dropping this frees
    /// nothing. Returns its offset.
    pub fn release(&mut self) -> u64 {
        self.published = true;
        self.off
    }

    /// Writes metadata and value for the index key with CRC-32C `key_sum`: a value of the length
    /// that the record was reserved for, or a tombstone. All lines but the head's are flushed;
    /// nothing is fenced.
    pub fn fill(&mut self, key_sum: u32, value: Option<&[u8]>, expiry: u64) {
        let bytes = value.unwrap_or(&[]);
        let meta = Meta::new(value, expiry);
        let stored = meta.stored_expiry();
        let crc = checksum::append(key_sum, &[&meta.summed(), &stored, bytes]);
        self.meta = meta.with_crc(crc);
        let pm = self.heap.pool().pm();
        let place = |off: u64| pm.base().wrapping_add(off as usize);
        let mut table = Vec::new();
        for (segment, part) in self.segments.iter().zip(bytes.chunks(SEGMENT)) {
            // SAFETY: 1. a block of that size, whose end is a multiple of 16; 2. nobody else has
            // the block yet.
            unsafe { write_bytes(pm, place(*segment), part) };
            // PERSIST: the segment; fenced with the head.
            pm.flush(place(*segment), part.len());
            table.extend(segment.to_le_bytes());
        }
        let rest = if meta.is_segmented() { &table } else { bytes };
        let mut head = [0; MIN_BLOCK as usize];
        head[16..24].copy_from_slice(&self.meta.body.to_le_bytes());
        head[24..24 + stored.len()].copy_from_slice(&stored);
        let (at, len) = (place(self.off), meta.value_at() as usize);
        // SAFETY: (of both) 1. a block of that size, 16-aligned; 2. nobody else has the block yet.
        unsafe {
            write_bytes(pm, at, &head[..len]);
            write_bytes(pm, at.wrapping_add(len), rest);
        }
        let end = self.off + (len + rest.len()) as u64;
        let next = (self.off + 1).next_multiple_of(LINE as u64);
        if next < end {
            // PERSIST: all lines but the head's; fenced with that.
            pm.flush(place(next), (end - next) as usize);
        }
    }
}

impl<M: Media> Drop for Prepared<'_, M> {
    fn drop(&mut self) {
        if !self.published {
            for segment in &self.segments {
                self.heap.free(POff::new(*segment));
            }
            self.heap.free(POff::new(self.off));
        }
    }
}

/// Writes the record of a value or a tombstone for the index key with CRC-32C `key_sum`. All lines
/// but the head's are flushed; nothing is fenced.
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

/// Reserves blocks for records of values of these lengths and passes each record, still to be
/// filled, to `each`.
///
/// # Errors
/// [`SpaceError`]; some records may have been passed by then.
pub(crate) fn reserve<'h, M: Media>(
    heap: &'h Heap<M>,
    lens: impl Iterator<Item = usize> + Clone,
    mut each: impl FnMut(Prepared<'h, M>),
) -> Result<(), SpaceError> {
    if lens.clone().any(|len| len > MAX_INLINE_BYTES) {
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
