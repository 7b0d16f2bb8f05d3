//! The snapshot that a clean close leaves: the inner index and the allocator's marks.
//!
//! ```text
//! payload | magic "LBSNAP01" | leaves (u64) | handles (u32 each)
//!         | separators of all leaves but the first: u64: 8 bytes; u128: 16; byte strings: length (u32), bytes
//!         | the allocator's marks
//! ```
//!
//! [`crate::saved`] stores it, and makes sure that it is used at most once.

use super::layout::{INNER_FILL, SNAPSHOT, offset};
use super::{Inner, LeafDesign, LeafTree, TreeError};
use crate::inner::InnerIndex;
use crate::repr::{Stored, StoredKey};
use crate::saved;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media};

/// The inner index and the number of leaves.
type Saved<K, M> = (Inner<K, M>, u64);

const MAGIC: [u8; 8] = *b"LBSNAP01";

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
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
        saved::save_linked(root, &self.heap, SNAPSHOT, payload);
    }
}

/// Reads the snapshot, if there is a whole one, clears its word, and marks the heap.
pub(super) fn load<K: StoredKey + ?Sized, M: Media>(
    root: &Root<M>,
    heap: &Heap<M>,
    leaf_bytes: u64,
) -> Result<Option<Saved<K, M>>, TreeError> {
    let loaded = saved::load_linked(root, SNAPSHOT, |payload| parse(payload, heap, leaf_bytes));
    if loaded.is_none() {
        heap.begin_recovery();
    }
    Ok(loaded)
}

fn parse<K: StoredKey + ?Sized, M: Media>(
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
    // A checksum does not prove that this program wrote the snapshot: every leaf must at least be
    // inside the pool.
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
    let inner =
        InnerIndex::from_sorted(first, separators, INNER_FILL, heap.pool().pm().capacity()).ok()?;
    if !whole || heap.load_marks(rest)? != rest.len() {
        return None;
    }
    // The checksum covers the rest.
    Some((inner, leaves as u64))
}
