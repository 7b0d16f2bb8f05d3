//! Parts that the commands `bristlecone` and `bristlecone-lab` share.
//!
//! | module | holds |
//! | --- | --- |
//! | [`args`] | arguments that mean the same in both |
//! | [`pool`] | opening a pool's file |
//! | [`records`] | [`Records`](records::Records), the keys and values that a command works on; `put`, `get`, `del` |
//! | [`scan`], [`import`], [`export`] | printing, loading and writing records |
//! | [`inspect`], [`upkeep`] | the reports of `info` and `check`, of `compact` and `backup` |
//! | [`rows`] | rows of `.csv` and `.jsonl` files |
//! | [`serving`], [`resp`] | servers under load; requests of Redis's protocol |
//! | [`torture`] | killing a writer process and comparing what is left |
//! | [`failure`], [`progress`], [`text`] | errors with their exit status, progress bars, text for people |
//! | [`process`], [`signals`], [`scratch`] | child processes, ending by a signal, temporary pools |
//!
//! Nothing here is a stable interface.

pub mod args;
pub mod export;
pub mod failure;
pub mod import;
pub mod inspect;
pub mod pool;
pub mod process;
pub mod progress;
pub mod records;
pub mod resp;
pub mod rows;
pub mod scan;
pub mod scratch;
pub mod serving;
pub mod signals;
pub mod text;
pub mod torture;
pub mod upkeep;

use failure::{Failure, Outcome};
use serde::Serialize;
use signal_hook::low_level::emulate_default_handler;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Longest key in bytes that a command takes.
pub const MAX_KEY: usize = 64 << 10;
/// Longest value in bytes that a command takes.
pub const MAX_VALUE: usize = 32 << 20;

/// Prints the one line of JSON that ends a command's standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_json(report: &impl Serialize) -> Outcome {
    let line = serde_json::to_string(report)
        .map_err(|e| Failure::new(format!("writing the report as JSON failed: {e}")))?;
    writeln!(io::stdout(), "{line}").map_err(|e| Failure::output(&e))
}

/// Prints a report: text on standard output or, with `json`, text on standard error and the report
/// as one line of JSON on standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_report(text: &dyn Display, report: &impl Serialize, json: bool) -> Outcome {
    if json {
        eprintln!("{text}");
        print_json(report)
    } else {
        writeln!(io::stdout(), "{text}").map_err(|e| Failure::output(&e))
    }
}

/// Returns the exit status of a command that ended like that, and prints why it failed.
#[must_use]
pub fn exit(program: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("{program}: {message}");
            }
            if let Failure::Ended { signal, .. } = failure {
                // If the system refuses that, the exit status says it.
                let _ = emulate_default_handler(signal);
            }
            ExitCode::from(failure.status())
        }
    }
}
