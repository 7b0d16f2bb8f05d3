//! Designs without locks.

pub mod bwtree;
pub mod bztree;
