//! The command line of `bench server`.

use bristlecone_command::args::{TortureMedium, count};
use bristlecone_command::serving::Mix;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Whom to measure beside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AgainstServer {
    /// redis-server with appendfsync always, its file in the same directory
    Redis,
    /// memcached, in memory and with a file in the same directory (-e); clients speak its protocol
    Memcached,
}

/// `bench server`
#[derive(Debug, Args)]
#[command(after_help = "\
The mixes status-update and session-store are YCSB's, as NV-Tree (TC 2016), section 6.6, uses them; gets and sets are those \
of LB+-Trees (PVLDB 2020), section 4.4. Each slice of time is measured for one server after the \
other, in rounds; shown are medians. With two processors or more, servers have half of them and the clients the rest; the \
shares of time that the server's process and the clients were at work tell which was the bottleneck. \
Where the clients were and the server was not, there is no ratio: a faster client would change it.

Examples:
  bristlecone bench server --against redis --path /dev/shm --clients 1,32
  bristlecone bench server --against memcached --path /dev/shm --mix gets,sets")]
pub struct BenchServer {
    /// Operations of the clients, with commas between [default: status-update,session-store]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mix: Vec<Mix>,
    /// Numbers of clients, with commas between
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub clients: Vec<u16>,
    /// Commands that a client sends at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub pipeline: u16,
    /// Give each client a thread of its own; without it, one thread works for all of them
    #[arg(long)]
    pub client_threads: bool,
    /// Records that are loaded: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "100K")]
    pub records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub value_bytes: u32,
    /// How long a slice is
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub slice_ms: u32,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub rounds: u16,
    /// Medium of the pool [default: as the path suggests]
    #[arg(long, value_enum)]
    pub medium: Option<TortureMedium>,
    /// Whom to measure in the same run
    #[arg(long, value_enum)]
    pub against: Option<AgainstServer>,
    /// Directory for the servers' files
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub path: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
