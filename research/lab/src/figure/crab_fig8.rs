//! Flushed lines and bytes, and fences, of insertions into an empty tree, by node size (Crab-tree,
//! figure 8).

use super::crab::{
    CRAB, DESIGNS, FAIR, LARGEST, NV, NV_PLAIN, OPT, SIZES, board, by_size, insertions, keys, note,
    panel,
};
use super::trial::{Outcome, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig8",
    title: "lines and bytes flushed and fences of insertions, by node size",
    paper: papers::CRAB,
    place: "section 6.2, figure 8",
    on: &[On::Counted],
    run,
};

fn flushes(phases: &[Outcome]) -> f64 {
    phases[0].issued().all().flushes as f64 / phases[0].ops as f64
}

fn bytes(phases: &[Outcome]) -> f64 {
    64.0 * flushes(phases)
}

/// Fences, including those between stores.
fn fences(phases: &[Outcome]) -> f64 {
    let all = phases[0].issued().all();
    (all.fences + all.store_fences) as f64 / phases[0].ops as f64
}

type Of = fn(&[Outcome]) -> f64;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let groups = by_size(&DESIGNS, &board(keys)?, |design, size, device| {
        insertions(design, size, device, keys)
    });
    let outcomes = measure(setting, "inserting", &groups)?;
    let mut findings = Findings::default();
    for (titles, of) in [
        (("(a) flushes", "lines an insertion"), flushes as Of),
        (("(b) bytes flushed", "bytes an insertion"), bytes),
        (("(c) fences", "an insertion"), fences),
    ] {
        findings.panels.push(panel(titles, &outcomes, of));
    }
    let over = |size: usize, (a, b): (usize, usize), of: Of| {
        of(&outcomes[size][a]) / of(&outcomes[size][b])
    };
    let most = |pair: (usize, usize), of: Of| {
        (0..SIZES.len())
            .map(|size| over(size, pair, of))
            .fold(0.0, f64::max)
    };
    for (what, of) in [("bytes flushed", bytes as Of), ("fences", fences)] {
        for other in [FAIR, CRAB, OPT] {
            findings.claims.push(Claim::new(
                format!(
                    "{what}: NV-Tree over {}, most of all sizes",
                    DESIGNS[other].name
                ),
                "the fewest",
                most((NV, other), of),
                Expect::less(),
            ));
        }
    }
    findings.claims.extend([
        Claim::new(
            "bytes flushed at 8 KB: Crab-tree over FAST/FAIR",
            1.227,
            over(LARGEST, (CRAB, FAIR), bytes),
            Expect::cost(1.227),
        ),
        Claim::new(
            "bytes flushed: Crab-tree over FAST/FAIR, most of all sizes",
            "more, at most 22.7 %",
            most((CRAB, FAIR), bytes),
            Expect::level(1.227),
        ),
        Claim::new(
            "fences at 8 KB: Crab-tree over FAST/FAIR",
            0.225,
            over(LARGEST, (CRAB, FAIR), fences),
            Expect::number(0.225).less_is_better(),
        ),
        Claim::new(
            "fences: Crab_opt over Crab-tree, most of all sizes",
            "much less",
            most((OPT, CRAB), fences),
            Expect::at_most(0.7),
        ),
    ]);
    findings.notes = vec![
        note(setting, keys),
        NV_PLAIN.to_owned(),
        "fences between stores, which are instructions on ARMv8 and none on x86-64, count"
            .to_owned(),
    ];
    Ok(findings)
}
