//! Bristlecone's durable ordered index: the LB+-Tree, and the parts that it shares with the designs
//! of `research/designs`.
//!
//! | module | holds |
//! | --- | --- |
//! | [`contract`] | the [`OrderedIndex`] contract that every design keeps |
//! | [`lbtree`] | LB+-Tree |
//! | [`clustered`] | the clustered tree: pages that hold what they index |
//! | [`leaftree`] | the common part of designs with persistent leaves under an inner index in DRAM |
//! | [`inner`] | that inner index: a cache-conscious B+-tree with optimistic lock coupling |
//! | [`repr`] | keys and values in 8-byte words; records for byte strings |
//! | [`engine`] | an index behind a table of functions, and the kinds of them |
//! | [`damage`] | opening and checking that continue where they find damage |
//! | [`fingerprint`] | fourteen one-byte hashes compared at once |
//! | [`version_lock`] | optimistic version locks: in inner nodes, and a volatile table for leaves |

mod arena;
pub mod clustered;
#[doc(hidden)] // for other designs
pub mod common;
#[doc(hidden)] // for other designs
pub mod content;
pub mod contract;
pub mod damage;
pub mod engine;
pub mod fingerprint;
pub mod inner;
pub mod lbtree;
pub mod leaftree;
#[doc(hidden)] // for other designs
pub mod link;
#[doc(hidden)] // for other designs
pub mod range;
mod record;
pub mod repr;
#[doc(hidden)] // for other designs
pub mod saved;
#[doc(hidden)] // for stores
pub mod sorted;
#[doc(hidden)] // for other designs
pub mod sync;
#[doc(hidden)] // for other designs
pub mod threads;
pub mod version_lock;

pub use contract::{
    BulkLoad, Direction, DurableIndex, Fill, Hint, IndexStats, InsertError, OrderedIndex,
    RecoveryReport, RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
pub use lbtree::{LbOptions, LbTree};
pub use leaftree::LeafOptions;
pub use repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr, Stored, StoredKey, Word};
