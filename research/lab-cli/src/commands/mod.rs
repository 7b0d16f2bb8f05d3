//! One module per command or group of commands.

pub mod bench;
pub mod claims;
pub mod crash;
pub mod crash_disk;
pub mod export;
pub mod figure;
pub mod model;
pub mod pools;
pub mod power_cut;
pub mod report;
pub mod torture;
mod workers;
