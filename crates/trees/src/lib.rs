//! Bristlecone's durable ordered indexes: one module per design, over shared parts.
//!
//! | module | holds |
//! | --- | --- |
//! | [`index`] | the [`OrderedIndex`] contract that every design keeps |
//! | [`designs`] | the designs by name, for programs that let their user choose |
//! | [`bwtree`] | the Bw-Tree, volatile |
//! | `bztree` | BzTree, latch-free on the multi-word swap |
//! | [`cddstree`] | CDDS-Tree |
//! | `crabtree` | Crab-tree and Crab_opt |
//! | [`damage`] | opening and checking that go on where they find damage |
//! | [`inner`] | the DRAM inner index: cache-conscious B+-tree with optimistic lock coupling |
//! | [`lbtree`], [`fptree`], [`wbtree`] | LB+-Tree, FPTree, wB+-Tree |
//! | [`central`] | the leaf with one header of FPTree and wB+-Tree, and the log of their splits |
//! | [`btree`], [`unsorted`] | B+-trees wholly in persistent memory: LCB+-Tree, btree-WAL, persistent unsorted |
//! | [`fastfair`] | FAST/FAIR, wholly in persistent memory, and with its inner nodes in DRAM |
//! | [`leaftree`] | what designs with persistent leaves under the inner index have in common |
//! | `lstree` | the log-structured B+-tree, btree-LS |
//! | [`skiplist`] | skip lists: whole in the pool, or divided |
//! | [`nvtree`] | NV-Tree, with and without workload adaptivity |
//! | [`nvta`] | NVT-A: NV-Tree's leaves under persistent inner nodes |
//! | [`repr`] | keys and values in 8-byte words; records for byte strings |
//! | [`fingerprint`] | fourteen one-byte hashes compared at once |
//! | [`version_lock`] | optimistic version locks: in inner nodes, and a volatile table for leaves |

pub mod btree;
pub mod bwtree;
pub mod bztree;
pub mod cddstree;
pub mod central;
pub mod crabtree;
pub mod damage;
pub mod designs;
pub mod fastfair;
pub mod fingerprint;
pub mod fptree;
pub mod index;
pub mod inner;
pub mod lbtree;
pub mod leaftree;
pub mod lstree;
pub mod nvta;
pub mod nvtree;
pub mod repr;
mod saved;
pub mod skiplist;
mod sync;
mod threads;
pub mod unsorted;
pub mod version_lock;
pub mod wbtree;

pub use btree::{BTreeOptions, BTreeWal, GroupFlush, LcbTree, Search};
pub use bwtree::{BwOptions, BwTree};
pub use bztree::{BzOptions, BzTree};
pub use cddstree::{CddsOptions, CddsTree};
pub use crabtree::{CrabOptions, CrabTree};
pub use designs::Design;
pub use fastfair::{FastFair, FastFairOptions, FastFairSp};
pub use fptree::FpTree;
pub use index::{
    BulkLoad, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, Place, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
pub use lbtree::{LbOptions, LbTree};
pub use leaftree::LeafOptions;
pub use lstree::{LsOptions, LsTree};
pub use nvta::NvtATree;
pub use nvtree::{NvOptions, NvTree};
pub use repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr, Stored, StoredKey, Word};
pub use skiplist::{DividedSkipList, NvmSkipList, SkipList, SkipOptions};
pub use unsorted::UnsortedTree;
pub use wbtree::WbTree;
