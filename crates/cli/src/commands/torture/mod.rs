//! `torture`: kill a writer of a database, or with `--server` a server, and compare what is left.

mod served;

use crate::args::Torture;
use crate::contents::Contents;
use crate::database::{self, DEFAULT};
use bristlecone_command::args::WriterArgs;
use bristlecone_command::failure::Outcome;
use bristlecone_command::pool::How;
use bristlecone_command::torture::{self, Victim};
use std::path::Path;

fn create(path: &Path, how: How) -> Outcome<Box<dyn Victim>> {
    let db = database::create(path, how)?;
    Ok(Box::new(Contents::named(path, db, DEFAULT)?))
}

fn open(path: &Path, how: How) -> Outcome<Box<dyn Victim>> {
    Ok(Box::new(Contents::default_of(path, how)?))
}

/// Tortures a database or a server.
pub fn run(args: &Torture) -> Outcome {
    torture::run(&args.torture, |pool| {
        if args.server {
            served::rounds(args, pool)
        } else {
            torture::rounds(&args.torture, pool, &create, &open)
        }
    })
}

/// Writes until it is killed.
pub fn writer(args: &WriterArgs) -> Outcome {
    torture::writer::run(args, &open)
}
