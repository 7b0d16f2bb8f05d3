//! The process that is traced: it makes commits, and says of each when it begins and when it is
//! acknowledged.

use super::PowerCutError;
use super::plan::{self, Content, Entry, SPACES, Step};
use bristlecone::{Batch, Database, Durability, Medium, Options};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// Name of the database in the writer's directory.
pub const DATABASE: &str = "db";

/// The options of every opening.
pub(super) fn options() -> Options {
    Database::builder()
        .medium(Medium::Journal)
        .durability(Durability::Immediate)
}

/// Makes a database in `dir`, and `commits` commits.
///
/// # Errors
/// The database refuses one of them.
pub fn write(dir: &Path, seed: u64, commits: u64) -> Result<(), PowerCutError> {
    say(&format!("root {}", dir.display()))?;
    say(&format!("plan {seed} {commits}"))?;
    say("begin 0")?;
    let db = options().create_new(true).open(dir.join(DATABASE))?;
    for name in SPACES {
        db.keyspace(name)?;
    }
    say("ack 0")?;
    go_on(dir, db, seed, 1..=commits)
}

/// Recovers the database in `dir`, which is as one of the commits of `may_be` has left it, and
/// makes `commits` further ones.
///
/// # Errors
/// The database is as none of them, or refuses a commit.
pub fn recover(
    dir: &Path,
    seed: u64,
    may_be: RangeInclusive<u64>,
    commits: u64,
) -> Result<(), PowerCutError> {
    say(&format!("root {}", dir.display()))?;
    let contents = plan::contents(seed, *may_be.end());
    let db = options().create(false).open(dir.join(DATABASE))?;
    let found = read(&db)?;
    let n = may_be
        .rev()
        .find(|n| contents.get(*n as usize) == Some(&found))
        .ok_or_else(|| PowerCutError::Writer("recovery found another content".into()))?;
    say(&format!("ack {n}"))?;
    go_on(dir, db, seed, n + 1..=n + commits)
}

fn go_on(
    dir: &Path,
    mut db: Database,
    seed: u64,
    commits: RangeInclusive<u64>,
) -> Result<(), PowerCutError> {
    for n in commits {
        let step = plan::step(seed, n);
        say(&format!("begin {n}"))?;
        match step {
            Step::Write(entries) => write_entries(&db, &entries)?,
            Step::Clear(space) => {
                db.keyspace(SPACES[space])?.clear()?;
            }
            Step::Compact => {
                db.compact()?;
            }
            Step::Backup => {
                let path = dir.join(plan::backup_name(n));
                // Half of one may be there, from before the power cut.
                let _ = std::fs::remove_file(&path);
                db.backup_to(path)?;
            }
            Step::Reopen => {
                db.close()?;
                db = options().create(false).open(dir.join(DATABASE))?;
            }
        }
        say(&format!("ack {n}"))?;
    }
    Ok(db.close()?)
}

fn write_entries(db: &Database, entries: &[Entry]) -> Result<(), PowerCutError> {
    if let [(space, key, value)] = entries {
        let keyspace = db.keyspace(SPACES[*space])?;
        match value {
            Some(value) => keyspace.insert(key, value)?,
            None => {
                keyspace.remove(key)?;
            }
        }
        return Ok(());
    }
    let mut batch = Batch::new();
    for (space, key, value) in entries {
        let keyspace = db.keyspace(SPACES[*space])?;
        match value {
            Some(value) => batch.insert(&keyspace, key, value),
            None => batch.remove(&keyspace, key),
        }
    }
    db.write(batch)?;
    Ok(())
}

/// Reads all that a database holds.
pub(super) fn read(db: &Database) -> bristlecone::Result<Content> {
    let mut content = Content::new();
    for (space, name) in SPACES.iter().enumerate() {
        let Some(keyspace) = db.find_keyspace(name) else {
            continue;
        };
        for entry in keyspace.iter() {
            let (key, value) = entry?;
            content.insert((space, key.to_vec()), Arc::from(&value[..]));
        }
    }
    Ok(content)
}

/// Writes a line to standard output with one system call, which the trace then has.
fn say(line: &str) -> Result<(), PowerCutError> {
    let mut out = std::io::stdout();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| PowerCutError::io(Path::new("standard output"), "writing", e))
}
