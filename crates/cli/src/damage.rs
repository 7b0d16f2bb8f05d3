//! A database that may be damaged, walked without opening it: its entries, whole and broken.

use crate::database::ROOT;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::about;
use bristlecone_command::text::quoted;
use bristlecone_index::damage::{Damage, collecting_damage};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use bristlecone_server::data::spaces::{FORMAT_KEY, ORDER_KEY, ORDER_KEYSPACE};
use bristlecone_store::{SalvageReport, Salvaged, Store, WallClock};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A damaged entry.
#[derive(Debug)]
pub struct Broken {
    /// Its keyspace and its key.
    pub entry: String,
    /// Whether it is the name of a keyspace.
    pub is_name: bool,
    /// The contradiction, in words.
    pub what: String,
}

/// The contents of a database, damaged or not.
#[derive(Debug)]
pub struct Survey {
    /// The report of the walk.
    pub report: SalvageReport,
    /// How many whole entries each keyspace has.
    pub whole: BTreeMap<String, u64>,
    /// The entries that are damaged.
    pub broken: Vec<Broken>,
    /// Damage in the index.
    pub index: Damage,
    /// The record of the order of a server's databases, if there is one.
    pub order: Option<Vec<u8>>,
    /// That of the version of a server's data.
    pub format: Option<Vec<u8>>,
}

impl Survey {
    /// Looks at every entry of a database, which is not open, and at its index.
    ///
    /// # Errors
    /// So much is damaged that there are no entries to look at.
    pub fn of(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Self> {
        let (mut whole, mut broken, mut order) = (BTreeMap::new(), Vec::new(), None);
        let mut format = None;
        let (report, index) = salvage(pool, path, &mut |salvaged| {
            match &salvaged.found {
                Ok(entry) => {
                    let keyspace = salvaged.keyspace_name();
                    if keyspace == ORDER_KEYSPACE {
                        match salvaged.key {
                            ORDER_KEY => order = Some(entry.value.to_vec()),
                            FORMAT_KEY => format = Some(entry.value.to_vec()),
                            _ => {}
                        }
                    }
                    *whole.entry(keyspace).or_insert(0) += 1;
                }
                Err(e) => broken.push(Broken {
                    entry: describe(&salvaged),
                    is_name: salvaged.number == 0,
                    what: e.to_string(),
                }),
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self {
            report,
            whole,
            broken,
            index,
            order,
            format,
        })
    }

    /// Returns all that is wrong, a line each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let broken = self.broken.iter();
        let broken = broken.map(|broken| format!("{}: {}", broken.entry, broken.what));
        broken.chain(self.index_problems())
    }

    /// Returns those of them that are in no entry, but in the index.
    pub fn index_problems(&self) -> impl Iterator<Item = String> {
        let blocks = self.index.blocks.values().cloned();
        let passed = self.report.passed.iter().cloned();
        let all = blocks.chain(passed).chain(self.violation());
        all.map(|what| format!("index: {what}"))
    }

    /// Returns what verifying the index found, unless a damaged entry tells of it: a page that
    /// cannot be read stands at the key that it begins with.
    pub fn violation(&self) -> Option<String> {
        let what = self.report.violation.as_ref()?.to_string();
        let told = self
            .broken
            .iter()
            .any(|broken| broken.what.ends_with(&what));
        (!told).then_some(what)
    }

    /// Returns how many entries cannot be read at all, not even the key.
    pub fn unseen(&self) -> u64 {
        self.report.indexed.saturating_sub(self.report.walked)
    }

    /// Returns the names of the keyspaces; those whose names are damaged go by their numbers.
    pub fn keyspaces(&self) -> Vec<String> {
        let mut names = self.report.keyspaces.clone();
        let nameless = self.whole.keys().filter(|name| !names.contains(name));
        let nameless: Vec<String> = nameless.cloned().collect();
        names.extend(nameless);
        names
    }
}

/// Returns which entry it is, for messages.
pub fn describe(salvaged: &Salvaged<'_>) -> String {
    let key = quoted(salvaged.key);
    match salvaged.number {
        0 => format!("keyspace {key}, its name in the catalogue"),
        _ => format!(
            "keyspace {}, key {key}",
            quoted(salvaged.keyspace_name().as_bytes())
        ),
    }
}

/// Visits the entries of a database, which is not open, damaged or not.
///
/// # Errors
/// As [`Survey::of`].
pub fn salvage(
    pool: &Arc<Pool<Auto>>,
    path: &Path,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Outcome<(SalvageReport, Damage)> {
    let now = WallClock::default().now();
    let (report, damage) = collecting(pool, || Store::<Auto>::salvage(pool, ROOT, now, visit));
    let report = report.map_err(|e| match e.version() {
        Some(version) => Failure::Version(format!("{}: {version}", path.display())),
        None => about(path, &e),
    })?;
    Ok((report, damage))
}

/// Calls `walk`, which opens the index of a pool, so that it goes on past damage, and returns what
/// is damaged. On a device it does not: what opening the index does about damage would be durable.
pub fn collecting<R>(pool: &Pool<Auto>, walk: impl FnOnce() -> R) -> (R, Damage) {
    if pool.pm().read_only() {
        collecting_damage(walk)
    } else {
        (walk(), Damage::default())
    }
}
