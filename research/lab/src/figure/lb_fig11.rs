//! Insertion time by number of insertions, in three panels: leaves 70 % full, 100 % full, and dense
//! insertions behind the largest key (LB+-Tree, figure 11).

use super::lb_insertion::{REGIMES, device, keys, note, persisting};
use super::tree::{FPTREE, FPTREE_LOGGING, LBTREE, LBTREE_TRADITIONAL, WBTREE, WBTREE_LOGGING};
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

/// The compared designs: the first with all others. Those that log whole leaves are there to show
/// how much of a split that may be.
const DESIGNS: [super::tree::Design; 6] = [
    LBTREE,
    LBTREE_TRADITIONAL,
    WBTREE,
    FPTREE,
    WBTREE_LOGGING,
    FPTREE_LOGGING,
];

/// Of [`DESIGNS`].
const LB: usize = 0;
const TRADITIONAL: usize = 1;
const WB: usize = 2;
const FP: usize = 3;

/// The paper's statement on the time of one design over another's.
struct Statement {
    these: (usize, usize),
    words: &'static str,
    expect: Expect,
}

const fn statement(these: (usize, usize), words: &'static str, expect: Expect) -> Statement {
    Statement {
        these,
        words,
        expect,
    }
}

/// Returns the statement on a range of ratios. It has little slack, as the range has some already.
const fn range(these: (usize, usize), words: &'static str, low: f64, high: f64) -> Statement {
    statement(these, words, Expect::range(low, high).within(0.08))
}

/// Statements by panel. What an improvement mainly comes from brings at least half of it: of the
/// least improvement over FPTree, 0.12 and 1.31.
const STATEMENTS: [[Statement; 3]; 3] = [
    [
        statement(
            (TRADITIONAL, LB),
            "improvement mainly comes from entry moving",
            Expect::at_least(1.06),
        ),
        range((WB, LB), "1.20-1.24x", 1.2, 1.24),
        range((FP, LB), "1.12-1.21x", 1.12, 1.21),
    ],
    [
        statement(
            (FP, TRADITIONAL),
            "improvement comes from the logless split",
            Expect::at_least(1.655),
        ),
        range((WB, LB), "2.55-2.92x", 2.55, 2.92),
        range((FP, LB), "2.31-2.45x", 2.31, 2.45),
    ],
    [
        statement(
            (TRADITIONAL, LB),
            "later insertions benefit from earlier entry moving",
            Expect::more(),
        ),
        range((WB, LB), "2.31-2.69x", 2.31, 2.69),
        range((FP, LB), "2.22-2.33x", 2.22, 2.33),
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
        for statement in statements {
            let (a, b) = statement.these;
            let ratio = times_over(&by_design[a], &by_design[b]);
            let what = format!(
                "{}: {} over {}",
                regime.panel, DESIGNS[a].name, DESIGNS[b].name
            );
            let claim = Claim::new(what, statement.words, ratio.median, statement.expect);
            findings.claims.push(claim.note(ratio.spread()));
        }
    }
    findings
        .notes
        .push(format!("{}; leaves of 256 bytes", note(setting, keys)));
    Ok(findings)
}
