//! The trials of a figure: designs, each with the same phases of operations.
//!
//! ```text
//!  group (a panel, a node size ...)      on the model: each trial a run by itself
//!    trial: design, tree, phases   --->  on the host: the group's trees side by side, in slices
//!    trial: ...                          that take turns
//! ```
//!
//! Both do the same operations in the same order. On the host the slices take turns, so that a
//! machine whose speed drifts slows all designs alike, and ratios are taken slice by slice.

use super::tree::{Design, scratch, sorted_keys};
use super::{FigureError, On, Panel, Setting};
use crate::limits::median;
use crate::model::{
    Device, Executes, ModelReport, Op, Persistence, Phase, PhaseReport, RunSpec, Source,
    WIDE_BYTES, Workload, run_phases,
};
use crate::workload::Keys;
use bristlecone_designs::Fill;
use std::time::Instant;

/// Seed of the keys and their order, in every figure.
pub(super) const SEED: u64 = 11;
/// Slices of a phase on the host. They are short, so that interruptions disturb few of them.
const SLICES: u64 = 30;

/// A design, with its tree and its phases of operations.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub design: Design,
    /// The device, on the model.
    pub device: Device,
    /// Bytes of a key and a value together. The host has entries of 16 bytes only.
    pub entry_bytes: u32,
    /// Keys loaded before the phases.
    pub keys: u64,
    /// Fill of the loaded leaves.
    pub fill: Fill,
    pub phases: Vec<Phase>,
    /// The charged persistence instructions, on the model.
    pub persistence: Persistence,
    /// Simulated threads, on the model. The host has one.
    pub threads: usize,
}

impl Trial {
    /// Returns a trial of one thread with all persistence charged.
    pub fn new(design: Design, device: &Device, keys: u64, fill: Fill, phases: &[Phase]) -> Self {
        Self {
            design,
            device: device.clone(),
            entry_bytes: 16,
            keys,
            fill,
            phases: phases.to_vec(),
            persistence: Persistence::Kept,
            threads: 1,
        }
    }

    /// Returns the trial with keys and values of 16 bytes each, on the model.
    #[must_use]
    pub fn wide(self) -> Self {
        Self {
            entry_bytes: WIDE_BYTES,
            ..self
        }
    }

    /// Returns the trial with a number of threads.
    #[must_use]
    pub fn threaded(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    fn ops(&self) -> u64 {
        self.phases.iter().map(|phase| phase.ops).sum()
    }

    fn spec(&self) -> RunSpec {
        RunSpec {
            index: self.design.index.to_owned(),
            node_bytes: self.design.node_bytes,
            entry_bytes: self.entry_bytes,
            device: self.device.clone(),
            workload: self.phases.first().map_or(Workload::Lookup, |p| p.workload),
            threads: self.threads,
            keys: self.keys,
            ops: self.ops(),
            fill: self.fill.of(100) as f64 / 100.0,
            seed: SEED,
        }
    }
}

/// The outcome of a phase of a trial.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub ops: u64,
    /// Nanoseconds an operation, slice by slice.
    samples: Vec<f64>,
    /// The report of the model, if it ran there.
    counts: Option<PhaseReport>,
}

impl Outcome {
    /// Returns the nanoseconds an operation.
    pub fn ns(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    /// Returns the milliseconds of the phase.
    pub fn ms(&self) -> f64 {
        self.ns() * self.ops as f64 / 1e6
    }

    /// Returns the milliseconds up to the end of each phase.
    pub fn running_ms(phases: &[Self]) -> Vec<f64> {
        let mut sum = 0.0;
        let ends = phases.iter().map(|phase| {
            sum += phase.ms();
            sum
        });
        ends.collect()
    }

    /// Returns million operations a second.
    pub fn mops(&self) -> f64 {
        1e3 / self.ns()
    }

    /// Returns a number of the model's report, or 0 on the host, which has none.
    pub fn counted(&self, of: impl Fn(&ModelReport) -> f64) -> f64 {
        self.counts
            .as_ref()
            .map_or(0.0, |counts| of(&counts.report))
    }

    /// Returns the persistence instructions; none on the host.
    pub fn issued(&self) -> crate::model::Issued {
        self.counts.as_ref().map(|c| c.issued).unwrap_or_default()
    }

    /// Returns the model's flushes by purpose; none on the host.
    pub fn flushes(&self) -> crate::model::Flushes {
        self.counts.as_ref().map(|c| c.flushes).unwrap_or_default()
    }
}

/// Returns the ratio of the time of `these` phases of one trial to `those` of another of its group:
/// on the host the median over all slices, with the smallest and the largest, and on the model over
/// the phases.
pub(super) fn times_over(these: &[Outcome], those: &[Outcome]) -> Ratio {
    let samples = |of: &'static str, outcomes: &[Outcome]| -> Vec<f64> {
        debug_assert!(!outcomes.is_empty(), "{of}");
        outcomes.iter().flat_map(|o| o.samples.clone()).collect()
    };
    let ratios = samples("these", these)
        .into_iter()
        .zip(samples("those", those))
        .map(|(this, that)| this / that);
    Ratio::of(ratios.collect())
}

/// A median, with the range of its samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub median: f64,
    low: f64,
    high: f64,
    samples: usize,
}

impl Ratio {
    fn of(ratios: Vec<f64>) -> Self {
        Self {
            low: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            high: ratios.iter().copied().fold(0.0, f64::max),
            samples: ratios.len(),
            median: median(ratios),
        }
    }

    /// Returns the spread, for a claim's note.
    pub fn spread(&self) -> String {
        match self.samples {
            1 => String::new(),
            n => format!(
                "median of {n} samples from {:.3} to {:.3}",
                self.low, self.high
            ),
        }
    }
}

/// Outcomes by group, trial and phase.
pub(super) type Outcomes = Vec<Vec<Vec<Outcome>>>;

/// Runs the phases of every trial. On the host, the trials of a group must have the same tree and
/// phases.
pub(super) fn measure(
    setting: &mut Setting<'_>,
    doing: &str,
    groups: &[Vec<Trial>],
) -> Result<Outcomes, FigureError> {
    let total = groups.iter().flatten().map(Trial::ops).sum();
    let mut before = 0;
    let mut outcomes = Vec::new();
    for group in groups {
        outcomes.push(if setting.on == On::Host {
            timed(setting, doing, group, before, total)?
        } else {
            simulated(setting, doing, group, before, total)?
        });
        before += group.iter().map(Trial::ops).sum::<u64>();
    }
    Ok(outcomes)
}

fn simulated(
    setting: &mut Setting<'_>,
    doing: &str,
    group: &[Trial],
    mut before: u64,
    total: u64,
) -> Result<Vec<Vec<Outcome>>, FigureError> {
    let mut outcomes = Vec::new();
    for trial in group {
        let reports = run_phases(
            &trial.spec(),
            &trial.phases,
            trial.design.tuning,
            trial.persistence,
            &mut |done| setting.step(doing, before + done, total),
        )?;
        before += trial.ops();
        let outcome = |counts: PhaseReport| Outcome {
            ops: counts.report.ops,
            samples: vec![counts.report.ns_per_op],
            counts: Some(counts),
        };
        outcomes.push(reports.into_iter().map(outcome).collect());
    }
    Ok(outcomes)
}

fn timed(
    setting: &mut Setting<'_>,
    doing: &str,
    group: &[Trial],
    before: u64,
    total: u64,
) -> Result<Vec<Vec<Outcome>>, FigureError> {
    let Some(first) = group.first() else {
        return Ok(Vec::new());
    };
    let dir = scratch()?;
    let sorted = sorted_keys(SEED, first.keys);
    let mut subjects: Vec<Box<dyn Executes>> = Vec::new();
    for (number, trial) in group.iter().enumerate() {
        debug_assert_eq!((trial.keys, trial.ops()), (first.keys, first.ops()));
        let path = dir.path().join(format!("{number}-{}", trial.design.index));
        subjects.push(trial.design.load(&path, &sorted, trial.fill)?);
    }
    let mut source = Source::new(
        &first.spec(),
        &first.phases,
        Keys::Random { seed: SEED },
        &sorted,
    )?;
    drop(sorted);
    let mut outcomes = vec![Vec::new(); group.len()];
    let mut done = 0;
    for phase in &first.phases {
        source.begin(phase);
        let slice = phase.ops.div_ceil(SLICES).max(1) as usize;
        let mut samples = vec![Vec::new(); group.len()];
        for turn in 0.. {
            let ops: Vec<_> = std::iter::from_fn(|| source.next(0)).take(slice).collect();
            if ops.is_empty() {
                break;
            }
            for (samples, ns) in samples.iter_mut().zip(slice_of(&subjects, turn, &ops)?) {
                samples.push(ns);
            }
            done += (ops.len() * subjects.len()) as u64;
            setting.step(doing, before + done, total);
        }
        for (outcomes, samples) in outcomes.iter_mut().zip(samples) {
            outcomes.push(Outcome {
                ops: phase.ops,
                samples,
                counts: None,
            });
        }
    }
    Ok(outcomes)
}

/// Lets every subject do the same operations, one subject after the other, beginning with number
/// `turn`. Returns the nanoseconds an operation, by subject.
pub(super) fn slice_of(
    subjects: &[Box<dyn Executes>],
    turn: usize,
    ops: &[Op],
) -> Result<Vec<f64>, FigureError> {
    let mut ns = vec![0.0; subjects.len()];
    for place in 0..subjects.len() {
        let index = (turn + place) % subjects.len();
        let started = Instant::now();
        subjects[index].execute_all(ops)?;
        ns[index] = started.elapsed().as_nanos() as f64 / ops.len() as f64;
    }
    Ok(ns)
}

/// Returns the speed-up with `threads` threads of work that a paper made faster by a factor with a
/// number of threads, by Amdahl's law.
pub(super) fn speedup((paper, with): (f64, usize), threads: usize) -> f64 {
    let with = with as f64;
    let serial = (1.0 / paper - 1.0 / with) / (1.0 - 1.0 / with);
    1.0 / (serial + (1.0 - serial) / threads as f64)
}

/// Adds a series for each design, with the numbers that `values` returns for its index.
pub(super) fn with_each(
    mut panel: Panel,
    designs: &[Design],
    values: impl Fn(usize) -> Vec<f64>,
) -> Panel {
    for (number, design) in designs.iter().enumerate() {
        panel = panel.with(design.name, values(number));
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_up_follows_from_the_paper_s() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 5e-3, "{a} and {b}");
        near(speedup((12.0, 16), 16), 12.0);
        near(speedup((12.0, 16), 2), 1.957);
        near(speedup((21.0, 48), 2), 1.947);
        near(speedup((21.0, 48), 1), 1.0);
    }
}
