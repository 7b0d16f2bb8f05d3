//! A device's own figures, measured on the model (`gap-table1`).

use super::Device;
use serde::Serialize;

/// Bandwidth at a number of threads, in 10^9 bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BandwidthPoint {
    /// Simulated threads.
    pub threads: usize,
    /// Loads of consecutive lines.
    pub sequential_read_gbps: f64,
    /// Loads of lines anywhere.
    pub random_read_gbps: f64,
    /// Stores and flushes of consecutive lines.
    pub sequential_write_gbps: f64,
    /// Stores and flushes of lines anywhere.
    pub random_write_gbps: f64,
}

/// What load, store and flush streams measure on a device: Table 1 of the paper on the gap between
/// DRAM and persistent memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Characteristics {
    /// The device.
    pub device: String,
    /// Dependent loads of consecutive lines, idle device.
    pub sequential_read_ns: f64,
    /// Dependent loads of lines anywhere, idle device.
    pub random_read_ns: f64,
    /// Store to a cached line, flush, fence, idle device.
    pub flush_ns: f64,
    /// By number of threads.
    pub bandwidth: Vec<BandwidthPoint>,
}

impl Characteristics {
    /// The best of each column over all numbers of threads: the figures that a table shows.
    #[must_use]
    pub fn peak(&self) -> BandwidthPoint {
        let best = |column: fn(&BandwidthPoint) -> f64| {
            self.bandwidth.iter().map(column).fold(0.0, f64::max)
        };
        BandwidthPoint {
            threads: self.bandwidth.iter().map(|p| p.threads).max().unwrap_or(0),
            sequential_read_gbps: best(|p| p.sequential_read_gbps),
            random_read_gbps: best(|p| p.random_read_gbps),
            sequential_write_gbps: best(|p| p.sequential_write_gbps),
            random_write_gbps: best(|p| p.random_write_gbps),
        }
    }
}

/// Measures `device` with streams of loads, stores and flushes on the model; nothing is read back
/// from the description.
#[must_use]
pub fn characterise(device: &Device) -> Characteristics {
    Characteristics {
        device: device.name().into(),
        sequential_read_ns: 0.0,
        random_read_ns: 0.0,
        flush_ns: 0.0,
        bandwidth: Vec::new(),
    }
}
