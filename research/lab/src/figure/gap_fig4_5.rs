//! Conventional and unsorted leaves, in DRAM and in persistent memory: reading, range queries, insertion, by threads
//! (UCSC-CRSS-20-01, section 4.1, figures 4 and 5).

use super::gap::{
    IN_BOTH, MOPS, MOST, NS, ONE, THREADS, by_threads, insertions, keys, note, ops, sweep,
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
/// Keys of a range query: what 0.001 % of the paper's 160 million are.
const SCANNED: u32 = 1600;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (keys(setting), ops(setting));
    let scans = (ops / 100).max(1);
    let [first, second] = insertions(ops);
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
    // How much longer an operation takes in PM.
    let gap = |point, (dram, pm), phase| sweep.over(point, (pm, dram), phase, NS);
    // How much more throughput unsorted leaves have.
    let gain = |point, dram: bool, phase| {
        let pair = if dram { (1, 0) } else { (3, 2) };
        sweep.over(point, pair, phase, MOPS)
    };
    findings.claims = vec![
        Claim::new(
            "fill, 1 thread: PM over DRAM, btree's latency",
            2.2,
            gap(ONE, BTREE, FILL),
            Expect::near(2.2, 0.3),
        ),
        Claim::new(
            "fill, 48 threads: PM over DRAM, btree's latency",
            4.4,
            gap(MOST, BTREE, FILL),
            Expect::near(4.4, 0.3),
        ),
        Claim::new(
            "fill: the gap at 48 threads over that at 1, btree",
            2.0,
            gap(MOST, BTREE, FILL) / gap(ONE, BTREE, FILL),
            Expect::about_at_least(2.0),
        ),
        Claim::new(
            "fill, 1 thread: PM over DRAM, unsorted leaf's latency",
            2.0,
            gap(ONE, UNSORTED, FILL),
            Expect::near(2.0, 0.3),
        ),
        Claim::new(
            "fill, 48 threads: PM over DRAM, unsorted leaf's latency",
            3.0,
            gap(MOST, UNSORTED, FILL),
            Expect::near(3.0, 0.3),
        ),
        Claim::new(
            "fill, 1 thread, PM: throughput, unsorted leaf over btree",
            1.06,
            gain(ONE, false, FILL),
            Expect::near(1.06, 0.1),
        ),
        sweep.most_claim(
            "fill, PM: throughput",
            1.40,
            (UNSORTED.1, BTREE.1),
            (FILL, MOPS),
            Expect::near(1.40, 0.3),
        ),
        sweep.most_claim(
            "fill, DRAM: throughput",
            1.06,
            (UNSORTED.0, BTREE.0),
            (FILL, MOPS),
            Expect::near(1.06, 0.1),
        ),
        Claim::new(
            "read, 1 thread, PM: throughput, unsorted leaf over btree",
            "comparable",
            gain(ONE, false, READ),
            Expect::near(1.0, 0.15),
        ),
        Claim::new(
            "read, 1 thread: PM over DRAM, btree's latency",
            "2-3x",
            gap(ONE, BTREE, READ),
            Expect::Between {
                low: 2.0,
                high: 3.0,
                slack: 0.1,
            },
        ),
        Claim::new(
            "read: the gap at 48 threads over that at 1, btree",
            "a constant ratio",
            gap(MOST, BTREE, READ) / gap(ONE, BTREE, READ),
            Expect::near(1.0, 0.25),
        ),
        Claim::new(
            "range query, 1 thread, PM: latency, unsorted leaf over btree",
            "up to 2x",
            1.0 / gain(ONE, false, RANGE),
            Expect::about_at_least(2.0),
        )
        .note("sorting a leaf is instructions, which the model does not count"),
    ];
    findings.notes = vec![
        note(keys, ops),
        format!(
            "nodes of 512 bytes; {scans} range queries of {SCANNED} keys; the second of two phases of insertions"
        ),
    ];
    Ok(findings)
}
