//! Records: RocksDB's entries, whole, in chunks of the pool.
//!
//! ```text
//! record | length of the entry (u32) | CRC-32C of the entry (u32) | entry ... |
//! entry  | key, with its length | length of the value (varint32) | value | perhaps RocksDB's checksum |
//! ```
//!
//! RocksDB writes an entry straight into its record. The record is then sealed with its checksum,
//! flushed, and reached through the memtable's index. Records are never freed one by one, so they
//! lie one after the other in chunks of a [`Records`], and one that fits in a line does not cross
//! it. A large one has chunks of its own.
//!
//! # Crash states
//! 1. A record that no index leads to was never inserted. Its chunks go with all the others of its
//!    generation (`session.rs`).

use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::{Auto, LINE};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, POff, SpaceError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a record before its entry.
pub const HEADER: usize = 8;
pub(crate) const TAG_SHIFT: u32 = 48;
pub(crate) const OFFSET_MASK: u64 = (1 << TAG_SHIFT) - 1;

/// Records of more bytes have chunks of their own.
const LARGE: u64 = CHUNK / 2;

/// Returns length and checksum of the record at `off`, and where its entry is; `None` if it cannot
/// be one.
#[inline]
fn located<M: Media>(pm: &M, off: u64) -> Option<(u32, u32, *const u8)> {
    let len = pm.len();
    if off < CHUNK || !off.is_multiple_of(8) || off + HEADER as u64 > len {
        return None;
    }
    let at = pm.base().wrapping_add(off as usize).cast_const();
    // SAFETY: 1. `off + 8 <= len`: inside the pool; 2. a record's header does not change while an
    // index leads to it, and any bytes are valid here.
    let header = unsafe { at.cast::<[u32; 2]>().read() };
    let [length, crc] = header.map(u32::from_le);
    (off + HEADER as u64 + u64::from(length) <= len).then(|| (length, crc, at.wrapping_add(HEADER)))
}

/// Returns the entry of the record at `off`; `None` if it cannot be one.
#[inline]
pub fn entry<M: Media>(pm: &M, off: u64) -> Option<&[u8]> {
    let (length, _, at) = located(pm, off)?;
    // SAFETY: 1. the entry is inside the pool, which outlives the borrow of `pm`; 2. nothing writes
    // there while an index leads to it.
    Some(unsafe { std::slice::from_raw_parts(at, length as usize) })
}

/// Checks the record at `off`.
///
/// # Errors
/// The reason in words.
pub fn check<M: Media>(pm: &M, off: u64) -> Result<(), String> {
    let (_, crc, _) =
        located(pm, off).ok_or_else(|| format!("{off:#x} leads to no record inside the pool"))?;
    let entry = entry(pm, off).unwrap_or_default();
    let found = crc32c::crc32c(entry);
    if found != crc {
        return Err(format!(
            "record {off:#x}: checksum {found:#010x}, expected {crc:#010x}"
        ));
    }
    if crate::key::Entry::parse(entry).is_none() {
        return Err(format!("record {off:#x} holds no entry"));
    }
    Ok(())
}

/// Returns where a record of `bytes` begins, from `at` on, so that it does not cross a line if it
/// fits in one.
fn place(at: u64, bytes: u64) -> u64 {
    let line = LINE as u64;
    if bytes <= line && at % line + bytes > line {
        at.next_multiple_of(line)
    } else {
        at
    }
}

/// The records of one memtable.
#[derive(Debug)]
pub struct Records {
    heap: Heap<Auto>,
    /// The end of the last record of the chunk in use; a multiple of [`CHUNK`] if there is none.
    end: AtomicU64,
    /// The first byte of each run of chunks.
    chunks: Mutex<Vec<u64>>,
    bytes: AtomicU64,
}

impl Records {
    /// Returns no records, in chunks of `heap`.
    pub fn new(heap: Heap<Auto>) -> Self {
        Self {
            heap,
            end: AtomicU64::new(0),
            chunks: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of the chunks.
    pub fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; an estimate.
        self.bytes.load(Ordering::Relaxed)
    }

    fn pm(&self) -> &Auto {
        self.heap.pool().pm()
    }

    /// Returns the place for an entry of `len` bytes.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room. Nothing is allocated then.
    pub fn allocate(&self, len: usize) -> Result<*mut u8, SpaceError> {
        let length = u32::try_from(len).map_err(|_| SpaceError::TooLarge {
            wanted: len as u64,
            most: u32::MAX.into(),
        })?;
        let bytes = (HEADER as u64 + u64::from(length)).next_multiple_of(8);
        let off = match bytes > LARGE {
            true => self.chunk(bytes)?,
            false => self.small(bytes)?,
        };
        let at = self.pm().base().wrapping_add(off as usize);
        // SAFETY: 1. the record is inside a chunk of this memtable; 2. no other thread has it; 3.
        // records are 8-aligned.
        unsafe { write_bytes(self.pm(), at, &u64::from(length).to_le_bytes()) };
        Ok(at.wrapping_add(HEADER))
    }

    fn small(&self, bytes: u64) -> Result<u64, SpaceError> {
        loop {
            // ORDERING: Relaxed (all); the offset alone is handed out, and each once. What is there
            // is ordered by the index.
            let end = self.end.load(Ordering::Relaxed);
            let start = place(end, bytes);
            if !end.is_multiple_of(CHUNK) && start + bytes <= end.next_multiple_of(CHUNK) {
                if (self.end)
                    .compare_exchange_weak(end, start + bytes, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(start);
                }
                continue;
            }
            let mut chunks = lock(&self.chunks);
            if self.end.load(Ordering::Relaxed) != end {
                continue; // another thread has taken a chunk
            }
            let chunk = self.heap.alloc(CHUNK)?.get();
            chunks.push(chunk);
            self.bytes.fetch_add(CHUNK, Ordering::Relaxed);
            self.end.store(chunk + bytes, Ordering::Relaxed);
            return Ok(chunk);
        }
    }

    fn chunk(&self, bytes: u64) -> Result<u64, SpaceError> {
        let off = self.heap.alloc(bytes)?.get();
        lock(&self.chunks).push(off);
        let taken = bytes.next_multiple_of(CHUNK);
        // ORDERING: Relaxed; an estimate.
        self.bytes.fetch_add(taken, Ordering::Relaxed);
        Ok(off)
    }

    /// Returns the entry whose place [`allocate`](Self::allocate) returned; `None` if it is none.
    ///
    /// # Safety
    /// 1. `at` is a place that `allocate` returned. 2. RocksDB has written the entry.
    pub unsafe fn written(&self, at: *const u8) -> Option<&[u8]> {
        let off = at.addr().wrapping_sub(self.pm().base().addr() + HEADER);
        entry(self.pm(), off as u64)
    }

    /// Seals the record of an entry with its checksum, and flushes it. The caller fences.
    pub fn seal(&self, entry: &[u8]) {
        let header = u64::from(entry.len() as u32) | u64::from(crc32c::crc32c(entry)) << 32;
        let at = entry.as_ptr().wrapping_sub(HEADER).cast_mut();
        // SAFETY: 1. the header is in front of the entry, which `written` found in the pool; 2.
        // nothing leads to the record yet; 3. records are 8-aligned.
        unsafe { write_bytes(self.pm(), at, &header.to_le_bytes()) };
        // PERSIST: the record; the index fences it before it publishes the word that leads there.
        self.pm().flush(at, HEADER + entry.len());
    }

    /// Gives the chunks back. Durably, no index leads to the records any more, and no thread reads
    /// them.
    pub fn free(&self) {
        for chunk in std::mem::take(&mut *lock(&self.chunks)) {
            self.heap.free(POff::new(chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_fits_in_a_line_is_in_one() {
        assert_eq!(place(64, 64), 64);
        assert_eq!(place(64 + 16, 48), 64 + 16);
        assert_eq!(place(64 + 24, 48), 128);
        assert_eq!(place(64 + 24, 72), 64 + 24);
    }
}
