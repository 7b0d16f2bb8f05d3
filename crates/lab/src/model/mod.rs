//! The device model: what a run would cost on a memory that is not at hand.

mod cache;
mod characterise;
mod device;
mod error;
mod machine;
mod memory;
mod report;
mod run;
mod source;
mod trace;
mod workload;

pub use characterise::{BandwidthPoint, Characteristics, characterise};
pub use device::{Core, Device};
pub use error::ModelError;
pub use report::{ModelReport, Stalls};
pub use run::{RunSpec, run};
pub use workload::Workload;
