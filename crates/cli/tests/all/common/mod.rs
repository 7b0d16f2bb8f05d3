//! Parts that the tests of the command share.

#![allow(missing_docs)]

mod bench;
pub mod processes;
pub mod server;

pub use bench::{Bench, Ran};

/// The command.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_bristlecone");
