//! redb's published benchmark (`bench redb`): the rows of the table in redb's README, by the
//! transactions that each engine has.
//!
//! Keys are 24 random bytes, values 150. With `n` elements, and the counts that redb uses beside
//! them:
//!
//! ```text
//! bulk load                   n elements in one commit
//! individual writes           1000 commits of an element
//! batch writes                100 commits of 1000 elements
//! len()                       the number of elements; the mean of up to 1000 calls, as some take next to nothing
//! random reads                n gets of elements that are there, in one read transaction
//! random range reads          n / 2 times 10 elements from a random key on, in one read transaction
//! random reads (4 threads)    gets of all elements, in a read transaction for each thread
//! removals                    half of the elements in one commit
//! compacted size              bytes that the file system has allocated after a compaction
//! ```
//!
//! A round has new files. In each the engines take turns row by row, so that a disturbance affects
//! all of them. Making keys and values is part of the time, as in redb's program. What is read is
//! copied out and checked by its length and first bytes.

mod own;
mod report;

pub use report::{PublishedReport, PublishedRow};

use super::counts::allocated;
use super::engine::{self, Engine};
use super::values::Values;
use super::{Step, scratch};
use crate::LabError;
use crate::limits::bring_in_memory;
use crate::workload::mix;
use bristlecone_peers::table::Table;
use serde::Serialize;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const KEY_BYTES: usize = 24;
const VALUE_BYTES: usize = 150;
const INDIVIDUAL_WRITES: u64 = 1000;
const BATCHES: u64 = 100;
const BATCH: u64 = 1000;
const RANGE: usize = 10;
const THREADS: u64 = 4;
/// Calls that the time of `len()` is the mean of, unless they take longer.
const LEN_CALLS: u32 = 1000;
const LEN_TIME: Duration = Duration::from_millis(20);
const ELEMENTS: RangeInclusive<u64> = 1000..=1 << 30;
/// Bytes of memory that are brought in before a row at most.
const MOST_BROUGHT_IN: u64 = 4 << 30;

/// The engines that take part, those of this project first.
const ENGINES: [Engine; 5] = [
    Engine::Store,
    Engine::Lmdb,
    Engine::Redb,
    Engine::Fjall,
    Engine::RocksDb,
];

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Published {
    /// All elements in one commit.
    BulkLoad,
    /// A commit for each element.
    IndividualWrites,
    /// Commits of 1000 elements.
    BatchWrites,
    /// The number of elements.
    Len,
    /// Elements by their keys.
    RandomReads,
    /// Ten elements from a random key on.
    RandomRangeReads,
    /// Elements by their keys, by four threads.
    RandomReads4Threads,
    /// Half of the elements in one commit.
    Removals,
    /// Bytes of the files after a compaction.
    CompactedSize,
}

impl Published {
    /// All rows in order.
    pub const ALL: [Self; 9] = [
        Self::BulkLoad,
        Self::IndividualWrites,
        Self::BatchWrites,
        Self::Len,
        Self::RandomReads,
        Self::RandomRangeReads,
        Self::RandomReads4Threads,
        Self::Removals,
        Self::CompactedSize,
    ];

    /// Returns its name in redb's table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BulkLoad => "bulk load",
            Self::IndividualWrites => "individual writes",
            Self::BatchWrites => "batch writes",
            Self::Len => "len()",
            Self::RandomReads => "random reads",
            Self::RandomRangeReads => "random range reads",
            Self::RandomReads4Threads => "random reads (4 threads)",
            Self::Removals => "removals",
            Self::CompactedSize => "compacted size",
        }
    }

    /// Whether engines need memory for it that they had not before.
    fn grows(self) -> bool {
        matches!(self, Self::BulkLoad | Self::BatchWrites | Self::Removals)
    }

    /// Returns the unit of its numbers, of which less is better.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::CompactedSize => "MiB",
            _ => "ms",
        }
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct PublishedParams {
    /// Directory for the engines' files.
    pub path: PathBuf,
    /// Elements of the bulk load. redb's program loads 5 M.
    pub elements: u64,
    /// Number of rounds, each on new files.
    pub rounds: usize,
    /// The compared engines: store, lmdb, redb, fjall, rocksdb.
    pub engines: Vec<Engine>,
    /// Seed of the elements.
    pub seed: u64,
}

impl Default for PublishedParams {
    fn default() -> Self {
        let available = |engine: &Engine| engine.check().is_ok();
        Self {
            path: "/dev/shm".into(),
            elements: 1_000_000,
            rounds: 3,
            engines: ENGINES.into_iter().filter(available).collect(),
            seed: 3,
        }
    }
}

impl PublishedParams {
    fn check(&self) -> Result<(), LabError> {
        if !ELEMENTS.contains(&self.elements) {
            let may_be = format!("{} to {}", ELEMENTS.start(), ELEMENTS.end());
            return Err(LabError::parameter("elements", self.elements, may_be));
        }
        if self.rounds == 0 {
            return Err(LabError::parameter("rounds", 0, "1 or more"));
        }
        if self.engines.is_empty() {
            return Err(LabError::parameter("engines", "", "at least one"));
        }
        self.engines.iter().try_for_each(|engine| {
            if ENGINES.contains(engine) {
                return engine.check();
            }
            Err(own::no_part(*engine))
        })
    }

    /// Returns the engines, each once, in the order of [`ENGINES`].
    fn distinct(&self) -> Vec<Engine> {
        let all = ENGINES.into_iter();
        all.filter(|engine| self.engines.contains(engine)).collect()
    }

    /// Returns several times the bytes that any engine needs.
    fn most_bytes(&self) -> u64 {
        (self.elements + BATCHES * BATCH) * (256 + 4 * (KEY_BYTES + VALUE_BYTES) as u64) * 3
    }
}

/// Runs the benchmark. Calls `progress` before each row of each engine.
///
/// # Errors
/// A parameter is out of range, this build or system lacks an engine, a directory cannot be made,
/// or an engine refuses a call or gives a wrong answer.
pub fn run_published(
    params: &PublishedParams,
    progress: &mut dyn FnMut(&Step<'_>),
) -> Result<PublishedReport, LabError> {
    params.check()?;
    let engines = params.distinct();
    let mut report = PublishedReport::new(params, &engines);
    let total = (params.rounds * Published::ALL.len() * engines.len()) as u64;
    let medium = engine::medium_of(&params.path)?;
    let mut done = 0;
    for round in 0..params.rounds {
        let scratch = scratch(&params.path)?;
        let place = engine::Place {
            dir: scratch.path(),
            medium,
            most_bytes: params.most_bytes(),
            memory: None,
        };
        let open = |engine: &Engine| own::open(*engine, &place).map(|table| (*engine, table));
        let mut tables = engines.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let elements = Elements::new(params.seed.wrapping_add(round as u64), params.elements);
        for row in Published::ALL {
            if row.grows() {
                let bytes = params.elements * 2 * (KEY_BYTES + VALUE_BYTES) as u64;
                bring_in_memory(bytes.min(MOST_BROUGHT_IN) as usize)?;
            }
            for turn in 0..tables.len() {
                let place = (turn + round) % tables.len();
                let (engine, table) = &mut tables[place];
                let doing = format!("round {}/{}: {row}, {engine}", round + 1, params.rounds);
                progress(&Step {
                    doing: &doing,
                    done,
                    total,
                });
                done += 1;
                let number = match row {
                    Published::CompactedSize => {
                        table.compact()?;
                        let bytes = allocated(&engine.directory(scratch.path()))?;
                        bytes as f64 / f64::from(1 << 20)
                    }
                    _ => {
                        let start = Instant::now();
                        let mut calls = 0;
                        loop {
                            let answers = elements.turn(row, &**table)?;
                            answers.check(*engine, row)?;
                            calls += 1;
                            let enough = calls == LEN_CALLS || start.elapsed() > LEN_TIME;
                            if row != Published::Len || enough {
                                break;
                            }
                        }
                        start.elapsed().as_secs_f64() * 1e3 / f64::from(calls)
                    }
                };
                report.push(row, place, number);
            }
        }
    }
    report.finish();
    Ok(report)
}

/// Answers of a row: how many were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answers {
    right: u64,
    of: u64,
}

impl Answers {
    fn add(&mut self, right: bool) {
        self.right += u64::from(right);
        self.of += 1;
    }

    fn check(self, engine: Engine, row: Published) -> Result<(), LabError> {
        if self.right == self.of {
            return Ok(());
        }
        Err(LabError::WrongAnswer {
            contender: engine.name().to_owned(),
            phase: row.name(),
            right: self.right,
            of: self.of,
        })
    }
}

/// The elements of a round, by their numbers.
struct Elements {
    seed: u64,
    /// Those of the bulk load.
    bulk: u64,
    values: Values,
}

impl Elements {
    fn new(seed: u64, bulk: u64) -> Self {
        Self {
            seed: mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)),
            bulk,
            values: Values::new(VALUE_BYTES),
        }
    }

    /// Returns a number's key. Numbers from `1 << 40` on belong to no element.
    fn key(&self, number: u64) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        for (place, word) in key.chunks_exact_mut(8).enumerate() {
            // The last word tells the number: keys differ.
            let random = mix(self.seed ^ number.wrapping_mul(3).wrapping_add(place as u64));
            word.copy_from_slice(&random.to_le_bytes());
        }
        key
    }

    fn all(&self) -> u64 {
        self.bulk + INDIVIDUAL_WRITES + BATCHES * BATCH
    }

    /// Does a row's work. Returns the answers.
    fn turn(&self, row: Published, table: &dyn Table) -> Result<Answers, LabError> {
        let individual = self.bulk + INDIVIDUAL_WRITES;
        match row {
            Published::BulkLoad => self.put(table, 0..self.bulk)?,
            Published::IndividualWrites => {
                for number in self.bulk..individual {
                    self.put(table, number..number + 1)?;
                }
            }
            Published::BatchWrites => {
                for batch in 0..BATCHES {
                    let from = individual + batch * BATCH;
                    self.put(table, from..from + BATCH)?;
                }
            }
            Published::Len => return self.len(table),
            Published::RandomReads => return self.get(table, 0..self.bulk),
            Published::RandomRangeReads => return self.ranges(table),
            Published::RandomReads4Threads => return self.get_by_threads(table),
            Published::Removals => self.remove(table)?,
            Published::CompactedSize => {}
        }
        Ok(Answers::default())
    }

    fn put(&self, table: &dyn Table, numbers: Range<u64>) -> Result<(), LabError> {
        let mut value = Vec::new();
        table.write(&mut |writer| {
            for number in numbers.clone() {
                self.values.fill(number, 0, &mut value);
                writer.put(&self.key(number), &value)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn len(&self, table: &dyn Table) -> Result<Answers, LabError> {
        let mut answers = Answers::default();
        table.read(&mut |reader| {
            answers.add(reader.count()? == self.all());
            Ok(())
        })?;
        Ok(answers)
    }

    fn get(&self, table: &dyn Table, numbers: Range<u64>) -> Result<Answers, LabError> {
        let (mut answers, mut buffer) = (Answers::default(), Vec::new());
        table.read(&mut |reader| {
            for number in numbers.clone() {
                let mut right = false;
                reader.get(&self.key(number), &mut |value| {
                    value.clone_into(&mut buffer);
                    right = self.values.is_of(number, &buffer);
                })?;
                answers.add(right);
            }
            Ok(())
        })?;
        Ok(answers)
    }

    fn get_by_threads(&self, table: &dyn Table) -> Result<Answers, LabError> {
        let share = self.all() / THREADS;
        let barrier = &Barrier::new(THREADS as usize);
        let parts = thread::scope(|scope| {
            let start = |thread| {
                scope.spawn(move || {
                    barrier.wait();
                    self.get(table, thread * share..(thread + 1) * share)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            let joined = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<_>, _>>()
        })?;
        let add = |sum: Answers, part: Answers| Answers {
            right: sum.right + part.right,
            of: sum.of + part.of,
        };
        Ok(parts.into_iter().fold(Answers::default(), add))
    }

    /// Reads ranges from random keys on. Each has its ten elements, in order, but near the end.
    fn ranges(&self, table: &dyn Table) -> Result<Answers, LabError> {
        let (mut answers, mut least, mut buffer) = (Answers::default(), Vec::new(), Vec::new());
        table.read(&mut |reader| {
            for number in 0..self.bulk / 2 {
                let from = self.key(number.wrapping_add(1 << 40));
                let (mut visited, mut right) = (0, true);
                least.clear();
                least.extend_from_slice(&from);
                reader.range(&from, RANGE, &mut |key, value| {
                    visited += 1;
                    right &= *key >= *least;
                    least.clear();
                    least.extend_from_slice(key);
                    value.clone_into(&mut buffer);
                    right &= buffer.len() == VALUE_BYTES;
                })?;
                // Of the 24-byte keys, less than one in 256 begins with 0xff.
                answers.add(right && (visited == RANGE || from[0] == u8::MAX));
            }
            Ok(())
        })?;
        Ok(answers)
    }

    fn remove(&self, table: &dyn Table) -> Result<(), LabError> {
        table.write(&mut |writer| {
            (0..self.all() / 2).try_for_each(|number| writer.remove(&self.key(number)))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_peers::PeerError;
    use bristlecone_peers::table::{Fill, Look};
    use std::path::Path;

    fn small(path: &Path) -> PublishedParams {
        PublishedParams {
            path: path.to_path_buf(),
            elements: 3000,
            rounds: 2,
            engines: vec![Engine::Store],
            seed: 5,
        }
    }

    #[test]
    fn each_row_has_a_number_of_each_engine_and_round() {
        let dir = tempfile::tempdir().unwrap();
        let mut params = small(dir.path());
        params.engines = PublishedParams::default().engines;
        let mut seen = Vec::new();
        let report = run_published(&params, &mut |step| seen.push(step.done)).unwrap();
        let turns = 2 * 9 * params.engines.len() as u64;
        assert_eq!(seen, (0..turns).collect::<Vec<_>>());
        assert_eq!(report.rows.len(), 9 * params.engines.len());
        assert!(report.rows.iter().all(|row| row.number > 0.0), "{report}");
        let peers = params.engines.len() > 1;
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.ratio_to_best_peer.is_some() == peers)
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |change: &dyn Fn(&mut PublishedParams)| {
            let mut params = small(dir.path());
            change(&mut params);
            run_published(&params, &mut |_| ()).unwrap_err().to_string()
        };
        let few = refused(&|params| params.elements = 999);
        assert!(few.contains("elements") && few.contains("999"), "{few}");
        let none = refused(&|params| params.rounds = 0);
        assert!(none.contains("rounds"), "{none}");
        let other = refused(&|params| params.engines = vec![Engine::Sqlite]);
        assert!(
            other.contains("sqlite") && other.contains("fjall"),
            "{other}"
        );
        assert!(refused(&|params| params.engines.clear()).contains("engines"));
    }

    /// A table that has forgotten everything.
    struct Forgetful;

    impl Table for Forgetful {
        fn write(&self, _: &mut Fill<'_>) -> Result<(), PeerError> {
            Ok(())
        }

        fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
            look(&mut Nothing)
        }

        fn compact(&mut self) -> Result<(), PeerError> {
            Ok(())
        }
    }

    struct Nothing;

    impl bristlecone_peers::table::Reader for Nothing {
        fn count(&mut self) -> Result<u64, PeerError> {
            Ok(0)
        }

        fn get(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
            Ok(false)
        }

        fn range(
            &mut self,
            _: &[u8],
            _: usize,
            _: &mut dyn FnMut(&[u8], &[u8]),
        ) -> Result<(), PeerError> {
            Ok(())
        }
    }

    #[test]
    fn wrong_answers_are_errors() {
        let elements = Elements::new(1, 1000);
        for row in [
            Published::Len,
            Published::RandomReads,
            Published::RandomRangeReads,
            Published::RandomReads4Threads,
        ] {
            let answers = elements.turn(row, &Forgetful).unwrap();
            let error = answers.check(Engine::Redb, row).unwrap_err().to_string();
            assert!(
                error.contains("redb") && error.contains(row.name()),
                "{error}"
            );
        }
    }
}
