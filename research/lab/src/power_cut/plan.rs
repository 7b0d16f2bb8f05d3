//! The commits of the writer, as a function of a seed and their numbers, and what each leaves.

use super::Draw;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The keyspaces that are written to.
pub const SPACES: [&str; 2] = ["a", "b"];
/// Number of keys with short values, of each keyspace.
const KEYS: u64 = 60;
/// Number of keys with long values, of each keyspace.
const LONG_KEYS: u64 = 12;

/// What a database holds: keyspace and key, value.
pub type Content = BTreeMap<(usize, Vec<u8>), Arc<[u8]>>;

/// An entry that a commit changes: its keyspace, its key, its new value or `None`.
pub type Entry = (usize, Vec<u8>, Option<Arc<[u8]>>);

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Entries that change together.
    Write(Vec<Entry>),
    /// All entries of a keyspace are removed.
    Clear(usize),
    /// The file gives back space.
    Compact,
    /// A backup is written to a file of its own.
    Backup,
    /// The database is closed and opened again.
    Reopen,
}

/// Returns commit `n`, counted from 1; the creation is commit 0.
#[must_use]
pub fn step(seed: u64, n: u64) -> Step {
    let mut draw = Draw::of(seed, 1, n);
    let short = |draw: &mut Draw| {
        let space = draw.below(2) as usize;
        let key = format!("key-{:03}", draw.below(KEYS)).into_bytes();
        let most = if draw.below(4) == 0 { 3000 } else { 200 };
        let length = draw.below(most);
        (space, key, Some(value(draw, length)))
    };
    let long = |draw: &mut Draw| {
        let space = draw.below(2) as usize;
        let key = format!("long-{:03}", draw.below(LONG_KEYS)).into_bytes();
        let length = 20_000 + draw.below(130_000);
        (space, key, Some(value(draw, length)))
    };
    match draw.below(100) {
        0..36 => Step::Write(vec![short(&mut draw)]),
        36..46 => {
            let (space, key, _) = short(&mut draw);
            Step::Write(vec![(space, key, None)])
        }
        46..68 => {
            let number = 2 + draw.below(14);
            let mut entries: Vec<_> = (0..number).map(|_| short(&mut draw)).collect();
            for entry in &mut entries {
                if draw.below(4) == 0 {
                    entry.2 = None;
                }
            }
            Step::Write(entries)
        }
        68..78 => Step::Write(vec![long(&mut draw)]),
        78..82 => Step::Write(vec![long(&mut draw), short(&mut draw), long(&mut draw)]),
        82..85 => Step::Clear(draw.below(2) as usize),
        85..89 => Step::Compact,
        89..93 => Step::Backup,
        _ => Step::Reopen,
    }
}

/// Bytes of which every eight are others, so that nothing torn passes for whole.
fn value(draw: &mut Draw, length: u64) -> Arc<[u8]> {
    let words = (0..length.div_ceil(8)).flat_map(|_| draw.word().to_le_bytes());
    words.take(length as usize).collect()
}

/// Returns the content after each commit, from the creation on.
#[must_use]
pub fn contents(seed: u64, commits: u64) -> Vec<Content> {
    let mut content = Content::new();
    let mut all = vec![content.clone()];
    for n in 1..=commits {
        match step(seed, n) {
            Step::Write(entries) => {
                for (space, key, value) in entries {
                    match value {
                        Some(value) => content.insert((space, key), value),
                        None => content.remove(&(space, key)),
                    };
                }
            }
            Step::Clear(space) => content.retain(|(of, _), _| *of != space),
            Step::Compact | Step::Backup | Step::Reopen => {}
        }
        all.push(content.clone());
    }
    all
}

/// Returns true if commit `n` writes a backup.
#[must_use]
pub fn is_backup(seed: u64, n: u64) -> bool {
    n > 0 && step(seed, n) == Step::Backup
}

/// Returns the name of the backup that commit `n` writes.
#[must_use]
pub fn backup_name(n: u64) -> String {
    format!("backup-{n}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_commits_of_every_kind() {
        let kinds = |seed| -> Vec<Step> { (1..=200).map(|n| step(seed, n)).collect() };
        assert_eq!(kinds(3), kinds(3));
        assert_ne!(kinds(3), kinds(4));
        for kind in [Step::Compact, Step::Backup, Step::Reopen, Step::Clear(0)] {
            assert!(kinds(3).contains(&kind), "{kind:?}");
        }
        let contents = contents(3, 200);
        assert!(contents[0].is_empty() && contents[200] != contents[100]);
    }
}
