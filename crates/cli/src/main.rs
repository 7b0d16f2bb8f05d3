//! The command `bristlecone`: databases created, read, written, checked and served.

mod args;
mod client;
mod commands;
mod contents;
mod damage;
mod database;
mod server;
mod tls;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(a) => commands::demo::run(&a),
        Command::Create(a) => commands::records::create(&a),
        Command::Put(a) => commands::records::put(&a),
        Command::Get(a) => commands::records::get(&a),
        Command::Del(a) => commands::records::del(&a),
        Command::Scan(a) => commands::records::scan(&a),
        Command::Import(a) => commands::records::import(&a),
        Command::Export(a) => commands::export::run(&a),
        Command::Info(a) => commands::inspect::info(&a),
        Command::Check(a) => commands::inspect::check(&a),
        Command::Compact(a) => commands::upkeep::compact(&a),
        Command::Backup(a) => commands::upkeep::backup(&a),
        Command::Archive(a) => commands::archive::run(&a),
        Command::Repair(a) => commands::repair::run(&a),
        Command::Upgrade(a) => commands::upgrade::run(&a),
        Command::Restore(a) => commands::restore::run(&a),
        Command::Serve(a) => commands::serve::run(&a),
        Command::Top(a) => commands::top::run(&a),
        Command::Bench(a) => commands::bench::run(&a),
        Command::Torture(a) => commands::torture::run(&a),
        Command::Completions(a) => commands::help::completions(&a),
        Command::Man(a) => commands::help::man(&a),
        Command::TortureWriter(a) => commands::torture::writer(&a),
        Command::DemoWriter(a) => commands::demo::writer(&a),
    };
    bristlecone_command::exit("bristlecone", outcome)
}
