//! `torture`: kill a writer of a bare index.

use crate::args::Torture;
use crate::index::Index;
use bristlecone_command::args::WriterArgs;
use bristlecone_command::failure::Outcome;
use bristlecone_command::pool::How;
use bristlecone_command::torture::{self, Victim};
use std::path::Path;

fn open(path: &Path, how: How) -> Outcome<Box<dyn Victim>> {
    Ok(Box::new(Index::open(path, how)?))
}

/// Tortures an index.
pub fn run(args: &Torture) -> Outcome {
    let choice = args.index.durable()?;
    let create = |path: &Path, how| -> Outcome<Box<dyn Victim>> {
        Ok(Box::new(Index::create(path, how, &choice)?))
    };
    torture::run(&args.torture, |pool| {
        torture::rounds(&args.torture, pool, &create, &open)
    })
}

/// Writes until it is killed.
pub fn writer(args: &WriterArgs) -> Outcome {
    torture::writer::run(args, &open)
}
