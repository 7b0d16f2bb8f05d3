//! The command line: what may be asked, with help and examples.

mod archive;
mod bench_server;
mod pools;
mod repair;
mod restore;
mod serve;
mod top;
mod torture;
mod upgrade;

pub use archive::{Archive, Look as ArchiveLook, Update as ArchiveUpdate};
pub use bench_server::{AgainstServer, BenchServer};
pub use pools::{Backup, Compact, Export, Import, Inspect, Scan};
pub use repair::Repair;
pub use restore::Restore;
pub use serve::Serve;
pub use top::Top;
pub use torture::Torture;
pub use upgrade::Upgrade;

use bristlecone_command::args::{MediumArgs, WriteArgs, WriterArgs};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// An ordered key-value database on persistent memory or any disk.
///
/// A database is one file with any number of keyspaces. Each keeps keys and values (byte strings)
/// in key order, and every write that was acknowledged, whatever happens to the process. Programs
/// open the same file with the library `bristlecone`; `serve` serves it to Redis clients.
#[derive(Debug, Parser)]
#[command(name = "bristlecone", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bristlecone demo                              see it work, in under a minute
  bristlecone create cities.db                a database, on the best medium that the path offers
  bristlecone import cities.db cities.csv     one key per row, from the first column
  bristlecone scan cities.db --prefix FR/L --limit 5
  bristlecone check cities.db                 verify every invariant

Exit status: 0 done, 1 failed (or `check` found errors, or no such key), 2 wrong usage.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the main job on real data: import, look up, scan, kill -9, recover
    Demo(Demo),
    /// Make an empty database
    Create(Create),
    /// Store VALUE under KEY, replacing what was there
    Put(Put),
    /// Print the value of KEY
    Get(Get),
    /// Remove KEY
    Del(Del),
    /// Print keys and values in key order
    Scan(Scan),
    /// Load a .csv or .jsonl file, one key per row
    Import(Import),
    /// Write a keyspace to a .csv or .jsonl file that `import` reads back
    Export(Export),
    /// Show what a database is, how full it is and what it survives
    Info(Inspect),
    /// Verify every invariant and checksum of a database
    Check(Inspect),
    /// Move data together and give unused space back to the file system
    Compact(Compact),
    /// Copy a database to a new file, consistently
    Backup(Backup),
    /// Keep states and commits of a database, to restore it to any of them
    #[command(subcommand)]
    Archive(Archive),
    /// Make a new database of all that is whole in a damaged one
    Repair(Repair),
    /// Bring a database with formats of an older release to those of this one
    Upgrade(Upgrade),
    /// Make a database from an archive, or from the backup that a server's SAVE or BGSAVE wrote
    Restore(Restore),
    /// Serve a database to Redis clients
    Serve(Serve),
    /// Watch a server at work
    Top(Top),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Kill a writer at random moments and check every acknowledged write
    Torture(Torture),
    /// Print what makes a shell complete commands and options
    Completions(Completions),
    /// Write manual pages
    Man(Man),
    /// The writer that `torture` kills.
    #[command(hide = true)]
    TortureWriter(WriterArgs),
    /// The writer that `demo` kills.
    #[command(hide = true)]
    DemoWriter(DemoWriter),
}

/// `demo`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bristlecone demo --dir /mnt/pmem")]
pub struct Demo {
    /// Where to put the demo's pools; they stay there [default: a new directory for temporary
    /// files]
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// `create`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone create /mnt/pmem/orders.db
  bristlecone create orders.db --medium journal")]
pub struct Create {
    /// The file to make; one that exists is left alone
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `put`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone put orders.db 2026-03-01/17 shipped
  bristlecone put orders.db scan.pdf - < scan.pdf
  bristlecone put orders.db -- -5 negative        # after --, nothing is taken for an option")]
pub struct Put {
    /// The database
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// The value, byte for byte; - reads it from standard input
    pub value: OsString,
    /// Keyspace [default: `default`; of what `serve` wrote, database 0]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `get`
#[derive(Debug, Args)]
#[command(after_help = "\
The value is printed as it is, followed by a line break only on a terminal.
A key that is not there ends with status 1.

Example:
  bristlecone get orders.db scan.pdf > scan.pdf")]
pub struct Get {
    /// The database
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// Keyspace [default: `default`; of what `serve` wrote, database 0]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Print key and value as one JSON object, as `scan --format json` does
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `del`
#[derive(Debug, Args)]
#[command(after_help = "\
A key that is not there ends with status 1.

Example:
  bristlecone del orders.db 2026-03-01/17")]
pub struct Del {
    /// The database
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// Keyspace [default: `default`; of what `serve` wrote, database 0]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `completions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone completions bash > /etc/bash_completion.d/bristlecone
  bristlecone completions zsh > ~/.zfunc/_bristlecone
  bristlecone completions fish > ~/.config/fish/completions/bristlecone.fish")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `man`
#[derive(Debug, Args)]
#[command(after_help = "\
A page for the command, bristlecone.1, and one for each of its subcommands, bristlecone-serve.1 and so on.

Example:
  bristlecone man /usr/local/share/man/man1 && man bristlecone-serve")]
pub struct Man {
    /// The folder to write them to; it must be there
    pub folder: PathBuf,
}

/// `demo-writer`
#[derive(Debug, Args)]
pub struct DemoWriter {
    /// The database
    pub pool: PathBuf,
}

/// `bench`
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// `serve` under the mixes of YCSB that NV-Tree's paper uses, beside Redis
    Server(BenchServer),
}
