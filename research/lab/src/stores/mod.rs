//! Embedded stores compared in one run: the product's `Database`, LMDB, redb and fjall.
//!
//! ```text
//! round 1 | load: bristlecone, LMDB, redb, fjall | insert: the same | get | scan | update | delete
//! round 2 | load: LMDB, redb, fjall, bristlecone | ...   (each round: new files, another order)
//! ```
//!
//! Each engine makes every change durable before the call returns, in its fastest such setting. In
//! each round all engines are open and take turns, operation by operation, so that a disturbance of
//! the machine affects all of them. A rate is the median of the rounds. A ratio is the median of
//! the rounds' ratios, and compares turns that followed one another.
//!
//! | operation | a call |
//! | --- | --- |
//! | `load` | puts 1000 new keys in one commit, until all keys are there |
//! | `insert` | puts a new key |
//! | `get` | reads an existing key |
//! | `scan` | visits 100 entries in ascending order |
//! | `update` | replaces the value of an existing key |
//! | `delete` | removes an existing key |

mod draw;
mod engine;
mod report;

pub use draw::draw;
pub use engine::Engine;
pub use report::{EngineReport, Machine, OperationReport, Rate, Ratio, Report, Run};

use crate::LabError;
use crate::workload::{Keys, Permutation, Random, value_of};
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_peers::store::Store;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Keys of one commit of `load`.
const BATCH: usize = 1000;
/// Entries that a scan visits.
const SCAN: usize = 100;
/// Calls between two readings of the clock.
const CALLS: usize = 16;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Puts new keys, 1000 in one commit.
    Load,
    /// Puts a new key.
    Insert,
    /// Reads a key.
    Get,
    /// Visits 100 entries.
    Scan,
    /// Replaces a value.
    Update,
    /// Removes a key.
    Delete,
}

impl Operation {
    /// All operations, in the order of a round.
    pub const ALL: [Self; 6] = [
        Self::Load,
        Self::Insert,
        Self::Get,
        Self::Scan,
        Self::Update,
        Self::Delete,
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Insert => "insert",
            Self::Get => "get",
            Self::Scan => "scan",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Returns a description of one call, for a caption.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Load => "1000 keys a commit",
            Self::Insert => "new key",
            Self::Get => "key that is there",
            Self::Scan => "100 entries",
            Self::Update => "new value",
            Self::Delete => "key that is there",
        }
    }
}

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct Params {
    /// Directories for the engines' files: one comparison in each.
    pub paths: Vec<PathBuf>,
    /// Bytes of a value: one comparison for each, in each directory.
    pub value_bytes: Vec<usize>,
    /// Keys loaded before the other operations.
    pub keys: u64,
    /// Number of rounds, each on new files.
    pub rounds: usize,
    /// Time limit of one turn of an operation. A load has no limit.
    pub slice: Duration,
    /// The compared engines.
    pub engines: Vec<Engine>,
    /// Seed of the keys and their order.
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            paths: vec!["/dev/shm".into()],
            value_bytes: vec![8],
            keys: 200_000,
            rounds: 5,
            slice: Duration::from_millis(500),
            engines: Engine::DATABASES.to_vec(),
            seed: 1,
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
        some("engines", self.engines.is_empty())?;
        if self.rounds == 0 {
            return Err(LabError::parameter("rounds", 0, "1 or more"));
        }
        if self.keys < BATCH as u64 {
            return Err(LabError::parameter("keys", self.keys, "1000 or more"));
        }
        if let Some(bytes) = self
            .value_bytes
            .iter()
            .find(|bytes| !(8..=1024).contains(*bytes))
        {
            return Err(LabError::parameter("value_bytes", bytes, "8 to 1024"));
        }
        Ok(())
    }
}

/// Runs every comparison. Calls `progress` with a description of the current measurement.
///
/// # Errors
/// A parameter is out of range, a directory cannot be made, an engine refuses an operation, or an
/// engine gives a wrong answer.
pub fn run(params: &Params, progress: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    params.check()?;
    let mut machine = Machine::now();
    let mut runs = Vec::new();
    for path in &params.paths {
        for &value_bytes in &params.value_bytes {
            let comparison = Comparison {
                params,
                path,
                value_bytes,
            };
            runs.push(comparison.run(progress)?);
        }
    }
    machine.load_after = report::load_average();
    Ok(Report { machine, runs })
}

/// One directory and one size of values.
struct Comparison<'a> {
    params: &'a Params,
    path: &'a std::path::Path,
    value_bytes: usize,
}

/// The result of one engine's turn.
struct Turn {
    calls: u64,
    elapsed: Duration,
}

impl Comparison<'_> {
    fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Run, LabError> {
        let engines = &self.params.engines;
        let mut kops = vec![vec![Vec::new(); engines.len()]; Operation::ALL.len()];
        let mut settings = Vec::new();
        for round in 0..self.params.rounds {
            let told = format!(
                "{}, values of {} bytes, round {} of {}",
                self.path.display(),
                self.value_bytes,
                round + 1,
                self.params.rounds
            );
            progress(&told);
            let scratch = Scratch::new(self.path, Purpose::Bench)
                .map_err(|e| LabError::io(self.path, "making a directory", e))?;
            let stores = engines
                .iter()
                .map(|engine| engine.open(scratch.path(), self.params.keys, self.value_bytes))
                .collect::<Result<Vec<_>, _>>()?;
            for (operation, kops) in Operation::ALL.into_iter().zip(&mut kops) {
                for turn in 0..stores.len() {
                    // Another engine begins in each round.
                    let engine = (turn + round) % stores.len();
                    let done = self.turn(operation, &*stores[engine], round as u64)?;
                    kops[engine].push(done.calls as f64 / done.elapsed.as_secs_f64() / 1e3);
                }
            }
            settings = stores
                .iter()
                .map(|store| EngineReport::of(&**store))
                .collect();
        }
        let operations = Operation::ALL.into_iter().zip(&kops);
        Ok(Run {
            path: self.path.to_path_buf(),
            medium: engine::medium_of(self.path),
            value_bytes: self.value_bytes,
            keys: self.params.keys,
            rounds: self.params.rounds,
            engines: settings,
            operations: operations
                .map(|(operation, kops)| OperationReport::of(operation, kops))
                .collect(),
        })
    }

    /// Returns the value of `key`. `version` tells the value of an update from the first one.
    fn value(&self, key: u64, version: u64) -> Vec<u8> {
        let word = value_of(key).wrapping_add(version).to_le_bytes();
        word.iter()
            .copied()
            .cycle()
            .take(self.value_bytes)
            .collect()
    }

    fn turn(&self, operation: Operation, store: &dyn Store, round: u64) -> Result<Turn, LabError> {
        let keys = Keys::Random {
            seed: self.params.seed + round,
        };
        let count = self.params.keys;
        let order = Permutation::new(count, self.params.seed ^ round);
        match operation {
            Operation::Load => self.load(store, keys),
            Operation::Insert => {
                let new = |i| self.pair(keys.key(count + i), 0);
                self.timed(new, |(key, value)| store.put(*key, value))
            }
            Operation::Update => {
                let old = |i| self.pair(keys.key(order.at(i)), 1);
                self.timed(old, |(key, value)| store.put(*key, value))
            }
            // Updates and deletions visit the keys in one order, gets and scans in another.
            Operation::Get => self.gets(store, keys),
            Operation::Scan => self.scans(store, keys),
            Operation::Delete => {
                let done =
                    self.timed(|i| keys.key(order.at(i % count)), |key| store.remove(*key))?;
                gone(store, keys.key(order.at(0)))?;
                Ok(done)
            }
        }
    }

    fn pair(&self, key: u64, version: u64) -> (u64, Vec<u8>) {
        (key, self.value(key, version))
    }

    fn load(&self, store: &dyn Store, keys: Keys) -> Result<Turn, LabError> {
        let pairs: Vec<(u64, Vec<u8>)> = (0..self.params.keys)
            .map(|i| self.pair(keys.key(i), 0))
            .collect();
        let start = Instant::now();
        for batch in pairs.chunks(BATCH) {
            store.put_batch(batch)?;
        }
        Ok(Turn {
            calls: self.params.keys,
            elapsed: start.elapsed(),
        })
    }

    fn gets(&self, store: &dyn Store, keys: Keys) -> Result<Turn, LabError> {
        let mut random = Random::new(self.params.seed);
        let (mut right, mut of) = (0, 0);
        let pick = |_| {
            let key = keys.key(random.below(self.params.keys));
            (key, value_of(key).to_le_bytes())
        };
        let done = self.timed(pick, |(key, expected)| {
            of += 1;
            let mut visit = |value: &[u8]| right += u64::from(value.starts_with(expected));
            store.get(*key, &mut visit).map(|_| ())
        })?;
        answered(store, "get", right, of)?;
        Ok(done)
    }

    fn scans(&self, store: &dyn Store, keys: Keys) -> Result<Turn, LabError> {
        let mut random = Random::new(self.params.seed);
        let (mut right, mut of) = (0, 0);
        // The last keys have fewer than 100 after them.
        let pick = |_| loop {
            let key = keys.key(random.below(self.params.keys));
            if key < u64::MAX / 4 * 3 {
                break key;
            }
        };
        let done = self.timed(pick, |from| {
            of += SCAN as u64;
            let mut visit = |key: u64, value: &[u8]| {
                right += u64::from(value.starts_with(&value_of(key).to_le_bytes()));
            };
            store.scan(*from, SCAN, &mut visit)
        })?;
        answered(store, "scan", right, of)?;
        Ok(done)
    }

    /// Calls `call` until the time of a turn is over, or `keys` arguments are used. The making of
    /// arguments is not timed.
    fn timed<T>(
        &self,
        mut argument: impl FnMut(u64) -> T,
        mut call: impl FnMut(&T) -> Result<(), bristlecone_peers::PeerError>,
    ) -> Result<Turn, LabError> {
        let mut turn = Turn {
            calls: 0,
            elapsed: Duration::ZERO,
        };
        let mut arguments = Vec::with_capacity(CALLS * 64);
        while turn.elapsed < self.params.slice && turn.calls < self.params.keys {
            let most = (self.params.keys - turn.calls).min(CALLS as u64 * 64);
            arguments.clear();
            arguments.extend((turn.calls..turn.calls + most).map(&mut argument));
            for some in arguments.chunks(CALLS) {
                let start = Instant::now();
                for argument in some {
                    call(argument)?;
                }
                turn.elapsed += start.elapsed();
                turn.calls += some.len() as u64;
                if turn.elapsed >= self.params.slice {
                    break;
                }
            }
        }
        Ok(turn)
    }
}

fn answered(store: &dyn Store, phase: &'static str, right: u64, of: u64) -> Result<(), LabError> {
    if right == of {
        return Ok(());
    }
    Err(LabError::WrongAnswer {
        contender: store.name().to_owned(),
        phase,
        right,
        of,
    })
}

/// Checks that the first removed key is gone.
fn gone(store: &dyn Store, key: u64) -> Result<(), LabError> {
    let there = store.get(key, &mut |_| ())?;
    answered(store, "delete", u64::from(!there), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_measured_reported_and_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let params = Params {
            paths: vec![dir.path().to_path_buf()],
            value_bytes: vec![8, 100],
            keys: 1000,
            rounds: 2,
            slice: Duration::from_millis(5),
            engines: Engine::ALL.to_vec(),
            ..Params::default()
        };
        let mut told = 0;
        let report = run(&params, &mut |_| told += 1).unwrap();
        assert_eq!((report.runs.len(), told), (2, 4));
        for run in &report.runs {
            assert_eq!(run.engines.len(), Engine::ALL.len());
            for operation in &run.operations {
                let slow = operation.kops.iter().any(|rate| rate.median <= 0.0);
                assert!(!slow, "{operation:?}");
                assert!(operation.ratio.is_some(), "{operation:?}");
            }
        }
        let text = report.to_string();
        let svg = draw(&report).unwrap();
        for name in [
            "bristlecone",
            "tree",
            "LMDB",
            "redb",
            "fjall",
            "load",
            "delete",
        ] {
            assert!(text.contains(name) && svg.contains(name), "{name}: {text}");
        }
        assert!(!svg.contains("NaN"));
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let refused = |params: Params| run(&params, &mut |_| ()).unwrap_err().to_string();
        let few = Params {
            keys: 10,
            ..Params::default()
        };
        assert!(refused(few).contains("keys"));
        let long = Params {
            value_bytes: vec![9000],
            ..Params::default()
        };
        assert!(refused(long).contains("value_bytes"));
        let none = Params {
            engines: Vec::new(),
            ..Params::default()
        };
        assert!(refused(none).contains("engines"));
    }
}
