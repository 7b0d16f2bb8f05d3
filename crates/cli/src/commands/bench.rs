//! `bench`: what a server makes of the hardware.

mod server;

use crate::args::Bench;
use bristlecone_command::failure::Outcome;
use bristlecone_command::print_report;
use bristlecone_command::signals::remove_temporary_files_on_signals;

/// Runs a benchmark.
pub fn run(bench: &Bench) -> Outcome {
    remove_temporary_files_on_signals()?;
    let Bench::Server(args) = bench;
    let report = server::run(args)?;
    print_report(&report, &report, args.json)
}
