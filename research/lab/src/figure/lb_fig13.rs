//! Insertion by node size: 256, 512 and 1024 bytes, in the three experiments of figure 11
//! (LB+-Tree, figure 13).

use super::lb_insertion::{REGIMES, device, keys, note};
use super::tree::{Design, FPTREE, LBTREE, WBTREE};
use super::trial::{Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Phase;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig13",
    title: "insertion by node size: leaves 70 % full, 100 % full, dense insertions",
    paper: papers::LB,
    place: "section 4.2, figure 13",
    on: &[On::Model, On::Host],
    run,
};

const DESIGNS: [Design; 3] = [WBTREE, FPTREE, LBTREE];
/// Index of the LB+-Tree.
const LB: usize = 2;
const SIZES: [u32; 3] = [256, 512, 1024];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // There are nine trees of each design.
    let keys = keys(setting) / 2;
    let device = device(keys)?;
    let ops = setting.scale.amount(20_000, 100_000);
    let groups: Vec<Vec<Trial>> = REGIMES
        .iter()
        .flat_map(|regime| SIZES.map(|size| (regime, size)))
        .map(|(regime, size)| {
            let phases = [Phase::of(regime.workload, ops)];
            let trial = |d: Design| Trial::new(d.sized(size), &device, keys, regime.fill, &phases);
            DESIGNS.map(trial).to_vec()
        })
        .collect();
    let outcomes = measure(setting, "inserting", &groups)?;

    let mut findings = Findings::default();
    for (regime, by_size) in REGIMES.iter().zip(outcomes.chunks(SIZES.len())) {
        let sizes = SIZES.map(f64::from);
        let panel = Panel::lines(regime.panel, "bytes of a node", "10^6 insertions/s", sizes);
        let mops = |design: usize| by_size.iter().map(|d| d[design][0].mops()).collect();
        findings.panels.push(with_each(panel, &DESIGNS, mops));

        let nearest = by_size
            .iter()
            .flat_map(|by_design| [0, 1].map(|other| times_over(&by_design[other], &by_design[LB])))
            .map(|ratio| ratio.median)
            .fold(f64::INFINITY, f64::min);
        findings.claims.push(Claim::new(
            format!(
                "{}: the next best over LB+-Tree, at the size where it comes nearest",
                regime.panel
            ),
            "LB+-Tree achieves the best throughput in all the cases",
            nearest,
            Expect::more(),
        ));
        // Sizes are trials of different groups, whose slices did not take turns on the host.
        let over = |a: usize, b: usize| by_size[a][LB][0].ns() / by_size[b][LB][0].ns();
        if regime.panel == REGIMES[0].panel {
            findings.claims.push(Claim::new(
                format!("{}: LB+-Tree, time at 256 over 512 bytes", regime.panel),
                "512B is slightly better",
                over(0, 1),
                Expect::slightly_more(),
            ));
            continue;
        }
        for (larger, smaller, words, expect) in [
            (1, 0, "256B is significantly better", Expect::much_more()),
            (
                2,
                1,
                "the larger the leaf node, the lower the throughput",
                Expect::more(),
            ),
        ] {
            findings.claims.push(Claim::new(
                format!(
                    "{}: LB+-Tree, time at {} over {} bytes",
                    regime.panel, SIZES[larger], SIZES[smaller]
                ),
                words,
                over(larger, smaller),
                expect,
            ));
        }
    }
    findings.notes.push(format!(
        "{}; {ops} insertions; 768 bytes is left out",
        note(setting, keys)
    ));
    Ok(findings)
}
