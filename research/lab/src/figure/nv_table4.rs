//! Rebuilding under insertions of random keys: number, time, and share of the time (NV-Tree, table
//! 4).

use super::nv_rebuilding::{Rebuilding, Row, Total, fill};
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::workload::Keys;
use bristlecone_designs::nvtree::Adaptivity;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-table4",
    title: "rebuilding under random insertions: how often and how long",
    paper: papers::NV,
    place: "section 6.5, table 4",
    on: &[On::Host],
    run,
};

const SIZES: [u32; 2] = [1024, 4096];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let most = setting.scale.amount(2_000_000, 20_000_000);
    let counts = [most / 20, most / 4, most];
    let mut total = Total {
        done: 0,
        of: counts.iter().sum::<u64>() * SIZES.len() as u64,
    };
    let spread = Keys::Random { seed: SEED };
    let mut all: Vec<Vec<Rebuilding>> = Vec::new();
    for size in SIZES {
        let mut column = Vec::new();
        for count in counts {
            let tree = (size, Adaptivity::default());
            column.push(fill(setting, &mut total, tree, count, |n| spread.key(n))?);
        }
        all.push(column);
    }
    let mut findings = Findings::default();
    let rows: [Row; 4] = [
        ("rebuilding", "times", |r| r.rebuilds as f64),
        ("rebuilding time", "ms", |r| r.rebuilding_ms),
        ("execution time", "ms", |r| r.ms),
        ("share of rebuilding", "percent", |r| r.share() * 100.0),
    ];
    for (title, y, of) in rows {
        let mut panel = Panel::lines(title, "insertions", y, counts.map(|n| n as f64));
        for (size, column) in SIZES.iter().zip(&all) {
            panel = panel.with(&format!("{size} bytes"), column.iter().map(of).collect());
        }
        findings.panels.push(panel);
    }
    for (size, column) in SIZES.iter().zip(&all) {
        let largest = column.iter().map(Rebuilding::share).fold(0.0, f64::max);
        findings.claims.push(Claim::new(
            format!("share of rebuilding in the time, nodes of {size} bytes, at the count where it is largest"),
            "about 1 % (0.01 to 1.13 %)",
            largest,
            Expect::number(0.0113).within(0.1).less_is_better(),
        ));
    }
    let times = |size: usize| all[size].iter().map(|r| r.rebuilds).sum::<u64>() as f64;
    findings.claims.push(Claim::new(
        "rebuildings in all three trees, 1024 over 4096 bytes",
        "10 to 5",
        times(0) / times(1).max(1.0),
        Expect::ratio(2.0),
    ));
    findings.notes = vec![
        "random keys of 8 bytes with 8-byte values into an empty tree, adaptivity balanced, 1 thread; pools \
         in shared memory"
            .to_owned(),
    ];
    Ok(findings)
}
