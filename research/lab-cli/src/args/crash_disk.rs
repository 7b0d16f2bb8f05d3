//! Arguments of `crash-disk`.

use clap::Args;

/// `crash-disk`
#[derive(Debug, Args)]
#[command(after_help = "\
A run works on a disk in memory, which records every write and sync. The power is cut in and after \
each of them; what was not synced is then there, is not, or is torn, in any order. Each disk is \
recovered, and some recoveries are cut again. In other runs a sync fails, and processes go on from \
what the page cache has. Everything that was acknowledged must be there, and the rest must be a \
state that it may be in.

Examples:
  bristlecone-lab crash-disk
  bristlecone-lab crash-disk --subject store --budget 600 --seed 100
  bristlecone-lab crash-disk --mutants

Exit status: 0 nothing found, 1 something was found (or a mutant was not), 2 wrong usage.")]
pub struct CrashDisk {
    /// What works on the disk: the journal medium by itself, or the store on it
    #[arg(long, value_parser = ["journal", "store", "all"], default_value = "all")]
    pub subject: String,
    /// Seconds for each subject; with --mutants, for each mutant
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub budget: u64,
    /// Seed of the first run; later ones count up from it
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Disks that are recovered of a cut, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub disks: u64,
    /// Leave out each sync and each header write of the journal, and see whether that is found
    #[arg(long)]
    pub mutants: bool,
    /// End with one JSON object per subject on standard output
    #[arg(long)]
    pub json: bool,
}
