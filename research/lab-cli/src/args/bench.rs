//! Arguments of `bench`.

use super::{IndexArgs, parsed};
use bristlecone_command::args::{count, durability};
use bristlecone_lab::{micro, peers};
use bristlecone_pmem::{Durability, MediumKind};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bench`
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Throughput, latency, persist cost, space and recovery of an index
    Micro(Micro),
    /// The limits of the hardware: flush and fence, DRAM miss, memcpy, fdatasync
    Limits(Limits),
    /// The database beside other embedded ones, in turns
    Peers(Peers),
    /// redb's published benchmark, with the database in it
    Redb(Redb),
}

/// `bench peers`
#[derive(Debug, Args)]
#[command(after_help = "\
Each engine makes every change durable before the call returns, in its fastest such setting. In each round all engines are \
open and take turns; rates are medians of the rounds, and ratios are medians of the rounds' ratios to the best peer: the \
fastest engine but store, tree, btreemap and array. Values that are read or visited are copied out. Memory, space and bytes written are \
counted in a process of its own for each engine.

The engines btreemap and array keep nothing: the standard library's BTreeMap, a reference for what a search tree takes, and a sorted array, for \
what reading in order takes.

Engines other than store, tree, btreemap and array need a build with --features peers. RocksDB and SQLite are the system's libraries \
(Debian: apt-get install librocksdb-dev libsqlite3-0).

Workloads, in the order in which they run:
  load            puts 1000 new keys in one commit
  scan100-first   visits 100 entries, each entry about once, right after the load
  get, scan100    reads a key; visits 100 entries
  update          replaces a value
  ycsb-c, -b, -a  reads; with 5 % and with 50 % updates      (YCSB's core workloads: zipfian 0.99)
  ycsb-f          half of the calls read a value and replace it
  insert          puts a new key
  ycsb-d          reads of the latest; 5 % insert
  ycsb-e          scans of 1 to 100 entries; 5 % insert
  delete          removes a key

Examples:
  bristlecone-lab bench peers --path /dev/shm --engines store,tree,lmdb --keys 1M --threads 1,2
  bristlecone-lab bench peers --path . --workloads insert,get,ycsb-a --value-bytes 100 --json
  bristlecone-lab bench peers --path /dev/shm --path . --engines store,lmdb,redb,fjall \\
      --workloads load,insert,get,scan100,update,delete --out docs/stores.svg
The last one draws the README's picture.")]
pub struct Peers {
    /// Directories for the engines' files, one comparison in each [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub path: Vec<PathBuf>,
    /// Engines, with commas between them: store, tree, lmdb, redb, fjall, rocksdb, sqlite,
    /// btreemap, array [default: all stores that this build and this system have]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parsed::<peers::Engine>)]
    pub engines: Vec<peers::Engine>,
    /// Workloads, with commas between them [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parsed::<peers::Workload>)]
    pub workloads: Vec<peers::Workload>,
    /// Keys that are loaded first: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "200K")]
    pub keys: u64,
    /// Bytes of a value, with commas between them: one comparison for each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8")]
    pub value_bytes: Vec<usize>,
    /// Threads that call at the same time, with commas between them: one comparison for each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Rounds, each on new files
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=99))]
    pub rounds: usize,
    /// Time of a turn; the load and the first scans take what they need
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub slice_ms: u32,
    /// Seed of the keys and their order
    #[arg(long)]
    pub seed: Option<u64>,
    /// Bytes of memory that each engine may use: the store in all, others for their caches. Each
    /// then runs in a process of its own
    #[arg(long, value_name = "BYTES", value_parser = count)]
    pub memory: Option<u64>,
    /// Draw the result into this file (SVG), and write the numbers beside it (JSON)
    #[arg(long, value_name = "FILE.svg")]
    pub out: Option<PathBuf>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Only count, for the one engine that is named: the process that `bench peers` starts.
    #[arg(long, hide = true)]
    pub count: bool,
}

/// `bench redb`
#[derive(Debug, Args)]
#[command(after_help = "\
The rows of the table in redb's README, with its counts: keys of 24 random bytes, values of 150, n elements in one commit, \
1000 commits of one and 100 commits of 1000 elements, len(), n reads and n / 2 reads of 10 elements in a read transaction, \
reads by 4 threads, half of the elements removed in one commit, and the size after compaction. The engines take turns row by \
row; numbers are medians of the rounds, and ratios are medians of the rounds' ratios to the best peer.

LMDB, redb, fjall and RocksDB need a build with --features peers, and RocksDB is the system's library \
(Debian: apt-get install librocksdb-dev). SQLite takes no part.

Examples:
  bristlecone-lab bench redb --path . --elements 1M
  bristlecone-lab bench redb --path /dev/shm --engines store,lmdb --rounds 5 --json")]
pub struct Redb {
    /// Directory for the engines' files
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub path: PathBuf,
    /// Engines, with commas between them: store, lmdb, redb, fjall, rocksdb
    /// [default: all that this build and this system have]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parsed::<peers::Engine>)]
    pub engines: Vec<peers::Engine>,
    /// Elements of the bulk load: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "1M")]
    pub elements: u64,
    /// Rounds, each on new files
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=99))]
    pub rounds: usize,
    /// Seed of the elements
    #[arg(long)]
    pub seed: Option<u64>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// The media that `bench micro` runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchMedium {
    /// Persistent memory mapped with MAP_SYNC
    Dax,
    /// A shared mapping
    #[default]
    Mapped,
    /// A write-ahead journal on an ordinary disk
    Journal,
    /// Anonymous memory, nothing durable
    Dram,
}

impl BenchMedium {
    /// Returns the medium.
    pub fn kind(self) -> MediumKind {
        match self {
            Self::Dax => MediumKind::Dax,
            Self::Mapped => MediumKind::Mapped,
            Self::Journal => MediumKind::Journal,
            Self::Dram => MediumKind::Dram,
        }
    }
}

/// `bench micro`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone-lab bench micro --keys 10M --ops insert,lookup,scan --path /dev/shm
  bristlecone-lab bench micro --keys 1M --medium journal --path /var/tmp --json
  bristlecone-lab bench micro --keys 10M --against btreemap,lmdb   # built with --features peers
  bristlecone-lab bench micro --keys 10M --scaling 2               # one thread against two")]
pub struct Micro {
    /// The index.
    #[command(flatten)]
    pub index: IndexArgs,
    #[command(flatten)]
    pub measure: Measure,
    /// Measure one thread against this many, interleaved
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub scaling: Option<u16>,
}

/// Arguments of `bench micro` for any design.
#[derive(Debug, Args)]
pub struct Measure {
    /// Keys to load: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "1M")]
    pub keys: u64,
    /// Threads that work at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), default_value_t = 1)]
    pub threads: u16,
    /// Operations, with commas between them: load, insert, lookup, multi_get, scan, update,
    /// multi_insert, delete [default: all]
    #[arg(long, value_name = "OPS", value_delimiter = ',', value_parser = parsed::<micro::Op>)]
    pub ops: Vec<micro::Op>,
    /// Medium
    #[arg(long, value_enum, default_value_t)]
    pub medium: BenchMedium,
    /// When a write counts as done, on the journal medium
    #[arg(long, value_name = "immediate|interval=MS|none", value_parser = durability, default_value = "immediate")]
    pub durability: Durability,
    /// Directory for the benchmark's files [default: /dev/shm, else the directory for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Seed of the keys and their order
    #[arg(long)]
    pub seed: Option<u64>,
    /// Others to measure in the same run, with commas between them: btreemap, lmdb, lmdb-nowritemap
    #[arg(long, value_name = "PEERS", value_delimiter = ',', value_parser = parsed::<micro::Against>)]
    pub against: Vec<micro::Against>,
    /// At most this many operations per phase [default: by keys and medium]
    #[arg(long, value_name = "N", value_parser = count)]
    pub ops_limit: Option<u64>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `bench limits`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bristlecone-lab bench limits --path /var/tmp --json")]
pub struct Limits {
    /// Directory to measure fdatasync in
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub path: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
