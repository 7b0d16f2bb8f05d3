//! The program of a design that is not in the registry: the commands of `bristlecone-lab` without
//! `--index`. Without a command, it measures, models and explores the design once.

use crate::args::{Explore, Measure, Simulate, parsed};
use crate::commands::{bench, crash, figure, model};
use bristlecone_command::args::count;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_crash::subject::Subject;
use bristlecone_crash::subjects::index;
use bristlecone_designs::Design;
use bristlecone_designs::designs::OwnDesign;
use bristlecone_lab::figure::Comparison;
use bristlecone_lab::model::{Workload, run_own};
use bristlecone_lab::{figure as figures, micro};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Measure, model and explore an index design. Without a command, all of it once.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure it beside others, as `bristlecone-lab bench micro` does
    Bench(Measure),
    /// Simulate it on a described memory device, as `bristlecone-lab model` does
    Model(Simulate),
    /// Draw it on the device model, beside designs of the registry
    Figure(Draw),
    /// Enumerate the states that a power cut can leave, as `bristlecone-lab crash` does
    Crash(Explore),
}

/// Arguments of `figure`.
#[derive(Args, Debug)]
struct Draw {
    /// A shipped device, or the path of a device file (with a / or ending in .toml)
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "optane")]
    device: String,
    /// Operations, with commas between them: as `model --workload` takes them
    #[arg(long, value_name = "W", value_delimiter = ',', value_parser = parsed::<Workload>,
          default_value = "insert,lookup,update,remove")]
    workloads: Vec<Workload>,
    /// Designs of the registry to compare with, with commas between them
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "lbtree,fptree"
    )]
    beside: Vec<String>,
    /// Keys loaded before the operations: a number with K, M or G
    #[arg(long, value_name = "N", value_parser = count, default_value = "200K")]
    keys: u64,
    /// Operations of each run
    #[arg(long, value_name = "N", value_parser = count, default_value = "20K")]
    ops: u64,
    /// Directory for a drawing (SVG) and the numbers (CSV)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The commands that stand for none.
const ALL: [&[&str]; 3] = [
    &["bench", "--keys", "100K", "--against", "btreemap"],
    &["figure"],
    &["crash", "--model", "all"],
];

/// Runs the program of `design`, which reports call `name`, with leaves of `node_bytes` bytes. Its
/// arguments are the process's; `--help` lists them.
///
/// The status is 1 if the design gives a wrong answer, or a crash breaks it.
pub fn own<D: Design>(name: &'static str, node_bytes: u32, design: D) -> ExitCode {
    let program = std::env::args().next().unwrap_or_else(|| name.to_owned());
    let own = OwnDesign {
        name,
        node_bytes,
        design,
    };
    let outcome = match Cli::parse().command {
        Some(command) => one(&program, &own, command),
        None => ALL.iter().try_for_each(|args| {
            eprintln!("\n$ {program} {}", args.join(" "));
            let words = std::iter::once(&program[..]).chain(args.iter().copied());
            let parsed = Cli::try_parse_from(words).map_err(|e| Failure::Usage(e.to_string()))?;
            (parsed.command).map_or(Ok(()), |command| one(&program, &own, command))
        }),
    };
    bristlecone_command::exit(name, outcome)
}

fn one<D: Design>(program: &str, own: &OwnDesign<D>, command: Command) -> Outcome {
    match command {
        Command::Bench(args) => {
            remove_temporary_files_on_signals()?;
            let params = bench::params(&args)?;
            bench::measured(&args, |told| micro::run_own(&params, own, told))
        }
        Command::Model(args) => {
            let spec = model::spec(own.name, &args)?;
            model::reported(&args, |told| run_own(&spec, own, told))
        }
        Command::Figure(args) => draw(own, args),
        Command::Crash(args) => explore(program, own, &args),
    }
}

fn draw<D: Design>(own: &OwnDesign<D>, args: Draw) -> Outcome {
    let what = Comparison {
        device: args.device,
        workloads: args.workloads,
        beside: args.beside,
        keys: args.keys,
        ops: args.ops,
    };
    figure::made(args.out.as_deref(), args.json, |told| {
        figures::own(own, &what, told)
    })
}

fn explore<D: Design>(program: &str, own: &OwnDesign<D>, args: &Explore) -> Outcome {
    let subjects = || -> [Arc<dyn Subject>; 2] {
        [
            index::own::<u64>(own).into(),
            index::own::<[u8]>(own).into(),
        ]
    };
    match &args.replay {
        None => crash::run_on(program, args, subjects().to_vec()),
        Some(token) => crash::replay(program, token, &|name| {
            let found = subjects()
                .into_iter()
                .find(|subject| subject.name() == name);
            let other = || Failure::Usage(format!("--replay: the token is for {name:?}"));
            found.ok_or_else(other)
        }),
    }
}
