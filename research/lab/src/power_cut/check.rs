//! Recovers an image in this process, and compares what it holds with what it must.

use super::plan::{self, Content, SPACES};
use super::writer::{self, DATABASE};
use bristlecone::Database;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

/// What must be true of an image.
#[derive(Debug)]
pub struct Expected<'e> {
    /// The last commit that was acknowledged, and the one in flight; `None` before the creation was
    /// acknowledged, when there may be no database.
    pub commits: Option<RangeInclusive<u64>>,
    /// The content after each commit.
    pub contents: &'e [Content],
    /// The commits whose backup was acknowledged.
    pub backups: &'e [u64],
    /// Whether the image takes another commit, and a clean close.
    pub goes_on: bool,
}

/// Backups that were restored: number and bytes. Equal ones need not be restored again.
#[derive(Debug, Default)]
pub struct Restored(Mutex<HashSet<(u64, Vec<u8>)>>);

/// Checks the image in `dir`, and returns the commit that it is at.
///
/// # Errors
/// What is wrong, in words.
pub fn check(
    dir: &Path,
    expected: &Expected<'_>,
    restored: &Restored,
) -> Result<Option<u64>, String> {
    let checked = catch_unwind(AssertUnwindSafe(|| check_database(dir, expected)));
    let n = match checked {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(format!("recovery panicked: {}", text.unwrap_or("?")));
        }
        Ok(checked) => checked?,
    };
    for backup in expected.backups {
        check_backup(dir, *backup, expected.contents, restored)?;
    }
    Ok(n)
}

fn check_database(dir: &Path, expected: &Expected<'_>) -> Result<Option<u64>, String> {
    let path = dir.join(DATABASE);
    let opened = writer::options().create(false).open(&path);
    let db = match opened {
        Ok(db) => db,
        Err(_) if expected.commits.is_none() => return Ok(None),
        Err(e) => return Err(format!("it does not open: {e}")),
    };
    let found = writer::read(&db).map_err(|e| format!("it cannot be read: {e}"))?;
    let may_be = expected.commits.clone().unwrap_or(0..=0);
    let is = |n: &u64| expected.contents.get(*n as usize) == Some(&found);
    let Some(n) = may_be.clone().find(is) else {
        return Err(wrong_content(&found, may_be, expected.contents));
    };
    db.check().map_err(|e| format!("its check fails: {e}"))?;
    if expected.goes_on {
        // A step of its own, which fits no content of the plan.
        let go_on = || -> bristlecone::Result<bool> {
            let mut now = found.clone();
            db.keyspace(SPACES[0])?.insert("after", "the cut")?;
            now.insert((0, b"after".to_vec()), b"the cut"[..].into());
            db.close()?;
            let db = writer::options().create(false).open(&path)?;
            let same = writer::read(&db)? == now;
            db.check()?;
            Ok(same)
        };
        match go_on() {
            Ok(true) => {}
            Ok(false) => return Err("another commit and a clean close change the content".into()),
            Err(e) => return Err(format!("it takes no commit after recovery: {e}")),
        }
    }
    Ok(expected.commits.is_some().then_some(n))
}

/// Says how a content differs from the one that was acknowledged.
fn wrong_content(found: &Content, may_be: RangeInclusive<u64>, contents: &[Content]) -> String {
    let (first, last) = (*may_be.start(), *may_be.end());
    if let Some(n) = contents.iter().rposition(|content| content == found) {
        let n = n as u64;
        let what = if n < first {
            "were lost"
        } else {
            "are there too soon"
        };
        return format!(
            "it is at commit {n}, and {first} was acknowledged ({last} had begun): commits {what}"
        );
    }
    let Some(expected) = contents.get(first as usize) else {
        return format!("commit {first} is not of the plan");
    };
    let lacks = expected.iter().filter(|(k, v)| found.get(*k) != Some(*v));
    let has = found.iter().filter(|(k, v)| expected.get(*k) != Some(*v));
    let keys = |entries: Vec<&(usize, Vec<u8>)>| {
        let names = entries
            .iter()
            .take(3)
            .map(|(space, key)| format!("{}/{}", SPACES[*space], String::from_utf8_lossy(key)));
        format!(
            "{} ({})",
            entries.len(),
            names.collect::<Vec<_>>().join(", ")
        )
    };
    format!(
        "it is at no commit of {first} to {last}; beside {first} it lacks entries {}, and has others {}",
        keys(lacks.map(|(k, _)| k).collect()),
        keys(has.map(|(k, _)| k).collect())
    )
}

fn check_backup(
    dir: &Path,
    n: u64,
    contents: &[Content],
    restored: &Restored,
) -> Result<(), String> {
    let path = dir.join(plan::backup_name(n));
    let failed = |e: &dyn std::fmt::Display| format!("backup {n}, which was acknowledged: {e}");
    let bytes = std::fs::read(&path).map_err(|e| failed(&e))?;
    let lock = || {
        restored
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    if lock().contains(&(n, bytes.clone())) {
        return Ok(());
    }
    let to = dir.join("restored");
    let found = Database::restore(&path, &to).and_then(|db| writer::read(&db));
    let _ = std::fs::remove_file(&to);
    let _ = std::fs::remove_file(dir.join("restored.journal"));
    let found = found.map_err(|e| failed(&e))?;
    if contents.get(n as usize) != Some(&found) {
        return Err(failed(&"it restores to another content"));
    }
    lock().insert((n, bytes));
    Ok(())
}
