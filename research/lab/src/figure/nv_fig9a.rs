//! Time spent on rebuilding under sequential and random insertions, with adaptivity and without
//! (NV-Tree, figure 9a).

use super::nv_rebuilding::{Rebuilding, Row, Total, fill};
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::workload::Keys;
use bristlecone_designs::nvtree::Adaptivity;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig9a",
    title: "rebuilding time under sequential and random insertions, with adaptivity and without",
    paper: papers::NV,
    place: "section 6.5, figure 9a",
    on: &[On::Host],
    run,
};

const BYTES: u32 = 1024;
const TREES: [(&str, Adaptivity); 2] = [
    ("NV-Tree'", Adaptivity::Off),
    ("NV-Tree", Adaptivity::Balanced),
];
const ORDERS: [(&str, Keys); 2] = [
    ("sequential", Keys::Dense),
    ("random", Keys::Random { seed: SEED }),
];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let count = setting.scale.amount(1_000_000, 4_000_000);
    let mut total = Total {
        done: 0,
        of: count * (TREES.len() * ORDERS.len()) as u64,
    };
    let mut all: Vec<Vec<Rebuilding>> = Vec::new();
    for (_, adaptivity) in TREES {
        let mut column = Vec::new();
        for (_, keys) in ORDERS {
            let tree = (BYTES, adaptivity);
            column.push(fill(setting, &mut total, tree, count, |n| keys.key(n))?);
        }
        all.push(column);
    }
    let mut findings = Findings::default();
    let rows: [Row; 3] = [
        ("rebuilding time", "ms", |r| r.rebuilding_ms),
        ("rebuilding", "times", |r| r.rebuilds as f64),
        ("execution time", "ms", |r| r.ms),
    ];
    for (title, y, of) in rows {
        let mut panel = Panel::bars(title, "insertions", y, ORDERS.map(|(order, _)| order));
        for ((name, _), column) in TREES.iter().zip(&all) {
            panel = panel.with(name, column.iter().map(of).collect());
        }
        findings.panels.push(panel);
    }
    let (plain, adaptive) = (&all[0][0], &all[1][0]);
    findings.claims.push(
        Claim::new(
            "sequential insertions: rebuilding time without adaptivity over that with",
            "44.5 s to 1.4 s",
            plain.rebuilding_ms / adaptive.rebuilding_ms.max(1e-3),
            Expect::ratio(44.5 / 1.4),
        )
        .note(format!(
            "{} times and {} times",
            plain.rebuilds, adaptive.rebuilds
        )),
    );
    findings.claims.push(Claim::new(
        "sequential insertions: execution time without adaptivity over that with",
        "less rebuilding",
        plain.ms / adaptive.ms,
        Expect::more(),
    ));
    findings.notes = vec![format!(
        "{count} keys of 8 bytes with 8-byte values into an empty tree, nodes of {BYTES} bytes, 1 thread; \
         pools in shared memory"
    )];
    Ok(findings)
}
