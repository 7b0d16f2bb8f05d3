//! `crash-disk`: cuts the power on a simulated disk.

use crate::args::CrashDisk;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::text::grouped;
use bristlecone_command::{print_report, progress};
use bristlecone_crash::disk::failing::{FailingFinding, fail_sync};
use bristlecone_crash::disk::mutants::{Mutant, killed, mutants_of};
use bristlecone_crash::disk::{
    DiskOptions, DiskReport, DiskSubject, explore_disk, record_disk, subjects,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Runs that mutants are looked for in.
const RECORDED: u64 = 24;

/// The JSON object of a subject.
#[derive(Debug, Serialize)]
struct Explored {
    subject: &'static str,
    runs: u64,
    events: u64,
    disks: u64,
    nested_disks: u64,
    runs_with_failing_syncs: u64,
    wrong: u64,
    seconds: f64,
}

/// The JSON object of a subject's mutants.
#[derive(Debug, Serialize)]
struct Mutated {
    subject: &'static str,
    mutants: usize,
    killed: usize,
    survivors: Vec<String>,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &CrashDisk) -> Outcome {
    let mut bad = false;
    for subject in subjects() {
        if args.subject != "all" && args.subject != subject.name() {
            continue;
        }
        bad |= match args.mutants {
            true => mutate(args, &*subject)?,
            false => explore(args, &*subject)?,
        };
    }
    match bad {
        true => Err(Failure::Reported),
        false => Ok(()),
    }
}

fn options(args: &CrashDisk, until: Instant) -> DiskOptions {
    DiskOptions {
        seed: args.seed,
        disks: args.disks as usize,
        nested_every: 8,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
        deadline: Some(until),
        stop_at_first: false,
    }
}

fn failed(subject: &dyn DiskSubject, seed: u64, what: impl std::fmt::Display) -> Failure {
    let name = subject.name();
    Failure::new(format!(
        "{name}, seed {seed}: the run failed, without any cut: {what}"
    ))
}

/// Explores runs until the time is over. Returns true if something was found.
fn explore(args: &CrashDisk, subject: &dyn DiskSubject) -> Outcome<bool> {
    let began = Instant::now();
    let until = began + Duration::from_secs(args.budget);
    let bar = progress::steps(subject.name(), args.budget);
    let mut whole = DiskReport::default();
    let (mut runs, mut failing) = (0, 0);
    let mut lost: Vec<FailingFinding> = Vec::new();
    while Instant::now() < until {
        let seed = args.seed.wrapping_add(runs);
        let recording = record_disk(subject, seed).map_err(|fault| failed(subject, seed, fault))?;
        whole.add(explore_disk(
            subject,
            &recording,
            None,
            &options(args, until),
        ));
        runs += 1;
        let mut sync = 1;
        while Instant::now() < until {
            match fail_sync(subject, seed, sync) {
                Ok(true) => failing += 1,
                Ok(false) => break,
                Err(found) => lost.push(found),
            }
            sync += 1 + sync / 8;
        }
        bar.set_position(began.elapsed().as_secs().min(args.budget));
    }
    bar.finish_and_clear();
    for found in &whole.found {
        eprintln!(
            "{}, seed {}, after {:?} events: {}\n{}",
            subject.name(),
            found.seed,
            found.events,
            found.fault,
            found.cut
        );
    }
    for found in lost.iter().take(3) {
        eprintln!(
            "{}, seed {}, sync {} fails; {}: {}",
            subject.name(),
            found.seed,
            found.sync,
            found.then,
            found.fault
        );
    }
    let explored = Explored {
        subject: subject.name(),
        runs,
        events: whole.events,
        disks: whole.disks,
        nested_disks: whole.nested,
        runs_with_failing_syncs: failing + lost.len() as u64,
        wrong: whole.wrong + lost.len() as u64,
        seconds: began.elapsed().as_secs_f64(),
    };
    let text = format!(
        "{}: {} runs, {} events; {} disks recovered, {} of cuts in recoveries; {} runs with failing syncs: {} wrong",
        explored.subject,
        grouped(runs),
        grouped(explored.events),
        grouped(explored.disks),
        grouped(explored.nested_disks),
        grouped(explored.runs_with_failing_syncs),
        explored.wrong,
    );
    print_report(&text, &explored, args.json)?;
    Ok(explored.wrong > 0)
}

/// Tries every mutant. Returns true if one was not found out.
fn mutate(args: &CrashDisk, subject: &dyn DiskSubject) -> Outcome<bool> {
    let began = Instant::now();
    let mut recordings = Vec::new();
    for seed in (0..RECORDED).map(|i| args.seed.wrapping_add(i)) {
        let recorded = record_disk(subject, seed);
        recordings.push(recorded.map_err(|fault| failed(subject, seed, fault))?);
    }
    let all: BTreeSet<Mutant> = (recordings.iter())
        .flat_map(|recording| mutants_of(recording.events()))
        .collect();
    let bar = progress::steps("mutants", all.len() as u64);
    let mut survivors = Vec::new();
    for mutant in &all {
        let until = Instant::now() + Duration::from_secs(args.budget);
        match killed(subject, &recordings, mutant, &options(args, until)) {
            Some(how) if !args.json => println!("killed    {mutant}: {how}"),
            Some(_) => {}
            None => survivors.push(mutant.to_string()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mutated = Mutated {
        subject: subject.name(),
        mutants: all.len(),
        killed: all.len() - survivors.len(),
        survivors,
        seconds: began.elapsed().as_secs_f64(),
    };
    let mut text = String::new();
    for survivor in &mutated.survivors {
        text.push_str(&format!("SURVIVED  {survivor}\n"));
    }
    text.push_str(&format!(
        "{}: {} of {} mutants killed",
        mutated.subject, mutated.killed, mutated.mutants
    ));
    print_report(&text, &mutated, args.json)?;
    Ok(!mutated.survivors.is_empty())
}
