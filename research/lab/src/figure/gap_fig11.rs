//! Performance by node size: insertion and reading, with one thread and with many, in DRAM and in
//! persistent memory (UCSC-CRSS-20-01, section 5.2, figure 11).

use super::gap::{IN_BOTH, MOPS, Point, grown_note, insertions, keys, ops, sweep};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};
use crate::model::{Phase, Workload};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig11",
    title: "read and fill by node size, in DRAM and PM, 1 and 32 threads",
    paper: papers::GAP,
    place: "section 5.2, figure 11",
    on: &[On::Model],
    run,
};

const IN_DRAM: usize = 0;
const IN_PM: usize = 2;
const PM_UNSORTED: usize = 3;
const SIZES: [u32; 5] = [128, 256, 512, 1024, 2048];
/// Of [`SIZES`].
const QUARTER: usize = 1;
const HALF: usize = 2;
const LARGEST: usize = SIZES.len() - 1;
const PEAKS: &str = "peaks at around 512 bytes";
/// Phases.
const READ: usize = 0;
const FILL: usize = 2;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (keys, ops) = (keys(setting), ops(setting));
    let [first, second] = insertions(keys);
    let phases = vec![Phase::of(Workload::Lookup, ops), first, second];
    let points = |threads| {
        SIZES.map(|size| Point {
            at: size.into(),
            node_bytes: size,
            threads,
            phases: phases.clone(),
        })
    };
    let alone = sweep(setting, "with 1 thread", keys, &IN_BOTH, &points(1))?;
    let many = sweep(setting, "with 32 threads", keys, &IN_BOTH, &points(32))?;
    let mut findings = Findings::default();
    let x = "bytes of a node";
    for (title, y, sweep, phase) in [
        ("(a) read, 1 thread", "million lookups/s", &alone, READ),
        ("(b) read, 32 threads", "million lookups/s", &many, READ),
        ("(c) fill, 1 thread", "million insertions/s", &alone, FILL),
        ("(d) fill, 32 threads", "million insertions/s", &many, FILL),
    ] {
        let panel = sweep.panel((title, x, y), &[0, 1, 2, 3], phase, MOPS);
        findings.panels.push(panel);
        for tree in [IN_DRAM, IN_PM] {
            let mops = |size| sweep.at(size, tree, phase, MOPS);
            let (best, size) = (0..SIZES.len())
                .map(|size| (mops(size), SIZES[size]))
                .fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
            let name = IN_BOTH[tree].name;
            let nearly = Claim::new(
                format!("{title}, {name}: best throughput over that at 512 bytes"),
                PEAKS,
                best / mops(HALF),
                Expect::at_most(1.05),
            );
            let ends = Claim::new(
                format!("{title}, {name}: the better of 128 and 2048 bytes over 512"),
                PEAKS,
                mops(0).max(mops(LARGEST)) / mops(HALF),
                Expect::less(),
            );
            let best = format!("best at {size} bytes");
            findings.claims.extend([nearly.note(best), ends]);
        }
    }
    let grows = |tree| many.at(HALF, tree, FILL, MOPS) / many.at(QUARTER, tree, FILL, MOPS);
    let lead = |size| many.over(size, (PM_UNSORTED, IN_PM), FILL, MOPS);
    findings.claims.extend([
        Claim::new(
            "(d), DRAM btree: 512 bytes over 256",
            1.13,
            grows(IN_DRAM),
            Expect::ratio(1.13),
        ),
        Claim::new(
            "(d), PM btree: 512 bytes over 256",
            0.93,
            grows(IN_PM),
            Expect::ratio(0.93),
        ),
        Claim::new(
            "(d): unsorted leaf over btree in PM, at 2048 bytes over that at 128",
            "the gap increases with the size of the nodes",
            lead(LARGEST) / lead(0),
            Expect::more(),
        ),
        Claim::new(
            "(c): unsorted leaf over btree in PM, at 512 bytes",
            "comparable",
            alone.over(HALF, (PM_UNSORTED, IN_PM), FILL, MOPS),
            Expect::alike(),
        ),
    ]);
    findings.notes = vec![grown_note(keys)];
    Ok(findings)
}
