//! The device model: what a run would cost on a memory that is not at hand.

mod characterise;
mod device;
mod error;
mod report;
mod run;
mod workload;

pub use characterise::{BandwidthPoint, Characteristics, characterise};
pub use device::{Core, Device, Geometry, Reading, Writing};
pub use error::ModelError;
pub use report::{ModelReport, Stalls};
pub use run::{RunSpec, run};
pub use workload::Workload;
