//! The command line of `repair`.

use bristlecone_command::args::WriteArgs;
use clap::Args;
use std::path::PathBuf;

/// `repair`
#[derive(Debug, Args)]
#[command(after_help = "\
POOL is read and left as it is. NEW is made, with everything in POOL that matches its checksums: all keyspaces, keys, values and \
expiries, of a server's database too. What is damaged is named on standard error and is not in NEW. A keyspace whose name is lost \
is called by its number, as \"number 5\".

A superblock that cannot be read, damaged tables, and a journal that is damaged, missing or another database's are passed \
over and named too. Without its journal a database that was not closed is as the last checkpoint left it, or between two.

A list, set, hash or sorted set of a server's that has lost elements keeps the others; it is named too, with how many it lost.

Exit status: 0 nothing was damaged, 3 something was and is named, 1 nothing can be saved; then restore a backup.

Example:
  bristlecone repair shop.db mended.db
  bristlecone check mended.db && mv shop.db damaged.db && mv mended.db shop.db")]
pub struct Repair {
    /// The damaged database
    pub pool: PathBuf,
    /// The database to make; one that exists is left alone
    pub new: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open NEW.
    #[command(flatten)]
    pub write: WriteArgs,
}
