//! Records: byte strings in blocks of their own.
//!
//! ```text
//! record | length (u32) | CRC-32C of the bytes (u32) | bytes ... |      in a block of its size class
//! word   | tag: high 16 bits of the CRC-32C | offset of the block (48 bits) |
//! ```

use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Media, POff, planted};

/// Maximum length of a byte-string value in bytes.
pub const MAX_VALUE: usize = 32 << 20;

/// Bytes of a record before its string.
pub const HEADER: usize = 8;
pub(crate) const TAG_SHIFT: u32 = 48;
pub(crate) const OFFSET_MASK: u64 = (1 << TAG_SHIFT) - 1;

/// Returns the bytes to allocate for a record of `bytes` bytes, so that a record that fits into one
/// line is in one: two of three blocks of 48 bytes begin in one line and end in the next.
#[must_use]
pub const fn within_one_line(bytes: u64) -> u64 {
    const LINE_BYTES: u64 = LINE as u64;
    match bytes {
        33..LINE_BYTES => LINE_BYTES,
        _ => bytes,
    }
}

/// Returns the bytes of a string's record.
pub fn record_bytes(string: &[u8]) -> u64 {
    (HEADER + string.len()) as u64
}

/// Writes and flushes a record; the caller fences. Returns its checksum.
///
/// # Safety
/// 1. `block` is inside the pool, with room for [`record_bytes`]; 2. no other thread reads or
///    writes it.
pub unsafe fn write_record<M: Media>(pm: &M, block: POff<u8>, string: &[u8]) -> u32 {
    let crc = crc32c::crc32c(string);
    let mut header = [0; HEADER];
    // Every caller limits lengths far below 4 GiB.
    header[..4].copy_from_slice(&(string.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&crc.to_le_bytes());
    let at = pm.base().wrapping_add(block.get() as usize);
    // SAFETY: 1. the caller promises that the block is inside the pool and has room for header and
    // string; 2. it promises that no other thread reads or writes the block; 3. blocks, and the
    // string behind the header, are 8-aligned.
    unsafe {
        write_bytes(pm, at, &header);
        write_bytes(pm, at.wrapping_add(HEADER), string);
    }
    let bytes = HEADER + string.len();
    if planted!(pm, "lbtree-record-line") {
        pm.flush(at.wrapping_add(bytes), 64);
    } else {
        // PERSIST: the record; the caller fences it before it publishes the word.
        pm.flush(at, bytes);
    }
    crc
}

/// Compares the checksum of the record in the block at `off`.
///
/// # Errors
/// The reason in words.
pub fn check_record<M: Media>(pm: &M, off: u64) -> Result<(), String> {
    let (crc, bytes) =
        record(pm, off).ok_or_else(|| format!("{off:#x} leads to no record inside the pool"))?;
    let found = crc32c::crc32c(bytes);
    if found == crc {
        Ok(())
    } else {
        Err(format!(
            "record {off:#x}: checksum {found:#010x}, expected {crc:#010x}"
        ))
    }
}

/// Returns the record that `word` leads to: its checksum and its bytes.
///
/// Bounds are checked, so that a corrupt word cannot lead outside the pool.
#[inline]
pub(crate) fn record<M: Media>(pm: &M, word: u64) -> Option<(u32, &[u8])> {
    let off = word & OFFSET_MASK;
    let len = pm.len();
    if off < CHUNK || !off.is_multiple_of(8) || off + HEADER as u64 > len {
        return None;
    }
    let at = pm.base().wrapping_add(off as usize).cast_const();
    if M::TRACED {
        pm.trace_load(at, HEADER);
    }
    // SAFETY: 1. `off + 8 <= len`: inside the pool; 2. records do not change while a pinned reader
    // can reach them, and any bytes are valid here.
    let (length, crc) = unsafe {
        let header = at.cast::<[u8; HEADER]>().read();
        (
            u32::from_le_bytes([header[0], header[1], header[2], header[3]]),
            u32::from_le_bytes([header[4], header[5], header[6], header[7]]),
        )
    };
    if off + HEADER as u64 + u64::from(length) > len || length as usize > MAX_VALUE {
        return None;
    }
    let at = at.wrapping_add(HEADER);
    if M::TRACED {
        pm.trace_load(at, length as usize);
    }
    // SAFETY: 1. `off + 8 + length <= len`: inside the pool, which outlives the borrow of `pm`; 2.
    // nothing writes there while a pinned reader can reach it.
    Some((crc, unsafe {
        std::slice::from_raw_parts(at, length as usize)
    }))
}
