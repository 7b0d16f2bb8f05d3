//! `power-cut`: cuts the power at the system calls of a database.

use crate::args::{Planted, PowerCut, PowerCutWriter};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_command::text::{duration, grouped};
use bristlecone_command::{print_report, progress};
use bristlecone_lab::power_cut::{self, Model, PowerCutError, Report, Spec, Tracer, Wrong};
use clap::ValueEnum;
use serde::Serialize;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The JSON object of a run.
#[derive(Debug, Serialize)]
struct Found {
    images: u64,
    nested_images: u64,
    wrong: u64,
    /// Images with changes that were not durable.
    lossy: u64,
    recoveries: u64,
    commits: u64,
    events: u64,
    sector: u64,
    names: String,
    plant: Option<String>,
    seed: u64,
    tracing_seconds: f64,
    seconds: f64,
    /// Where the traces of wrong images are kept.
    kept: Option<PathBuf>,
    found: Vec<FoundImage>,
}

/// A wrong image.
#[derive(Debug, Serialize)]
struct FoundImage {
    cut: String,
    line: usize,
    what: String,
    lost: Vec<String>,
}

/// Runs the command.
pub fn run(args: &PowerCut) -> Outcome {
    remove_temporary_files_on_signals()?;
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // A new directory for the traces, or the one of an earlier run.
    let made = match &args.replay {
        Some(_) => None,
        None => Some(scratch(&parent)?),
    };
    let work = match (&args.replay, &made) {
        (Some(replay), _) => replay.clone(),
        (None, Some(made)) => made.path().to_path_buf(),
        (None, None) => parent,
    };
    let shm = Path::new("/dev/shm");
    let images = match (args.cut, shm.is_dir()) {
        (Some(_), _) => None,
        (None, true) => Some(scratch(shm)?),
        (None, false) => Some(scratch(&work)?),
    };
    let spec = Spec {
        images: args.images,
        seed: args.seed,
        commits: args.commits,
        model: Model {
            sector: if args.sector == "4096" { 4096 } else { 512 },
            names: args.names.model(),
            plant: args.plant.map(Planted::model),
        },
        traced: args.replay.is_some(),
        images_at: images
            .as_ref()
            .map_or_else(|| work.clone(), |images| images.path().to_path_buf()),
        work,
        only: args.cut,
    };
    let program = std::env::current_exe()
        .map_err(|e| Failure::new(format!("finding this program to trace it failed: {e}")))?;
    let tracer = Tracer {
        program: &program,
        writes,
        recovers,
    };
    let bar = progress::steps("cutting", args.images);
    let report = quietly(|| power_cut::run(&spec, &tracer, &mut || bar.inc(1)));
    bar.finish_and_clear();
    let report = report.map_err(|e| failed(&e))?;
    for wrong in &report.described {
        eprint!("{}", described(wrong));
    }
    let kept = match made {
        Some(made) if report.wrong > 0 => Some(made.keep()),
        Some(_) => None,
        None => args.replay.clone(),
    };
    summarize(args, &report, kept)
}

fn scratch(parent: &Path) -> Outcome<Scratch> {
    Scratch::new(parent, Purpose::Torture)
        .map_err(|e| Failure::io(parent, "making a directory in it", &e))
}

/// Runs `work` without the messages of panics, which are findings.
fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work();
    std::panic::set_hook(hook);
    result
}

fn failed(error: &PowerCutError) -> Failure {
    Failure::new(error.to_string())
}

/// The writer's arguments.
fn writes(dir: &Path, seed: u64, commits: u64) -> Vec<OsString> {
    vec![
        "power-cut-writer".into(),
        dir.into(),
        "--seed".into(),
        seed.to_string().into(),
        "--commits".into(),
        commits.to_string().into(),
    ]
}

/// The arguments of a traced recovery.
fn recovers(dir: &Path, seed: u64, may_be: RangeInclusive<u64>, commits: u64) -> Vec<OsString> {
    let mut arguments = writes(dir, seed, commits);
    for (name, n) in [("--from", may_be.start()), ("--to", may_be.end())] {
        arguments.extend([name.into(), n.to_string().into()]);
    }
    arguments
}

/// Is traced: writes, or recovers and then writes.
pub fn writer(args: &PowerCutWriter) -> Outcome {
    let done = match (args.from, args.to) {
        (Some(from), Some(to)) => power_cut::recover(&args.dir, args.seed, from..=to, args.commits),
        _ => power_cut::write(&args.dir, args.seed, args.commits),
    };
    done.map_err(|e| failed(&e))
}

/// Describes a wrong image for a person.
fn described(wrong: &Wrong) -> String {
    /// Lost changes that are printed.
    const MOST: usize = 30;
    let mut text = format!(
        "image {}, cut at line {} of the trace: {}\n",
        wrong.token, wrong.line, wrong.what
    );
    for lost in wrong.lost.iter().take(MOST) {
        text.push_str(&format!("    lost: {lost}\n"));
    }
    if wrong.lost.len() > MOST {
        text.push_str(&format!("    and {} more\n", wrong.lost.len() - MOST));
    }
    text
}

fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn summarize(args: &PowerCut, report: &Report, kept: Option<PathBuf>) -> Outcome {
    let verdict = if report.wrong == 0 {
        "every image was recovered as it had to be"
    } else {
        "WRONG IMAGES"
    };
    let mut text = format!(
        "{verdict}\n{} images and {} of cuts in {} recoveries, in {}: {} wrong; {} had lost something\n\
         {} commits, {} changes, syncs and reports in the trace; sectors of {} bytes; seed {}",
        grouped(report.images),
        grouped(report.nested_images),
        report.recoveries,
        duration(Duration::from_secs_f64(report.seconds)),
        report.wrong,
        grouped(report.lossy),
        report.commits,
        grouped(report.events),
        args.sector,
        args.seed,
    );
    if let (Some(kept), Some(first)) = (&kept, report.described.first()) {
        text.push_str(&format!(
            "\nthe traces are kept: bristlecone-lab power-cut --replay {} --images {} --seed {} --sector {} \
             --names {}{} --cut {}",
            kept.display(),
            args.images,
            args.seed,
            args.sector,
            name_of(&args.names),
            args.plant
                .map_or_else(String::new, |plant| format!(" --plant {}", name_of(&plant))),
            first.token,
        ));
    }
    let found = Found {
        images: report.images,
        nested_images: report.nested_images,
        wrong: report.wrong,
        lossy: report.lossy,
        recoveries: report.recoveries,
        commits: report.commits,
        events: report.events,
        sector: if args.sector == "4096" { 4096 } else { 512 },
        names: name_of(&args.names),
        plant: args.plant.as_ref().map(name_of),
        seed: args.seed,
        tracing_seconds: report.tracing,
        seconds: report.seconds,
        kept,
        found: report
            .described
            .iter()
            .map(|wrong| FoundImage {
                cut: wrong.token.to_string(),
                line: wrong.line,
                what: wrong.what.clone(),
                lost: wrong.lost.clone(),
            })
            .collect(),
    };
    print_report(&text, &found, args.json)?;
    if report.wrong == 0 {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}
