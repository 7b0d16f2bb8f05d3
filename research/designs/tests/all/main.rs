//! The integration tests in one program, with a module for each subject, so that shared code is
//! compiled and linked once. `cargo test -p bristlecone-designs --test all fptree::` runs one
//! module. Damaged files are a program of their own, `hostile`, which can be run under a sanitizer
//! by itself.

mod btree_persist_cost;
mod btree_wal;
mod bwtree;
mod bztree;
mod bztree_cost;
mod cddstree;
mod cddstree_cost;
mod clustered;
mod clustered_cost;
mod common;
mod crabtree;
mod crabtree_cost;
mod engines;
mod fastfair;
mod fastfair_cost;
mod fptree;
mod kinds;
mod lbtree;
mod lcbtree;
mod leaf_persist_cost;
mod lstree;
mod lstree_cost;
mod nvtree;
mod persist_cost;
mod reference;
mod regression_recovery;
mod scan_ahead;
mod skiplist;
mod skiplist_cost;
mod unsorted;
mod wbtree;
mod wide_cost;
mod wide_kinds;
