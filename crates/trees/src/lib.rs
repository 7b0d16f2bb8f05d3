//! Bristlecone's durable ordered indexes: one module per design, over shared parts.
//!
//! | module | holds |
//! | --- | --- |
//! | [`index`] | the [`OrderedIndex`] contract that every design keeps |
//! | [`designs`] | the designs by name, for programs that let their user choose |
//! | [`inner`] | the DRAM inner index: cache-conscious B+-tree with optimistic lock coupling |
//! | [`lbtree`] | LB+-Tree |
//! | [`nvtree`] | NV-Tree, with and without workload adaptivity, and NVT-A |
//! | [`repr`] | keys and values in 8-byte words; records for byte strings |
//! | [`fingerprint`] | fourteen one-byte hashes compared at once |
//! | [`version_lock`] | optimistic version locks: in inner nodes, and a volatile table for leaves |

pub mod designs;
pub mod fingerprint;
pub mod index;
pub mod inner;
pub mod lbtree;
pub mod nvtree;
pub mod repr;
mod snapshot;
mod sync;
pub mod version_lock;

pub use designs::Design;
pub use index::{
    BulkLoad, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
pub use lbtree::{LbOptions, LbTree};
pub use nvtree::{NvOptions, NvTree};
pub use repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr};

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
