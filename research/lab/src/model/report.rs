//! What a run reports.

use super::Workload;
use serde::Serialize;

/// Where the time of an operation went, in nanoseconds; the parts add up to `ns_per_op`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stalls {
    /// Instructions, with level 1 hits in them.
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
    /// Whatever of the above was a wait for a busy device: queues in front of media and interface.
    pub bandwidth_ns: f64,
}

/// One run: simulated time and traffic, per operation where the name says so.
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
    /// What was done.
    pub workload: Workload,
    /// By how many simulated threads.
    pub threads: usize,
    /// Keys loaded before.
    pub keys: u64,
    /// How full the load left the leaves, 0 to 1.
    pub fill: f64,
    /// Operations of all threads.
    pub ops: u64,
    /// What the keys and their order follow from.
    pub seed: u64,
    /// Simulated time of an operation.
    pub ns_per_op: f64,
    /// Million operations a simulated second, all threads.
    pub mops: f64,
    /// 64-byte lines that the device gave.
    pub lines_read_per_op: f64,
    /// 64-byte lines that the device took.
    pub lines_written_per_op: f64,
    /// Bytes read from the media, for reads and for partly written media lines.
    pub media_bytes_read_per_op: f64,
    /// Bytes written to the media.
    pub media_bytes_written_per_op: f64,
    /// Bytes read from the media for each byte that the device gave; 0 if it gave none.
    pub read_amplification: f64,
    /// Bytes written to the media for each byte that the device took; 0 if it took none.
    pub write_amplification: f64,
    /// Lines that were flushed.
    pub flushes_per_op: f64,
    /// Fences.
    pub fences_per_op: f64,
    /// Load instructions, of 8 bytes each, in the pool and in the inner nodes.
    pub loads_per_op: f64,
    /// Lines that no cache had: from the device and from DRAM, those fetched ahead included.
    pub misses_per_op: f64,
    /// Where the time went.
    pub stalls: Stalls,
}
