//! The instructions, waits and traffic of an insertion, by design: one thread, persistent memory
//! (UCSC-CRSS-20-01, section 4.2, table 2).

use super::gap::{
    Contender, FAIR, LEAF, Of, PERSISTENT, PLAIN, WAL, by_threads, grown_note, insertions, pm,
    sweep,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-table2",
    title: "an insertion's flushes, fences, stalls, traffic and amplification, by design",
    paper: papers::GAP,
    place: "section 4.2, table 2",
    on: &[On::Model],
    run,
};

const CONTENDERS: [Contender; 5] = [
    pm("btree", PLAIN),
    pm("unsorted leaf", LEAF),
    pm("btree-WAL", WAL),
    pm("FAST/FAIR", FAIR),
    pm("persistent unsorted", PERSISTENT),
];

/// A column: its name, its unit, the paper's numbers, and what one of them states.
struct Column {
    name: &'static str,
    unit: &'static str,
    paper: [f64; 5],
    of: Of,
    states: fn(f64) -> Expect,
}

const COLUMNS: [Column; 6] = [
    Column {
        name: "lines flushed",
        unit: "an insertion",
        paper: [0.0, 0.0, 12.0, 6.0, 5.0],
        of: |r| r.flushes_per_op,
        states: Expect::number,
    },
    Column {
        name: "fences",
        unit: "an insertion",
        paper: [0.0, 0.0, 4.0, 10.0, 5.0],
        of: |r| r.fences_per_op,
        states: Expect::number,
    },
    Column {
        name: "read from PM",
        unit: "bytes an insertion",
        paper: [1626.0, 1651.0, 2001.0, 2119.0, 1973.0],
        of: |r| r.lines_read_per_op * 64.0,
        states: Expect::number,
    },
    Column {
        name: "written to PM",
        unit: "bytes an insertion",
        paper: [400.0, 236.0, 937.0, 474.0, 411.0],
        of: |r| r.lines_written_per_op * 64.0,
        states: Expect::number,
    },
    Column {
        name: "read amplification",
        unit: "bytes of the media for each",
        paper: [1.6, 1.5, 1.6, 1.5, 1.4],
        of: |r| r.read_amplification,
        states: Expect::level,
    },
    Column {
        name: "write amplification",
        unit: "bytes of the media for each",
        paper: [3.2, 3.5, 1.8, 2.2, 2.6],
        of: |r| r.write_amplification,
        states: Expect::level,
    },
];
/// Returns the stalls for resources: store buffer, flushes, fences.
const RESOURCES: Of = |r| r.stalls.store_ns + r.stalls.flush_ns + r.stalls.fence_ns;
/// The paper's stalls, in cycles.
const PAPER_RESOURCES: [f64; 5] = [7740.0, 6532.0, 11240.0, 9982.0, 9244.0];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // The device's own buffers are not scaled down, and a smaller tree is read out of them more
    // often.
    let keys = setting.scale.amount(1_000_000, 4_000_000);
    let points = by_threads(&[1], &insertions(keys));
    let sweep = sweep(setting, "inserting", keys, &CONTENDERS, &points)?;
    let all = |of: Of| (0..CONTENDERS.len()).map(move |tree| (tree, of));
    let names = CONTENDERS.map(|contender| contender.name);
    let mut findings = Findings::default();
    for column in COLUMNS {
        let ours: Vec<f64> = all(column.of)
            .map(|(t, of)| sweep.at(0, t, 1, of))
            .collect();
        for ((name, paper), measured) in names.iter().zip(column.paper).zip(&ours) {
            findings.claims.push(Claim::new(
                format!("{}, {name}", column.name),
                paper,
                *measured,
                (column.states)(paper),
            ));
        }
        let panel = Panel::bars(column.name, "", column.unit, names);
        let panel = panel.with("paper", column.paper.to_vec());
        findings.panels.push(panel.with("model", ours));
    }
    // The paper's trees have a volatile allocator, or none.
    for (i, column) in COLUMNS[..2].iter().enumerate() {
        let title = format!("{}, without the pool's allocator", column.name);
        let ours = (0..CONTENDERS.len()).map(|tree| sweep.of_design(0, tree, 1)[i]);
        let panel = Panel::bars(&title, "", column.unit, names);
        let panel = panel.with("paper", column.paper.to_vec());
        findings.panels.push(panel.with("model", ours.collect()));
    }
    let stalls: Vec<f64> = all(RESOURCES)
        .map(|(t, of)| sweep.at(0, t, 1, of))
        .collect();
    // A volatile tree's stores do not wait here, so there is no ratio to it.
    for (tree, over) in [(2, 3), (2, 4), (3, 4)] {
        let paper = (PAPER_RESOURCES[tree] / PAPER_RESOURCES[over] * 100.0).round() / 100.0;
        findings.claims.push(Claim::new(
            format!("resource stalls, {} over {}", names[tree], names[over]),
            paper,
            stalls[tree] / stalls[over],
            Expect::level(paper),
        ));
    }
    let panel = Panel::bars("resource stalls", "", "ns an insertion", names);
    findings.panels.push(
        panel
            .with(
                "paper, at 2.5 GHz",
                PAPER_RESOURCES.map(|cycles| cycles / 2.5).to_vec(),
            )
            .with("model", stalls),
    );
    findings.notes = vec![
        grown_note(keys),
        "1 thread, leaves of 512 bytes, the second of two such phases; numbers of instructions and IPC are left out: \
         the model has no instructions"
            .to_owned(),
    ];
    Ok(findings)
}
