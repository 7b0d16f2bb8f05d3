//! Crab_opt's three optimizations, alone and together: insertion time in nodes of 1 KB (Crab-tree,
//! figure 12).

use super::crab::{board, crab, insertions, keys, note};
use super::tree::Design;
use super::trial::{measure, times_over};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Shifts::Cheaper;

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig12",
    title: "insertion time: the three optimizations of Crab_opt, alone and together",
    paper: papers::CRAB,
    place: "section 6.4, figure 12",
    on: &[On::Model, On::Host],
    run,
};

/// Self-managed space, approximate probe, 16-byte atomic writes.
const DESIGNS: [Design; 8] = [
    crab("Crab-tree", Cheaper, [false, false, false]),
    crab("+16B_AW", Cheaper, [false, false, true]),
    crab("+probe", Cheaper, [false, true, false]),
    crab("+self_space", Cheaper, [true, false, false]),
    crab("+probe+16B_AW", Cheaper, [false, true, true]),
    crab("+self_space+16B_AW", Cheaper, [true, false, true]),
    crab("+self_space+probe", Cheaper, [true, true, false]),
    crab("Crab_opt", Cheaper, [true, true, true]),
];
const PLAIN: usize = 0;
const WIDE: usize = 1;
const PROBE: usize = 2;
const SPACE: usize = 3;
const ALL: usize = DESIGNS.len() - 1;
const BYTES: u32 = 1024;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = board(keys)?;
    let group = DESIGNS.map(|design| insertions(design, BYTES, &device, keys));
    let outcomes = measure(setting, "inserting", &[group.to_vec()])?;
    let trees = &outcomes[0];
    let panel = Panel::bars(
        "nodes of 1 KB",
        "",
        "ns an insertion",
        DESIGNS.iter().map(|design| design.name),
    );
    let ns: Vec<f64> = trees.iter().map(|phases| phases[0].ns()).collect();
    let share: Vec<f64> = (0..DESIGNS.len())
        .map(|design| times_over(&trees[design], &trees[PLAIN]).median)
        .collect();
    let saves = |design: usize| 1.0 - share[design];
    let mut findings = Findings::default();
    for (design, paper) in [(WIDE, 0.023), (PROBE, 0.030), (SPACE, 0.124), (ALL, 0.195)] {
        findings.claims.push(
            Claim::new(
                format!("share of the time that {} saves", DESIGNS[design].name),
                paper,
                saves(design),
                Expect::number(paper).more_is_better(),
            )
            .note(times_over(&trees[design], &trees[PLAIN]).spread()),
        );
    }
    let single = saves(WIDE).max(saves(PROBE));
    findings.claims.extend([
        Claim::new(
            "what self-managed space saves less the better of the two others, alone",
            "more effective than the other two",
            saves(SPACE) - single,
            Expect::at_least(0.02),
        ),
        Claim::new(
            "what all three save less the best of them alone",
            "more than any alone",
            saves(ALL) - single.max(saves(SPACE)),
            Expect::at_least(0.02),
        ),
    ]);
    findings.panels.push(panel.with("measured", ns).with(
        "percent of Crab-tree's",
        share.iter().map(|s| s * 100.0).collect(),
    ));
    findings.notes.push(note(setting, keys));
    Ok(findings)
}
