//! Copying alone, shifting alone, and the cheaper of the two: insertion time by node size
//! (Crab-tree, figure 11).

use super::crab::{LARGEST, SIZES, board, crab, insertions, keys, more_keys, note};
use super::tree::Design;
use super::trial::{measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Shifts;

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig11",
    title: "insertion time: COW-only, SIP-only and Crab-tree, by node size",
    paper: papers::CRAB,
    place: "section 6.3, figure 11",
    on: &[On::Model],
    run,
};

const DESIGNS: [Design; 3] = [
    crab("COW-only", Shifts::Never, [false; 3]),
    crab("SIP-only", Shifts::Always, [false; 3]),
    crab("Crab-tree", Shifts::Cheaper, [false; 3]),
];
const CRAB: usize = 2;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let trees = [keys(setting), more_keys(setting)];
    let mut groups = Vec::new();
    for keys in trees {
        let device = board(keys)?;
        let group = |size| DESIGNS.map(|d| insertions(d, size, &device, keys)).to_vec();
        groups.extend(SIZES.map(group));
    }
    let outcomes = measure(setting, "inserting", &groups)?;
    let mut findings = Findings::default();
    for (keys, by_size) in trees.iter().zip(outcomes.chunks(SIZES.len())) {
        let title = format!("{keys} keys");
        let panel = Panel::lines(
            &title,
            "bytes of a node",
            "ns an insertion",
            SIZES.map(f64::from),
        );
        let ns = |design: usize| by_size.iter().map(|size| size[design][0].ns()).collect();
        findings.panels.push(with_each(panel, &DESIGNS, ns));
        let over = |size: usize, other: usize| {
            times_over(&by_size[size][other], &by_size[size][CRAB]).median
        };
        for (other, paper) in [(0, 1.905), (1, 1.222)] {
            let name = DESIGNS[other].name;
            findings.claims.push(Claim::new(
                format!("{title}, 8 KB: {name} over Crab-tree"),
                paper,
                over(LARGEST, other),
                Expect::ratio(paper),
            ));
            let least = (0..SIZES.len())
                .map(|size| over(size, other))
                .fold(f64::INFINITY, f64::min);
            findings.claims.push(Claim::new(
                format!("{title}: {name} over Crab-tree, least of all sizes"),
                "much less than that of COW-only and SIP-only",
                least,
                Expect::much_more(),
            ));
        }
    }
    findings.notes = vec![
        note(setting, trees[0]),
        format!(
            "the larger trees ({} keys) stand for the paper's of 10 million",
            trees[1]
        ),
    ];
    Ok(findings)
}
