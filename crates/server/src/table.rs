//! All commands by name, with what users' rights and statistics need to know of them.

use crate::command::{Access, Arg, Command, Keys};
use crate::session::SessionCommand;
use ahash::RandomState;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest name of a command.
const NAME_MOST: usize = 32;
/// Buckets of a latency histogram: the last one has what took 2^25 µs and more.
pub const BUCKETS: usize = 26;

/// Categories of commands, for users' rights; a set of them has a bit for each.
pub const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// What runs a command.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// The data layer.
    Data(&'static Command),
    /// The session.
    Session(&'static SessionCommand),
}

/// How often a command ran, and how long.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// Calls.
    pub calls: AtomicU64,
    /// Their time in ns.
    pub nanos: AtomicU64,
    /// Calls that were refused before they ran.
    pub rejected: AtomicU64,
    /// Calls that failed.
    pub failed: AtomicU64,
    /// Calls by time: bucket n has those that took less than 2^n µs, and no less than half of it.
    pub buckets: [AtomicU64; BUCKETS],
}

impl CommandStats {
    /// Notes calls that took so long each.
    pub fn note(&self, took: Duration, calls: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let micros = nanos / 1000;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        add(&self.calls, calls);
        add(&self.nanos, nanos.saturating_mul(calls));
        if let Some(bucket) = self.buckets.get(bucket.min(BUCKETS - 1)) {
            add(bucket, calls);
        }
    }

    /// Begins anew.
    pub fn reset(&self) {
        let all = [&self.calls, &self.nanos, &self.rejected, &self.failed];
        for counter in all.into_iter().chain(&self.buckets) {
            // ORDERING: Relaxed; statistics.
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// Adds to a statistic.
pub fn add(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; nothing rests on statistics.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A statistic.
pub fn value(counter: &AtomicU64) -> u64 {
    // ORDERING: Relaxed; as in `add`.
    counter.load(Ordering::Relaxed)
}

/// A command.
#[derive(Debug)]
pub struct Entry {
    /// Its number in the table.
    pub index: usize,
    /// Its name, in lower case.
    pub name: &'static str,
    /// As [`Command::arity`].
    pub arity: i32,
    /// What runs it.
    pub does: Does,
    /// Its categories.
    pub categories: u32,
    /// It may take long: other work of its thread is to go elsewhere.
    pub long: bool,
    /// Statistics.
    pub stats: CommandStats,
}

impl Entry {
    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> Keys {
        match self.does {
            Does::Data(command) => command.keys,
            Does::Session(command) => command.keys,
        }
    }

    /// What it does to data.
    #[must_use]
    pub fn access(&self) -> Option<Access> {
        match self.does {
            Does::Data(command) => Some(command.access),
            Does::Session(_) => None,
        }
    }

    /// True if it may be called with so many arguments, its name included.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        arguments == arity || self.arity < 0 && arguments > arity
    }
}

/// The number of a category.
#[must_use]
pub fn category(name: &[u8]) -> Option<usize> {
    CATEGORIES
        .iter()
        .position(|category| name.eq_ignore_ascii_case(category.as_bytes()))
}

fn bits<'n>(names: impl Iterator<Item = &'n str>) -> u32 {
    names
        .filter_map(|name| category(name.as_bytes()))
        .fold(0, |bits, number| bits | 1 << number)
}

/// Commands on data that may take long.
const LONG: [&str; 8] = [
    "dump", "flushall", "flushdb", "keys", "lcs", "restore", "sort", "sort_ro",
];

/// Commands on data that are dangerous though they do not write all keys.
const DANGEROUS: [&str; 4] = ["keys", "restore", "sort", "sort_ro"];

/// Commands on data that may make their clients wait.
const BLOCKING: [&str; 8] = [
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
];

fn of_data(command: &'static Command) -> (u32, bool) {
    let access = match command.access {
        Access::ReadOne => ["read", "fast"],
        Access::Read => ["read", "slow"],
        Access::Write if command.keys == crate::command::ONE => ["write", "fast"],
        Access::Write | Access::WriteAll => ["write", "slow"],
    };
    let long = LONG.contains(&command.name);
    let dangerous = command.access == Access::WriteAll || DANGEROUS.contains(&command.name);
    let dangerous = dangerous.then_some("dangerous");
    let sorts = command.name.starts_with("sort");
    let others = if sorts {
        &["set", "sortedset"][..]
    } else {
        &[]
    };
    let blocking = BLOCKING.contains(&command.name).then_some("blocking");
    let names = (access.into_iter().chain([command.group]))
        .chain(others.iter().copied())
        .chain(dangerous)
        .chain(blocking);
    (bits(names), long || command.access == Access::WriteAll)
}

/// All commands.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    by_name: HashMap<&'static [u8], usize, RandomState>,
}

impl Table {
    /// The commands of the data layer and of sessions.
    #[must_use]
    pub fn new() -> Self {
        let data = crate::data::commands().map(|command| {
            let (categories, long) = of_data(command);
            let does = Does::Data(command);
            (command.name, command.arity, does, categories, long)
        });
        let session = crate::session::commands().map(|command| {
            let categories = bits(command.categories.iter().copied());
            let does = Does::Session(command);
            (command.name, command.arity, does, categories, command.long)
        });
        let entries: Vec<Entry> = data
            .chain(session)
            .enumerate()
            .map(|(index, (name, arity, does, categories, long))| Entry {
                index,
                name,
                arity,
                does,
                categories,
                long,
                stats: CommandStats::default(),
            })
            .collect();
        let names = entries
            .iter()
            .map(|entry| (entry.name.as_bytes(), entry.index));
        Self {
            by_name: names.collect(),
            entries,
        }
    }

    /// The command of that name, in whatever case.
    #[must_use]
    pub fn find(&self, name: Arg<'_>) -> Option<&Entry> {
        let mut lower = [0; NAME_MOST];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.entries.get(*self.by_name.get(&*lower)?)
    }

    /// All of them.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_are_lower_case_and_unique() {
        let table = Table::new();
        assert_eq!(table.find(b"GeT").unwrap().name, "get");
        assert_eq!(table.find(b"PING").unwrap().name, "ping");
        assert!(table.find(b"").is_none());
        assert!(table.find(&[b'x'; NAME_MOST + 1]).is_none());
        assert_eq!(table.by_name.len(), table.entries.len());
        for entry in table.entries() {
            assert_eq!(entry.name, entry.name.to_lowercase());
            assert!(entry.name.len() <= NAME_MOST && entry.categories != 0);
        }
    }

    #[test]
    fn calls_go_into_the_bucket_of_their_time() {
        let stats = CommandStats::default();
        for micros in [0, 1, 3, u64::MAX / 1000] {
            stats.note(Duration::from_micros(micros), 1);
        }
        let buckets: Vec<u64> = stats.buckets.iter().map(value).collect();
        assert_eq!(buckets[..4], [1, 1, 1, 0]);
        assert_eq!((buckets[BUCKETS - 1], value(&stats.calls)), (1, 4));
        stats.reset();
        assert_eq!(value(&stats.calls), 0);
    }
}
