//! The command line of `restore`.

use bristlecone_command::args::WriteArgs;
use clap::Args;
use std::path::PathBuf;

/// `restore`
#[derive(Debug, Args)]
#[command(after_help = "\
BACKUP is the file that a server's SAVE or BGSAVE wrote (its setting backup-file names it). All of it is compared with its \
checksums as it is read. POOL is made; nothing is left of it if the backup is damaged or the disk is full. What has expired \
since the backup is not there when the pool is served.

(A copy that `bristlecone backup` made is a pool already: open it as it is.)

Examples:
  bristlecone restore shop.backup shop.pool
  bristlecone restore shop.backup /mnt/pmem/shop.pool --json && bristlecone serve /mnt/pmem/shop.pool")]
pub struct Restore {
    /// The backup
    pub backup: PathBuf,
    /// The pool to make; one that exists is left alone
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}
