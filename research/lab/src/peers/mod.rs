//! Embedded stores compared in one run (`bench peers`): the product's `Database` and the clustered
//! tree by itself beside LMDB, redb, fjall, RocksDB and SQLite.
//!
//! ```text
//! round 1 | load: store, lmdb, redb, ... | get: the same | scan100 | update | ycsb-a | ... | delete
//! round 2 | load: lmdb, redb, ..., store | ...   (each round: new files, another order)
//! counts  | store: load, get, ..., delete, in a process of its own | lmdb: the same | ...
//! ```
//!
//! Each engine makes every change durable before the call returns, in its fastest such setting. In
//! each round all engines are open and take turns, workload by workload, so that a disturbance of
//! the machine affects all of them. A rate is the median of the rounds. A ratio is the median of
//! the rounds' ratios, and compares turns that followed one another, with the best *peer*: the
//! fastest of the engines that are not of this project.
//!
//! [`workload`](Workload) has what is called, and [`Counts`] what is counted beside time.

mod array;
mod counts;
mod draw;
mod drive;
mod engine;
mod own;
mod published;
mod report;
mod values;
mod volatile;
mod workload;

pub use counts::{Counts, count};
pub use draw::draw;
pub use engine::Engine;
pub use published::{Published, PublishedParams, PublishedReport, PublishedRow, run_published};
pub use report::{Comparison, EngineReport, Machine, Rate, Report, Row};
pub use workload::Workload;

use crate::LabError;
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_peers::store::Store;
use drive::Driver;
use report::Rates;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use values::{SHORTEST, Values};
use workload::Plan;

/// Keys that may be loaded.
const KEYS: RangeInclusive<u64> = 1000..=1 << 40;
/// Bytes of a value that may be compared.
const VALUE_BYTES: RangeInclusive<usize> = SHORTEST..=64 << 10;
/// Least memory that engines can be bounded to, in bytes.
const LEAST_MEMORY: u64 = 16 << 20;
/// Threads that may be compared: LMDB's table of readers has 64 places.
const THREADS: RangeInclusive<usize> = 1..=60;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// Directories for the engines' files: one comparison in each.
    pub paths: Vec<PathBuf>,
    /// Bytes of a value: one comparison for each, in each directory.
    pub value_bytes: Vec<usize>,
    /// Threads: one comparison for each number of them, in each directory and size.
    pub threads: Vec<usize>,
    /// Keys loaded before the other workloads.
    pub keys: u64,
    /// Number of rounds, each on new files.
    pub rounds: usize,
    /// Time limit of one turn. The load and the first scans have none.
    pub slice: Duration,
    /// The compared engines.
    pub engines: Vec<Engine>,
    /// The measured workloads. They run in the order of [`Workload::ALL`].
    pub workloads: Vec<Workload>,
    /// Seed of the keys and their order.
    pub seed: u64,
    /// Bytes of memory that each engine may use: the product in all, the others for their caches.
    /// Each then runs in a process of its own, since what others have would count.
    pub memory: Option<u64>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            paths: vec!["/dev/shm".into()],
            value_bytes: vec![8],
            threads: vec![1],
            keys: 200_000,
            rounds: 5,
            slice: Duration::from_millis(500),
            engines: Engine::available(),
            workloads: Workload::ALL.to_vec(),
            seed: 1,
            memory: None,
        }
    }
}

impl Params {
    fn check(&self) -> Result<(), LabError> {
        let some = |name, empty: bool| {
            let error = LabError::parameter(name, "", "at least one");
            if empty { Err(error) } else { Ok(()) }
        };
        some("paths", self.paths.is_empty())?;
        some("value_bytes", self.value_bytes.is_empty())?;
        some("threads", self.threads.is_empty())?;
        some("engines", self.engines.is_empty())?;
        some("workloads", self.workloads.is_empty())?;
        if self.rounds == 0 {
            return Err(LabError::parameter("rounds", 0, "1 or more"));
        }
        if !KEYS.contains(&self.keys) {
            let may_be = format!("{} to {}", KEYS.start(), KEYS.end());
            return Err(LabError::parameter("keys", self.keys, may_be));
        }
        let within = |name, numbers: &[usize], range: RangeInclusive<usize>| match numbers
            .iter()
            .find(|number| !range.contains(number))
        {
            Some(number) => Err(LabError::parameter(
                name,
                number,
                format!("{} to {}", range.start(), range.end()),
            )),
            None => Ok(()),
        };
        within("value_bytes", &self.value_bytes, VALUE_BYTES)?;
        within("threads", &self.threads, THREADS)?;
        if let Some(bytes) = self.memory.filter(|bytes| *bytes < LEAST_MEMORY) {
            let may_be = format!("{LEAST_MEMORY} or more");
            return Err(LabError::parameter("memory", bytes, may_be));
        }
        let boundless = [Engine::Tree, Engine::BTreeMap, Engine::Array];
        let boundless = boundless.into_iter().find(|one| self.engines.contains(one));
        if let Some(engine) = boundless.filter(|_| self.memory.is_some()) {
            let may_be = "an engine that keeps within a bound; tree, btreemap and array have none";
            return Err(LabError::parameter("engines", engine, may_be));
        }
        self.engines.iter().try_for_each(|engine| engine.check())
    }

    /// Returns the workloads to run in order: the measured ones, and those that bring every engine
    /// into the same state before them.
    fn needed(&self) -> BTreeSet<Workload> {
        let before = [Workload::Load, Workload::Scan100First];
        before.iter().chain(&self.workloads).copied().collect()
    }

    /// Returns several times the bytes that any engine needs for a comparison.
    fn most_bytes(&self, value_bytes: usize) -> u64 {
        let entry = 256 + 4 * value_bytes as u64;
        self.keys.saturating_mul(3 * entry)
    }

    /// Returns the engines, each once, in the order of [`Engine::ALL`].
    fn distinct(&self) -> Vec<Engine> {
        let engines: BTreeSet<Engine> = self.engines.iter().copied().collect();
        engines.into_iter().collect()
    }
}

/// The present step of a run.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What it is.
    pub doing: &'a str,
    /// Turns done.
    pub done: u64,
    /// All turns.
    pub total: u64,
}

/// Counts for one engine in a process of its own, which calls [`count`] with the parameters.
pub type Counting<'a> = dyn FnMut(&Params) -> Result<Vec<Counts>, LabError> + 'a;

/// Runs every comparison. Calls `progress` before each turn.
///
/// # Errors
/// A parameter is out of range, this build or system lacks an engine, a directory cannot be made,
/// an engine refuses a call or gives a wrong answer, or the counting process fails.
pub fn run(
    params: &Params,
    counting: &mut Counting<'_>,
    progress: &mut dyn FnMut(&Step<'_>),
) -> Result<Report, LabError> {
    params.check()?;
    let engines = params.distinct();
    let mut report = Report::new(params);
    let comparisons = params.paths.len() * params.value_bytes.len() * params.threads.len();
    let turns = match params.memory {
        Some(_) => params.rounds,
        None => params.rounds * params.needed().len() + 1,
    };
    let mut steps = Steps {
        done: 0,
        total: (comparisons * turns * engines.len()) as u64,
        progress,
    };
    for path in &params.paths {
        for &value_bytes in &params.value_bytes {
            for &threads in &params.threads {
                let case = Case {
                    params,
                    engines: &engines,
                    path,
                    threads,
                    values: Values::new(value_bytes),
                };
                case.run(&mut report, counting, &mut steps)?;
            }
        }
    }
    report.finish();
    Ok(report)
}

fn scratch(path: &Path) -> Result<Scratch, LabError> {
    Scratch::new(path, Purpose::Bench).map_err(|e| LabError::io(path, "making a directory", e))
}

/// The progress so far.
struct Steps<'a> {
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(&Step<'_>),
}

impl Steps<'_> {
    fn begin(&mut self, doing: &str) {
        let step = Step {
            doing,
            done: self.done,
            total: self.total,
        };
        (self.progress)(&step);
        self.done += 1;
    }
}

/// One directory, size of values and number of threads.
struct Case<'a> {
    params: &'a Params,
    engines: &'a [Engine],
    path: &'a Path,
    threads: usize,
    values: Values,
}

impl Case<'_> {
    fn run(
        &self,
        report: &mut Report,
        counting: &mut Counting<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<(), LabError> {
        let medium = engine::medium_of(self.path)?;
        let mut rates = Rates::new(&self.params.needed(), self.engines.len());
        let (mut engines, mut counts) = (Vec::new(), Vec::new());
        for round in 0..self.params.rounds {
            let scratch = scratch(self.path)?;
            let place = engine::Place {
                dir: scratch.path(),
                medium,
                most_bytes: self.params.most_bytes(self.values.bytes()),
                memory: self.params.memory,
            };
            let open = |engine: &Engine| engine.open(&place);
            let stores = self
                .engines
                .iter()
                .map(open)
                .collect::<Result<Vec<_>, _>>()?;
            if self.params.memory.is_none() {
                self.round(round, &stores, &mut rates, steps)?;
            }
            let pairs = stores.iter().zip(self.engines);
            engines = pairs
                .map(|(store, engine)| EngineReport {
                    name: *engine,
                    version: store.version(),
                    setting: store.setting(),
                })
                .collect();
            if self.params.memory.is_some() {
                drop(stores);
                counts = self.counts(round, counting, steps)?;
                for (engine, counts) in counts.iter().enumerate() {
                    for counts in counts {
                        rates.push(counts.workload, engine, counts.ops_per_s);
                    }
                }
            }
        }
        let comparison = Comparison {
            path: self.path.to_path_buf(),
            medium: medium.name(),
            value_bytes: self.values.bytes(),
            threads: self.threads,
            engines,
        };
        if self.params.memory.is_none() {
            counts = self.counts(0, counting, steps)?;
        }
        for &workload in &self
            .params
            .workloads
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
        {
            let of = |engine: usize| counts[engine].iter().find(|c| c.workload == workload);
            report.add(&comparison, workload, rates.of(workload), &of);
        }
        report.comparisons.push(comparison);
        Ok(())
    }

    /// Runs all workloads on new stores. Another engine begins in each round.
    fn round(
        &self,
        round: usize,
        stores: &[Box<dyn Store>],
        rates: &mut Rates,
        steps: &mut Steps<'_>,
    ) -> Result<(), LabError> {
        let seed = self.params.seed.wrapping_add(round as u64);
        let plan = Plan::new(self.params.keys, self.threads, seed);
        for workload in self.params.needed() {
            for turn in 0..stores.len() {
                let engine = (turn + round) % stores.len();
                let of = format!("round {}/{}", round + 1, self.params.rounds);
                let name = self.engines[engine];
                steps.begin(&format!("{}, {of}: {workload}, {name}", self.name()));
                let driver = Driver {
                    store: &*stores[engine],
                    plan: &plan,
                    values: &self.values,
                    slice: self.params.slice,
                };
                driver.prepare(workload)?;
                rates.push(workload, engine, driver.turn(workload)?.ops_per_s);
            }
        }
        Ok(())
    }

    /// Runs all engines in processes of their own, each round beginning with another.
    fn counts(
        &self,
        round: usize,
        counting: &mut Counting<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Vec<Counts>>, LabError> {
        // The directory of a process that a signal ends goes with this one, which is its parent.
        let scratch = scratch(self.path)?;
        let mut count = |engine: &Engine| {
            steps.begin(&format!("{}: counts, {engine}", self.name()));
            counting(&Params {
                paths: vec![scratch.path().to_path_buf()],
                value_bytes: vec![self.values.bytes()],
                threads: vec![self.threads],
                engines: vec![*engine],
                seed: self.params.seed.wrapping_add(round as u64),
                ..self.params.clone()
            })
        };
        let mut all = vec![Vec::new(); self.engines.len()];
        for turn in 0..self.engines.len() {
            let engine = (turn + round) % self.engines.len();
            all[engine] = count(&self.engines[engine])?;
        }
        Ok(all)
    }

    fn name(&self) -> String {
        let (path, bytes) = (self.path.display(), self.values.bytes());
        format!("{path}, {bytes} bytes, threads: {}", self.threads)
    }
}

#[cfg(test)]
mod tests;
