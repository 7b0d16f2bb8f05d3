//! Bristlecone's substrate: everything that touches persistence.
//!
//! | module | holds |
//! | --- | --- |
//! | [`media`] | places where a pool can live, and durability there |
//! | [`mod@format`] | the layout of a pool's file |
//! | [`cell`] | persistent words, reported to a traced medium |
//! | [`off`] | persistent pointers |
//! | [`pool`] | one file: superblock, chunks, named roots, growth |
//! | [`heap`] | allocation: scan-recovered (no persist per block), and activated (no walk) |
//! | [`log`] | undo and redo micro-logs for the designs that log |
//! | [`pmwcas`] | persistent multi-word compare-and-swap |
//! | [`memory`] | asking for memory before it is needed |
//! | [`error`] | one error enum per kind of operation |
//! | [`version`] | a version of a format that this build does not read |
//! | [`sync`] | locks that simulated threads can wait for |
//!
//! Nothing above this crate issues a flush, a fence or a raw store to persistent memory by itself.

#[cfg(not(target_endian = "little"))]
compile_error!("pool files are little-endian and words are read in place");

pub mod cell;
#[doc(hidden)]
pub mod damage_is_expected;
pub mod error;
pub mod format;
pub mod heap;
pub mod log;
pub mod media;
pub mod memory;
pub mod off;
pub mod pmwcas;
pub mod pool;
pub mod sync;
pub mod version;

pub use cell::{PWord, PWord16};
pub use error::{CommitError, OpenError, SpaceError};
pub use heap::Heap;
pub use log::Logs;
pub use media::{Access, Durability, Media, MediaOptions, MediumKind};
pub use off::POff;
pub use pool::{Pool, PoolInfo, PoolOptions};
pub use version::VersionError;
