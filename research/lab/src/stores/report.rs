//! The numbers of a comparison, as a table for people and as JSON for scripts.

use super::Operation;
use crate::limits::median;
use bristlecone_peers::store::Store;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// All comparisons of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine that it ran on.
    pub machine: Machine,
    /// A comparison for each directory and size of values.
    pub runs: Vec<Run>,
}

/// The machine, and its load.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Name of its processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Load average of the last minute at the beginning of the run: tasks that wanted a processor.
    pub load_before: f64,
    /// The same at the end of the run.
    pub load_after: f64,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Directory of the engines' files.
    pub path: PathBuf,
    /// The product's medium there: `dax`, `mapped` or `journal`.
    pub medium: &'static str,
    /// Bytes of a value; keys have 8.
    pub value_bytes: usize,
    /// Keys loaded.
    pub keys: u64,
    /// Rounds.
    pub rounds: usize,
    /// The compared engines, the product first.
    pub engines: Vec<EngineReport>,
    /// The rates.
    pub operations: Vec<OperationReport>,
}

/// A compared engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Its name.
    pub name: &'static str,
    /// Its setting that makes changes durable when a call returns.
    pub setting: &'static str,
}

/// One operation, of all engines.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// The operation.
    pub operation: Operation,
    /// Thousand operations a second, or keys for `load`, in the order of [`Run::engines`].
    pub kops: Vec<Rate>,
    /// The ratio of the first engine to the fastest of the others; `None` if there are no others.
    pub ratio: Option<Ratio>,
}

/// Thousand operations a second over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// The median.
    pub median: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
}

/// The ratio of the first engine's rate to another one's, over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    /// The other engine's index in [`Run::engines`]. It has the highest median of all but the
    /// first.
    pub against: usize,
    /// The median ratio.
    pub median: f64,
    /// The ratio of the least favourable round.
    pub min: f64,
    /// The ratio of the most favourable round.
    pub max: f64,
}

impl Machine {
    pub(super) fn now() -> Self {
        Self {
            cpu: crate::limits::cpu_name(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load_before: load_average(),
            load_after: 0.0,
        }
    }
}

impl EngineReport {
    pub(super) fn of(store: &dyn Store) -> Self {
        Self {
            name: store.name(),
            setting: store.setting(),
        }
    }
}

impl Rate {
    fn of(rounds: &[f64]) -> Self {
        let (min, max) = bounds(rounds);
        let median = median(rounds.to_vec());
        Self { median, min, max }
    }
}

impl OperationReport {
    /// Returns the rates of an operation, from those of each engine in each round.
    pub(super) fn of(operation: Operation, rounds: &[Vec<f64>]) -> Self {
        let kops: Vec<Rate> = rounds.iter().map(|of| Rate::of(of)).collect();
        let others = 1..kops.len();
        let best = others.max_by(|a, b| kops[*a].median.total_cmp(&kops[*b].median));
        let ratio = best.map(|against| {
            let pairs = rounds[0].iter().zip(&rounds[against]);
            let ratios: Vec<f64> = pairs.map(|(own, other)| own / other).collect();
            let (min, max) = bounds(&ratios);
            Ratio {
                against,
                median: median(ratios),
                min,
                max,
            }
        });
        Self {
            operation,
            kops,
            ratio,
        }
    }
}

fn bounds(figures: &[f64]) -> (f64, f64) {
    let fold = |pick: fn(f64, f64) -> f64| figures.iter().copied().reduce(pick).unwrap_or(0.0);
    (fold(f64::min), fold(f64::max))
}

/// Returns the load average of the last minute, or 0 if the system does not tell.
pub(super) fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Rounds a rate or ratio to at most three significant digits.
pub(super) fn short(number: f64) -> String {
    match number {
        n if n >= 9.95 => format!("{n:.0}"),
        n if n >= 0.995 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(
            f,
            "{}, {} processors, load average {:.1} before and {:.1} after",
            machine.cpu, machine.processors, machine.load_before, machine.load_after
        )?;
        for run in &self.runs {
            write!(f, "\n{run}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), {} keys of 8 bytes, values of {} bytes, medians of {} rounds, one thread",
            self.path.display(),
            self.medium,
            self.keys,
            self.value_bytes,
            self.rounds
        )?;
        for engine in &self.engines {
            writeln!(f, "  {:12} {}", engine.name, engine.setting)?;
        }
        write!(f, "{:22}", "1000 operations/s")?;
        for engine in &self.engines {
            write!(f, "{:>13}", engine.name)?;
        }
        writeln!(f, "   x best other (min to max)")?;
        for operation in &self.operations {
            write!(f, "{:22}", operation.operation.name())?;
            for rate in &operation.kops {
                write!(f, "{:>13.1}", rate.median)?;
            }
            match &operation.ratio {
                Some(ratio) => writeln!(
                    f,
                    "   {:.2} ({:.2} to {:.2}), {}",
                    ratio.median, ratio.min, ratio.max, self.engines[ratio.against].name
                )?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round_against_the_best_of_the_others() {
        let rounds = [
            vec![10.0, 30.0, 20.0],
            vec![5.0, 5.0, 5.0],
            vec![20.0, 10.0, 40.0],
        ];
        let report = OperationReport::of(Operation::Get, &rounds);
        let ratio = report.ratio.unwrap();
        assert_eq!(
            (ratio.against, ratio.min, ratio.median, ratio.max),
            (2, 0.5, 0.5, 3.0)
        );
        assert_eq!(report.kops[0].median, 20.0);
        let alone = OperationReport::of(Operation::Get, &rounds[..1]);
        assert!(alone.ratio.is_none());
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.123, 0.996, 4.06, 9.96, 477.4].map(short);
        assert_eq!(shown, ["0.12", "1.0", "4.1", "10", "477"]);
    }
}
