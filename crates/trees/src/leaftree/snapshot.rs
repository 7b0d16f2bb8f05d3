//! The snapshot that a clean close leaves: the inner index and the allocator's marks.
//!
//! ```text
//! part    | offset of the next part, 0 for the last (8) | bytes that follow (8) | payload ...
//! payload | magic "LBSNAP01" | leaves (u64) | handles (u32 each)
//!         | separators of all leaves but the first: u64: 8 bytes; byte strings: length (u32), bytes
//!         | the allocator's marks | CRC-32C of all before (u32)
//! ```
//!
//! The snapshot word of the root leads to the first part. It is taken back, durably, before anything
//! else changes, so a snapshot is used at most once; its blocks are in no marks, so they are free by
//! then. A snapshot that fails its checksum costs a rebuild, nothing else.

use super::{Inner, LeafDesign, LeafTree, SNAPSHOT, TreeError, offset};
use crate::inner::InnerIndex;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::heap::MAX_BLOCK;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media};
use std::sync::atomic::Ordering;

/// The inner index and the number of leaves.
type Saved<K, M> = (Inner<K, M>, u64);

const MAGIC: [u8; 8] = *b"LBSNAP01";
const PART_HEADER: usize = 16;
const PART: usize = MAX_BLOCK as usize - PART_HEADER;

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Saves the volatile part. If there is no room for it, the next opening rebuilds.
    pub(super) fn save_snapshot(&self, root: &Root<M>) {
        let mut handles = Vec::new();
        let mut separators = Vec::new();
        self.inner.for_each_leaf(|low, leaf| {
            handles.extend(leaf.to_le_bytes());
            if let Some(low) = low {
                low.save(&mut separators);
            }
        });
        let mut payload = Vec::with_capacity(handles.len() + separators.len() + 65_536);
        payload.extend(MAGIC);
        payload.extend((handles.len() as u64 / 4).to_le_bytes());
        payload.append(&mut handles);
        payload.append(&mut separators);
        self.heap.save_marks(&mut payload);
        payload.extend(crc32c::crc32c(&payload).to_le_bytes());

        let pm = self.pm();
        let mut next = 0u64;
        let mut parts = Vec::new();
        for bytes in payload.chunks(PART).rev() {
            let Ok(block) = self.heap.alloc((PART_HEADER + bytes.len()) as u64) else {
                for block in parts {
                    self.heap.free(block);
                }
                return;
            };
            parts.push(block);
            let at = pm.base().wrapping_add(block.get() as usize);
            let mut header = [0; PART_HEADER];
            header[..8].copy_from_slice(&next.to_le_bytes());
            header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            // SAFETY: 1. the block is inside the pool and has room for the part; 2. it was just
            // allocated, so no one else has its address.
            unsafe {
                write_bytes(pm, at, &header);
                write_bytes(pm, at.wrapping_add(PART_HEADER), bytes);
            }
            // PERSIST: the part, before the word that leads to it.
            pm.flush(at, PART_HEADER + bytes.len());
            next = block.get();
        }
        pm.fence();
        // PERSIST: (in `publish`) the snapshot counts; nothing is changed after it.
        root.word(SNAPSHOT).publish(pm, next);
    }
}

/// Reads the snapshot, if there is a whole one, and takes its word back. Marks the heap.
pub(super) fn load<K: KeyRepr + ?Sized, M: Media>(
    root: &Root<M>,
    heap: &Heap<M>,
    leaf_bytes: u64,
) -> Result<Option<Saved<K, M>>, TreeError> {
    let pm = root.pool().pm();
    // ORDERING: Relaxed; the tree is being opened.
    let first = root.word(SNAPSHOT).load(pm, Ordering::Relaxed);
    if first == 0 {
        return Ok(None);
    }
    let loaded = gather(pm, first).and_then(|payload| parse(&payload, heap, leaf_bytes));
    if !pm.planted("lbtree-snapshot-kept") {
        // PERSIST: (in `publish`) the snapshot no longer counts, before the tree changes or its blocks
        // are used again.
        root.word(SNAPSHOT).publish(pm, 0);
    }
    if loaded.is_none() {
        heap.begin_recovery();
    }
    Ok(loaded)
}

/// The parts of a snapshot as one payload, checksum verified and cut off.
fn gather<M: Media>(pm: &M, first: u64) -> Option<std::borrow::Cow<'_, [u8]>> {
    let part = |off: u64| -> Option<(u64, &[u8])> {
        let len = pm.len();
        if off < CHUNK || !off.is_multiple_of(8) || off.checked_add(PART_HEADER as u64)? > len {
            return None;
        }
        let at = pm.base().wrapping_add(off as usize).cast_const();
        if M::TRACED {
            pm.trace_load(at, PART_HEADER);
        }
        // SAFETY: 1. `off + 16 <= len`: inside the pool; 2. no one writes while the tree is opened.
        let header = unsafe { at.cast::<[u8; PART_HEADER]>().read() };
        let next = u64::from_le_bytes(header[..8].try_into().ok()?);
        let bytes = u64::from_le_bytes(header[8..].try_into().ok()?);
        if bytes > PART as u64 || off + PART_HEADER as u64 + bytes > len {
            return None;
        }
        if M::TRACED {
            pm.trace_load(at.wrapping_add(PART_HEADER), bytes as usize);
        }
        // SAFETY: 1. the range was just checked; 2. as above.
        let payload =
            unsafe { std::slice::from_raw_parts(at.wrapping_add(PART_HEADER), bytes as usize) };
        Some((next, payload))
    };
    let (mut next, payload) = part(first)?;
    let mut payload = std::borrow::Cow::Borrowed(payload);
    while next != 0 {
        let (after, more) = part(next)?;
        // A loop of parts would otherwise never end.
        if payload.len() as u64 + more.len() as u64 > pm.len() || more.is_empty() {
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
        std::borrow::Cow::Borrowed(bytes) => std::borrow::Cow::Borrowed(&bytes[..cut]),
        std::borrow::Cow::Owned(mut bytes) => {
            bytes.truncate(cut);
            std::borrow::Cow::Owned(bytes)
        }
    })
}

fn parse<K: KeyRepr + ?Sized, M: Media>(
    payload: &[u8],
    heap: &Heap<M>,
    leaf_bytes: u64,
) -> Option<Saved<K, M>> {
    let rest = payload.strip_prefix(&MAGIC)?;
    let (leaves, rest) = rest.split_first_chunk::<8>()?;
    let leaves = usize::try_from(u64::from_le_bytes(*leaves)).ok()?;
    let (handles, mut rest) = rest.split_at_checked(leaves.checked_mul(4)?)?;
    let mut handles = handles
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    // A checksum is no proof of who made it: every leaf must at least be inside the pool.
    let end = heap.pool().pm().len();
    let inside = |leaf: u32| offset(leaf) >= CHUNK && offset(leaf) + leaf_bytes <= end;
    let first = handles.next().filter(|leaf| inside(*leaf))?;
    let mut whole = true;
    let separators = std::iter::from_fn(|| {
        let leaf = handles.next()?;
        match K::restore(&mut rest) {
            Some(separator) if inside(leaf) => Some((separator, leaf)),
            _ => {
                whole = false;
                None
            }
        }
    });
    let inner = InnerIndex::from_sorted(
        first,
        separators,
        super::recovery::INNER_FILL,
        heap.pool().pm().capacity(),
    )
    .ok()?;
    if !whole || heap.load_marks(rest)? != rest.len() {
        return None;
    }
    // The checksum vouches for the rest.
    Some((inner, leaves as u64))
}
