//! Layout of a leaf tree's root words, and the handles of its leaves.

use crate::contract::Fill;
use bristlecone_pmem::POff;
use bristlecone_pmem::pool::layout::CHUNK;

/// Root word: offset of the first leaf.
pub const HEAD: usize = 0;
/// Root word: offset of the clean-close snapshot, 0 if there is none.
pub(super) const SNAPSHOT: usize = 1;
/// Root word: for the design.
pub const DESIGN_WORD: usize = 2;
/// Root words: offsets of recorded leaves (LB+-Tree, section 4.2), 0 where there is none.
pub(super) const POSITIONS: usize = 8;
/// Number of recorded leaves.
pub(super) const POSITION_COUNT: usize = 64;
/// Alignment of leaves and unit of handles in bytes.
pub const UNIT: u64 = 256;
/// Leaves of up to this many entries are read without allocating.
pub const FEW_ENTRIES: usize = 64;

/// Fill of inner nodes after recovery.
pub(super) const INNER_FILL: Fill = match Fill::percent(85) {
    Some(fill) => fill,
    None => Fill::FULL,
};

/// Returns the handle of the leaf at `off`, which `new_leaf` or recovery has checked to fit.
#[inline(always)]
pub fn handle(off: POff<u8>) -> u32 {
    debug_assert!(
        off.get().is_multiple_of(UNIT) && off.get() >= CHUNK,
        "a leaf at {off:?}"
    );
    (off.get() / UNIT) as u32
}

/// Returns the offset of the leaf with this handle.
#[inline(always)]
pub fn offset(handle: u32) -> u64 {
    u64::from(handle) * UNIT
}
