//! The command `bristlecone-lab`: index designs explored, measured, simulated and tortured. As a
//! library, the same for a design that is not in the registry: [`own()`].

mod args;
mod commands;
mod index;
mod inspect;
mod own;

pub use own::own;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

/// The name of the command.
const NAME: &str = "bristlecone-lab";

/// Runs the command.
#[must_use]
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Crash(a) => commands::crash::run(&a),
        Command::CrashDisk(a) => commands::crash_disk::run(&a),
        Command::Figure(a) => commands::figure::run(&a),
        Command::Claims(a) => commands::claims::run(&a),
        Command::Report(a) => commands::report::run(&a),
        Command::Model(a) => commands::model::run(&a),
        Command::Bench(a) => commands::bench::run(&a),
        Command::Torture(a) => commands::torture::run(&a),
        Command::TortureWriter(a) => commands::torture::writer(&a),
        Command::PowerCut(a) => commands::power_cut::run(&a),
        Command::PowerCutWriter(a) => commands::power_cut::writer(&a),
        Command::Create(a) => commands::pools::create(&a),
        Command::Put(a) => commands::pools::put(&a),
        Command::Get(a) => commands::pools::get(&a),
        Command::Del(a) => commands::pools::del(&a),
        Command::Scan(a) => commands::pools::scan(&a),
        Command::Import(a) => commands::pools::import(&a),
        Command::Export(a) => commands::export::run(&a),
        Command::Info(a) => inspect::info(&a),
        Command::Check(a) => inspect::check(&a),
        Command::Compact(a) => commands::pools::compact(&a),
        Command::Backup(a) => commands::pools::backup(&a),
    };
    bristlecone_command::exit(NAME, outcome)
}
