//! `bench micro`, `bench limits`, `bench peers` and `bench redb`.

mod peers;

use crate::args::{Bench, Limits, Measure, Micro};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_command::{print_report, progress};
use bristlecone_lab::LabError;
use bristlecone_lab::limits;
use bristlecone_lab::micro::{self, Event, MicroParams, MicroReport};
use indicatif::ProgressBar;

/// Measures.
pub fn run(bench: &Bench) -> Outcome {
    remove_temporary_files_on_signals()?;
    match bench {
        Bench::Micro(args) => run_micro(args),
        Bench::Limits(args) => run_limits(args),
        Bench::Peers(args) => peers::run(args),
        Bench::Redb(args) => peers::run_published(args),
    }
}

fn failed(error: LabError) -> Failure {
    Failure::new(error.to_string())
}

fn run_limits(args: &Limits) -> Outcome {
    if !args.path.is_dir() {
        return Err(Failure::new(format!(
            "{}: not a directory; --path names one, to measure fdatasync in",
            args.path.display()
        )));
    }
    let report = progress::waiting("measuring", || limits::measure(&args.path)).map_err(failed)?;
    print_report(&report, &report, args.json)
}

fn run_micro(micro: &Micro) -> Outcome {
    let choice = micro.index.any()?;
    let args = &micro.measure;
    let params = MicroParams {
        index: choice.name.into(),
        node_bytes: choice.node_bytes,
        ..params(args)?
    };
    if let Some(threads) = micro.scaling {
        let bar = progress::steps("measuring", 1);
        let mut on_event = |event: &Event<'_>| follow(&bar, event);
        let report = micro::scaling(&params, threads.into(), &mut on_event).map_err(failed)?;
        bar.finish_and_clear();
        return print_report(&report, &report, args.json);
    }
    measured(args, |on_event| micro::run(&params, on_event))
}

/// Returns the parameters, but for the design.
pub fn params(args: &Measure) -> Outcome<MicroParams> {
    let defaults = MicroParams::default();
    let params = MicroParams {
        keys: args.keys,
        threads: args.threads.into(),
        ops: if args.ops.is_empty() {
            defaults.ops
        } else {
            args.ops.clone()
        },
        medium: args.medium.kind(),
        durability: args.durability,
        path: args.path.clone().unwrap_or(defaults.path),
        seed: args.seed.unwrap_or(defaults.seed),
        against: args.against.clone(),
        ops_limit: args.ops_limit,
        ..defaults
    };
    if !params.path.is_dir() {
        return Err(Failure::new(format!(
            "{}: not a directory; --path names one for the benchmark's files",
            params.path.display()
        )));
    }
    Ok(params)
}

/// Prints the report of what `measure` does, which tells of its progress.
pub fn measured(
    args: &Measure,
    measure: impl FnOnce(&mut dyn FnMut(&Event<'_>)) -> Result<MicroReport, LabError>,
) -> Outcome {
    let bar = progress::steps("measuring", 1);
    let report = measure(&mut |event| follow(&bar, event)).map_err(failed)?;
    bar.finish_and_clear();
    print_report(&report, &report, args.json)
}

fn follow(bar: &ProgressBar, event: &Event<'_>) {
    bar.set_message(format!("{} {}", event.contender, event.phase));
    if bar.length() != Some(event.total) {
        bar.set_length(event.total);
        bar.reset_eta();
    }
    bar.set_position(event.done);
}
