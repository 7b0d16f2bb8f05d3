//! The command line of `upgrade`.

use clap::Args;
use std::path::PathBuf;

/// `upgrade`
#[derive(Debug, Args)]
#[command(after_help = "\
Shows which format versions POOL has. Where all are those that this bristlecone writes, there is nothing to do, and nothing is touched. \
Where one is older, all entries are written anew to POOL.upgrading, read back and compared. Then that takes the place of POOL in \
one step, and the file with the old formats stays as the rollback copy. It is complete without a journal.

POOL must not be open anywhere, and the disk needs room for the new form. One that was not closed in order is closed first, as any \
opening does. However the command is ended, POOL is a whole database, the old one or the new one; run it again.

The new form is a database of its own: an archive has to begin again in another directory.

To go back, with the release that reads the old formats:
  rm -f shop.db.journal && mv shop.db.before-upgrade shop.db

Exit status: 0 upgraded or nothing to do, 1 failed, 2 wrong usage.

Examples:
  bristlecone upgrade shop.db --dry-run
  bristlecone upgrade shop.db --keep shop-0.1.db --json")]
pub struct Upgrade {
    /// The database
    pub pool: PathBuf,
    /// The rollback copy's name, on the same file system [default: POOL.before-upgrade]
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// Only tell what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
