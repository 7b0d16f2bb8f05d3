//! Loads and cache misses of insertions into an empty tree, by node size (NV-Tree, figure 6).

use super::nv::{CDDS, DESIGNS, LCB, SIZES, all, device, keys, note, savings};
use super::trial::{measure, with_each};
use super::{Entry, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::ModelReport;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig6",
    title: "loads and cache misses of insertions, by node size",
    paper: papers::NV,
    place: "section 6.2, figure 6",
    on: &[On::Model],
    run,
};

/// A panel, and the range of the NV-Tree's savings against LCB+-Tree and CDDS-Tree.
struct Count {
    panel: &'static str,
    y: &'static str,
    what: &'static str,
    of: fn(&ModelReport) -> f64,
    ranges: [(f64, f64); 2],
}

const COUNTS: [Count; 2] = [
    Count {
        panel: "(a) loads",
        y: "loads an insertion",
        what: "loads",
        of: |report| report.loads_per_op,
        ranges: [(0.44, 0.90), (0.52, 0.92)],
    },
    Count {
        panel: "(b) cache misses",
        y: "lines an insertion",
        what: "cache misses",
        of: |report| report.misses_per_op,
        ranges: [(0.24, 0.83), (0.39, 0.90)],
    },
];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device("nvdimm", keys)?;
    let groups: Vec<_> = SIZES
        .iter()
        .map(|size| all(&DESIGNS, *size, &device, &[keys]))
        .collect();
    let outcomes = measure(setting, "inserting", &groups)?;
    let mut findings = Findings::default();
    for count in COUNTS {
        let curve = |design: usize| -> Vec<f64> {
            outcomes
                .iter()
                .map(|size| size[design][0].counted(count.of))
                .collect()
        };
        let panel = Panel::lines(
            count.panel,
            "bytes of a node",
            count.y,
            SIZES.map(f64::from),
        );
        findings.panels.push(with_each(panel, &DESIGNS, curve));
        for (other, range) in [LCB, CDDS].into_iter().zip(count.ranges) {
            let claims = savings(count.what, curve, other, range);
            findings.claims.extend(claims);
        }
    }
    findings.notes = vec![
        note(setting, keys),
        "loads are of 8-byte words in nodes; a compiled program has others besides".to_owned(),
    ];
    Ok(findings)
}
