//! One module per command or group of commands.

pub mod bench;
pub mod crash;
pub mod demo;
pub mod export;
pub mod figure;
pub mod import;
pub mod inspect;
pub mod model;
pub mod records;
pub mod restore;
pub mod scan;
pub mod serve;
pub mod top;
pub mod torture;
pub mod upkeep;

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::io::{self, Write};

/// Prints the one line of JSON that ends a command's standard output.
fn print_json(report: &impl Serialize) -> Outcome {
    let line = serde_json::to_string(report)
        .map_err(|e| Failure::new(format!("writing the report as JSON failed: {e}")))?;
    writeln!(io::stdout(), "{line}").map_err(|e| Failure::output(&e))
}
