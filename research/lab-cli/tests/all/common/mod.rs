//! Parts that the tests of the command share.

#![allow(missing_docs)]

#[path = "../../../../../crates/cli/tests/all/common/bench.rs"]
mod bench;
#[path = "../../../../../crates/cli/tests/all/common/processes.rs"]
pub mod processes;

pub use bench::{Bench, Ran};

/// The command.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_bristlecone-lab");
