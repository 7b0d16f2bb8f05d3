//! The shares of copying and of shifting in a Crab-tree's flushes and fences, by node size
//! (Crab-tree, figure 10).

use super::crab::{SIZES, board, insertions, keys, note};
use super::tree::CRABTREE;
use super::trial::{Outcome, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Instructions;

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig10",
    title: "shares of copying and shifting in flushed data and fences, by node size",
    paper: papers::CRAB,
    place: "section 6.2, figure 10",
    on: &[On::Counted],
    run,
};

type Of = fn(&Instructions) -> u64;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = board(keys)?;
    let groups = SIZES.map(|size| vec![insertions(CRABTREE, size, &device, keys)]);
    let outcomes = measure(setting, "inserting", &groups)?;
    let share = |phase: &Outcome, of: Of| {
        let issued = phase.issued();
        of(&issued.copying) as f64 / of(&issued.all()) as f64
    };
    let shares = |of: Of| -> Vec<f64> {
        let sizes = outcomes.iter();
        sizes.map(|trees| share(&trees[0][0], of)).collect()
    };
    let data = shares(|i| i.flushes);
    let fences = shares(|i| i.fences + i.store_fences);
    let panel = |title: &str, shares: &[f64]| {
        let places = SIZES.map(f64::from);
        let panel = Panel::lines(title, "bytes of a node", "share", places);
        let rest = shares.iter().map(|share| 1.0 - share).collect();
        panel.with("COW", shares.to_vec()).with("SIP", rest)
    };
    let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    Ok(Findings {
        claims: vec![
            Claim::new(
                "share of flushed data that is copied, least of all sizes",
                "at least 71.9 %",
                least(&data),
                Expect::at_least(0.719),
            ),
            Claim::new(
                "share of fences for copying, most of all sizes",
                "two fences flush many lines in a batch",
                most(&fences),
                Expect::at_most(0.5),
            ),
        ],
        panels: vec![
            panel("(a) flushed data", &data),
            panel("(b) fences", &fences),
        ],
        notes: vec![
            note(setting, keys),
            "an insertion that shifts anything counts as shifting, with the upper half of a split that it follows"
                .to_owned(),
        ],
    })
}
