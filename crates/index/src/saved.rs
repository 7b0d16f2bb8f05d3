//! State that a clean close saves for the next opening: bytes in blocks of the root's heap.
//!
//! ```text
//! part  | offset of the next part, 0 for the last (8) | bytes that follow (8) | payload ...
//! after the payload of all parts: its CRC-32C (4)
//! ```
//!
//! A root word leads to the first part. It is cleared, durably, before anything else changes, so a
//! saved state is used at most once. Its blocks are in no marks, so they are free by then. A failed
//! checksum costs only a walk.

use crate::content::is_sealed;
use crate::link;
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::heap::MAX_BLOCK;
use bristlecone_pmem::planted;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The first bytes of saved marks.
const MARKS: [u8; 8] = *b"MARKS001";
const PART_HEADER: usize = 16;
const PART: usize = MAX_BLOCK as usize - PART_HEADER;

/// Saves `payload` under the root's word number `word`. If there is no room, nothing is saved.
pub fn save<M: Media>(root: &Root<M>, heap: &Heap<M>, word: usize, payload: Vec<u8>) {
    save_as(root, heap, word, payload, |first| first);
}

/// The same, with a [`link`] in the root's word, so that no flipped bit of it leads to a state that
/// was saved before.
pub fn save_linked<M: Media>(root: &Root<M>, heap: &Heap<M>, word: usize, payload: Vec<u8>) {
    save_as(root, heap, word, payload, link::word);
}

fn save_as<M: Media>(
    root: &Root<M>,
    heap: &Heap<M>,
    word: usize,
    mut payload: Vec<u8>,
    leads: fn(u64) -> u64,
) {
    payload.extend(crc32c::crc32c(&payload).to_le_bytes());
    let pm = root.pool().pm();
    let mut next = 0u64;
    let mut parts = Vec::new();
    for bytes in payload.chunks(PART).rev() {
        let Ok(block) = heap.alloc((PART_HEADER + bytes.len()) as u64) else {
            for block in parts {
                heap.free(block);
            }
            return;
        };
        parts.push(block);
        let at = pm.base().wrapping_add(block.get() as usize);
        let mut header = [0; PART_HEADER];
        header[..8].copy_from_slice(&next.to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        // SAFETY: 1. the block is inside the pool and has room for the part; 2. it was just
        // allocated, so no other thread has its address.
        unsafe {
            write_bytes(pm, at, &header);
            write_bytes(pm, at.wrapping_add(PART_HEADER), bytes);
        }
        // PERSIST: the part, before the word that leads to it.
        pm.flush(at, PART_HEADER + bytes.len());
        next = block.get();
    }
    pm.fence();
    // PERSIST: (in `publish`) the word that leads to the saved state; nothing is changed after it.
    root.word(word).publish(pm, leads(next));
}

/// Reads the state saved under the root's word number `word` with `read`, if it is whole, and
/// clears the word. Returns the result of `read`.
pub fn load<M: Media, R>(
    root: &Root<M>,
    word: usize,
    read: impl FnOnce(&[u8]) -> Option<R>,
) -> Option<R> {
    load_as(root, word, Some, read)
}

/// The same for what [`save_linked`] saved.
pub fn load_linked<M: Media, R>(
    root: &Root<M>,
    word: usize,
    read: impl FnOnce(&[u8]) -> Option<R>,
) -> Option<R> {
    load_as(root, word, |word| link::checked(word).ok(), read)
}

fn load_as<M: Media, R>(
    root: &Root<M>,
    word: usize,
    led: impl FnOnce(u64) -> Option<u64>,
    read: impl FnOnce(&[u8]) -> Option<R>,
) -> Option<R> {
    let pm = root.pool().pm();
    // ORDERING: Relaxed; the index is being opened.
    let first = root.word(word).load(pm, Ordering::Relaxed);
    if first == 0 {
        return None;
    }
    let loaded = led(first).and_then(|first| gather(pm, first));
    let loaded = loaded.and_then(|payload| read(&payload));
    if !planted!(pm, "lbtree-snapshot-kept") {
        // ORDERING: Relaxed; as above.
        root.word(word).store(pm, 0, Ordering::Relaxed);
        // PERSIST: the cleared word, before the index changes or the saved blocks are used again.
        // Where the close has left a sum, taking that away, which comes before both, fences it.
        pm.flush_of(root.word(word));
        if is_sealed(root) != Some(true) {
            pm.fence();
        }
    }
    loaded
}

/// Saves `counts` and the heap's marks, for designs with all nodes in the pool.
pub fn save_marks<M: Media>(root: &Root<M>, heap: &Heap<M>, word: usize, counts: &[u64]) {
    let mut payload = MARKS.to_vec();
    for count in counts {
        payload.extend(count.to_le_bytes());
    }
    heap.save_marks(&mut payload);
    save_linked(root, heap, word, payload);
}

/// Reads the state of [`save_marks`] and marks the heap, whose recovery has begun (and must begin
/// again if this returns `None`).
pub fn load_marks<M: Media, const N: usize>(
    root: &Root<M>,
    heap: &Heap<M>,
    word: usize,
) -> Option<[u64; N]> {
    let loaded = load_linked(root, word, |payload| {
        let mut rest = payload.strip_prefix(&MARKS)?;
        let mut counts = [0; N];
        for count in &mut counts {
            let (eight, after) = rest.split_first_chunk::<8>()?;
            *count = u64::from_le_bytes(*eight);
            rest = after;
        }
        (heap.load_marks(rest)? == rest.len()).then_some(counts)
    });
    if loaded.is_none() {
        heap.begin_recovery();
    }
    loaded
}

/// Returns all parts as one payload, with its checksum verified and removed.
fn gather<M: Media>(pm: &M, first: u64) -> Option<Cow<'_, [u8]>> {
    let (mut next, payload) = part(pm, first)?;
    let mut payload = Cow::Borrowed(payload);
    let mut seen = HashSet::from([first]);
    while next != 0 {
        let (after, more) = part(pm, next)?;
        // A loop of parts, which damage can make, would otherwise never end.
        if !seen.insert(next) || more.is_empty() {
            return None;
        }
        payload.to_mut().extend_from_slice(more);
        next = after;
    }
    let cut = payload.len().checked_sub(4)?;
    let crc = u32::from_le_bytes(payload[cut..].try_into().ok()?);
    if crc32c::crc32c(&payload[..cut]) != crc {
        return None;
    }
    Some(match payload {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..cut]),
        Cow::Owned(mut bytes) => {
            bytes.truncate(cut);
            Cow::Owned(bytes)
        }
    })
}

/// Returns one part: the offset of the next, and its bytes.
fn part<M: Media>(pm: &M, off: u64) -> Option<(u64, &[u8])> {
    let len = pm.len();
    if off < CHUNK || !off.is_multiple_of(8) || off.checked_add(PART_HEADER as u64)? > len {
        return None;
    }
    let at = pm.base().wrapping_add(off as usize).cast_const();
    if M::TRACED {
        pm.trace_load(at, PART_HEADER);
    }
    // SAFETY: 1. `off + 16 <= len`: inside the pool; 2. no thread writes while the index is opened.
    let header = unsafe { at.cast::<[u8; PART_HEADER]>().read() };
    let next = u64::from_le_bytes(header[..8].try_into().ok()?);
    let bytes = u64::from_le_bytes(header[8..].try_into().ok()?);
    if bytes > PART as u64 || off + PART_HEADER as u64 + bytes > len {
        return None;
    }
    if M::TRACED {
        pm.trace_load(at.wrapping_add(PART_HEADER), bytes as usize);
    }
    // SAFETY: 1. the range was just checked to be inside the pool; 2. no thread writes while the
    // index is opened.
    let payload =
        unsafe { std::slice::from_raw_parts(at.wrapping_add(PART_HEADER), bytes as usize) };
    Some((next, payload))
}
