//! Insertion, search and deletion by node size (Crab-tree, figures 7 and 9): trees are filled from
//! empty, and then every key is looked up and removed.

use super::crab::{
    CRAB, DESIGNS, FAIR, LARGEST, NV, NV_PLAIN, OPT, SIZES, board, by_size, keys, more_keys, note,
    panel,
};
use super::trial::{Outcome, Trial, measure, times_over};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Phase, Workload};
use bristlecone_designs::Fill;

pub(super) const FIG7: Entry = Entry {
    name: "crab-fig7",
    title: "insertion, search and deletion by node size, one million keys",
    paper: papers::CRAB,
    place: "section 6.2, figure 7",
    on: &[On::Model, On::Host],
    run: run_fig7,
};

pub(super) const FIG9: Entry = Entry {
    name: "crab-fig9",
    title: "insertion, search and deletion by node size, ten million keys",
    paper: papers::CRAB,
    place: "section 6.2, figure 9",
    on: &[On::Model, On::Host],
    run: run_fig9,
};

/// Phases, and the name of their operation.
const OPERATIONS: [(&str, Workload); 3] = [
    ("insertion", Workload::Insert),
    ("search", Workload::Lookup),
    ("deletion", Workload::Remove),
];
const INSERTION: usize = 0;
const SEARCH: usize = 1;
const DELETION: usize = 2;

/// The paper's ratio of one tree's time to another's.
struct Statement {
    operation: usize,
    size: usize,
    these: (usize, usize),
    paper: f64,
}

const fn statement(operation: usize, size: usize, these: (usize, usize), paper: f64) -> Statement {
    Statement {
        operation,
        size,
        these,
        paper,
    }
}

/// Returns the statement on the share of Crab-tree's time that Crab_opt saves.
const fn saves(operation: usize, size: usize, share: f64) -> Statement {
    statement(operation, size, (OPT, CRAB), 1.0 - share)
}

const MILLION: &[Statement] = &[
    statement(SEARCH, 0, (NV, CRAB), 1.6),
    statement(SEARCH, 1, (NV, CRAB), 2.0),
    statement(SEARCH, 2, (NV, CRAB), 2.6),
    statement(SEARCH, LARGEST, (NV, OPT), 3.7),
    statement(INSERTION, LARGEST, (FAIR, CRAB), 1.6),
    statement(DELETION, LARGEST, (FAIR, CRAB), 1.9),
    statement(SEARCH, LARGEST, (FAIR, CRAB), 2.8),
    statement(DELETION, LARGEST, (FAIR, OPT), 2.2),
    saves(INSERTION, 0, 0.195),
    saves(INSERTION, 1, 0.135),
    saves(INSERTION, 2, 0.137),
    saves(INSERTION, 3, 0.168),
    saves(DELETION, 0, 0.229),
];

const TEN_MILLION: &[Statement] = &[
    statement(INSERTION, LARGEST, (FAIR, CRAB), 1.6),
    statement(SEARCH, LARGEST, (FAIR, CRAB), 1.9),
    statement(DELETION, LARGEST, (FAIR, CRAB), 2.3),
    saves(DELETION, 0, 0.221),
];

/// Returns the trials by node size, of the first `designs` of the paper's trees.
fn groups(keys: u64, designs: usize) -> Result<Vec<Vec<Trial>>, FigureError> {
    let phases = OPERATIONS.map(|(_, workload)| Phase::of(workload, keys));
    let device = board(keys)?;
    Ok(by_size(
        &DESIGNS[..designs],
        &device,
        |design, size, device| Trial::new(design.sized(size), device, 1, Fill::FULL, &phases),
    ))
}

/// The reason for the cost of removals.
const REMOVALS: &str = "every key is removed: meanwhile FAST/FAIR's nodes run empty, and have less to shift, where a \
     Crab-tree's are merged and redistributed";

type Measured = Vec<Vec<Vec<Outcome>>>;

fn claims(findings: &mut Findings, outcomes: &Measured, statements: &[Statement]) {
    for s in statements {
        let trees = &outcomes[s.size];
        let phase = |tree: usize| std::slice::from_ref(&trees[tree][s.operation]);
        let ratio = times_over(phase(s.these.0), phase(s.these.1));
        let what = format!(
            "{} at {} KB: {} over {}",
            OPERATIONS[s.operation].0,
            SIZES[s.size] / 1024,
            DESIGNS[s.these.0].name,
            DESIGNS[s.these.1].name
        );
        // In binary, 1 less a share is not exact.
        let paper = (s.paper * 1e3).round() / 1e3;
        let claim = Claim::new(what, paper, ratio.median, Expect::ratio(paper));
        findings.claims.push(claim.note(ratio.spread()));
    }
}

fn run_fig7(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let groups = groups(keys, DESIGNS.len())?;
    let outcomes = measure(setting, "operations", &groups)?;
    let mut findings = Findings::default();
    for (number, (operation, _)) in OPERATIONS.iter().enumerate() {
        let titles = (*operation, "ns an operation");
        let ns = |phases: &[Outcome]| phases[number].ns();
        findings.panels.push(panel(titles, &outcomes, ns));
    }
    claims(&mut findings, &outcomes, MILLION);
    let over = |size: usize| {
        let phase = |tree: usize| std::slice::from_ref(&outcomes[size][tree][INSERTION]);
        times_over(phase(CRAB), phase(NV)).median
    };
    let ratios: Vec<f64> = (0..SIZES.len()).map(over).collect();
    for (which, ratio) in [
        (
            "least",
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ),
        ("most", ratios.iter().copied().fold(0.0, f64::max)),
    ] {
        findings.claims.push(Claim::new(
            format!("insertion: Crab-tree over NV-Tree, {which} of all sizes"),
            "5.5-30.0 %",
            ratio,
            Expect::range(1.055, 1.3).either_way(),
        ));
    }
    findings.notes = vec![
        note(setting, keys),
        NV_PLAIN.to_owned(),
        REMOVALS.to_owned(),
    ];
    Ok(findings)
}

fn run_fig9(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // The larger trees of four designs and, for the comparison of scales, a smaller Crab-tree.
    let (fewer, keys) = (keys(setting), more_keys(setting));
    let mut groups = groups(keys, NV)?;
    let few = |size| {
        let phases = OPERATIONS.map(|(_, workload)| Phase::of(workload, fewer));
        // The caches are the board's for any tree.
        let device = board(keys / 10)?;
        let design = DESIGNS[CRAB].sized(size);
        Ok::<_, FigureError>(vec![Trial::new(design, &device, 1, Fill::FULL, &phases)])
    };
    for trial in groups.iter_mut().flatten() {
        trial.device = board(keys / 10)?;
    }
    groups.push(few(SIZES[LARGEST])?);
    let mut outcomes = measure(setting, "operations", &groups)?;
    let small = outcomes.pop().unwrap_or_default();
    let mut findings = Findings::default();
    for (number, (operation, _)) in OPERATIONS.iter().enumerate() {
        let sizes = SIZES.map(f64::from);
        let mut panel = Panel::lines(operation, "bytes of a node", "ns an operation", sizes);
        for (tree, design) in DESIGNS[..NV].iter().enumerate() {
            let values = outcomes.iter().map(|trees| trees[tree][number].ns());
            panel = panel.with(design.name, values.collect());
        }
        findings.panels.push(panel);
    }
    claims(&mut findings, &outcomes, TEN_MILLION);
    let larger = outcomes[LARGEST][CRAB][DELETION].ns();
    findings.claims.push(
        Claim::new(
            "deletion at 8 KB, Crab-tree: time in the larger tree over that in the smaller",
            "10.3 \u{b5}s become 10.9: it does not badly fluctuate",
            larger / small[0][DELETION].ns(),
            Expect::between(0.925, 1.075),
        )
        .note(format!("{keys} keys over {fewer}")),
    );
    findings.notes = vec![note(setting, keys), REMOVALS.to_owned()];
    Ok(findings)
}
