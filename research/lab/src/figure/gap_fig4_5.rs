//! Conventional and unsorted leaves, in DRAM and in persistent memory: reading, range queries,
//! insertion, by threads (UCSC-CRSS-20-01, section 4.1, figures 4 and 5).

use super::gap::{
    IN_BOTH, MANY, MOPS, NS, ONE, Sweep, THREADS, by_threads, grown_note, insertions, keys, ops,
    sweep,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};
use crate::model::{Phase, Workload};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig4-5",
    title: "throughput and latency of read, range query and fill, in DRAM and PM, by threads",
    paper: papers::GAP,
    place: "section 4.1, figures 4 and 5",
    on: &[On::Model],
    run,
};

/// Of [`IN_BOTH`]: a tree in DRAM, and in PM.
const BTREE: (usize, usize) = (0, 2);
const UNSORTED: (usize, usize) = (1, 3);
/// Phases.
const READ: usize = 0;
const RANGE: usize = 1;
const FILL: usize = 3;
/// Keys of a range query: 0.001 % of the paper's 160 million.
const SCANNED: u32 = 1600;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (keys(setting), ops(setting));
    let scans = (ops / 100).max(1);
    let [first, second] = insertions(keys);
    let phases = [
        Phase::of(Workload::Lookup, ops),
        Phase::of(Workload::Scan { keys: SCANNED }, scans),
        first,
        second,
    ];
    let points = by_threads(&THREADS, &phases);
    let sweep = sweep(setting, "operations", keys, &IN_BOTH, &points)?;
    let mut findings = Findings::default();
    for (what, unit, phase) in [
        ("read", "lookups", READ),
        ("range query", "range queries", RANGE),
        ("fill", "insertions", FILL),
    ] {
        let throughput = (
            &*format!("{what}, throughput"),
            "threads",
            &*format!("million {unit}/s"),
        );
        let latency = (&*format!("{what}, latency"), "threads", "ns an operation");
        for (titles, of) in [(throughput, MOPS), (latency, NS)] {
            findings
                .panels
                .push(sweep.panel(titles, &[0, 1, 2, 3], phase, of));
        }
    }
    findings.claims = fill_claims(&sweep);
    findings.claims.extend(read_claims(&sweep));
    findings.notes = vec![
        grown_note(keys),
        format!(
            "nodes of 512 bytes; {scans} range queries of {SCANNED} keys; the second of two phases of insertions"
        ),
    ];
    Ok(findings)
}

/// Returns how much longer an operation takes in PM than in DRAM.
fn gap(sweep: &Sweep<'_>, point: usize, (dram, pm): (usize, usize), phase: usize) -> f64 {
    sweep.over(point, (pm, dram), phase, NS)
}

/// Returns how much more throughput unsorted leaves have in PM, with one thread.
fn gain(sweep: &Sweep<'_>, phase: usize) -> f64 {
    sweep.over(ONE, (UNSORTED.1, BTREE.1), phase, MOPS)
}

fn fill_claims(sweep: &Sweep<'_>) -> Vec<Claim> {
    let gap = |point, tree| gap(sweep, point, tree, FILL);
    let rise = gap(MANY, BTREE) / gap(ONE, BTREE);
    let mut claims = Vec::new();
    for (what, paper, measured, expect) in [
        (
            "fill, 1 thread: PM over DRAM, btree's latency",
            2.2,
            gap(ONE, BTREE),
            Expect::level(2.2),
        ),
        (
            "fill, 48 threads: PM over DRAM, btree's latency",
            4.4,
            gap(MANY, BTREE),
            Expect::level(4.4),
        ),
        (
            "fill: the gap at 48 threads over that at 1, btree",
            2.0,
            rise,
            Expect::ratio(2.0),
        ),
        (
            "fill, 1 thread: PM over DRAM, unsorted leaf's latency",
            2.0,
            gap(ONE, UNSORTED),
            Expect::level(2.0),
        ),
        (
            "fill, 48 threads: PM over DRAM, unsorted leaf's latency",
            3.0,
            gap(MANY, UNSORTED),
            Expect::level(3.0),
        ),
        (
            "fill, 1 thread, PM: throughput, unsorted leaf over btree",
            1.06,
            gain(sweep, FILL),
            Expect::level(1.06),
        ),
    ] {
        claims.push(Claim::new(what, paper, measured, expect));
    }
    for (what, paper, pair, expect) in [
        (
            "fill, PM: throughput",
            1.40,
            (UNSORTED.1, BTREE.1),
            Expect::ratio(1.40),
        ),
        (
            "fill, DRAM: throughput",
            1.06,
            (UNSORTED.0, BTREE.0),
            Expect::level(1.06),
        ),
    ] {
        claims.push(sweep.most_claim(what, paper, pair, (FILL, MOPS), expect));
    }
    claims
}

fn read_claims(sweep: &Sweep<'_>) -> [Claim; 4] {
    let gap = |point| gap(sweep, point, BTREE, READ);
    [
        Claim::new(
            "read, 1 thread, PM: throughput, unsorted leaf over btree",
            "comparable",
            gain(sweep, READ),
            Expect::alike(),
        ),
        Claim::new(
            "read, 1 thread: PM over DRAM, btree's latency",
            "2-3x",
            gap(ONE),
            Expect::range(2.0, 3.0).within(0.1).either_way(),
        ),
        Claim::new(
            "read: the gap at 48 threads over that at 1, btree",
            "a constant ratio",
            gap(MANY) / gap(ONE),
            Expect::alike(),
        ),
        Claim::new(
            "range query, 1 thread, PM: latency, unsorted leaf over btree",
            "up to 2x",
            1.0 / gain(sweep, RANGE),
            Expect::level(2.0),
        )
        .note("sorting a leaf is instructions, which the model does not count"),
    ]
}
