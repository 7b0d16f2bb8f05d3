//! Bristlecone's workloads, measurements and reports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`figure`] | the papers' figures and tables, regenerated beside their claims |
//! | [`limits`] | what the hardware allows: flush, fence, cache miss, copy, sync |
//! | [`model`] | the cost of a run on a described memory device |
//! | [`micro`] | single operations on one index, beside its peers in the same run |
//! | [`peers`] | the product beside embedded databases, in turns |
//! | [`power_cut`] | power cuts over the system calls of a database on the journal |
//! | [`report`] | one page with every figure |
//! | [`workload`] | the keys of an experiment, and their order |
//!
//! The speed of a machine drifts, so nothing here compares two runs. Contenders run in slices that
//! take turns, and ratios are taken slice by slice.

mod count;
mod error;
pub mod figure;
pub mod limits;
pub mod micro;
pub mod model;
pub mod peers;
pub mod power_cut;
pub mod report;
pub mod workload;

pub use count::parse_count;
pub use error::LabError;
