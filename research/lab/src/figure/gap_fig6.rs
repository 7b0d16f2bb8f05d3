//! The waits of a volatile B+-tree: insertion by threads, in DRAM and in persistent memory
//! (UCSC-CRSS-20-01, section 4.1, figure 6), and reading by node size (section 5.2, figure 12).

use super::gap::{
    Contender, MANY, NS, ONE, Of, PLAIN, Point, Sweep, THREADS, by_threads, dram, grown_note,
    insertions, keys, note, ops, pm, sweep,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Phase, Workload};

pub(super) const FIG6: Entry = Entry {
    name: "gap-fig6",
    title: "stalls of btree under insertion, DRAM and PM, by threads",
    paper: papers::GAP,
    place: "section 4.1, figure 6",
    on: &[On::Model],
    run: run_fig6,
};

pub(super) const FIG12: Entry = Entry {
    name: "gap-fig12",
    title: "stalls of btree under reading, DRAM and PM, by node size",
    paper: papers::GAP,
    place: "section 5.2, figure 12",
    on: &[On::Model],
    run: run_fig12,
};

const CONTENDERS: [Contender; 2] = [dram("DRAM", PLAIN), pm("PM", PLAIN)];
const DRAM: usize = 0;
const PM: usize = 1;

/// Waits for lines from memory. A tree without flushes only has queues of reads.
const MISSES: Of = |r| r.stalls.pm_read_ns + r.stalls.dram_ns + r.stalls.bandwidth_ns;
/// Waits for room in the store buffer.
const RESOURCES: Of = |r| r.stalls.store_ns + r.stalls.flush_ns + r.stalls.fence_ns;
const COMPUTE: Of = |r| r.stalls.compute_ns;
const CACHE: Of = |r| r.stalls.cache_ns;

/// Returns a panel for each memory: the time by cause, point by point.
fn profiles(sweep: &Sweep<'_>, x: &str, places: &[f64], phase: usize) -> Vec<Panel> {
    let parts: [(&str, Of); 4] = [
        ("L3 miss stalls", MISSES),
        ("resource stalls", RESOURCES),
        ("cache hits", CACHE),
        ("instructions", COMPUTE),
    ];
    let memories = (0..).zip(CONTENDERS);
    let panels = memories.map(|(memory, contender)| {
        let panel = Panel::lines(contender.name, x, "ns an operation", places.iter().copied());
        parts.iter().fold(panel, |panel, (name, of)| {
            let points = 0..places.len();
            let values = points.map(|point| sweep.at(point, memory, phase, *of));
            panel.with(name, values.collect())
        })
    });
    panels.collect()
}

fn run_fig6(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let points = by_threads(&THREADS, &insertions(keys));
    let sweep = sweep(setting, "inserting", keys, &CONTENDERS, &points)?;
    let places = THREADS.map(|threads| threads as f64);
    let rises = |of: Of| sweep.at(MANY, PM, 1, of) / sweep.at(ONE, PM, 1, of);
    let resources = |point| sweep.at(point, PM, 1, RESOURCES);
    Ok(Findings {
        claims: vec![
            Claim::new(
                "1 thread: L3 miss stalls, PM over DRAM",
                "a drastic increase",
                sweep.over(ONE, (PM, DRAM), 1, MISSES),
                Expect::at_least(2.0),
            ),
            Claim::new(
                "PM: L3 miss stalls at 48 threads over those at 1",
                "the penalty of misses increases with the load",
                rises(MISSES),
                Expect::at_least(1.5),
            ),
            Claim::new(
                "PM: share of resource stalls at 48 threads less that at 16",
                "increase as threads scale beyond 16",
                resources(MANY) / sweep.at(MANY, PM, 1, NS)
                    - resources(2) / sweep.at(2, PM, 1, NS),
                Expect::at_least(0.01),
            ),
        ],
        panels: profiles(&sweep, "threads", &places, 1),
        notes: vec![
            grown_note(keys),
            "nodes of 512 bytes; the second of two such phases".to_owned(),
            "lines that the caches evict go to memory, and no core of the model waits for that: the load shows in reads"
                .to_owned(),
        ],
    })
}

const SIZES: [u32; 5] = [128, 256, 512, 1024, 2048];
/// Of [`SIZES`].
const SMALLEST: usize = 0;
const HALF: usize = 2;
const LARGEST: usize = SIZES.len() - 1;

fn run_fig12(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (keys(setting), ops(setting));
    let points = SIZES.map(|size| Point {
        at: size.into(),
        node_bytes: size,
        threads: 1,
        phases: vec![Phase::of(Workload::Lookup, ops)],
    });
    let sweep = sweep(setting, "reading", keys, &CONTENDERS, &points)?;
    let places = SIZES.map(f64::from);
    let over = |memory: usize, (a, b): (usize, usize), of: Of| {
        sweep.at(a, memory, 0, of) / sweep.at(b, memory, 0, of)
    };
    let mut findings = Findings {
        panels: profiles(&sweep, "bytes of a node", &places, 0),
        ..Findings::default()
    };
    for memory in [DRAM, PM] {
        let name = CONTENDERS[memory].name;
        findings.claims.extend([
            Claim::new(
                format!("{name}: L3 miss stalls at 512 bytes over those at 128"),
                "significantly reduced",
                over(memory, (HALF, SMALLEST), MISSES),
                Expect::much_less(),
            ),
            Claim::new(
                format!("{name}: L3 miss stalls at 2048 bytes over those at 512"),
                "no longer decreases",
                over(memory, (LARGEST, HALF), MISSES),
                Expect::at_least(0.98),
            ),
            Claim::new(
                format!("{name}: instructions at 2048 bytes over those at 512"),
                "the key-scanning overhead continues to increase",
                over(memory, (LARGEST, HALF), COMPUTE),
                Expect::at_least(1.2),
            ),
        ]);
    }
    findings.notes = vec![note(keys), "1 thread".to_owned()];
    Ok(findings)
}
