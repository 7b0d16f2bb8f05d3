//! The cost of the mechanisms of persistence for an insertion, in DRAM and in persistent memory, by
//! threads (UCSC-CRSS-20-01, section 4.2, figure 7).

use super::gap::{
    Contender, FAIR, LEAF, MANY, MOPS, NS, ONE, PERSISTENT, PLAIN, THREADS, WAL, by_threads, dram,
    grown_note, insertions, keys, pm, sweep,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig7",
    title: "the cost of persistence: insertion, by mechanism and threads",
    paper: papers::GAP,
    place: "section 4.2, figure 7",
    on: &[On::Model],
    run,
};

const CONTENDERS: [Contender; 10] = [
    dram("btree", PLAIN),
    dram("unsorted leaf", LEAF),
    dram("btree-WAL", WAL),
    dram("FAST/FAIR", FAIR),
    dram("persistent unsorted", PERSISTENT),
    pm("btree", PLAIN),
    pm("unsorted leaf", LEAF),
    pm("btree-WAL", WAL),
    pm("FAST/FAIR", FAIR),
    pm("persistent unsorted", PERSISTENT),
];
const DRAM: [usize; 5] = [0, 1, 2, 3, 4];
const PM: [usize; 5] = [5, 6, 7, 8, 9];
/// Of [`DRAM`] and [`PM`].
const BTREE: usize = 0;
const UNSORTED: usize = 1;
const LOGGED: usize = 2;
const FAST: usize = 3;
const BITMAP: usize = 4;
/// The phase that counts.
const SECOND: usize = 1;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let points = by_threads(&THREADS, &insertions(keys));
    let sweep = sweep(setting, "inserting", keys, &CONTENDERS, &points)?;
    let mut findings = Findings::default();
    for (title, y, trees, of) in [
        ("(a) throughput, DRAM", "million insertions/s", DRAM, MOPS),
        ("(b) throughput, PM", "million insertions/s", PM, MOPS),
        ("(c) latency, DRAM", "ns an insertion", DRAM, NS),
        ("(d) latency, PM", "ns an insertion", PM, NS),
    ] {
        let panel = sweep.panel((title, "threads", y), &trees, SECOND, of);
        findings.panels.push(panel);
    }
    let latency = |tree, over, paper: f64| {
        let pair = (PM[tree], PM[over]);
        sweep.most_claim(
            "PM: latency",
            paper,
            pair,
            (SECOND, NS),
            Expect::level(paper),
        )
    };
    let rises = |trees: [usize; 5]| {
        let ns = |point| sweep.at(point, trees[FAST], SECOND, NS);
        ns(MANY) / ns(ONE)
    };
    let at_most = |tree, over, of| sweep.over(MANY, (PM[tree], PM[over]), SECOND, of);
    findings.claims = vec![
        latency(LOGGED, BTREE, 1.77),
        latency(BITMAP, UNSORTED, 1.56),
        Claim::new(
            "PM, 1 thread: latency, FAST/FAIR over btree",
            1.27,
            sweep.over(ONE, (PM[FAST], PM[BTREE]), SECOND, NS),
            Expect::level(1.27),
        ),
        Claim::new(
            "PM, 48 threads: throughput, FAST/FAIR over btree",
            1.03,
            at_most(FAST, BTREE, MOPS),
            Expect::ratio(1.03),
        ),
        Claim::new(
            "PM: FAST/FAIR's latency with 48 threads over that with 1",
            2.40,
            rises(PM),
            Expect::level(2.40),
        ),
        Claim::new(
            "DRAM: FAST/FAIR's latency with 48 threads over that with 1",
            1.35,
            rises(DRAM),
            Expect::level(1.35),
        ),
        Claim::new(
            "PM, 48 threads: throughput, btree-WAL over the lower of the two others",
            "lowest of the three persistent trees",
            at_most(LOGGED, FAST, MOPS).max(at_most(LOGGED, BITMAP, MOPS)),
            Expect::less(),
        ),
        Claim::new(
            "PM, 48 threads: throughput, persistent unsorted over unsorted leaf",
            "cannot achieve comparable throughput",
            at_most(BITMAP, UNSORTED, MOPS),
            Expect::much_less(),
        ),
    ];
    findings.notes = vec![
        grown_note(keys),
        "leaves of 512 bytes; the second of two such phases".to_owned(),
    ];
    Ok(findings)
}
