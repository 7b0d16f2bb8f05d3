//! btree-LS by its number of logs: insertion with many threads, write amplification, and recovery
//! with as many replayers (UCSC-CRSS-20-01, section 6.3.2, figure 17).

use super::gap::{BYTES, device, few_keys, narrow_note, ops};
use super::tree::{Crashed, Design, LSTREE};
use super::trial::{Trial, measure, speedup};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;
use crate::model::{Phase, Tuning, Workload};
use bristlecone_designs::Fill;
use std::thread::available_parallelism;

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig17",
    title: "btree-LS by number of logs: insertion, write amplification, recovery",
    paper: papers::GAP,
    place: "section 6.3.2, figure 17",
    on: &[On::Model, On::Host],
    run,
};

/// Numbers of logs. A tree can have no more than the last; the paper goes up to 96.
const LOGS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const THREADS: usize = 48;
/// Openings of each copy, of which the median counts.
const TIMES: usize = 5;

const fn logs(logs: u32) -> Design {
    LSTREE.sized(BYTES).tuned(Tuning::Logs {
        logs,
        deltas: 0,
        tags: false,
        garbage: None,
    })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    match setting.on {
        On::Host => recovery(setting),
        _ => insertion(setting),
    }
}

fn insertion(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (few_keys(setting), ops(setting));
    let device = device("optane", keys)?;
    let phases = [
        Phase::of(Workload::Insert, keys / 4),
        Phase::of(Workload::Insert, ops),
    ];
    let trial = |n| {
        let trial = Trial::new(logs(n), &device, keys, Fill::USUAL, &phases);
        vec![trial.threaded(THREADS)]
    };
    let outcomes = measure(setting, "inserting", &LOGS.map(trial))?;
    let of = |of: super::gap::Of| -> Vec<f64> {
        let trials = outcomes.iter();
        trials.map(|trials| trials[0][1].counted(of)).collect()
    };
    let mops = of(|r| r.mops);
    let amplification = of(|r| r.write_amplification);
    let media = of(|r| r.media_bytes_written_per_op);
    let places = LOGS.map(f64::from);
    let panel = |title: &str, y: &str, of: (&str, Vec<f64>), other: (&str, Vec<f64>)| {
        Panel::lines(title, "logs", y, places)
            .with(of.0, of.1)
            .with(other.0, other.1)
    };
    let last = LOGS.len() - 1;
    Ok(Findings {
        claims: vec![
            Claim::new(
                "throughput, 32 logs over 1",
                "first increases drastically",
                mops[last] / mops[0],
                Expect::at_least(1.5),
            )
            .note("threads of the model never wait for each other's locks, which is what one log costs the paper's"),
            Claim::new(
                "write amplification with one log",
                1.4,
                amplification[0],
                Expect::level(1.4),
            ),
            Claim::new(
                "write amplification, 32 logs over 1",
                1.21,
                amplification[last] / amplification[0].max(f64::MIN_POSITIVE),
                Expect::level(1.21),
            ),
        ],
        panels: vec![
            panel(
                "(a) throughput",
                "million insertions/s",
                ("btree-LS", mops.clone()),
                ("of one log", vec![mops[0]; LOGS.len()]),
            ),
            panel(
                "(b) write amplification",
                "bytes of the media for each",
                ("btree-LS", amplification.clone()),
                ("of one log", vec![amplification[0]; LOGS.len()]),
            ),
            Panel::lines("media traffic", "logs", "bytes written an insertion", places)
                .with("btree-LS", media.clone())
                .with("of one log", vec![media[0]; LOGS.len()]),
        ],
        notes: vec![
            narrow_note(keys, ops),
            "a record is half a line and is flushed with its line, so that of two neighbours the line comes twice and \
             meets itself in the device's buffers: write amplification is below 1"
                .to_owned(),
            format!("{THREADS} threads; {} insertions before; nodes of 512 bytes; no collection", keys / 4),
        ],
    })
}

fn recovery(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(2_000_000, 40_000_000);
    let cores = available_parallelism().map_or(1, usize::from);
    let counts: Vec<u32> = LOGS
        .into_iter()
        .filter(|n| *n as usize <= cores.max(1))
        .collect();
    let total = counts.len() as u64 + 1;
    let mut ms = Vec::new();
    let mut one = Vec::new();
    for (done, n) in (0..).zip(&counts) {
        let crashed = Crashed::new(logs(*n), keys)?;
        setting.step("recovering", done, total);
        let time = |threads: usize| -> Result<f64, FigureError> {
            let times: Result<Vec<f64>, FigureError> = (0..TIMES)
                .map(|_| Ok(crashed.recover(threads)?.as_secs_f64() * 1e3))
                .collect();
            Ok(median(times?))
        };
        ms.push(time(*n as usize)?);
        one.push(time(1)?);
    }
    setting.step("recovering", total, total);
    let most = counts.last().copied().unwrap_or(1);
    let paper = speedup((21.0, 48), most as usize);
    let places = counts.iter().map(|n| f64::from(*n));
    Ok(Findings {
        claims: vec![
            Claim::new(
                format!("recovery: time of one log and replayer over that of {most}"),
                "21x with 48",
                ms[0] / ms.last().copied().unwrap_or(f64::NAN),
                Expect::ratio(paper),
            )
            .note(format!(
                "by Amdahl's law, the paper's would be {paper:.2} with {most}; {cores} cores"
            )),
        ],
        panels: vec![
            Panel::lines("(c) recovery", "logs", "ms", places)
                .with("as many replayers as logs", ms)
                .with("one replayer", one),
        ],
        notes: vec![format!(
            "trees of {keys} random keys of 8 bytes with 8-byte values, loaded to 70 %; copies of pools in use, in shared \
             memory; median of {TIMES} openings; no more replayers than the machine has cores"
        )],
    })
}
