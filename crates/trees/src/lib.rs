//! Bristlecone's durable ordered indexes: one module per design, over shared parts.
//!
//! | module | holds |
//! | --- | --- |
//! | [`index`] | the [`OrderedIndex`] contract that every design keeps |
//! | [`designs`] | the designs by name, for programs that let their user choose |
//! | [`inner`] | the DRAM inner index: cache-conscious B+-tree with optimistic lock coupling |
//! | [`lbtree`] | LB+-Tree |
//! | [`btree`] | the conventional B+-tree in persistent memory: LCB+-Tree |
//! | [`unsorted`] | the same with unsorted leaves: persistent unsorted |
//! | [`repr`] | keys and values in 8-byte words; records for byte strings |
//! | [`fingerprint`] | fourteen one-byte hashes compared at once |
//! | [`version_lock`] | optimistic version locks: in inner nodes, and a volatile table for leaves |

pub mod btree;
pub mod designs;
pub mod fingerprint;
pub mod index;
pub mod inner;
pub mod lbtree;
pub mod repr;
mod saved;
mod sync;
pub mod unsorted;
pub mod version_lock;

pub use btree::{BTreeOptions, LcbTree};
pub use designs::Design;
pub use index::{
    BulkLoad, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
pub use lbtree::{LbOptions, LbTree};
pub use repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr};
pub use unsorted::UnsortedTree;

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
