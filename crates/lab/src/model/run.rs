//! A run: an index, a device, a workload.

use super::{Device, ModelError, ModelReport, Workload};

/// What to run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The design: `lbtree` or `lbtree-traditional` (no entry moving).
    pub index: String,
    /// Bytes of a leaf: 256, 512, 768 or 1024.
    pub node_bytes: u32,
    /// On what.
    pub device: Device,
    /// What is done.
    pub workload: Workload,
    /// Simulated threads, 1 to 64.
    pub threads: usize,
    /// Keys that are loaded before, uncharged.
    pub keys: u64,
    /// Operations, of all threads together.
    pub ops: u64,
    /// How full the load leaves the leaves, 0 to 1.
    pub fill: f64,
    /// What keys and their order follow from.
    pub seed: u64,
}

/// Runs `spec`; `progress` hears of every so many operations how many were done.
///
/// # Errors
/// [`ModelError`] when a parameter makes no sense, or the index refuses or answers wrongly.
pub fn run(spec: &RunSpec, progress: &mut dyn FnMut(u64)) -> Result<ModelReport, ModelError> {
    spec.device.check()?;
    progress(0);
    Err(ModelError::parameter(
        "index",
        &spec.index,
        "run once the simulator is there",
    ))
}
