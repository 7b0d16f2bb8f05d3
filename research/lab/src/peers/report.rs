//! The numbers of a run, as tables for people and as JSON for scripts.

use super::{Counts, Engine, Params, Workload};
use crate::limits::median;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// All comparisons of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine that it ran on.
    pub machine: Machine,
    /// Version of this program.
    pub version: &'static str,
    /// False for a build for debugging, whose rates mean little.
    pub optimised: bool,
    /// Keys loaded. Keys have 8 bytes.
    pub keys: u64,
    /// Rounds.
    pub rounds: usize,
    /// Time limit of a turn in milliseconds.
    pub slice_ms: u128,
    /// Seed of the keys and their order.
    pub seed: u64,
    /// Bytes of memory that each engine might use, if that was bounded.
    pub memory: Option<u64>,
    /// The comparisons, one for each directory, size of values and number of threads.
    pub comparisons: Vec<Comparison>,
    /// A row for each comparison, workload and engine.
    pub rows: Vec<Row>,
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
pub struct Comparison {
    /// Directory of the engines' files.
    pub path: PathBuf,
    /// The product's medium there: `dax`, `mapped` or `journal`.
    pub medium: &'static str,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Threads that called at the same time.
    pub threads: usize,
    /// The compared engines.
    pub engines: Vec<EngineReport>,
}

/// A compared engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Its name.
    pub name: Engine,
    /// Its version.
    pub version: String,
    /// Its setting that makes changes durable when a call returns.
    pub setting: &'static str,
}

/// One workload of one engine in one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Directory of the engine's files.
    pub path: PathBuf,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The workload.
    pub workload: Workload,
    /// The engine.
    pub engine: Engine,
    /// Threads that called at the same time.
    pub threads: usize,
    /// Calls a second, or keys for `load`: the median of the rounds.
    pub ops_per_s: f64,
    /// The same in the slowest round.
    pub ops_per_s_min: f64,
    /// The same in the fastest round.
    pub ops_per_s_max: f64,
    /// The engine's rate by that of the best peer: the median of the rounds' ratios. `None` if no
    /// peer takes part.
    pub ratio_to_best_peer: Option<f64>,
    /// The same in the least favourable round.
    pub ratio_min: Option<f64>,
    /// The same in the most favourable round.
    pub ratio_max: Option<f64>,
    /// The peer with the highest median in this workload.
    pub best_peer: Option<Engine>,
    /// Resident memory after the workload, pages of mapped files included ([`Counts`]).
    pub resident_bytes: Option<u64>,
    /// Most bytes of resident memory during the workload.
    pub peak_bytes: Option<u64>,
    /// The part of it that is no file's.
    pub anonymous_bytes: Option<u64>,
    /// Bytes allocated to the engine's files after the workload, by entries.
    pub bytes_per_entry: Option<f64>,
    /// Bytes written to the disk for each byte that was put or removed. `None` if nothing was, or
    /// if the files are in memory.
    pub written_per_user_byte: Option<f64>,
}

/// A number over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Rate {
    /// Returns the median and the bounds of `rounds`.
    pub(super) fn of(rounds: &[f64]) -> Self {
        let fold = |pick: fn(f64, f64) -> f64| rounds.iter().copied().reduce(pick).unwrap_or(0.0);
        Self {
            median: median(rounds.to_vec()),
            min: fold(f64::min),
            max: fold(f64::max),
        }
    }
}

/// Calls a second of each workload, engine and round.
pub(super) struct Rates(BTreeMap<Workload, Vec<Vec<f64>>>);

impl Rates {
    pub(super) fn new(workloads: &BTreeSet<Workload>, engines: usize) -> Self {
        let none = || vec![Vec::new(); engines];
        Self(workloads.iter().map(|of| (*of, none())).collect())
    }

    pub(super) fn push(&mut self, workload: Workload, engine: usize, ops_per_s: f64) {
        if let Some(engines) = self.0.get_mut(&workload) {
            engines[engine].push(ops_per_s);
        }
    }

    /// Returns the rates of a workload, by engine and round.
    pub(super) fn of(&self, workload: Workload) -> &[Vec<f64>] {
        self.0.get(&workload).map_or(&[], Vec::as_slice)
    }
}

/// Returns the load average of the last minute, or 0 if the system does not tell.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

impl Machine {
    /// Describes this machine at the beginning of a run.
    pub(super) fn here() -> Self {
        Self {
            cpu: crate::limits::cpu_name(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load_before: load_average(),
            load_after: 0.0,
        }
    }

    /// Adds the load at the end of the run.
    pub(super) fn finish(&mut self) {
        self.load_after = load_average();
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} processors, load average {:.1} before and {:.1} after",
            self.cpu, self.processors, self.load_before, self.load_after
        )
    }
}

impl Report {
    pub(super) fn new(params: &Params) -> Self {
        Self {
            machine: Machine::here(),
            version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            keys: params.keys,
            rounds: params.rounds,
            slice_ms: params.slice.as_millis(),
            seed: params.seed,
            memory: params.memory,
            comparisons: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(super) fn finish(&mut self) {
        self.machine.finish();
    }

    /// Adds the rows of a workload. `rounds` has the rates by engine and round, and `counts` gives
    /// the counts of an engine.
    pub(super) fn add<'c>(
        &mut self,
        comparison: &Comparison,
        workload: Workload,
        rounds: &[Vec<f64>],
        counts: &dyn Fn(usize) -> Option<&'c Counts>,
    ) {
        let rates: Vec<Rate> = rounds.iter().map(|rounds| Rate::of(rounds)).collect();
        let engines = &comparison.engines;
        let peers = (0..engines.len()).filter(|place| engines[*place].name.is_peer());
        let best = peers.max_by(|a, b| rates[*a].median.total_cmp(&rates[*b].median));
        for (place, engine) in engines.iter().enumerate() {
            let ratio = best.map(|best| {
                let pairs = rounds[place].iter().zip(&rounds[best]);
                Rate::of(&pairs.map(|(own, other)| own / other).collect::<Vec<_>>())
            });
            let (rate, counts) = (rates[place], counts(place));
            self.rows.push(Row {
                path: comparison.path.clone(),
                value_bytes: comparison.value_bytes,
                workload,
                engine: engine.name,
                threads: comparison.threads,
                ops_per_s: rate.median,
                ops_per_s_min: rate.min,
                ops_per_s_max: rate.max,
                ratio_to_best_peer: ratio.map(|ratio| ratio.median),
                ratio_min: ratio.map(|ratio| ratio.min),
                ratio_max: ratio.map(|ratio| ratio.max),
                best_peer: best.map(|best| engines[best].name),
                resident_bytes: counts.map(|c| c.resident_bytes),
                peak_bytes: counts.map(|c| c.peak_bytes),
                anonymous_bytes: counts.map(|c| c.anonymous_bytes),
                bytes_per_entry: counts.and_then(Counts::bytes_per_entry),
                written_per_user_byte: counts.and_then(Counts::written_per_user_byte),
            });
        }
    }

    /// Returns the rows of a comparison by workload, each in the order of its engines.
    pub(super) fn rows_of(&self, comparison: &Comparison) -> Vec<(Workload, Vec<&Row>)> {
        let mut workloads: Vec<(Workload, Vec<&Row>)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.is_of(comparison)) {
            match workloads.last_mut() {
                Some((workload, rows)) if *workload == row.workload => rows.push(row),
                _ => workloads.push((row.workload, vec![row])),
            }
        }
        workloads
    }
}

impl Row {
    fn is_of(&self, comparison: &Comparison) -> bool {
        self.path == comparison.path
            && self.value_bytes == comparison.value_bytes
            && self.threads == comparison.threads
    }
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
        writeln!(f, "{}", self.machine)?;
        if !self.optimised {
            writeln!(f, "This is a build for debugging: its rates mean little.")?;
        }
        for comparison in &self.comparisons {
            writeln!(f)?;
            self.write(comparison, f)?;
        }
        Ok(())
    }
}

/// Widths of a table's first column, of the engines' ones, and of those with a ratio.
const FIRST: usize = 30;
const OTHER: usize = 11;
const RATIO: usize = 24;

impl Report {
    fn write(&self, comparison: &Comparison, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), {} keys of 8 bytes, values of {} bytes, threads: {}, medians of {} rounds",
            comparison.path.display(),
            comparison.medium,
            self.keys,
            comparison.value_bytes,
            comparison.threads,
            self.rounds
        )?;
        match self.memory {
            Some(bytes) => {
                let mib = bytes as f64 / f64::from(1 << 20);
                writeln!(
                    f,
                    "each in a process of its own, with {} MiB of memory",
                    short(mib)
                )?;
            }
            None => writeln!(
                f,
                "in one process, with caches of 1 GiB where an engine has one"
            )?,
        }
        for engine in &comparison.engines {
            let (name, version) = (engine.name.name(), &engine.version);
            writeln!(f, "  {name:9} {version:20} {}", engine.setting)?;
        }
        let rows = self.rows_of(comparison);
        self.write_rates(comparison, &rows, f)?;
        write_counts(comparison, &rows, f)
    }

    fn write_rates(
        &self,
        comparison: &Comparison,
        rows: &[(Workload, Vec<&Row>)],
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        head("operations/s", comparison, f)?;
        let engines = comparison.engines.iter().map(|engine| engine.name);
        let peers = engines.clone().any(Engine::is_peer);
        for own in engines.filter(|engine| peers && !engine.is_peer()) {
            write!(f, "{:>RATIO$}", format!("{own} x best peer"))?;
        }
        writeln!(f)?;
        for (workload, rows) in rows {
            write!(f, "{:FIRST$}", workload.name())?;
            for row in rows {
                write!(f, "{:>OTHER$.0}", row.ops_per_s)?;
            }
            for row in rows.iter().filter(|row| !row.engine.is_peer()) {
                if let (Some(ratio), Some(min), Some(max)) =
                    (row.ratio_to_best_peer, row.ratio_min, row.ratio_max)
                {
                    let text = format!("{ratio:.2} ({min:.2} to {max:.2})");
                    write!(f, "{text:>RATIO$}")?;
                }
            }
            match rows.first().and_then(|row| row.best_peer) {
                Some(best) => writeln!(f, "  {best}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

fn head(title: &str, comparison: &Comparison, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{title:FIRST$}")?;
    for engine in &comparison.engines {
        write!(f, "{:>OTHER$}", engine.name.name())?;
    }
    Ok(())
}

/// Writes the counts: space after the first and the last workload, and writes of all that write.
fn write_counts(
    comparison: &Comparison,
    rows: &[(Workload, Vec<&Row>)],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Ok(());
    };
    if first.1.iter().all(|row| row.resident_bytes.is_none()) {
        return Ok(());
    }
    head("beside time", comparison, f)?;
    writeln!(f)?;
    let mut line = |what: &str, rows: &(Workload, Vec<&Row>), of: &dyn Fn(&Row) -> Option<f64>| {
        let (workload, rows) = rows;
        let numbers: Vec<Option<f64>> = rows.iter().map(|row| of(row)).collect();
        if numbers.iter().all(Option::is_none) {
            return Ok(());
        }
        let title = format!("{what}, {workload}");
        write!(f, "{title:FIRST$}")?;
        for number in numbers {
            write!(f, "{:>OTHER$}", number.map_or("-".to_owned(), short))?;
        }
        writeln!(f)
    };
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    for rows in [first, last].into_iter().take(rows.len()) {
        line("MiB", rows, &|row| mib(row.resident_bytes))?;
        line("MiB at most", rows, &|row| mib(row.peak_bytes))?;
        line("MiB of no file", rows, &|row| mib(row.anonymous_bytes))?;
        line("bytes/entry", rows, &|row| row.bytes_per_entry)?;
    }
    for rows in rows {
        line("written/byte", rows, &|row| row.written_per_user_byte)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(engines: &[Engine]) -> Comparison {
        let engine = |name: &Engine| EngineReport {
            name: *name,
            version: "1.2".to_owned(),
            setting: "synced",
        };
        Comparison {
            path: "/dev/shm".into(),
            medium: "mapped",
            value_bytes: 8,
            threads: 1,
            engines: engines.iter().map(engine).collect(),
        }
    }

    fn report(engines: &[Engine], rounds: &[Vec<f64>]) -> Report {
        let params = Params {
            engines: engines.to_vec(),
            ..Params::default()
        };
        let mut report = Report::new(&params);
        let comparison = comparison(engines);
        let counts = Counts {
            workload: Workload::Get,
            ops_per_s: 1e6,
            peak_bytes: 4 << 20,
            resident_bytes: 3 << 20,
            anonymous_bytes: 1 << 20,
            file_bytes: 640,
            entries: 10,
            written_bytes: None,
            user_bytes: 80,
        };
        report.add(&comparison, Workload::Get, rounds, &|_| Some(&counts));
        report.comparisons.push(comparison);
        report
    }

    #[test]
    fn ratios_are_taken_round_by_round_against_the_best_peer() {
        let rounds = [
            vec![10.0, 30.0, 20.0],
            // The fastest of all, but no peer.
            vec![90.0, 90.0, 90.0],
            vec![5.0, 5.0, 5.0],
            vec![20.0, 10.0, 40.0],
        ];
        let engines = [Engine::Store, Engine::Tree, Engine::Lmdb, Engine::Redb];
        let report = report(&engines, &rounds);
        let rows = &report.rows;
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.best_peer == Some(Engine::Redb)));
        let ratio = |row: &Row| (row.ratio_min, row.ratio_to_best_peer, row.ratio_max);
        assert_eq!(ratio(&rows[0]), (Some(0.5), Some(0.5), Some(3.0)));
        assert_eq!(ratio(&rows[1]), (Some(2.25), Some(4.5), Some(9.0)));
        assert_eq!(ratio(&rows[3]), (Some(1.0), Some(1.0), Some(1.0)));
        assert_eq!((rows[0].ops_per_s, rows[0].ops_per_s_max), (20.0, 30.0));
        assert_eq!(rows[0].bytes_per_entry, Some(64.0));
        let text = report.to_string();
        assert!(text.contains("0.50 (0.50 to 3.00)"), "{text}");
    }

    #[test]
    fn without_peers_there_is_no_ratio() {
        let report = report(&[Engine::Store, Engine::Tree], &[vec![1.0], vec![2.0]]);
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.ratio_to_best_peer.is_none())
        );
        assert!(!report.to_string().contains("best peer"));
    }

    #[test]
    fn rows_have_the_promised_fields() {
        let report = report(&[Engine::Store, Engine::RocksDb], &[vec![1.0], vec![2.0]]);
        let json = serde_json::to_value(&report).unwrap();
        let row = json["rows"][0].as_object().unwrap();
        for field in [
            "workload",
            "engine",
            "threads",
            "ops_per_s",
            "ratio_to_best_peer",
            "resident_bytes",
            "bytes_per_entry",
            "written_per_user_byte",
        ] {
            assert!(row.contains_key(field), "{field}: {json}");
        }
        assert!(row["written_per_user_byte"].is_null());
        assert_eq!(json["comparisons"][0]["engines"][1]["version"], "1.2");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.123, 0.996, 4.06, 9.96, 477.4].map(short);
        assert_eq!(shown, ["0.12", "1.0", "4.1", "10", "477"]);
    }
}
