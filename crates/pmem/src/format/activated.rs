//! Chunks of activated blocks (`heap/activated.rs`).
//!
//! ```text
//! chunk | head: one bit a block, set if it is active; whole lines | block 0 | block 1 | ...
//! ```
//!
//! A block is aligned to lines, not to its size.

use super::LINE;
use super::classes::CLASSES;
use super::layout::CHUNK;
use crate::error::SpaceError;

/// First class of [`CLASSES`] that activated blocks can have: whole lines, a few in a chunk.
const FIRST_CLASS: u8 = 3;
const LAST_CLASS: u8 = 19;
/// End of those classes: tables are indexed by class.
pub(crate) const CLASS_END: usize = LAST_CLASS as usize + 1;

/// The largest activated block in bytes.
pub const MAX_ACTIVATED: u64 = CLASSES[LAST_CLASS as usize];

/// Returns true for a class that chunks of activated blocks can be cut into.
pub(crate) fn is_class(class: u8) -> bool {
    (FIRST_CLASS..=LAST_CLASS).contains(&class) && block_bytes(class).is_multiple_of(LINE as u64)
}

/// Returns the class of the smallest activated block that holds `bytes`.
pub(crate) fn class_of(bytes: u64) -> Result<u8, SpaceError> {
    (FIRST_CLASS..=LAST_CLASS)
        .find(|class| is_class(*class) && block_bytes(*class) >= bytes)
        .ok_or(SpaceError::TooLarge {
            wanted: bytes,
            most: MAX_ACTIVATED,
        })
}

pub(crate) fn block_bytes(class: u8) -> u64 {
    CLASSES[usize::from(class)]
}

/// Returns the bytes of a chunk's head.
pub(crate) fn head_bytes(class: u8) -> u64 {
    (CHUNK / block_bytes(class)).div_ceil(LINE as u64 * 8) * LINE as u64
}

/// Returns the number of blocks in a chunk.
pub(crate) fn blocks_of(class: u8) -> u32 {
    ((CHUNK - head_bytes(class)) / block_bytes(class)) as u32
}

/// Returns the offset of the head's word with the bit of `block`.
pub(crate) fn head_word(chunk: u32, block: u32) -> u64 {
    u64::from(chunk) * CHUNK + u64::from(block / 64) * 8
}

/// Returns the offset of a block.
pub(crate) fn place(chunk: u32, block: u32, class: u8) -> u64 {
    let within = head_bytes(class) + u64::from(block) * block_bytes(class);
    u64::from(chunk) * CHUNK + within
}
