//! Persistent leaves under an inner index in DRAM, which recovery makes again.

pub mod central;
pub mod crabtree;
pub mod fptree;
pub mod wbtree;
