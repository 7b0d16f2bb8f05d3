//! Selective persistence: FAST/FAIR with its inner nodes in persistent memory and in DRAM, by
//! threads (UCSC-CRSS-20-01, section 4.3, figure 9).

use super::gap::{
    Contender, FAIR, MANY, MOPS, NS, ONE, THREADS, by_threads, dram, grown_note, insertions, keys,
    ops, pm, sweep,
};
use super::tree::FASTFAIR_SP;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};
use crate::model::{Phase, Workload};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig9",
    title: "selective persistence: FAST/FAIR with inner nodes in PM and in DRAM, by threads",
    paper: papers::GAP,
    place: "section 4.3, figure 9",
    on: &[On::Model],
    run,
};

const CONTENDERS: [Contender; 3] = [
    dram("DRAM FAST/FAIR", FAIR),
    pm("PM FAST/FAIR", FAIR),
    pm("PM FAST/FAIR SP", FASTFAIR_SP),
];
const ALL: [usize; 3] = [0, 1, 2];
const PM: usize = 1;
const SELECTIVE: usize = 2;
/// Phases.
const READ: usize = 0;
const FILL: usize = 2;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (keys(setting), ops(setting));
    let [first, second] = insertions(keys);
    let phases = [Phase::of(Workload::Lookup, ops), first, second];
    let points = by_threads(&THREADS, &phases);
    let sweep = sweep(setting, "reading and inserting", keys, &CONTENDERS, &points)?;
    let mut findings = Findings::default();
    for (title, y, phase, of) in [
        ("(a) read, throughput", "million lookups/s", READ, MOPS),
        ("(b) read, latency", "ns a lookup", READ, NS),
        ("(c) fill, throughput", "million insertions/s", FILL, MOPS),
        ("(d) fill, latency", "ns an insertion", FILL, NS),
    ] {
        let panel = sweep.panel((title, "threads", y), &ALL, phase, of);
        findings.panels.push(panel);
    }
    let gap = |tree| sweep.over(ONE, (tree, 0), READ, NS);
    findings.claims = vec![
        Claim::new(
            "1 thread: read latency, PM FAST/FAIR over PM FAST/FAIR SP",
            1.5,
            sweep.over(ONE, (PM, SELECTIVE), READ, NS),
            Expect::ratio(1.5),
        ),
        Claim::new(
            "48 threads: read throughput, PM FAST/FAIR SP over PM FAST/FAIR",
            1.5,
            sweep.over(MANY, (SELECTIVE, PM), READ, MOPS),
            Expect::ratio(1.5),
        ),
        sweep.most_claim(
            "insertion throughput",
            1.4,
            (SELECTIVE, PM),
            (FILL, MOPS),
            Expect::ratio(1.4),
        ),
        Claim::new(
            "1 thread: share of the gap to DRAM's read latency that FAST/FAIR SP closes",
            "closing the gap",
            (gap(PM) - gap(SELECTIVE)) / (gap(PM) - 1.0),
            Expect::at_least(0.5),
        ),
    ];
    findings.notes = vec![grown_note(keys), "nodes of 512 bytes".to_owned()];
    Ok(findings)
}
