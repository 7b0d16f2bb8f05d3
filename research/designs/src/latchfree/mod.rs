//! Without locks.

pub mod bwtree;
pub mod bztree;
