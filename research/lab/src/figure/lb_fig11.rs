//! Insertion time by number of insertions, in three panels: leaves 70 % full, 100 % full, and dense
//! insertions behind the largest key (LB+-Tree, figure 11).

use super::lb_insertion::{REGIMES, device, keys, note, persisting};
use super::tree::{FPTREE, LBTREE, LBTREE_TRADITIONAL, WBTREE};
use super::trial::{Outcome, Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Phase;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig11",
    title: "insertion time: leaves 70 % full, 100 % full, dense insertions",
    paper: papers::LB,
    place: "section 4.2, figure 11",
    on: &[On::Model, On::Host],
    run,
};

/// The compared designs: the first with all others.
const DESIGNS: [super::tree::Design; 4] = [LBTREE, LBTREE_TRADITIONAL, WBTREE, FPTREE];

/// The paper's statement on a design's time over the LB+-Tree's: its words, and the lower and upper
/// bound.
type Statement = (&'static str, f64, f64);

/// Statements by panel, on the three other designs.
const STATEMENTS: [[Statement; 3]; 3] = [
    [
        ("improvement mainly comes from entry moving", 1.0, 3.0),
        ("1.20-1.24x", 1.2, 1.24),
        ("1.12-1.21x", 1.12, 1.21),
    ],
    [
        ("improvement comes from the logless split", 1.0, 3.0),
        ("2.55-2.92x", 2.55, 2.92),
        ("2.31-2.45x", 2.31, 2.45),
    ],
    [
        (
            "later insertions benefit from earlier entry moving",
            1.0,
            3.0,
        ),
        ("2.31-2.69x", 2.31, 2.69),
        ("2.22-2.33x", 2.22, 2.33),
    ],
];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device(keys)?;
    let (step, points) = match setting.on {
        On::Host => (setting.scale.amount(5_000, 50_000), 6),
        _ => (
            setting.scale.amount(10_000, 50_000),
            setting.scale.pick(3, 6),
        ),
    };
    let groups: Vec<Vec<Trial>> = REGIMES
        .iter()
        .map(|regime| {
            let phases = vec![Phase::of(regime.workload, step); points];
            let trial = |design| Trial::new(design, &device, keys, regime.fill, &phases);
            DESIGNS.map(trial).to_vec()
        })
        .collect();
    let outcomes = measure(setting, "inserting", &groups)?;

    let mut findings = Findings::default();
    for ((regime, by_design), statements) in REGIMES.iter().zip(&outcomes).zip(STATEMENTS) {
        let places = (1..=points).map(|i| (i as u64 * step) as f64);
        let panel = Panel::lines(regime.panel, "insertions", "ms", places);
        let curve = |design: usize| Outcome::running_ms(&by_design[design]);
        findings.panels.push(with_each(panel, &DESIGNS, curve));
        let last: Vec<&Outcome> = by_design.iter().map(|phases| &phases[points - 1]).collect();
        findings
            .notes
            .extend(persisting(regime.panel, &DESIGNS, &last));
        for (other, (paper, low, high)) in (1..).zip(statements) {
            let ratio = times_over(&by_design[other], &by_design[0]);
            // The speed of a machine drifts. On the model only the designs differ.
            let slack = if setting.on == On::Host { 0.1 } else { 0.05 };
            let what = format!(
                "{}: {} over {}",
                regime.panel, DESIGNS[other].name, DESIGNS[0].name
            );
            let expect = Expect::Between { low, high, slack };
            findings
                .claims
                .push(Claim::new(what, paper, ratio.median, expect).note(ratio.spread()));
        }
    }
    findings
        .notes
        .push(format!("{}; leaves of 256 bytes", note(setting, keys)));
    Ok(findings)
}
