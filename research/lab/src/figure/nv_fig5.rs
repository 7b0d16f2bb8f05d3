//! Insertion into an empty tree: time by node size, flushed lines by purpose, and the growth of the
//! time with the tree (NV-Tree, figure 5).

use super::nv::{
    CDDS, DESIGNS, LCB, NV, SIZES, all, device, insertions, keys, mean, note, savings,
};
use super::tree::{Design, NVTA};
use super::trial::{Outcome, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig5",
    title: "insertion: time, lines flushed, what for, and scale",
    paper: papers::NV,
    place: "section 6.2, figure 5",
    on: &[On::Model, On::Counted, On::Host],
    run,
};

/// Figure 5c's trees: consistent inner nodes.
const CONSISTENT: [Design; 2] = [DESIGNS[LCB], NVTA];
/// Node size of figure 5d.
const LARGEST: usize = SIZES.len() - 1;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device("nvdimm", keys)?;
    // The tree at a tenth of its size, at a third, and at its full size.
    let ends = [keys / 10, keys / 3, keys];
    let phases = [ends[0], ends[1] - ends[0], ends[2] - ends[1]];
    let mut groups: Vec<_> = SIZES
        .iter()
        .map(|size| all(&DESIGNS, *size, &device, &phases))
        .collect();
    if setting.on != On::Host {
        let nvta = |size: &u32| insertions(CONSISTENT[1].sized(*size), &device, &phases);
        groups.push(SIZES.iter().map(nvta).collect());
    }
    let outcomes = measure(setting, "inserting", &groups)?;
    let (by_size, nvta) = outcomes.split_at(SIZES.len());

    let mut findings = Findings::default();
    if setting.on != On::Counted {
        times(&mut findings, by_size);
        scales(&mut findings, &by_size[LARGEST], &ends);
    }
    if let Some(nvta) = nvta.first() {
        counts(&mut findings, by_size, nvta);
    }
    findings.notes.push(note(setting, keys));
    Ok(findings)
}

/// Figure 5a.
fn times(findings: &mut Findings, by_size: &[Vec<Vec<Outcome>>]) {
    let sizes = SIZES.map(f64::from);
    let panel = Panel::lines("(a) time", "bytes of a node", "ns an insertion", sizes);
    let ns = |size: usize, design: usize| mean(&by_size[size][design], Outcome::ns);
    let curve = |design: usize| (0..SIZES.len()).map(|size| ns(size, design)).collect();
    findings.panels.push(with_each(panel, &DESIGNS, curve));
    for (other, paper) in [(LCB, 7.0), (CDDS, 12.0)] {
        let ratio = times_over(&by_size[LARGEST][other], &by_size[LARGEST][NV]);
        findings.claims.push(
            Claim::new(
                format!("time at 4096 bytes: {} over NV-Tree", DESIGNS[other].name),
                paper,
                ratio.median,
                Expect::ratio(paper),
            )
            .note(ratio.spread()),
        );
    }
    for (design, words, larger, smaller) in [
        (NV, "best performance with larger nodes", 0, LARGEST),
        (LCB, "drops when the node size increases", LARGEST, 0),
        (CDDS, "drops when the node size increases", LARGEST, 0),
    ] {
        findings.claims.push(Claim::new(
            format!(
                "{}: time at {} over {} bytes",
                DESIGNS[design].name, SIZES[larger], SIZES[smaller]
            ),
            words,
            ns(larger, design) / ns(smaller, design),
            Expect::more(),
        ));
    }
}

/// Figure 5d.
fn scales(findings: &mut Findings, by_design: &[Vec<Outcome>], ends: &[u64]) {
    let places = ends.iter().map(|n| *n as f64);
    let panel = Panel::lines("(d) nodes of 4096 bytes", "insertions", "ms", places);
    let curve = |design: usize| Outcome::running_ms(&by_design[design]);
    findings.panels.push(with_each(panel, &DESIGNS, curve));
    for (other, paper, whole) in [(LCB, "7.1x to 5.3x", 5.3), (CDDS, "12x to 8.2x", 8.2)] {
        let ratio = curve(other)
            .iter()
            .zip(curve(NV))
            .map(|(other, nv)| other / nv)
            .fold(f64::INFINITY, f64::min);
        findings.claims.push(Claim::new(
            format!(
                "{} over NV-Tree at the scale where it is least",
                DESIGNS[other].name
            ),
            paper,
            ratio,
            Expect::ratio(whole),
        ));
    }
}

/// Figures 5b and 5c.
fn counts(findings: &mut Findings, by_size: &[Vec<Vec<Outcome>>], nvta: &[Vec<Outcome>]) {
    let sizes = SIZES.map(f64::from);
    let flushed = |phases: &[Outcome]| mean(phases, |phase| phase.counted(|r| r.flushes_per_op));
    let curve =
        |design: usize| -> Vec<f64> { by_size.iter().map(|size| flushed(&size[design])).collect() };
    let panel = Panel::lines(
        "(b) flushes",
        "bytes of a node",
        "lines an insertion",
        sizes,
    );
    findings.panels.push(with_each(panel, &DESIGNS, curve));
    for (other, range) in [(LCB, (0.80, 0.97)), (CDDS, (0.76, 0.96))] {
        let claims = savings("flushes", curve, other, range);
        findings.claims.extend(claims);
    }

    let inner = |phases: &[Outcome]| {
        let of = |phase: &Outcome| phase.flushes();
        let parents: u64 = phases.iter().map(|phase| of(phase).parents).sum();
        let all: u64 = phases.iter().map(|phase| of(phase).all()).sum();
        parents as f64 / all as f64
    };
    let shares = [
        by_size
            .iter()
            .map(|size| inner(&size[LCB]))
            .collect::<Vec<_>>(),
        nvta.iter().map(|phases| inner(phases)).collect(),
    ];
    let panel = Panel::lines(
        "(c) flushes for inner nodes",
        "bytes of a node",
        "share",
        sizes,
    );
    findings
        .panels
        .push(with_each(panel, &CONSISTENT, |tree| shares[tree].clone()));
    let most = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    findings.claims.push(Claim::new(
        "share of flushes for inner nodes, LCB+-Tree, most of all node sizes",
        0.07,
        most(&shares[0]),
        Expect::number(0.07),
    ));
    findings.claims.push(Claim::new(
        "share of flushes for inner nodes, NVT-A, most of all node sizes",
        "more than 20 %",
        most(&shares[1]),
        Expect::at_least(0.20),
    ));
    findings.notes.push(
        "(c): a split's flushes but for the new node's; in a design that logs they include the log of the \
         leaf, so the share is at most this"
            .to_owned(),
    );
}
