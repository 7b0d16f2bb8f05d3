//! What a clean close saves, for designs all of whose nodes are in the pool: the allocator's marks and a
//! few counts. With them the next opening need not walk the structure.
//!
//! ```text
//! block | bytes that follow (u64) | magic "MARKS001" | counts (u64 each) | the allocator's marks
//!       | CRC-32C of all from the magic on (u32)
//! ```
//!
//! A root word leads to the block. It is taken back, durably, before anything else changes, so what is saved is
//! used at most once; the block is in no marks, so it is free by then. If it fails its checksum, or
//! there was no room for it, the next opening walks.

use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::heap::MAX_BLOCK;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media, PWord};
use std::sync::atomic::Ordering;

const MAGIC: [u8; 8] = *b"MARKS001";
const HEADER: usize = 8;

/// Saves `counts` and the heap's marks under the root word `at`. Nothing may change afterwards.
pub(crate) fn save<M: Media>(heap: &Heap<M>, at: &PWord, counts: &[u64]) {
    let mut payload = vec![0; HEADER];
    payload.extend(MAGIC);
    for count in counts {
        payload.extend(count.to_le_bytes());
    }
    heap.save_marks(&mut payload);
    payload.extend(crc32c::crc32c(&payload[HEADER..]).to_le_bytes());
    let length = (payload.len() - HEADER) as u64;
    payload[..HEADER].copy_from_slice(&length.to_le_bytes());
    if payload.len() as u64 > MAX_BLOCK {
        return;
    }
    let Ok(block) = heap.alloc(payload.len() as u64) else {
        return;
    };
    let pm = heap.pool().pm();
    let start = pm.base().wrapping_add(block.get() as usize);
    // SAFETY: 1. the block is inside the pool and has room for the payload, in whole words; 2. it was
    // just allocated, so no one else has its address.
    unsafe { write_bytes(pm, start, &payload) };
    // PERSIST: the payload, before the word that leads to it.
    pm.flush(start, payload.len());
    pm.fence();
    // PERSIST: (in `publish`) it counts; nothing is changed after it.
    at.publish(pm, block.get());
}

/// Reads what was saved under the root word `at`, if it is whole, marks the heap (recovery has begun)
/// and takes the word back. `None`: the structure is to be walked.
pub(crate) fn load<M: Media, const N: usize>(heap: &Heap<M>, at: &PWord) -> Option<[u64; N]> {
    let pm = heap.pool().pm();
    // ORDERING: Relaxed; the structure is being opened.
    let block = at.load(pm, Ordering::Relaxed);
    if block == 0 {
        return None;
    }
    let counts = payload(pm, block).and_then(|payload| {
        let mut rest = payload.strip_prefix(&MAGIC)?;
        let mut counts = [0; N];
        for count in &mut counts {
            let (eight, after) = rest.split_first_chunk::<8>()?;
            *count = u64::from_le_bytes(*eight);
            rest = after;
        }
        (heap.load_marks(rest)? == rest.len()).then_some(counts)
    });
    // PERSIST: (in `publish`) what was saved no longer counts, before anything is changed or its block
    // is used again.
    at.publish(pm, 0);
    if counts.is_none() {
        heap.begin_recovery();
    }
    counts
}

/// The payload at `off`, checksum verified and cut off.
fn payload<M: Media>(pm: &M, off: u64) -> Option<&[u8]> {
    let len = pm.len();
    if off < CHUNK || !off.is_multiple_of(8) || off.checked_add(HEADER as u64)? > len {
        return None;
    }
    let at = pm.base().wrapping_add(off as usize).cast_const();
    if M::TRACED {
        pm.trace_load(at, HEADER);
    }
    // SAFETY: 1. `off + 8 <= len`: inside the pool; 2. no one writes while the structure is opened.
    let length = u64::from_le_bytes(unsafe { at.cast::<[u8; HEADER]>().read() });
    if length > MAX_BLOCK || off + HEADER as u64 + length > len {
        return None;
    }
    let (at, length) = (at.wrapping_add(HEADER), length as usize);
    if M::TRACED {
        pm.trace_load(at, length);
    }
    // SAFETY: 1. the range was just checked; 2. as above.
    let bytes = unsafe { std::slice::from_raw_parts(at, length) };
    let (bytes, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(bytes) == u32::from_le_bytes(*crc)).then_some(bytes)
}
