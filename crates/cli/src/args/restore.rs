//! The command line of `restore`.

use bristlecone_command::args::WriteArgs;
use clap::Args;
use std::path::PathBuf;

/// `restore`
#[derive(Debug, Args)]
#[command(after_help = "\
BACKUP is the file that a server's SAVE or BGSAVE wrote (its setting backup-file names it), or the directory of an archive (the \
setting archive, or `bristlecone archive update`). All of it is compared with its checksums. An archive leads to its end, or to the \
commit or the time that is asked for; where it does not, that is an error which names the last commit that can be had. POOL is made; nothing is left of it if the backup is damaged or the disk is full. What has expired \
since the backup is not there when the pool is served.

(A copy that `bristlecone backup` made is a pool already: open it as it is.)

Examples:
  bristlecone restore shop.backup shop.pool
  bristlecone restore /mnt/backup/shop shop.pool --until 2026-03-01T11:59:00Z
  bristlecone restore shop.backup /mnt/pmem/shop.pool --json && bristlecone serve /mnt/pmem/shop.pool")]
pub struct Restore {
    /// The backup, or the archive
    pub backup: PathBuf,
    /// The pool to make; one that exists is left alone
    pub pool: PathBuf,
    /// Of an archive: commits up to this time count, in UTC, as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = crate::commands::archive::parse_time)]
    pub until: Option<u64>,
    /// Of an archive: commits up to this time stamp count
    #[arg(long, value_name = "TIMESTAMP", conflicts_with = "until")]
    pub until_commit: Option<u64>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}
