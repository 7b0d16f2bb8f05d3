//! Persistent leaves under an inner index in DRAM that recovery rebuilds.

pub mod central;
pub mod crabtree;
pub mod fptree;
pub mod wbtree;
