//! Arguments of `power-cut`.

use bristlecone_lab::power_cut::{NamesLast, Plant, Token};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `power-cut`
#[derive(Debug, Args)]
#[command(after_help = "\
A writer process makes commits of all kinds in a database on the journal, under strace. The trace \
says which writes a sync had made durable. At random moments of it, directories are built as a \
power cut could have left them: with everything that was durable, and with any part of the rest. \
Each is recovered: every acknowledged commit must be there, the one in flight wholly or not at \
all, and nothing else. Some recoveries are traced, and cut in the same way. docs/crash.md says \
what the model is.

Examples:
  bristlecone-lab power-cut
  bristlecone-lab power-cut --images 20000 --seed 7 --sector 4096 --dir /var/tmp
  bristlecone-lab power-cut --images 300 --plant skip-sync
  bristlecone-lab power-cut --replay /tmp/bristlecone-torture-kept-ab12cd --cut 17

Exit status: 0 nothing found, 1 a wrong image (or it failed), 2 wrong usage.")]
pub struct PowerCut {
    /// Images to recover, besides those of cuts in recovery
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub images: u64,
    /// Commits of the writer
    #[arg(long, value_name = "N", default_value_t = 160, value_parser = clap::value_parser!(u64).range(1..=2000))]
    pub commits: u64,
    /// Seed of the commits and of the cuts
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Bytes that the disk writes wholly or not at all
    #[arg(long, value_name = "BYTES", value_parser = ["512", "4096"], default_value = "512")]
    pub sector: String,
    /// When the name of a new file is durable
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Names::File)]
    pub names: Names,
    /// Where the writer works [default: the directory for temporary files]; images are made in
    /// /dev/shm, where there is one
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Cut the traces of an earlier run again, from the directory that it kept
    #[arg(long, value_name = "DIR", conflicts_with = "commits")]
    pub replay: Option<PathBuf>,
    /// With --replay: only this image, which is left in the directory
    #[arg(long, value_name = "IMAGE", requires = "replay")]
    pub cut: Option<Token>,
    /// Plant an error, to see it found
    #[arg(long, value_enum, value_name = "ERROR")]
    pub plant: Option<Planted>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// When the name of a new file is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// When the file or its directory is synced: ext4, XFS
    File,
    /// Only when its directory is synced: POSIX
    Directory,
}

impl Names {
    /// Returns what the model calls it.
    #[must_use]
    pub fn model(self) -> NamesLast {
        match self {
            Self::File => NamesLast::WithFile,
            Self::Directory => NamesLast::WithFolder,
        }
    }
}

/// An error that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Planted {
    /// The journal's last sync before the cut did nothing
    #[value(name = "skip-sync")]
    Sync,
    /// No sync of the journal did anything
    #[value(name = "skip-journal")]
    Journal,
    /// No sync of the database's file did anything
    #[value(name = "skip-pool")]
    Pool,
    /// No sync of a directory did anything (seen with --names directory)
    #[value(name = "skip-names")]
    Names,
}

impl Planted {
    /// Returns what the model calls it.
    #[must_use]
    pub fn model(self) -> Plant {
        match self {
            Self::Sync => Plant::SkipSync,
            Self::Journal => Plant::SkipJournal,
            Self::Pool => Plant::SkipPool,
            Self::Names => Plant::SkipNames,
        }
    }
}

/// The process that `power-cut` traces.
#[derive(Debug, Args)]
pub struct PowerCutWriter {
    /// The directory of the database
    pub dir: PathBuf,
    /// Seed of the commits
    #[arg(long)]
    pub seed: u64,
    /// How many commits to make
    #[arg(long)]
    pub commits: u64,
    /// Recover a database that is at this commit or a later one
    #[arg(long, requires = "to")]
    pub from: Option<u64>,
    /// The last commit that it may be at
    #[arg(long, requires = "from")]
    pub to: Option<u64>,
}
