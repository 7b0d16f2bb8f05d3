//! Bristlecone's workloads, measurements and reports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`figure`] | the papers' figures and tables, regenerated beside what they claim |
//! | [`limits`] | what the hardware allows: flush, fence, cache miss, copy, sync |
//! | [`model`] | what a run would cost on a memory that is not at hand |
//! | [`micro`] | single operations on one index, beside its peers in the same run |
//! | `stores` | embedded databases against each other (feature `peers`) |
//! | [`workload`] | what keys an experiment uses, and in which order |
//!
//! Speeds drift with the machine's mood, so nothing here compares two runs: whatever is to be
//! compared runs in slices that take turns, and ratios are taken slice by slice.

mod count;
mod error;
pub mod figure;
pub mod limits;
pub mod micro;
pub mod model;
#[cfg(feature = "peers")]
pub mod stores;
pub mod workload;

pub use count::parse_count;
pub use error::LabError;
