//! Mixes of insertion and reading, in DRAM and in persistent memory, by share of insertions and by
//! threads (UCSC-CRSS-20-01, section 5.1, figure 10).

use super::gap::{
    BYTES, Contender, FAIR, LEAF, MOPS, PLAIN, Point, dram, keys, note, ops, pm, sweep,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};
use crate::model::{Phase, Workload};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig10",
    title: "mixes of PUT and GET, in DRAM and PM, by share of PUTs and threads",
    paper: papers::GAP,
    place: "section 5.1, figure 10",
    on: &[On::Model],
    run,
};

const CONTENDERS: [Contender; 6] = [
    dram("btree", PLAIN),
    dram("unsorted leaf", LEAF),
    dram("FAST/FAIR", FAIR),
    pm("btree", PLAIN),
    pm("unsorted leaf", LEAF),
    pm("FAST/FAIR", FAIR),
];
const DRAM: [usize; 3] = [0, 1, 2];
const PM: [usize; 3] = [3, 4, 5];
/// Of [`DRAM`] and [`PM`].
const BTREE: usize = 0;
const UNSORTED: usize = 1;
const PUTS: [u8; 4] = [20, 40, 60, 80];
const THREADS: [usize; 3] = [1, 16, 48];
/// Of [`THREADS`].
const SOME: usize = 1;
const MANY: usize = 2;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // There are many points, so each has fewer operations.
    let (keys, ops) = (keys(setting), ops(setting) / 2);
    let points = |threads: usize| {
        PUTS.map(|puts| Point {
            at: puts.into(),
            node_bytes: BYTES,
            threads,
            // The first phase fills the caches with modified lines.
            phases: vec![
                Phase::of(
                    Workload::Mixed {
                        lookups: 100 - puts,
                    },
                    ops,
                );
                2
            ],
        })
    };
    let sweeps = THREADS.map(|threads| {
        let doing = format!("with {threads} threads");
        sweep(setting, &doing, keys, &CONTENDERS, &points(threads))
    });
    let [alone, some, many] = sweeps;
    let sweeps = [alone?, some?, many?];
    let mut findings = Findings::default();
    for (memory, trees) in [("DRAM", DRAM), ("PM", PM)] {
        for (threads, sweep) in THREADS.iter().zip(&sweeps) {
            let title = format!("{memory}, {threads} threads");
            let titles = (&*title, "PUTs, percent", "million operations/s");
            findings.panels.push(sweep.panel(titles, &trees, 1, MOPS));
        }
    }
    let falls = |tree: usize| {
        let mops = |point| sweeps[MANY].at(point, tree, 1, MOPS);
        mops(0) / mops(PUTS.len() - 1)
    };
    findings.claims = vec![
        Claim::new(
            "PM, 48 threads: btree's throughput at 20 % PUTs over that at 80 %",
            2.3,
            falls(PM[BTREE]),
            Expect::level(2.3),
        ),
        Claim::new(
            "DRAM, 48 threads: btree's throughput at 20 % PUTs over that at 80 %",
            1.3,
            falls(DRAM[BTREE]),
            Expect::level(1.3),
        ),
        Claim::new(
            "PM, 16 threads, 40 % PUTs: unsorted leaf over btree",
            1.02,
            sweeps[SOME].over(1, (PM[UNSORTED], PM[BTREE]), 1, MOPS),
            Expect::level(1.02),
        ),
        Claim::new(
            "48 threads: what btree loses from 20 % to 80 % PUTs, PM over DRAM",
            "a greater impact in PM",
            falls(PM[BTREE]) / falls(DRAM[BTREE]),
            Expect::more(),
        ),
    ];
    findings.notes = vec![
        note(keys),
        "nodes of 512 bytes; a PUT inserts a new key; the second of two such phases".to_owned(),
    ];
    Ok(findings)
}
