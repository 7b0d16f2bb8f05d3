//! The command line: arguments, help and examples.

mod bench;
mod claims;
mod crash_disk;
mod power_cut;
mod report;

pub use bench::{Bench, Limits, Measure, Micro, Peers, Redb};
pub use claims::Claims;
pub use crash_disk::CrashDisk;
pub use power_cut::{Planted, PowerCut, PowerCutWriter};
pub use report::{Report, ReportPart};

use bristlecone_command::args::{
    BackupArgs, CompactArgs, ExportArgs, ImportArgs, InspectArgs, MediumArgs, ScanArgs,
    TortureArgs, WriteArgs, WriterArgs, count,
};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_crash::concurrent::MAX_THREADS;
use bristlecone_crash::token::MAX_OPS;
use bristlecone_designs::designs::{self, Choice, DESIGNS, DesignInfo, VOLATILE};
use bristlecone_lab::figure::{On, Scale};
use bristlecone_lab::model;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// The research command: measure, explore and prove index designs.
///
/// Every design of the papers under one contract: simulated and measured, killed, and explored for
/// what a power cut can leave. `bristlecone` is the command for databases.
#[derive(Debug, Parser)]
#[command(name = "bristlecone-lab", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bristlecone-lab crash --index lbtree-256-u64 --model all --nested --budget 6
  bristlecone-lab figure --list
  bristlecone-lab claims
  bristlecone-lab report --out report
  bristlecone-lab bench micro --keys 1M --against btreemap
  bristlecone-lab model --index lbtree --device optane --workload insert --threads 4
  bristlecone-lab torture --index bztree --medium journal --kills 3
  bristlecone-lab power-cut --images 300

Exit status: 0 done, 1 failed (or something was found, or no such key), 2 wrong usage.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Explore the states that a power cut can leave, and recover each of them
    Crash(Crash),
    /// Cut the power on a simulated disk, in every write and sync, and recover what may be left
    CrashDisk(CrashDisk),
    /// Regenerate a figure or table of the papers, beside its claims
    Figure(Figure),
    /// Count the claims that hold, or compare the ledger of claims with the figures
    Claims(Claims),
    /// Make every figure and a page of them
    Report(Report),
    /// Simulate an index on a described memory device
    Model(Model),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Kill a writer at random moments and check every acknowledged write
    Torture(Torture),
    /// The writer that `torture` kills.
    #[command(hide = true)]
    TortureWriter(WriterArgs),
    /// Cut the power at any system call of a database, and check every acknowledged commit
    PowerCut(PowerCut),
    /// The process that `power-cut` traces.
    #[command(hide = true)]
    PowerCutWriter(PowerCutWriter),
    /// Make a pool with an empty index of a chosen design
    Create(Create),
    /// Store VALUE under KEY in an index, replacing what was there
    Put(Put),
    /// Print the value of KEY
    Get(Get),
    /// Remove KEY
    Del(Del),
    /// Print keys and values in key order
    Scan(Scan),
    /// Load a .csv or .jsonl file, one key per row
    Import(Import),
    /// Write the whole index to a .csv or .jsonl file, which `bristlecone import` reads too
    Export(Export),
    /// Show what a pool is, how full it is and what it survives
    Info(Inspect),
    /// Verify every invariant and checksum of an index
    Check(Inspect),
    /// Give unused space back to the file system
    Compact(Compact),
    /// Copy a pool to a new file, consistently
    Backup(Backup),
}

/// Returns the designs by name, each with its line of help.
fn designs() -> impl TypedValueParser<Value = &'static DesignInfo> {
    let values = DESIGNS
        .iter()
        .chain(VOLATILE)
        .map(|design| PossibleValue::new(design.name).help(design.summary));
    PossibleValuesParser::new(values).try_map(|name| designs::info(&name))
}

/// The choice of a design.
#[derive(Clone, Copy, Debug, Args)]
pub struct IndexArgs {
    /// Design of the index
    #[arg(long, value_name = "NAME", value_parser = designs(), default_value = "lbtree")]
    pub index: &'static DesignInfo,
    /// Bytes in a leaf [default: the design's usual]
    #[arg(long, alias = "node-size", value_name = "BYTES")]
    pub node_bytes: Option<u32>,
}

impl IndexArgs {
    /// Returns the design and leaf size of an index that outlives the command.
    ///
    /// # Errors
    /// The design has no such leaf size, or is volatile.
    pub fn durable(&self) -> Outcome<Choice<'static>> {
        if VOLATILE.contains(self.index) {
            let name = self.index.name;
            return Err(Failure::Usage(format!(
                "--index {name:?} keeps nothing; it is there for `bench micro --medium dram` and `model`"
            )));
        }
        self.any()
    }

    /// Returns the design and leaf size.
    ///
    /// # Errors
    /// The design has no such leaf size.
    pub fn any(&self) -> Outcome<Choice<'static>> {
        let choice = Choice {
            node_bytes: self.node_bytes,
            ..Choice::of(self.index.name)
        };
        match choice.resolve() {
            Ok(_) => Ok(choice),
            Err(e) => Err(Failure::Usage(format!("--node-bytes: {e}"))),
        }
    }
}

/// `create`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone-lab create /mnt/pmem/fp.pool --index fptree
  bristlecone-lab create fp.pool --medium journal --node-bytes 512")]
pub struct Create {
    /// The file to make; one that exists is left alone
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// The options of opening it.
    #[command(flatten)]
    pub write: WriteArgs,
    /// The index.
    #[command(flatten)]
    pub index: IndexArgs,
}

/// `put`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone-lab put fp.pool 2026-03-01/17 shipped
  bristlecone-lab put fp.pool scan.pdf - < scan.pdf")]
pub struct Put {
    /// The pool
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// The value, byte for byte; - reads it from standard input
    pub value: OsString,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// The options of opening it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `get`
#[derive(Debug, Args)]
pub struct Get {
    /// The pool
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// Print key and value as one JSON object, as `scan --format json` does
    #[arg(long)]
    pub json: bool,
    /// The options of opening it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `del`
#[derive(Debug, Args)]
pub struct Del {
    /// The pool
    pub pool: PathBuf,
    /// The key, byte for byte
    pub key: OsString,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// The options of opening it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `scan`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bristlecone-lab scan fp.pool --prefix FR/ --limit 10")]
pub struct Scan {
    /// The pool
    pub pool: PathBuf,
    /// The range and the format.
    #[command(flatten)]
    pub scan: ScanArgs,
    /// The options of opening it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `import`
#[derive(Debug, Args)]
#[command(
    after_help = "As `bristlecone import`.\n\nExample:\n  bristlecone-lab import fp.pool cities.csv"
)]
pub struct Import {
    /// The rows.
    #[command(flatten)]
    pub import: ImportArgs,
}

/// `export`
#[derive(Debug, Args)]
#[command(after_help = "\
As `bristlecone export`. A database takes what an index had so:
  bristlecone-lab export fp.pool rows.jsonl
  bristlecone create orders.db && bristlecone import orders.db rows.jsonl

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done, but something is damaged (--skip-damaged).")]
pub struct Export {
    /// The file to write to.
    #[command(flatten)]
    pub export: ExportArgs,
}

/// `info` and `check`
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 whole, 1 damaged (or it did not open), 2 wrong usage.")]
pub struct Inspect {
    /// The pool.
    #[command(flatten)]
    pub inspect: InspectArgs,
}

/// `compact`
#[derive(Debug, Args)]
pub struct Compact {
    /// The pool.
    #[command(flatten)]
    pub compact: CompactArgs,
}

/// `backup`
#[derive(Debug, Args)]
pub struct Backup {
    /// The pool and the copy.
    #[command(flatten)]
    pub backup: BackupArgs,
}

/// `torture`
#[derive(Debug, Args)]
#[command(after_help = "\
A writer process puts, replaces and removes keys from several threads and reports each call that \
returned. It is killed with SIGKILL at random moments; then the pool is reopened, and every key \
must have the value that was last reported, or that of the one call that its thread had under way.

Example:
  bristlecone-lab torture --index bztree --medium journal --kills 300 --dir /var/tmp")]
pub struct Torture {
    /// The options of torturing.
    #[command(flatten)]
    pub torture: TortureArgs,
    /// The index.
    #[command(flatten)]
    pub index: IndexArgs,
}

const CRASH_EXAMPLES: &str = "\
Examples:
  bristlecone-lab crash                                       each design, each workload once
  bristlecone-lab crash --index lbtree --model all --nested --budget 600
  bristlecone-lab crash --index lbtree,pool --kills           kill the process, cut the power later
  bristlecone-lab crash --index lbtree-256-u64 --mutants      switch off each flush and fence
  bristlecone-lab crash --index lbtree --threads 3            threads under a deterministic scheduler
  bristlecone-lab crash --replay '1~lbtree-256-u64~...'       the line that a violation printed

A workload runs once on a simulated persistent memory. At every store, flush and fence, the images \
that the model allows are recovered and checked: nothing acknowledged is lost, the operation in \
flight is there wholly or not at all, the structure is whole, nothing leaks, and it takes every \
operation. docs/crash.md says how, and what that proves.

Exit status: 0 nothing found, 1 a violation or a surviving mutant, 2 wrong usage.";

/// Arguments of `crash`.
#[derive(Args, Debug)]
#[command(after_help = CRASH_EXAMPLES)]
pub struct Crash {
    /// Designs, or beginnings of their names: lbtree, lbtree-256-u64, pool, ...; or all
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub index: Vec<String>,
    #[command(flatten)]
    pub explore: Explore,
}

/// Arguments of `crash` for any structure.
#[derive(Args, Debug)]
pub struct Explore {
    /// Persistency model: x86-tso, armv8, eadr or all
    #[arg(long, value_name = "MODEL", default_value = "x86-tso")]
    pub model: String,
    /// Operations in each workload [default: 60; with --threads, of each thread: 4]
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MAX_OPS as u64))]
    pub ops: Option<usize>,
    /// Simulated threads, 1 to 8; more than one run under a deterministic scheduler
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MAX_THREADS as u64))]
    pub threads: usize,
    /// Schedules of several threads [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub schedules: Option<u64>,
    /// Crash again inside recovery; includes --kills
    #[arg(long)]
    pub nested: bool,
    /// Also kill the process, go on from what it left in the caches, and cut the power after that
    #[arg(long)]
    pub kills: bool,
    /// mixed, split, merge, dense, drain, update, boundary, churn, upkeep, few, bulk or all
    #[arg(long, value_name = "W", default_value = "all")]
    pub workload: String,
    /// Seed of the first round of workloads
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Switch off one flush or fence after another, and swap stores: each must be noticed
    #[arg(long, conflicts_with_all = ["threads", "schedules", "plant"])]
    pub mutants: bool,
    /// With --mutants: only mutants at a FILE:LINE that contains this text (crates/index)
    #[arg(long, value_name = "TEXT", requires = "mutants")]
    pub only: Option<String>,
    /// Seconds to explore, over all designs and models, in rounds of new seeds (with --mutants:
    /// time limit of a mutant, which is undecided then)
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// Plant a known fault, to see it found
    #[arg(long, value_name = "FAULT", hide = true)]
    pub plant: Option<String>,
    /// Recover the image that a violation's token names; excludes all other options
    #[arg(long, value_name = "TOKEN", exclusive = true)]
    pub replay: Option<String>,
    /// Print results as one line of JSON
    #[arg(long)]
    pub json: bool,
}

pub fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("expected a number of seconds above 0 and up to 1000000, like 0.5 or 600".into()),
    }
}

fn fill(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|fill: &f64| *fill > 0.0 && *fill <= 1.0)
        .ok_or_else(|| "expected a share above 0 and up to 1, like 0.7".to_owned())
}

fn model_help() -> String {
    format!(
        "\
Simulated time follows from the index's own loads, stores, flushes and fences and from the device's
description: the same command gives the same numbers on every machine.

Designs: {} (lbtree-traditional: without entry moving).
Devices shipped: {}.
Workloads: {}; mixed:90 has 90 % lookups, scan:20 scans 20 keys.
A path (with a / or ending in .toml) names a workload file: see docs/own-index.md.

Examples:
  bristlecone-lab model --index lbtree --device optane --workload insert --threads 1
  bristlecone-lab model --index lbtree-traditional --device ./mine.toml --workload mixed:90 --threads 8 --json",
        model::RunSpec::indexes().collect::<Vec<_>>().join(", "),
        model::Device::shipped().join(", "),
        model::Workload::names().join(", ")
    )
}

/// `model`
#[derive(Debug, Args)]
#[command(after_help = model_help())]
pub struct Model {
    /// Design of the index, from the list below
    #[arg(long, value_name = "NAME")]
    pub index: String,
    /// Bytes in a leaf [default: the design's usual]
    #[arg(long, alias = "node-size", value_name = "BYTES")]
    pub node_bytes: Option<u32>,
    /// Bytes of a key and a value together, half each: 16, or 32 for the designs that take them
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub entry_bytes: u32,
    #[command(flatten)]
    pub simulate: Simulate,
}

/// Arguments of `model` for any design.
#[derive(Debug, Args)]
pub struct Simulate {
    /// A shipped device, or the path of a device file (with a / or ending in .toml)
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub device: String,
    /// Operations of the threads
    #[arg(long, value_name = "W", value_parser = parsed::<model::Workload>)]
    pub workload: model::Workload,
    /// Simulated threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Keys loaded before the operations: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "200K")]
    pub keys: u64,
    /// Operations, of all threads together
    #[arg(long, value_name = "N", value_parser = count, default_value = "50K")]
    pub ops: u64,
    /// Fill of the loaded leaves, above 0 and up to 1
    #[arg(long, value_name = "F", value_parser = fill, allow_negative_numbers = true, default_value = "0.7")]
    pub fill: f64,
    /// Seed of the keys and their order
    #[arg(long, value_name = "S", default_value_t = 42)]
    pub seed: u64,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// The source of a figure's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnChoice {
    /// Counts of what the code does
    Counted,
    /// The device model: simulated time
    Model,
    /// This machine, timed
    Host,
}

impl OnChoice {
    /// Returns the corresponding value of the library.
    pub fn on(self) -> On {
        match self {
            Self::Counted => On::Counted,
            Self::Model => On::Model,
            Self::Host => On::Host,
        }
    }
}

/// The amount of work of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScaleChoice {
    /// Under a minute on two cores
    #[default]
    Small,
    /// The paper's sizes, as far as one machine allows
    Paper,
}

impl ScaleChoice {
    /// Returns the corresponding value of the library.
    pub fn scale(self) -> Scale {
        match self {
            Self::Small => Scale::Small,
            Self::Paper => Scale::Paper,
        }
    }
}

/// `figure`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the numbers and, for each claim of the paper, what was measured and the verdict: holds,
exceeds (stronger than the paper, in the direction that it claims) or fails. A claim that fails is
a result: the exit status is 0 all the same. `claims` has the verdicts of all figures.

Examples:
  bristlecone-lab figure --list
  bristlecone-lab figure lb-theorem-3.5
  bristlecone-lab figure lb-fig11 --on host --scale paper --out figures --json")]
pub struct Figure {
    /// Its name, as --list gives it
    #[arg(required_unless_present = "list")]
    pub name: Option<String>,
    /// Source of the numbers [default: the first that --list gives for the figure]
    #[arg(long, value_enum)]
    pub on: Option<OnChoice>,
    /// Amount of work
    #[arg(long, value_enum, default_value_t)]
    pub scale: ScaleChoice,
    /// Write a drawing (SVG) and the numbers (CSV) into this directory, created if missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// List every figure, with its title and the places where it runs
    #[arg(long, conflicts_with_all = ["name", "on", "scale", "out"])]
    pub list: bool,
    /// End with one JSON object on standard output (with --list: an array)
    #[arg(long)]
    pub json: bool,
}
