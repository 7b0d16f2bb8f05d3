//! The layout of a pool's file: constants, codecs and the proofs of their sizes. Nothing here
//! accesses a pool, so everything above may use it.
//!
//! | file | describes |
//! | --- | --- |
//! | `layout.rs` | regions, chunks, the chunk table and its words |
//! | `superblock.rs` | the superblock's fields and which of its two copies counts |
//! | `medium.rs` | the codes of media |
//! | `classes.rs` | size classes of blocks |
//! | `activated.rs` | chunks of activated blocks |

pub(crate) mod activated;
pub(crate) mod classes;
pub mod layout;
mod medium;
pub(crate) mod superblock;

pub use medium::MediumKind;

/// Bytes in a cache line: the unit of a flush.
pub const LINE: usize = 64;
