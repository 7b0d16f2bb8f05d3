//! Insertion time by number of insertions, in three panels: leaves 70 % full, 100 % full, and dense
//! insertions behind the largest key (LB+-Tree, figure 11).
//!
//! The tree is loaded in bulk and is large beside the number of insertions, so that random ones
//! rarely meet in a leaf. On the model each point is a run of its own. On the host all designs stand
//! loaded side by side and take turns in short slices on the same keys, so that a machine whose
//! speed drifts slows all alike; ratios are taken slice by slice.

use super::tree::{Design, LBTREE, LBTREE_TRADITIONAL, scratch, sorted_keys};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;
use crate::model::{Device, RunSpec, Workload, run as simulate};
use crate::workload::Keys;
use bristlecone_trees::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig11",
    title: "insertion time: leaves 70 % full, 100 % full, dense insertions",
    paper: papers::LB,
    place: "section 4.2, figure 11",
    on: &[On::Model, On::Host],
    run,
};

/// What is compared.
const DESIGNS: &[Design] = &[LBTREE, LBTREE_TRADITIONAL];

/// One panel: its tree, its insertions, and what the paper says of it.
struct Regime {
    panel: &'static str,
    fill: Fill,
    workload: Workload,
    /// How LB+-Tree fares against another design: its name for the model, the paper's words, and
    /// what the other's time over LB+-Tree's must be.
    statements: &'static [(&'static str, &'static str, f64)],
}

const REGIMES: [Regime; 3] = [
    Regime {
        panel: "70 % full",
        fill: Fill::USUAL,
        workload: Workload::Insert,
        statements: &[(
            LBTREE_TRADITIONAL.index,
            "improvement mainly comes from entry moving",
            1.0,
        )],
    },
    Regime {
        panel: "100 % full",
        fill: Fill::FULL,
        workload: Workload::Insert,
        statements: &[(
            LBTREE_TRADITIONAL.index,
            "improvement comes from the logless split",
            1.0,
        )],
    },
    Regime {
        panel: "dense",
        fill: Fill::USUAL,
        workload: Workload::DenseInsert,
        statements: &[(
            LBTREE_TRADITIONAL.index,
            "later insertions benefit from the entry moving of earlier ones",
            1.0,
        )],
    },
];
const SEED: u64 = 11;
/// Slices of a host run between two points: short, so that few of them meet with an interruption.
const SLICES: usize = 30;

/// What came of one panel.
struct Times {
    /// For each design, milliseconds for the insertions of each point.
    ms: Vec<Vec<f64>>,
    /// For each design, its time over that of the first design, sample by sample.
    ratios: Vec<Vec<f64>>,
}

/// How much is done.
struct Size {
    keys: u64,
    /// Insertions of each point.
    points: Vec<u64>,
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let host = setting.on == On::Host;
    let scale = setting.scale;
    let (step, points) = if host {
        (scale.pick(5_000, 50_000), 6)
    } else {
        scale.pick((10_000, 3), (50_000, 6))
    };
    let size = Size {
        // On the model leaves of 110 MB at the least, so that they are rarely in a cache.
        keys: if host {
            scale.pick(2_000_000, 40_000_000)
        } else {
            scale.pick(4_000_000, 20_000_000)
        },
        points: (1..=points).map(|i| i * step).collect(),
    };
    // On the model nothing varies but what the designs do; a machine has its moods.
    let slack = if host { 0.05 } else { 0.02 };
    let mut findings = Findings::default();
    for regime in &REGIMES {
        let times = if host {
            timed(setting, regime, &size)?
        } else {
            simulated(setting, regime, &size)?
        };
        let mut panel = Panel::lines(
            regime.panel,
            "insertions",
            "ms",
            size.points.iter().map(|n| *n as f64),
        );
        for (design, ms) in DESIGNS.iter().zip(&times.ms) {
            panel = panel.with(design.name, ms.clone());
        }
        findings.panels.push(panel);
        findings.claims.extend(claims(regime, &times, slack));
    }
    findings.notes.push(format!(
        "trees of {} random keys of 8 bytes with 8-byte values, leaves of 256 bytes, 1 thread{}",
        size.keys,
        if host {
            "; pools in shared memory"
        } else {
            "; device optane"
        },
    ));
    Ok(findings)
}

fn claims(regime: &Regime, times: &Times, slack: f64) -> Vec<Claim> {
    let claim = |(against, paper, bound): &(&str, &'static str, f64)| {
        let other = DESIGNS.iter().position(|d| d.index == *against)?;
        let ratios = &times.ratios[other];
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let expect = Expect::AtLeast {
            bound: *bound,
            slack,
        };
        Some(
            Claim::new(
                format!(
                    "{}: {} over {}",
                    regime.panel, DESIGNS[other].name, DESIGNS[0].name
                ),
                *paper,
                median(ratios.clone()),
                expect,
            )
            .note(format!(
                "median of {} samples from {low:.3} to {high:.3}",
                ratios.len()
            )),
        )
    };
    regime.statements.iter().filter_map(claim).collect()
}

/// On the model: each point a run of its own.
fn simulated(
    setting: &mut Setting<'_>,
    regime: &Regime,
    size: &Size,
) -> Result<Times, FigureError> {
    let device = Device::load("optane")?;
    let all: u64 = size.points.iter().sum();
    let mut ms = Vec::new();
    for (number, design) in (0..).zip(DESIGNS) {
        let mut before = number * all;
        let mut curve = Vec::new();
        for ops in &size.points {
            let spec = RunSpec {
                index: design.index.to_owned(),
                node_bytes: Some(256),
                device: device.clone(),
                workload: regime.workload,
                threads: 1,
                keys: size.keys,
                ops: *ops,
                fill: regime.fill.of(100) as f64 / 100.0,
                seed: SEED,
            };
            let report = simulate(&spec, &mut |done| {
                setting.step(regime.panel, before + done, all * DESIGNS.len() as u64);
            })?;
            before += ops;
            curve.push(report.ns_per_op * *ops as f64 / 1e6);
        }
        ms.push(curve);
    }
    let ratios = ratios(&ms);
    Ok(Times { ms, ratios })
}

/// On this machine: all designs side by side, in slices that take turns.
fn timed(setting: &mut Setting<'_>, regime: &Regime, size: &Size) -> Result<Times, FigureError> {
    let dir = scratch()?;
    let loaded = sorted_keys(SEED, size.keys);
    let mut subjects = Vec::new();
    for (number, design) in (0..).zip(DESIGNS) {
        setting.step("loading", number, DESIGNS.len() as u64);
        subjects.push(design.load(&dir.path().join(design.index), &loaded, regime.fill)?);
    }
    let largest = loaded.last().copied().unwrap_or(0);
    drop(loaded);
    let total = size.points.last().copied().unwrap_or(0);
    let key = |n: u64| match regime.workload {
        Workload::DenseInsert => largest.saturating_add(1 + n),
        _ => Keys::Random { seed: SEED }.key(size.keys + n),
    };
    let mut ms = vec![Vec::new(); DESIGNS.len()];
    let mut samples = vec![Vec::new(); DESIGNS.len()];
    let mut spent = vec![0.0; DESIGNS.len()];
    let mut done = 0;
    for point in &size.points {
        let slice = (point - done).div_ceil(SLICES as u64);
        for turn in 0..SLICES {
            let end = (done + slice).min(*point);
            let keys: Vec<u64> = (done..end).map(key).collect();
            done = end;
            for place in 0..DESIGNS.len() {
                let who = (turn + place) % DESIGNS.len();
                let time = subjects[who].insert(&keys)?.as_secs_f64() * 1e3;
                spent[who] += time;
                samples[who].push(time);
            }
            setting.step(regime.panel, done, total);
        }
        for (ms, spent) in ms.iter_mut().zip(&spent) {
            ms.push(*spent);
        }
    }
    let ratios = ratios(&samples);
    Ok(Times { ms, ratios })
}

/// Each design's samples over the first design's.
fn ratios(samples: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let over = |of: &Vec<f64>| of.iter().zip(&samples[0]).map(|(a, b)| a / b).collect();
    samples.iter().map(over).collect()
}
