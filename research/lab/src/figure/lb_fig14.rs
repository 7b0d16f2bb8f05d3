//! Search and deletion by number of operations, and the search in one leaf (LB+-Tree, figure 14 and
//! the text beside it).

use super::lb_insertion::{device, keys, note, persisting};
use super::tree::{Design, FPTREE, LBTREE, WBTREE_LAZY};
use super::trial::{Outcome, Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Phase, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig14",
    title: "search and deletion time; search in one leaf",
    paper: papers::LB,
    place: "section 4.2, figure 14",
    on: &[On::Model, On::Host],
    run,
};

/// A removal from this wB+-Tree is one NAW, like one from the others: the paper has all three
/// alike.
const DESIGNS: [Design; 3] = [WBTREE_LAZY.named("wB+-Tree"), FPTREE, LBTREE];
const OPERATIONS: [(&str, Workload); 2] =
    [("search", Workload::Lookup), ("deletion", Workload::Remove)];
const POINTS: usize = 6;
/// A leaf of 14 entries, 70 % full.
const ONE_LEAF: u64 = 9;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device(keys)?;
    let step = setting.scale.amount(5_000, 50_000);
    let phases = OPERATIONS.map(|(_, workload)| [Phase::of(workload, step); POINTS]);
    let leaf_searches = [Phase::of(
        Workload::Lookup,
        setting.scale.amount(100_000, 1_000_000),
    )];
    let trial = |keys, phases: &[Phase]| {
        DESIGNS
            .map(|design| Trial::new(design.sized(256), &device, keys, Fill::USUAL, phases))
            .to_vec()
    };
    let groups = [
        trial(keys, phases.as_flattened()),
        trial(ONE_LEAF, &leaf_searches),
    ];
    let outcomes = measure(setting, "searching and deleting", &groups)?;
    let (tree, leaf) = (&outcomes[0], &outcomes[1]);

    let mut findings = Findings::default();
    for (number, (operation, _)) in OPERATIONS.iter().enumerate() {
        let of = |design: usize| &tree[design][number * POINTS..(number + 1) * POINTS];
        let places = (1..=POINTS).map(|i| (i as u64 * step) as f64);
        let panel = Panel::lines(operation, "operations", "ms", places);
        let curve = |design| Outcome::running_ms(of(design));
        findings.panels.push(with_each(panel, &DESIGNS, curve));
        let last: Vec<&Outcome> = (0..DESIGNS.len()).map(|d| &of(d)[POINTS - 1]).collect();
        findings
            .notes
            .extend(persisting(operation, &DESIGNS, &last));
        for other in [0, 1] {
            let ratio = times_over(of(other), of(2));
            let what = format!("{operation}: {} over LB+-Tree", DESIGNS[other].name);
            findings.claims.push(
                Claim::new(what, "similar", ratio.median, Expect::alike()).note(ratio.spread()),
            );
        }
    }
    let panel = Panel::bars("Search in one leaf", "", "ns", ["a tree of one leaf"]);
    findings.panels.push(with_each(panel, &DESIGNS, |design| {
        vec![leaf[design][0].ns()]
    }));
    for (other, paper, expect) in [(0, 1.29, Expect::ratio(1.29)), (1, 1.0, Expect::alike())] {
        let ratio = times_over(&leaf[other], &leaf[2]);
        let what = format!("search in one leaf: {} over LB+-Tree", DESIGNS[other].name);
        findings
            .claims
            .push(Claim::new(what, paper, ratio.median, expect).note(ratio.spread()));
    }
    findings.notes.push(format!(
        "{}, loaded to 70 %, leaves of 256 bytes; searches first, then deletions",
        note(setting, keys)
    ));
    findings.notes.push(
        "a removal from the wB+-Tree is one NAW, and leaves its slot in the slot array; with the array \
         rewritten at once it persists twice, and a deletion takes 1.3 times the LB+-Tree's"
            .to_owned(),
    );
    findings.notes.push(
        "the search in one leaf is that of a whole tree which has no other, calling it included; on the \
         model instructions are a constant an access and a constant an operation"
            .to_owned(),
    );
    Ok(findings)
}
