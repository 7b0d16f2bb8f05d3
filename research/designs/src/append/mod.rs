//! Designs whose leaves are only appended to.

pub mod nvta;
pub mod nvtree;
