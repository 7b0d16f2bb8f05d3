//! The table of all commands by name, with their categories and statistics.

use crate::command::{Access, Command, ONE, Spec};
use crate::parse::Arg;
use ahash::RandomState;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest name of a command, in bytes.
const MAX_NAME: usize = 32;
/// The number of buckets of a latency histogram. The last one counts calls that took 2^25 µs or
/// longer.
pub const BUCKETS: usize = 26;

/// Categories of commands, for users' rights. A set of them has one bit for each.
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

/// How often something was done, and how long it took.
#[derive(Debug, Default)]
pub struct Durations {
    /// How often.
    pub calls: AtomicU64,
    /// The total duration in ns.
    pub nanos: AtomicU64,
    /// Calls by duration: bucket n counts those that took less than 2^n µs, and not less than half
    /// of that.
    pub buckets: [AtomicU64; BUCKETS],
}

impl Durations {
    /// Counts calls with this duration each.
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
}

/// Counts and durations of a command's calls.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// Calls that were executed.
    pub took: Durations,
    /// Calls that were refused before execution.
    pub rejected: AtomicU64,
    /// Calls that failed.
    pub failed: AtomicU64,
}

impl CommandStats {
    /// Resets all counts.
    pub fn reset(&self) {
        let Durations {
            calls,
            nanos,
            buckets,
        } = &self.took;
        let all = [calls, nanos, &self.rejected, &self.failed];
        for counter in all.into_iter().chain(buckets) {
            // ORDERING: Relaxed; statistics.
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; statistics publish nothing but themselves.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Returns the value of a counter.
pub fn value(counter: &AtomicU64) -> u64 {
    // ORDERING: Relaxed; as in `add`.
    counter.load(Ordering::Relaxed)
}

/// A command, and its statistics.
#[derive(Debug)]
pub struct Entry {
    /// Its number in the table.
    pub index: usize,
    /// Its declaration.
    pub spec: &'static Spec,
    /// The command itself, if it is one on data.
    pub data: Option<&'static Command>,
    /// Its categories: the bit of each is that of its [number](category).
    pub categories: u32,
    /// Statistics.
    pub stats: CommandStats,
}

impl Entry {
    /// Returns its name, in lower case.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.spec.name
    }
}

/// Returns the number of a category.
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

/// Returns the categories of a command: those that its access implies, and its own.
fn categories(spec: &Spec) -> u32 {
    let implied: &[&str] = match spec.access {
        None => &[],
        // What a script does is what its commands do.
        Some(_) if spec.categories.contains(&"scripting") => &["slow"],
        Some(Access::ReadOne) => &["read", "fast"],
        Some(Access::Read) => &["read", "slow"],
        Some(Access::Write) if spec.keys == ONE => &["write", "fast"],
        Some(Access::Write) => &["write", "slow"],
        Some(Access::WriteAll) => &["write", "slow", "dangerous"],
    };
    bits(implied.iter().chain(spec.categories).copied())
}

/// All commands.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    by_name: HashMap<&'static [u8], usize, RandomState>,
}

impl Table {
    /// Makes a table of commands on data and of others, which keep their order.
    #[must_use]
    pub fn new(
        data: impl Iterator<Item = &'static Command>,
        others: impl Iterator<Item = &'static Spec>,
    ) -> Self {
        let data = data.map(|command| (&command.spec, Some(command)));
        let others = others.map(|spec| (spec, None));
        let entries: Vec<Entry> = data
            .chain(others)
            .enumerate()
            .map(|(index, (spec, data))| Entry {
                index,
                spec,
                data,
                categories: categories(spec),
                stats: CommandStats::default(),
            })
            .collect();
        let names = entries
            .iter()
            .map(|entry| (entry.name().as_bytes(), entry.index));
        Self {
            by_name: names.collect(),
            entries,
        }
    }

    /// Returns the command of that name, in any case.
    #[must_use]
    pub fn find(&self, name: Arg<'_>) -> Option<&Entry> {
        let mut lower = [0; MAX_NAME];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.entries.get(*self.by_name.get(&*lower)?)
    }

    /// Returns all commands.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_are_lower_case_and_unique() {
        let table = crate::commands::table();
        assert_eq!(table.find(b"GeT").unwrap().name(), "get");
        assert_eq!(table.find(b"PING").unwrap().name(), "ping");
        assert!(table.find(b"").is_none());
        assert!(table.find(&[b'x'; MAX_NAME + 1]).is_none());
        assert_eq!(table.by_name.len(), table.entries.len());
        for entry in table.entries() {
            assert_eq!(entry.name(), entry.name().to_lowercase());
            assert!(entry.name().len() <= MAX_NAME && entry.categories != 0);
        }
    }

    #[test]
    fn calls_go_into_the_bucket_of_their_time() {
        let stats = CommandStats::default();
        for micros in [0, 1, 3, u64::MAX / 1000] {
            stats.took.note(Duration::from_micros(micros), 1);
        }
        let buckets: Vec<u64> = stats.took.buckets.iter().map(value).collect();
        assert_eq!(buckets[..4], [1, 1, 1, 0]);
        assert_eq!((buckets[BUCKETS - 1], value(&stats.took.calls)), (1, 4));
        stats.reset();
        assert_eq!(value(&stats.took.calls), 0);
    }
}
