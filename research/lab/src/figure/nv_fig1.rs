//! What consistency costs a B+-tree and the CDDS-Tree: both as they are, and without flushes, fences and logs
//! (NV-Tree, figure 1).

use super::nv::{CDDS, DESIGNS, LCB, SIZES, device, insertions, keys, note};
use super::tree::Design;
use super::trial::{Outcome, Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Persistence;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig1",
    title: "what consistency costs a B+-tree and the CDDS-Tree; flushes for keeping leaves sorted",
    paper: papers::NV,
    place: "section 3.1, figure 1",
    on: &[On::Model, On::Counted],
    run,
};

/// The consistent tree, then its volatile version, of both designs.
const TREES: [Design; 4] = [
    DESIGNS[LCB],
    Design {
        index: "btree",
        name: "B+-tree",
        ..DESIGNS[LCB]
    },
    DESIGNS[CDDS],
    Design {
        name: "volatile CDDS-Tree",
        ..DESIGNS[CDDS]
    },
];
/// Which is which. The B+-tree is a design of its own, since the LCB+-Tree also logs.
const VOLATILE: [bool; 4] = [false, true, false, true];
/// What the paper says of a consistent tree.
type Statement = (usize, f64, [f64; SIZES.len()], (f64, f64));

/// Of the consistent trees: place in `TREES`, how much slower they are than their volatile versions, lines
/// flushed an insertion by node size, and shares of them for shifting entries.
const STATEMENTS: [Statement; 2] = [
    (0, 16.0, [14.8, 24.6, 44.7, 85.26], (0.81, 0.97)),
    (2, 20.0, [12.1, 19.0, 34.2, 64.7], (0.60, 0.94)),
];
const LARGEST: usize = SIZES.len() - 1;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device("nvdimm", keys)?;
    let timed = setting.on == On::Model;
    let trial = |(design, volatile): (Design, bool)| Trial {
        persistence: if volatile {
            Persistence::None
        } else {
            Persistence::Kept
        },
        ..insertions(design, &device, &[keys])
    };
    let groups: Vec<Vec<Trial>> = SIZES
        .iter()
        .map(|size| {
            let trees = TREES
                .iter()
                .zip(VOLATILE)
                .filter(|(_, volatile)| timed || !volatile);
            trees
                .map(|(design, volatile)| trial((design.sized(*size), volatile)))
                .collect()
        })
        .collect();
    let outcomes = measure(setting, "inserting", &groups)?;

    let sizes = SIZES.map(f64::from);
    let panel = |title: &str, y: &str| Panel::lines(title, "bytes of a node", y, sizes);
    let mut findings = Findings::default();
    // Without the volatile versions, the consistent trees are next to each other.
    let place = |tree: usize| if timed { tree } else { tree / 2 };
    let consistent = [TREES[0], TREES[2]];
    let by_size = |tree: usize, of: &dyn Fn(&Outcome) -> f64| -> Vec<f64> {
        outcomes
            .iter()
            .map(|trees| of(&trees[place(tree)][0]))
            .collect()
    };
    if timed {
        let ns = with_each(panel("(a) time", "ns an insertion"), &TREES, |tree| {
            by_size(tree, &Outcome::ns)
        });
        let misses = |phase: &Outcome| phase.counted(|r| r.misses_per_op);
        let missed = panel("(b) cache misses", "lines an insertion");
        let missed = with_each(missed, &TREES, |tree| by_size(tree, &misses));
        findings.panels.extend([ns, missed]);
        for (tree, paper, ..) in STATEMENTS {
            let trees = &outcomes[LARGEST];
            let what = |of: &str| {
                format!(
                    "{of} at 4096 bytes: {} over {}",
                    TREES[tree].name,
                    TREES[tree + 1].name
                )
            };
            findings.claims.push(Claim::new(
                what("time"),
                paper,
                times_over(&trees[tree], &trees[tree + 1]).median,
                Expect::near(paper, 0.3),
            ));
            findings.claims.push(Claim::new(
                what("cache misses"),
                "about 10 million become 120 to 800 million",
                misses(&trees[tree][0]) / misses(&trees[tree + 1][0]),
                Expect::at_least(12.0),
            ));
        }
        let slower = times_over(&outcomes[LARGEST][2], &outcomes[LARGEST][0]).median;
        findings.claims.push(Claim::new(
            "time at 4096 bytes: CDDS-Tree over LCB+-Tree",
            "11-32 % slower although it flushes less",
            slower,
            Expect::Between {
                low: 1.11,
                high: 1.32,
                slack: 0.1,
            },
        ));
    }

    let flushes = |phase: &Outcome| phase.counted(|r| r.flushes_per_op);
    let flushed = panel("(c) flushes", "lines an insertion");
    findings
        .panels
        .push(with_each(flushed, &consistent, |tree| {
            by_size(2 * tree, &flushes)
        }));
    let sorting = |phase: &Outcome| phase.flushes().sort_leaf as f64 / phase.flushes().all() as f64;
    let sorted = panel("(d) flushes for keeping leaves sorted", "share");
    findings.panels.push(with_each(sorted, &consistent, |tree| {
        by_size(2 * tree, &sorting)
    }));
    for (tree, _, lines, (low, high)) in STATEMENTS {
        let name = TREES[tree].name;
        for ((size, paper), measured) in SIZES.iter().zip(lines).zip(by_size(tree, &flushes)) {
            findings.claims.push(Claim::new(
                format!("lines flushed an insertion, {name}, {size} bytes"),
                paper,
                measured,
                Expect::near(paper, 0.25),
            ));
        }
        let shares = by_size(tree, &sorting);
        for (which, share, bound) in [
            ("smallest", shares[0], low),
            ("largest", shares[LARGEST], high),
        ] {
            findings.claims.push(Claim::new(
                format!("share of flushes for keeping leaves sorted, {name}, {which} nodes"),
                bound,
                share,
                Expect::near(bound, 0.15),
            ));
        }
    }
    findings.notes.push(note(setting, keys));
    findings.notes.push(
        "the volatile CDDS-Tree is the consistent one without flushes and fences; (d) counts the log and the \
         header of a change that shifts entries with them, as the paper does"
            .to_owned(),
    );
    Ok(findings)
}
