//! Log-structuring: btree-LS, persistent unsorted and FAST/FAIR, insertion and reading, by threads
//! (UCSC-CRSS-20-01, section 6.3.2, figure 16).

use super::gap::{
    Contender, FAIR, MOPS, Of, PERSISTENT, Sweep, by_threads, few_keys, narrow_note, ops, pm, sweep,
};
use super::tree::{Design, LSTREE};
use super::{
    Claim, Entry, Expect, FigureError, Findings, NOT_IN_THE_PAPER, On, Panel, Setting, papers,
};
use crate::model::{Phase, Tuning, Workload};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig16",
    title: "log-structuring: btree-LS, persistent unsorted, FAST/FAIR, by threads",
    paper: papers::GAP,
    place: "section 6.3.2, figure 16",
    on: &[On::Model],
    run,
};

/// Returns btree-LS with the largest number of logs and without collection. Tags spare a search
/// most deltas; the paper has none.
const fn logs(tags: bool) -> Design {
    LSTREE.tuned(Tuning::Logs {
        logs: 32,
        deltas: 0,
        tags,
        garbage: None,
    })
}

const CONTENDERS: [Contender; 4] = [
    pm("btree-LS", logs(false)),
    pm("btree-LS with tags", logs(true)),
    pm("persistent unsorted", PERSISTENT),
    pm("FAST/FAIR", FAIR),
];
const ALL: [usize; 4] = [0, 1, 2, 3];
const THREADS: [usize; 3] = [1, 16, 48];
/// Of [`THREADS`].
const ONE: usize = 0;
const MANY: usize = THREADS.len() - 1;
const LS: usize = 0;
const TAGGED: usize = 1;
const FAST: usize = 3;
/// Phases. Before them, insertions give the leaves chains of deltas.
const FILL: usize = 1;
const READ: usize = 2;
const AMPLIFICATION: Of = |r| r.write_amplification;
const WRITTEN: Of = |r| r.media_bytes_written_per_op;
const MEDIA_READ: Of = |r| r.media_bytes_read_per_op;

/// Returns the time of an insertion by cause, with the most threads.
fn waits(sweep: &Sweep<'_>) -> Panel {
    let causes: [(&str, Of); 6] = [
        ("instructions", |r| r.stalls.compute_ns),
        ("caches", |r| r.stalls.cache_ns),
        ("DRAM", |r| r.stalls.dram_ns),
        ("PM reads", |r| r.stalls.pm_read_ns),
        ("stores, flushes, fences", |r| {
            r.stalls.store_ns + r.stalls.flush_ns + r.stalls.fence_ns
        }),
        ("queues", |r| r.stalls.bandwidth_ns),
    ];
    let names = CONTENDERS.map(|contender| contender.name);
    let panel = Panel::bars("fill, 48 threads: waits", "", "ns an insertion", names);
    causes.into_iter().fold(panel, |panel, (name, of)| {
        let values = ALL.map(|tree| sweep.at(MANY, tree, FILL, of));
        panel.with(name, values.to_vec())
    })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // The trees are smaller and the insertions more than elsewhere, a quarter of the keys, so that
    // leaves have deltas when they are read.
    let (keys, ops) = (few_keys(setting), ops(setting));
    let phases = [
        Phase::of(Workload::Insert, keys / 4),
        Phase::of(Workload::Insert, ops),
        Phase::of(Workload::Lookup, ops),
    ];
    let points = by_threads(&THREADS, &phases);
    let sweep = sweep(setting, "inserting and reading", keys, &CONTENDERS, &points)?;
    let mut findings = Findings::default();
    for (title, y, phase, of) in [
        ("(a) fill", "million insertions/s", FILL, MOPS),
        ("(b) read", "million lookups/s", READ, MOPS),
        (
            "write amplification",
            "bytes of the media for each",
            FILL,
            AMPLIFICATION,
        ),
        ("fill, media", "bytes written an insertion", FILL, WRITTEN),
        (
            "fill, media reads",
            "bytes read an insertion",
            FILL,
            MEDIA_READ,
        ),
    ] {
        let panel = sweep.panel((title, "threads", y), &ALL, phase, of);
        findings.panels.push(panel);
    }
    findings.panels.push(waits(&sweep));
    findings.claims = claims(&sweep);
    findings.notes = vec![
        narrow_note(keys, ops),
        format!(
            "nodes of 512 bytes; {} insertions before; 32 logs (the paper: up to 48), garbage is not collected",
            keys / 4
        ),
    ];
    Ok(findings)
}

fn claims(sweep: &Sweep<'_>) -> Vec<Claim> {
    vec![
        sweep.most_claim(
            "insertion throughput",
            1.41,
            (LS, FAST),
            (FILL, MOPS),
            Expect::ratio(1.41),
        ),
        Claim::new(
            "48 threads: read throughput, btree-LS over FAST/FAIR",
            0.63,
            sweep.over(MANY, (LS, FAST), READ, MOPS),
            Expect::level(0.63),
        ),
        Claim::new(
            "1 thread: read throughput, btree-LS over FAST/FAIR",
            "lower",
            sweep.over(ONE, (LS, FAST), READ, MOPS),
            Expect::less(),
        ),
        Claim::new(
            "48 threads: write amplification, btree-LS",
            "1.4 to 1.7",
            sweep.at(MANY, LS, FILL, AMPLIFICATION),
            Expect::range(1.4, 1.7).either_way(),
        ),
        Claim::new(
            "48 threads: write amplification, btree-LS over FAST/FAIR",
            "efficiently reduces the PM-level write amplification",
            sweep.over(MANY, (LS, FAST), FILL, AMPLIFICATION),
            Expect::at_most(0.85),
        ),
        Claim::new(
            "48 threads: bytes that the media writes for an insertion, btree-LS over FAST/FAIR",
            "random writes become sequential ones",
            sweep.over(MANY, (LS, FAST), FILL, WRITTEN),
            Expect::at_most(0.65),
        ),
        Claim::new(
            "48 threads: read throughput, btree-LS with tags over without",
            NOT_IN_THE_PAPER,
            sweep.over(MANY, (TAGGED, LS), READ, MOPS),
            Expect::more(),
        ),
    ]
}
