//! `bench peers` and `bench redb`.

use super::failed;
use crate::args::{Peers, Redb};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::process::spawn_self;
use bristlecone_command::{print_json, print_report, progress};
use bristlecone_lab::LabError;
use bristlecone_lab::peers::{self, Counts, Engine, Params, PublishedParams, Report, Step};
use std::path::Path;
use std::time::Duration;

/// Compares embedded databases, or counts for one of them.
pub fn run(args: &Peers) -> Outcome {
    let params = params(args);
    params.paths.iter().try_for_each(|path| directory(path))?;
    if args.count {
        return print_json(&peers::count(&params).map_err(failed)?);
    }
    if args.engines.is_empty() {
        for engine in Engine::ALL {
            if let Err(reason) = engine.check() {
                eprintln!("{engine} is left out: {reason}");
            }
        }
    }
    let report = following(|progress| peers::run(&params, &mut count, progress))?;
    if let Some(out) = &args.out {
        write(&report, out)?;
    }
    print_report(&report, &report, args.json)
}

/// Runs redb's published benchmark.
pub fn run_published(args: &Redb) -> Outcome {
    directory(&args.path)?;
    let defaults = PublishedParams::default();
    let params = PublishedParams {
        path: args.path.clone(),
        elements: args.elements,
        rounds: args.rounds,
        engines: if args.engines.is_empty() {
            defaults.engines
        } else {
            args.engines.clone()
        },
        seed: args.seed.unwrap_or(defaults.seed),
    };
    let report = following(|progress| peers::run_published(&params, progress))?;
    print_report(&report, &report, args.json)
}

fn directory(path: &Path) -> Outcome {
    if path.is_dir() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: not a directory; --path names one for the engines' files",
        path.display()
    )))
}

/// Shows the progress of `run`.
fn following<R>(
    run: impl FnOnce(&mut dyn FnMut(&Step<'_>)) -> Result<R, LabError>,
) -> Result<R, Failure> {
    let bar = progress::steps("comparing", 1);
    bar.enable_steady_tick(Duration::from_secs(1));
    let report = run(&mut |step: &Step<'_>| {
        bar.set_length(step.total);
        bar.set_position(step.done);
        bar.set_message(step.doing.to_owned());
    });
    bar.finish_and_clear();
    report.map_err(failed)
}

fn params(args: &Peers) -> Params {
    let defaults = Params::default();
    fn or<T: Clone>(given: &[T], usual: Vec<T>) -> Vec<T> {
        if given.is_empty() {
            usual
        } else {
            given.to_vec()
        }
    }
    Params {
        paths: or(&args.path, defaults.paths),
        value_bytes: args.value_bytes.clone(),
        threads: args.threads.clone(),
        keys: args.keys,
        rounds: args.rounds,
        slice: Duration::from_millis(args.slice_ms.into()),
        engines: or(&args.engines, defaults.engines),
        workloads: or(&args.workloads, defaults.workloads),
        seed: args.seed.unwrap_or(defaults.seed),
        memory: args.memory,
    }
}

/// Starts this program again, to count for the one engine of `params`.
fn count(params: &Params) -> Result<Vec<Counts>, LabError> {
    let started = |e: &dyn std::fmt::Display| LabError::index("counting", e.to_string());
    let child = spawn_self(|command| {
        command.args(["bench", "peers", "--count", "--json"]);
        let mut option = |name: &str, values: Vec<String>| {
            command.arg(format!("--{name}={}", values.join(",")));
        };
        fn each<T: ToString>(values: &[T]) -> Vec<String> {
            values.iter().map(T::to_string).collect()
        }
        option("engines", each(&params.engines));
        option("workloads", each(&params.workloads));
        option("keys", each(&[params.keys]));
        option("value-bytes", each(&params.value_bytes));
        option("threads", each(&params.threads));
        option("slice-ms", each(&[params.slice.as_millis()]));
        option("seed", each(&[params.seed]));
        if let Some(memory) = params.memory {
            option("memory", each(&[memory]));
        }
        for path in &params.paths {
            command.arg("--path").arg(path);
        }
    });
    let child =
        child.map_err(|e| started(&e.message().unwrap_or("starting the process failed")))?;
    let ended = child.wait_with_output().map_err(|e| started(&e))?;
    if !ended.status.success() {
        // Its message is on standard error, which both share.
        return Err(started(&format!(
            "the process for it ended: {}",
            ended.status
        )));
    }
    serde_json::from_slice(&ended.stdout).map_err(|e| started(&e))
}

fn write(report: &Report, out: &Path) -> Outcome {
    let written = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|e| Failure::io(path, "writing", &e))
    };
    let drawn = peers::draw(report).map_err(|e| Failure::new(format!("drawing failed: {e}")))?;
    written(out, drawn)?;
    let json = serde_json::to_string_pretty(report)
        .map_err(|e| Failure::new(format!("writing the report as JSON failed: {e}")))?;
    written(&out.with_extension("json"), json + "\n")
}
