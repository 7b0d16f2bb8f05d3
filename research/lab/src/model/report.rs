//! The report of a run.

use super::Workload;
use serde::Serialize;

/// The time of an operation by cause, in nanoseconds. The parts add up to `ns_per_op`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stalls {
    /// Instructions, including level 1 hits.
    pub compute_ns: f64,
    /// Waiting for level 2, level 3 or another core's cache.
    pub cache_ns: f64,
    /// Waiting for DRAM: inner nodes, lock table.
    pub dram_ns: f64,
    /// Waiting for loads from the device.
    pub pm_read_ns: f64,
    /// Waiting for room in the store buffer, or for it to drain before a locked instruction.
    pub store_ns: f64,
    /// Waiting for room to issue one more flush.
    pub flush_ns: f64,
    /// Fences waiting for flushes and stores.
    pub fence_ns: f64,
    /// Queues in front of the busy media and interface. The other causes leave this time out.
    pub bandwidth_ns: f64,
}

/// The report of a run: simulated time and traffic, per operation if the name says so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// The design.
    pub index: String,
    /// Bytes of a leaf.
    pub node_bytes: u32,
    /// Bytes of a key and a value.
    pub entry_bytes: u32,
    /// The device.
    pub device: String,
    /// The operations.
    pub workload: Workload,
    /// Number of simulated threads.
    pub threads: usize,
    /// Keys loaded before the operations.
    pub keys: u64,
    /// Fill of the loaded leaves, 0 to 1.
    pub fill: f64,
    /// Operations of all threads.
    pub ops: u64,
    /// The seed of the keys and their order.
    pub seed: u64,
    /// Simulated time of an operation, in nanoseconds.
    pub ns_per_op: f64,
    /// Million operations a simulated second, of all threads.
    pub mops: f64,
    /// 64-byte lines read from the device.
    pub lines_read_per_op: f64,
    /// 64-byte lines written to the device.
    pub lines_written_per_op: f64,
    /// Bytes read from the media, for reads and for partly written media lines.
    pub media_bytes_read_per_op: f64,
    /// Bytes written to the media.
    pub media_bytes_written_per_op: f64,
    /// Bytes read from the media for each byte read from the device; 0 without reads.
    pub read_amplification: f64,
    /// Bytes written to the media for each byte written to the device; 0 without writes.
    pub write_amplification: f64,
    /// Flushed lines.
    pub flushes_per_op: f64,
    /// Fences.
    pub fences_per_op: f64,
    /// Load instructions, of 8 bytes each, in the pool and in the inner nodes.
    pub loads_per_op: f64,
    /// Lines that no cache had, from the device and from DRAM, including prefetched ones.
    pub misses_per_op: f64,
    /// The time by cause.
    pub stalls: Stalls,
}
