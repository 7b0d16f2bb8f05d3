//! Leaves that are only appended to.

pub mod nvta;
pub mod nvtree;
