//! Designs with all nodes in persistent memory.

pub mod btree;
pub mod cddstree;
pub mod fastfair;
pub mod unsorted;
