//! The command lines of `archive`.

use bristlecone_command::args::WriteArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `archive`
#[derive(Debug, Subcommand)]
pub enum Archive {
    /// Bring the archive of a database up to date: an incremental backup
    Update(Update),
    /// Show what an archive has, and what it leads to
    List(Look),
    /// Read all of an archive and compare it with its checksums
    Check(Look),
}

/// `archive update`
#[derive(Debug, Args)]
#[command(after_help = "\
The first time, and when the last full state is older than --full-every, all of the database is written; else what may have \
changed since the last time. Each update is a moment that `restore` can lead to. The database must not be open anywhere else: a \
server has the setting archive=DIR for that, and archives each commit.

Examples:
  bristlecone archive update shop.db /mnt/backup/shop
  bristlecone restore /mnt/backup/shop copy.db")]
pub struct Update {
    /// The database
    pub pool: PathBuf,
    /// The directory of its archive, which is made if it is not there
    pub dir: PathBuf,
    /// How old a full state may be, as 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = humantime::parse_duration)]
    pub full_every: std::time::Duration,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open the database.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `archive list` and `archive check`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 the archive leads from its first full state to its end, 1 it does not, or is damaged, 2 wrong usage.

Example:
  bristlecone archive list /mnt/backup/shop")]
pub struct Look {
    /// The directory of the archive
    pub dir: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
