//! The cost of consistency for a B+-tree and the CDDS-Tree: both with and without flushes, fences
//! and logs (NV-Tree, figure 1).

use super::nv::{CDDS, DESIGNS, LCB, SIZES, device, insertions, keys, note};
use super::tree::Design;
use super::trial::{Outcome, Outcomes, Trial, measure, times_over, with_each};
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

/// For both designs, the consistent tree and then its volatile version.
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
/// True for the volatile ones. The B+-tree is a design of its own, since the LCB+-Tree also logs.
const VOLATILE: [bool; 4] = [false, true, false, true];
/// The paper's statement on a consistent tree.
type Statement = (usize, f64, [f64; SIZES.len()], (f64, f64));

/// Statements on the consistent trees: the place in `TREES`, the slowdown against the volatile
/// version, flushed lines of an insertion by node size, and the shares of them for shifting
/// entries.
const STATEMENTS: [Statement; 2] = [
    (0, 16.0, [14.8, 24.6, 44.7, 85.26], (0.81, 0.97)),
    (2, 20.0, [12.1, 19.0, 34.2, 64.7], (0.60, 0.94)),
];
const LARGEST: usize = SIZES.len() - 1;

/// The measured insertions, by node size, tree and phase.
struct Measured {
    outcomes: Outcomes,
    /// True if the volatile versions were measured too.
    timed: bool,
}

impl Measured {
    /// Returns a number of one of [`TREES`] by node size.
    fn by_size(&self, tree: usize, of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        // Without the volatile versions, the consistent trees are next to each other.
        let place = if self.timed { tree } else { tree / 2 };
        let trees = self.outcomes.iter();
        trees.map(|trees| of(&trees[place][0])).collect()
    }

    /// Returns a panel of all of [`TREES`] over the node sizes.
    fn of_all(&self, title: &str, y: &str, of: impl Fn(&Outcome) -> f64) -> Panel {
        with_each(panel(title, y), &TREES, |tree| self.by_size(tree, &of))
    }

    /// Returns a panel of the consistent trees over the node sizes.
    fn of_consistent(&self, title: &str, y: &str, of: impl Fn(&Outcome) -> f64) -> Panel {
        let consistent = [TREES[0], TREES[2]];
        with_each(panel(title, y), &consistent, |tree| {
            self.by_size(2 * tree, &of)
        })
    }
}

fn panel(title: &str, y: &str) -> Panel {
    Panel::lines(title, "bytes of a node", y, SIZES.map(f64::from))
}

fn misses(phase: &Outcome) -> f64 {
    phase.counted(|r| r.misses_per_op)
}

fn flushes(phase: &Outcome) -> f64 {
    phase.counted(|r| r.flushes_per_op)
}

/// Returns the share of the flushes that keep leaves sorted.
fn sorting(phase: &Outcome) -> f64 {
    phase.flushes().sort_leaf as f64 / phase.flushes().all() as f64
}

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
    let measured = Measured { outcomes, timed };

    let mut findings = Findings::default();
    if timed {
        findings.panels.extend([
            measured.of_all("(a) time", "ns an insertion", Outcome::ns),
            measured.of_all("(b) cache misses", "lines an insertion", misses),
        ]);
        findings
            .claims
            .extend(time_claims(&measured.outcomes[LARGEST]));
    }
    findings.panels.extend([
        measured.of_consistent("(c) flushes", "lines an insertion", flushes),
        measured.of_consistent("(d) flushes for keeping leaves sorted", "share", sorting),
    ]);
    findings.claims.extend(flush_claims(&measured));
    findings.notes.push(note(setting, keys));
    findings.notes.push(
        "the volatile CDDS-Tree is the consistent one without flushes and fences; (d) counts the log and the \
         header of a change that shifts entries with them, as the paper does"
            .to_owned(),
    );
    Ok(findings)
}

/// Returns the claims on time and cache misses of the largest nodes. `trees` are all of [`TREES`]
/// at that size.
fn time_claims(trees: &[Vec<Outcome>]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (tree, paper, ..) in STATEMENTS {
        let what = |of: &str| {
            format!(
                "{of} at 4096 bytes: {} over {}",
                TREES[tree].name,
                TREES[tree + 1].name
            )
        };
        claims.push(Claim::new(
            what("time"),
            paper,
            times_over(&trees[tree], &trees[tree + 1]).median,
            Expect::level(paper),
        ));
        claims.push(Claim::new(
            what("cache misses"),
            "about 10 million become 120 to 800 million",
            misses(&trees[tree][0]) / misses(&trees[tree + 1][0]),
            Expect::range(12.0, 80.0).within(0.0).either_way(),
        ));
    }
    claims.push(Claim::new(
        "time at 4096 bytes: CDDS-Tree over LCB+-Tree",
        "11-32 % slower although it flushes less",
        times_over(&trees[2], &trees[0]).median,
        Expect::range(1.11, 1.32).either_way(),
    ));
    claims
}

/// Returns the claims on the lines that the consistent trees flush, and on their purpose.
fn flush_claims(measured: &Measured) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (tree, _, lines, (low, high)) in STATEMENTS {
        let name = TREES[tree].name;
        let flushed = measured.by_size(tree, flushes);
        for ((size, paper), measured) in SIZES.iter().zip(lines).zip(flushed) {
            claims.push(Claim::new(
                format!("lines flushed an insertion, {name}, {size} bytes"),
                paper,
                measured,
                Expect::number(paper),
            ));
        }
        let shares = measured.by_size(tree, sorting);
        for (which, share, bound) in [
            ("smallest", shares[0], low),
            ("largest", shares[LARGEST], high),
        ] {
            claims.push(Claim::new(
                format!("share of flushes for keeping leaves sorted, {name}, {which} nodes"),
                bound,
                share,
                Expect::number(bound).within(0.15),
            ));
        }
    }
    claims
}
