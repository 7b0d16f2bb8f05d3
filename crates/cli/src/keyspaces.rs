//! A store in a pool, as `serve` keeps one, for commands that look at it from outside.
//!
//! | store | keyspaces | values |
//! | --- | --- | --- |
//! | a server's | `0` to `15`, one for each database | strings as they are; of a collection only the kind, since its record is a form of the server's own |
//! | a server's | the others | the server's own bookkeeping, not shown |
//! | a program's | any | as they are |

use crate::failure::{Failure, Outcome};
use crate::store::Contents;
use crate::text::quoted;
use bristlecone_designs::damage::{Damage, collecting_damage};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use bristlecone_server::data::record::{Kind, Value};
use bristlecone_server::data::spaces::DATABASES;
use bristlecone_store::{Entry, SalvageReport, Salvaged, StoreOptions, WallClock};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A store in a pool.
pub type Kept = bristlecone_store::Store<Auto>;

/// Keyspaces that a server's store has besides its databases.
const BOOKKEEPING: [&str; 4] = ["elements", "expiries", "garbage", "databases"];

/// What stands before the number of a keyspace whose name is damaged.
const NAMELESS: &str = "number ";

/// How the values of a keyspace are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Bytes,
    /// As a server keeps them.
    Server,
}

/// A value as it can be shown.
pub struct Shown<'v> {
    /// What it is, in a server's keyspace: as `TYPE` has it.
    pub kind: Option<&'static str>,
    /// Its bytes; none for a server's collection.
    pub value: Option<&'v [u8]>,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
}

impl Form {
    /// What an entry shows; nothing if it has expired.
    ///
    /// # Errors
    /// It is no value that a server writes.
    pub fn show<'v>(self, entry: &Entry<'v>, now: u64) -> Result<Option<Shown<'v>>, String> {
        if self == Self::Bytes {
            return Ok(Some(Shown {
                kind: None,
                value: Some(entry.value),
                expires_at: entry.expires_at,
            }));
        }
        let head = Value::head(entry).map_err(|e| e.to_string())?;
        // A large collection's expiry is in its head, and the store knows nothing of it.
        if head.expires_at.is_some_and(|at| at <= now) {
            return Ok(None);
        }
        let is_string = head.kind == Kind::String;
        Ok(Some(Shown {
            kind: Some(head.kind.name()),
            // Behind the tag.
            value: is_string.then(|| entry.value.get(1..).unwrap_or_default()),
            expires_at: head.expires_at,
        }))
    }
}

/// Now, in ms since 1970.
pub fn now() -> u64 {
    WallClock::default().now()
}

/// True if a store with these keyspaces is a server's.
pub fn is_servers<'n>(keyspaces: impl IntoIterator<Item = &'n str>) -> bool {
    let found = keyspaces.into_iter();
    // One of the names may have been damaged.
    found.filter(|name| BOOKKEEPING.contains(name)).count() >= 2
}

/// Opens a store of an open pool.
pub fn open(pool: &Arc<Pool<Auto>>, path: &Path, name: &str) -> Outcome<Kept> {
    Kept::open(pool, name, &StoreOptions::default().without_thread())
        .map_err(|e| of(path, name, &e))
}

/// An error of a store's.
pub fn of(path: &Path, name: &str, what: &dyn Display) -> Failure {
    Failure::new(format!(
        "{}: store {}: {what}",
        path.display(),
        quoted(name.as_bytes())
    ))
}

/// What a command that reads one set of keys is to read: none for the index, else the store of this name.
pub fn source<'c>(
    contents: &'c Contents,
    path: &Path,
    keyspace: Option<&str>,
) -> Outcome<Option<&'c str>> {
    let usual = crate::commands::serve::ROOT;
    let store = match contents.stores.as_slice() {
        [] => None,
        [one] => Some(one),
        many => many.iter().find(|name| *name == usual),
    };
    match (store, keyspace) {
        (_, None) if contents.index.is_some() => Ok(None),
        (None, None) => Ok(None),
        (Some(name), _) => Ok(Some(name)),
        (None, Some(_)) => Err(Failure::new(format!(
            "{}: --keyspace is for pools with a store, as `serve` makes; this one has {}",
            path.display(),
            match contents.stores.len() {
                0 => "none".to_owned(),
                n => format!("{n}, and none of them has the name \"{usual}\""),
            }
        ))),
    }
}

/// The keyspace to read, and how: the one that was asked for, database 0 of a server, or the only one.
pub fn keyspace<'n>(
    path: &Path,
    asked: Option<&'n str>,
    there: &'n [String],
) -> Outcome<(&'n str, Form)> {
    let servers = is_servers(there.iter().map(String::as_str));
    let databases: Vec<String> = (0..DATABASES).map(|number| number.to_string()).collect();
    // Whether one whose name is damaged is a database, nobody knows.
    let is_database = |name: &str| {
        databases.iter().any(|database| database == name) || name.starts_with(NAMELESS)
    };
    let readable = |name: &&String| !servers || is_database(name);
    let names = || {
        let names: Vec<_> = there
            .iter()
            .filter(readable)
            .map(|name| quoted(name.as_bytes()))
            .collect();
        match names.len() {
            0 => "there are none".to_owned(),
            _ => format!("there are {}", names.join(", ")),
        }
    };
    let form = if servers { Form::Server } else { Form::Bytes };
    let name = match (asked, there) {
        (Some(name), _) => name,
        (None, _) if servers => "0",
        (None, [one]) => one,
        (None, _) => {
            return Err(Failure::Usage(format!(
                "{}: which keyspace? --keyspace names it: {}",
                path.display(),
                names()
            )));
        }
    };
    if !there.iter().any(|other| other == name) {
        return Err(Failure::new(format!(
            "{}: no keyspace {}; {}",
            path.display(),
            quoted(name.as_bytes()),
            names()
        )));
    }
    if servers && !is_database(name) {
        return Err(Failure::new(format!(
            "{}: keyspace {} is the server's own bookkeeping, which only `serve` reads; {}",
            path.display(),
            quoted(name.as_bytes()),
            names()
        )));
    }
    Ok((name, form))
}

/// A damaged entry of a store.
#[derive(Debug)]
pub struct Broken {
    /// Which one: its keyspace and its key.
    pub entry: String,
    /// It is the name of a keyspace.
    pub is_name: bool,
    /// What is wrong with it.
    pub what: String,
}

/// What a store has, damaged or not.
#[derive(Debug)]
pub struct Survey {
    /// What the walk came over.
    pub report: SalvageReport,
    /// How many whole entries each keyspace has.
    pub whole: BTreeMap<String, u64>,
    /// The entries that are damaged.
    pub broken: Vec<Broken>,
    /// What is damaged in the index.
    pub index: Damage,
}

impl Survey {
    /// Looks at every entry of a store, which is not open, and at its index.
    ///
    /// # Errors
    /// So much is damaged that there are no entries to look at.
    pub fn of(pool: &Arc<Pool<Auto>>, path: &Path, name: &str) -> Outcome<Self> {
        let (mut whole, mut broken) = (BTreeMap::new(), Vec::new());
        let (report, index) = salvage(pool, path, name, &mut |salvaged| {
            match &salvaged.found {
                Ok(_) => *whole.entry(keyspace_name(&salvaged)).or_insert(0) += 1,
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
        })
    }

    /// All that is wrong, a line each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let index = self.index.blocks.values();
        let index = index.map(|what| format!("index: {what}"));
        let whole = self.report.violation.iter();
        let whole = whole.map(|violation| format!("index: {violation}"));
        let broken = self.broken.iter();
        let broken = broken.map(|broken| format!("{}: {}", broken.entry, broken.what));
        broken.chain(index).chain(whole)
    }

    /// Entries of which nothing can be read, not even the key.
    pub fn unseen(&self) -> u64 {
        self.report.indexed.saturating_sub(self.report.walked)
    }
}

/// The name of an entry's keyspace, or what stands for it.
pub fn keyspace_name(salvaged: &Salvaged<'_>) -> String {
    match salvaged.keyspace {
        Some(name) => name.to_owned(),
        None => format!("{NAMELESS}{}", salvaged.number),
    }
}

/// Which entry it is, for messages.
pub fn describe(salvaged: &Salvaged<'_>) -> String {
    let key = quoted(salvaged.key);
    match salvaged.number {
        0 => format!("keyspace {key}, its name in the catalogue"),
        _ => format!(
            "keyspace {}, key {key}",
            quoted(keyspace_name(salvaged).as_bytes())
        ),
    }
}

/// Visits the entries of a store, which is not open, damaged or not.
///
/// # Errors
/// As [`Survey::of`].
pub fn salvage(
    pool: &Arc<Pool<Auto>>,
    path: &Path,
    name: &str,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Outcome<(SalvageReport, Damage)> {
    let mut walk = || Kept::salvage(pool, name, now(), visit);
    // On a device, what opening the index does about damage would be durable.
    let (report, damage) = if pool.pm().read_only() {
        collecting_damage(walk)
    } else {
        (walk(), Damage::default())
    };
    let report = report.map_err(|e| of(path, name, &e))?;
    Ok((report, damage))
}
