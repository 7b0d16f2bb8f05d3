//! The nodes of the bottom list.
//!
//! ```text
//!  0 | key word | value word | next: link to the next node, bit 0 = left | height:32 check:32 |
//! 32 | links of levels 1 .. height - 1, where towers are in the pool                         |
//! ```
//!
//! `check` is the CRC-32C of the key word and the height. Walks compare it, and the check of the
//! [`link`]. Nothing that fits beside the value word covers it, since an update stores it alone.
//!
//! Blocks are at least 16-aligned, so a link has spare low bits. Bit 0 of a link says that its
//! owner has left that level, and that nothing may be linked behind it any more. It is set once the
//! owner is durably unlinked, so no crash finds it in a node that the list leads to.

use crate::link;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use bristlecone_pmem::{Media, PWord, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum height of a node, the bottom list included: with one node in four a level higher, enough
/// for 2^32 of them.
pub(super) const MAX_HEIGHT: usize = 16;

/// Bit of a link whose owner has left the level.
pub(super) const LEFT: u64 = 1;

/// Returns true if the owner of this link has left the level.
#[inline(always)]
pub(super) fn has_left(link: u64) -> bool {
    link & LEFT != 0
}

/// Returns the target of a link; 0 at the end.
#[inline(always)]
pub(super) fn target(link: u64) -> u64 {
    link & !LEFT
}

/// The bits of the height in its word.
const HEIGHT: u64 = u32::MAX as u64;

/// Returns the word of a height, with the check of key and height.
pub(super) fn shape(key: u64, height: u64) -> u64 {
    let sum = crc32c::crc32c(&key.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &height.to_le_bytes());
    height | u64::from(sum) << 32
}

/// Head of every node: the part that a crash must keep.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Node {
    /// The key's word, which never changes.
    pub key: PWord,
    /// The value's word, under the lock of the node before.
    pub value: PWord,
    /// Link of the bottom list, under this node's lock.
    pub next: PWord,
    /// Height of the node and the check of its key word and height, which never change.
    pub shape: PWord,
}

/// Bytes of a node without links of upper levels.
pub(super) const NODE_BYTES: u64 = size_of::<Node>() as u64;

const _: () = assert!(size_of::<Node>() == 32 && align_of::<Node>() == 8);

/// The nodes of a pool.
pub struct Nodes<M: Media> {
    base: *mut u8,
    pool: Arc<Pool<M>>,
}

impl<M: Media> std::fmt::Debug for Nodes<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("pool", &self.pool).finish()
    }
}

// SAFETY: 1. `base` is the pool's mapping, which `pool` keeps alive and which any thread may use;
// 2. all persistent words are atomics.
unsafe impl<M: Media> Send for Nodes<M> {}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<M: Media> Sync for Nodes<M> {}

impl<M: Media> Nodes<M> {
    pub(super) fn new(pool: &Arc<Pool<M>>) -> Self {
        Self {
            base: pool.pm().base(),
            pool: Arc::clone(pool),
        }
    }

    pub(super) fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    #[inline(always)]
    pub(super) fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// Returns the node at an offset from the allocator, from recovery, or from a link.
    #[inline(always)]
    pub(super) fn at(&self, off: u64) -> &Node {
        // SAFETY: 1. a block of at least 32 bytes is there, inside the mapping: the offset came
        // from the allocator or was checked by recovery, and links only hold such offsets; 2.
        // blocks are 16-aligned; 3. a Node is all atomic words, valid for any bits; 4. the mapping
        // lives as long as `pool`, and a node that was freed meanwhile is still mapped memory.
        unsafe { &*self.base.wrapping_add(off as usize).cast::<Node>() }
    }

    /// Returns the link of an upper level in a node that has that level.
    #[inline(always)]
    pub(super) fn upper(&self, off: u64, level: usize) -> &PWord {
        debug_assert!((1..MAX_HEIGHT).contains(&level), "level {level}");
        let at = off + NODE_BYTES + 8 * (level as u64 - 1);
        // SAFETY: 1. the node's block has room for its height's links, and only searches of those
        // levels come here; 2. the word is 8-aligned; 3. and 4. as in `at`.
        unsafe { &*self.base.wrapping_add(at as usize).cast::<PWord>() }
    }

    /// Returns the link of the bottom list after `off`, with the mark.
    #[inline(always)]
    pub(super) fn next(&self, off: u64) -> u64 {
        // ORDERING: Acquire; pairs with the Release store that linked the node it leads to.
        link::offset(self.at(off).next.load(self.pm(), Ordering::Acquire))
    }

    /// Checks all that has a check in the node at `off`, which the list leads to.
    pub(super) fn sound(&self, off: u64) -> Result<(), String> {
        let node = self.at(off);
        // ORDERING: Acquire; as in `next`.
        link::checked(node.next.load(self.pm(), Ordering::Acquire))?;
        let (key, height) = (self.key(off), self.height(off));
        // ORDERING: Relaxed; as the key.
        let found = node.shape.load(self.pm(), Ordering::Relaxed);
        if found == shape(key, height) {
            Ok(())
        } else {
            Err(format!(
                "key {key:#x} and height {height} fail their check, {found:#x}"
            ))
        }
    }

    /// Returns the node's key word.
    #[inline(always)]
    pub(super) fn key(&self, off: u64) -> u64 {
        // ORDERING: Relaxed; written before the node was linked, and the thread that reads it
        // acquired the link.
        self.at(off).key.load(self.pm(), Ordering::Relaxed)
    }

    /// Returns the node's value word. It is right under the lock of the node before, or once that
    /// node's version is validated.
    #[inline(always)]
    pub(super) fn value(&self, off: u64) -> u64 {
        // ORDERING: Relaxed; the lock's version orders it.
        self.at(off).value.load(self.pm(), Ordering::Relaxed)
    }

    /// Returns the node's height.
    #[inline(always)]
    pub(super) fn height(&self, off: u64) -> u64 {
        // ORDERING: Relaxed; as the key.
        self.at(off).shape.load(self.pm(), Ordering::Relaxed) & HEIGHT
    }

    /// Prefetches a node's first line.
    #[inline(always)]
    pub(super) fn prefetch(&self, off: u64) {
        if off != 0 {
            let at = self.base.wrapping_add(off as usize);
            bristlecone_pmem::media::cpu::prefetch(at, NODE_BYTES as usize);
            M::Dram::touch(DramRegion::Pool, DramAccess::Prefetch, off, NODE_BYTES);
        }
    }

    /// Prefetches a node whose offset has not been checked yet.
    pub(super) fn prefetch_checked(&self, off: u64) {
        if off < self.pm().len() {
            self.prefetch(off);
        }
    }
}
