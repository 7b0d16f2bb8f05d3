//! The files of a report, read.

use crate::figure::ledger::Made;
use crate::figure::{On, Panel, Scale, Verdict};
use crate::limits::Limits;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fs, io};

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Name of its file, without `.json`.
    pub name: String,
    /// Seconds that it took; none if it was not made.
    pub seconds: Option<f64>,
    /// Why it was not made: it failed, or the run ended before its turn. Empty if it was.
    pub missing: String,
}

/// The program, the machine and the day of a report, and its parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Version of the program.
    pub version: String,
    /// False for a build for debugging, whose times mean little.
    pub optimised: bool,
    /// The day on which it was begun.
    pub day: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors that the program might use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The amount of work of the figures.
    pub scale: String,
    /// The parts that were asked for.
    pub parts: Vec<Part>,
}

impl About {
    /// Describes a run on this machine that begins now and has no parts yet.
    #[must_use]
    pub fn here(scale: Scale) -> Self {
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            day: now.split('T').next().unwrap_or_default().to_owned(),
            cpu: crate::limits::cpu_name(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes().unwrap_or(0),
            scale: scale.name().to_owned(),
            parts: Vec::new(),
        }
    }

    /// Returns true if two runs may be parts of one report.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let of = |about: &Self| {
            let Self {
                version,
                optimised,
                cpu,
                processors,
                scale,
                ..
            } = about.clone();
            (version, optimised, cpu, processors, scale)
        };
        of(self) == of(other)
    }
}

/// Returns the memory of this machine.
fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A claim of a figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownClaim {
    #[serde(flatten)]
    pub made: Made,
    #[serde(default)]
    pub note: String,
}

/// A figure that was made.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownFigure {
    pub name: String,
    pub on: On,
    pub scale: String,
    pub title: String,
    pub paper: String,
    pub place: String,
    pub claims: Vec<ShownClaim>,
    pub panels: Vec<Panel>,
    pub notes: Vec<String>,
}

impl ShownFigure {
    /// Returns the number of claims with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        let of = |claim: &&ShownClaim| claim.made.verdict == verdict;
        self.claims.iter().filter(of).count()
    }
}

/// An exploration of one design under one model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownExplored {
    pub index: String,
    pub model: String,
    pub threads: u64,
    pub crash_points: u64,
    pub images: u64,
    pub nested_images: u64,
    pub killed_images: u64,
    pub workloads: u64,
    pub violations: u64,
    pub leaks: u64,
}

/// The mutants of one design under one model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownMutated {
    pub index: String,
    pub model: String,
    pub sites: u64,
    pub orderings: u64,
    pub killed: u64,
    pub survivors: Vec<String>,
    pub unneeded: Vec<String>,
    pub without_effect: u64,
    pub undecided: Vec<String>,
}

/// A row of a comparison with other databases.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownRow {
    pub path: String,
    pub value_bytes: u64,
    pub workload: String,
    pub engine: String,
    pub threads: u64,
    pub ops_per_s: f64,
    pub ratio_to_best_peer: Option<f64>,
    pub best_peer: Option<String>,
    pub resident_bytes: Option<u64>,
    pub bytes_per_entry: Option<f64>,
}

/// An engine of a comparison.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownEngine {
    pub name: String,
    pub version: String,
    pub setting: String,
}

/// A comparison with other databases.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownComparison {
    pub path: String,
    pub medium: String,
    pub value_bytes: u64,
    pub threads: u64,
    pub engines: Vec<ShownEngine>,
}

/// Comparisons with other databases.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ShownPeers {
    pub keys: u64,
    pub rounds: u64,
    pub comparisons: Vec<ShownComparison>,
    pub rows: Vec<ShownRow>,
}

/// One or several of a kind: a command that was asked for one prints it without a list around it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Listed<T> {
    One(T),
    Many(Vec<T>),
}

/// Everything that is on the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub(super) about: About,
    pub(super) figures: Vec<ShownFigure>,
    pub(super) limits: Option<Limits>,
    pub(super) explored: Vec<ShownExplored>,
    pub(super) threads: Vec<ShownExplored>,
    pub(super) mutated: Vec<ShownMutated>,
    pub(super) peers: Option<ShownPeers>,
}

/// The files beside those of figures, without `.json`: what the report is about, the limits of the
/// hardware, the explorer's three, and the comparison with other databases.
pub const FILES: [&str; 6] = ["about", "limits", "explorer", "mutants", "threads", "peers"];

impl Report {
    /// Returns what made it.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Reads the files of a directory. Figures come in the order of the papers.
    ///
    /// # Errors
    /// A file cannot be read or understood, which the text names, or there is no `about.json`.
    pub fn read(data: &Path) -> Result<Self, String> {
        let [about, limits, explorer, mutants, threads, peers] = FILES;
        let Some(about) = optional(data, about)? else {
            return Err(format!("{}: no about.json, so no report", data.display()));
        };
        let mut figures = Vec::new();
        for entry in crate::figure::ALL {
            for on in entry.on {
                let name = format!("{}-{on}", entry.name);
                figures.extend(optional::<ShownFigure>(data, &name)?);
            }
        }
        Ok(Self {
            about,
            figures,
            limits: optional(data, limits)?,
            explored: listed(data, explorer)?,
            threads: listed(data, threads)?,
            mutated: listed(data, mutants)?,
            peers: optional(data, peers)?,
        })
    }
}

fn listed<T: DeserializeOwned>(data: &Path, name: &str) -> Result<Vec<T>, String> {
    Ok(match optional(data, name)? {
        None => Vec::new(),
        Some(Listed::One(one)) => vec![one],
        Some(Listed::Many(many)) => many,
    })
}

/// Returns what a file has, or `None` if there is no such file.
fn optional<T: DeserializeOwned>(data: &Path, name: &str) -> Result<Option<T>, String> {
    let path = data.join(format!("{name}.json"));
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    match fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(&e)),
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| failed(&e)),
    }
}
