//! Bristlecone's durable ordered indexes: one module per design, over shared parts.
//!
//! | module | holds |
//! | --- | --- |
//! | [`index`] | the [`OrderedIndex`](index::OrderedIndex) contract that every design keeps |
//! | [`inner`] | the DRAM inner index: cache-conscious B+-tree with optimistic lock coupling |
//! | [`version_lock`] | optimistic version locks: in inner nodes, and a volatile table for leaves |

pub mod index;
pub mod inner;
mod sync;
pub mod version_lock;

pub use index::{
    BulkLoad, Fill, IndexStats, InsertError, OrderedIndex, RecoveryReport, RemoveError,
    ReverseScan, UpdateError, VerifyReport, Violation,
};
