//! The device model: the cost of a run on a described memory device.
//!
//! An operation really runs, on the simulated medium. The medium reports its accesses, and the
//! inner index those to DRAM. The model charges them to a machine of caches, buffers and a
//! described device. `run` returns a [`ModelReport`] for an index, a device and a workload.
//! [`characterise`] measures a device.
//!
//! ```text
//!  source.rs      trace.rs             machine/                      memory.rs
//!  operations --> steps of each one -> clocks, caches (cache.rs) --> device, DRAM (device.rs)
//! ```
//!
//! `docs/device-model.md` describes the model, every parameter with its unit and source, the
//! comparison with the papers' table, and the limits. The rules of the machine are at the head of
//! `machine/mod.rs`, those of a device at the head of `memory.rs`.
//!
//! # Invariants
//! 1. A seed determines a figure: time is integer picoseconds, no order depends on an address or a
//!    hash, and the thread with the smallest (clock, number) goes next.
//! 2. Every picosecond of a thread has one cause, and the causes add up to its clock.

mod cache;
mod characterise;
mod device;
mod drive;
mod error;
mod executes;
mod machine;
mod memory;
mod mix;
mod report;
mod run;
mod source;
mod spec;
mod trace;
mod tuning;
mod workload;

pub(crate) use characterise::repeated;
pub use characterise::{BandwidthPoint, Characteristics, characterise};
pub use device::{Core, Device};
pub use error::ModelError;
pub(crate) use executes::{Executes, Index};
pub use mix::Mix;
pub use report::{ModelReport, Stalls};
pub(crate) use run::{PhaseReport, run_phases};
pub use run::{run, run_own};
pub(crate) use source::Source;
pub use spec::RunSpec;
pub(crate) use spec::{Phase, WIDE_BYTES};
pub(crate) use trace::{Flushes, Instructions, Issued, Persistence, Step};
pub(crate) use tuning::{Shifts, Tuning, tuned};
pub(crate) use workload::Op;
pub use workload::Workload;
