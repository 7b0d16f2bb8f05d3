//! Every durable ordered index of the papers, one module per design, built from the same parts as
//! Bristlecone's own index (`bristlecone-index`); and the structures that they are compared with.
//!
//! | family | designs |
//! | --- | --- |
//! | [`leaf`] | persistent leaves under an inner index in DRAM: [`fptree`], [`wbtree`], [`crabtree`]; LB+-Tree is [`lbtree`] |
//! | [`append`] | leaves that are only appended to: [`nvtree`], [`nvta`] |
//! | [`log`] | [`lstree`], the log-structured B+-tree |
//! | [`persistent`] | all nodes in persistent memory: [`btree`], [`unsorted`], [`fastfair`], [`cddstree`] |
//! | [`latchfree`] | [`bztree`] on the multi-word swap, [`bwtree`] |
//! | [`skiplist`] | skip lists: whole in the pool, or divided |
//!
//! [`designs`] offers them by name, for programs whose users choose. [`engines`] offers them for
//! stores. [`design!`] makes a design of an index that is not here.

pub mod append;
pub mod designs;
pub mod engines;
mod forward;
pub mod latchfree;
pub mod leaf;
pub mod log;
pub mod persistent;
pub mod skiplist;
mod sync;

pub use append::{nvta, nvtree};
pub use latchfree::{bwtree, bztree};
pub use leaf::{central, crabtree, fptree, wbtree};
pub use log::lstree;
pub use persistent::{btree, cddstree, fastfair, unsorted};

pub use bristlecone_index::{
    clustered, contract as index, damage, fingerprint, inner, lbtree, leaftree, repr, version_lock,
};
use bristlecone_index::{common, content, link, range, saved, threads};

pub use bristlecone_index::content::is_sealed;
#[doc(hidden)] // for `design!`
pub use bristlecone_pmem as pmem;

pub use bristlecone_index::{
    BulkLoad, DurableIndex, Fill, Hint, IndexStats, InsertError, KeyRepr, LbOptions, LbTree,
    LeafOptions, MAX_KEY, MAX_VALUE, OrderedIndex, RecoveryReport, RemoveError, Repr, ReverseScan,
    Stored, StoredKey, TreeError, UpdateError, VerifyReport, Violation, Word,
};
pub use btree::{BTreeOptions, BTreeWal, GroupFlush, LcbTree, Search};
pub use bwtree::{BwOptions, BwTree};
pub use bztree::{BzOptions, BzTree};
pub use cddstree::{CddsOptions, CddsTree};
pub use central::{CentralOptions, SplitLog};
pub use crabtree::{CrabOptions, CrabTree};
pub use designs::Design;
pub use fastfair::{FastFair, FastFairOptions, FastFairSp};
pub use fptree::FpTree;
pub use lstree::{LsOptions, LsTree};
pub use nvta::NvtATree;
pub use nvtree::{NvOptions, NvTree};
pub use skiplist::{DividedSkipList, NvmSkipList, SkipList, SkipOptions};
pub use unsorted::UnsortedTree;
pub use wbtree::WbTree;
