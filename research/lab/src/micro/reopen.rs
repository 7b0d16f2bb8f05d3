//! The time of reopening, after a kill and after a clean close.
//!
//! A killed process leaves the content of its pool's files at that moment in the file system. While
//! no operation runs, a copy of the files has the same content. So the runner copies them under
//! another name and opens the copy: its pool is marked as in use, and recovery does the same work
//! as after a kill. The measured pool stays open and untouched.
//!
//! On the mapped media the copy is written through a mapping with huge pages, like the original, so
//! that recovery reads the same kind of pages. On the journal medium the journal's files are copied
//! before the pool. A checkpoint in between only makes the pool's copy newer, and replaying the
//! same lines again changes nothing.

use super::plan::Plan;
use super::target::{Maker, Measured};
use crate::LabError;
use crate::micro::Op;
use crate::workload::value_of;
use bristlecone_pmem::media::{Access, Durability, Mapped, Media, MediaOptions, MediumKind};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Keys looked up in a reopened index.
const SAMPLED: usize = 1_000;

/// Milliseconds of opening.
pub(crate) struct Reopened {
    pub killed_ms: f64,
    pub clean_ms: f64,
}

/// Measures on a copy of the pool at `pool`, which `target` has open. No thread may change it
/// meanwhile.
pub(crate) fn reopen(
    maker: &Maker,
    target: &dyn Measured,
    pool: &Path,
    media: &MediaOptions,
    plan: &Plan,
) -> Result<Option<Reopened>, LabError> {
    let medium = target.medium();
    if medium == MediumKind::Dram {
        return Ok(None);
    }
    if medium == MediumKind::Journal && media.durability != Durability::Immediate {
        // Commits have not waited for the disk, so the state after a kill would depend on the
        // moment.
        target.sync()?;
    }
    let copies = copy_files(medium, pool)?;
    let measured = measure(maker, &copies.pool, media, plan);
    drop(copies);
    measured.map(Some)
}

fn measure(
    maker: &Maker,
    copy: &Path,
    media: &MediaOptions,
    plan: &Plan,
) -> Result<Reopened, LabError> {
    let media = MediaOptions {
        access: Access::ReadWrite,
        ..media.clone()
    };
    let started = Instant::now();
    let killed = (maker.open)(copy, &media)?;
    let killed_ms = started.elapsed().as_secs_f64() * 1e3;
    holds_the_load(&*killed, plan, "reopen after a kill")?;
    killed.close()?;
    let started = Instant::now();
    let clean = (maker.open)(copy, &media)?;
    let clean_ms = started.elapsed().as_secs_f64() * 1e3;
    holds_the_load(&*clean, plan, "clean reopen")?;
    clean.close()?;
    Ok(Reopened {
        killed_ms,
        clean_ms,
    })
}

/// Checks that a recovered index has all entries, and a sample of them with their values: a fast
/// but wrong recovery is worthless.
fn holds_the_load(target: &dyn Measured, plan: &Plan, phase: &'static str) -> Result<(), LabError> {
    let wrong = |right, of| LabError::WrongAnswer {
        contender: "the index".into(),
        phase,
        right,
        of,
    };
    let entries = target.usage().entries;
    if entries != plan.loaded() {
        return Err(wrong(entries, plan.loaded()));
    }
    let keys = plan.keys(Op::Load, 0);
    let sample = keys
        .iter()
        .step_by((keys.len() / SAMPLED).max(1))
        .take(SAMPLED);
    let of = sample.clone().count() as u64;
    let right = sample
        .filter(|key| target.get(**key) == Some(value_of(**key)))
        .count() as u64;
    if right == of {
        Ok(())
    } else {
        Err(wrong(right, of))
    }
}

/// Copies of files, which are removed when it is dropped.
pub(crate) struct Copies {
    /// The copy of the pool itself.
    pub pool: PathBuf,
    made: Vec<PathBuf>,
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Opening the copy may have created files beside it, named after it.
        let beside = files_of(&self.pool).unwrap_or_default();
        for path in self.made.iter().chain(&beside) {
            // The run also removes the directory.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the files whose names begin with that of `pool`, the pool itself last.
fn files_of(pool: &Path) -> Result<Vec<PathBuf>, LabError> {
    let fail = |e| LabError::io(pool, "listing its directory", e);
    let name = pool.file_name().unwrap_or_default().as_encoded_bytes();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(pool.parent().unwrap_or(Path::new("."))).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let theirs = path.file_name().unwrap_or_default().as_encoded_bytes();
        if theirs.starts_with(name) && path != pool && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    files.push(pool.to_path_buf());
    Ok(files)
}

/// Copies a pool's files.
pub(crate) fn copy_files(kind: MediumKind, pool: &Path) -> Result<Copies, LabError> {
    // The copy's name does not begin with the pool's, so that neither takes the other's files.
    let mut name = std::ffi::OsString::from("copy-of-");
    name.push(pool.file_name().unwrap_or_default());
    let mut copies = Copies {
        pool: pool.with_file_name(&name),
        made: Vec::new(),
    };
    let old_length = pool
        .file_name()
        .map_or(0, |name| name.as_encoded_bytes().len());
    for from in files_of(pool)? {
        let suffix =
            from.file_name().unwrap_or_default().to_string_lossy()[old_length..].to_owned();
        let mut to = name.clone();
        to.push(suffix);
        let to = pool.with_file_name(to);
        copies.made.push(to.clone());
        match kind {
            MediumKind::Mapped | MediumKind::Dax => copy_through_mapping(&from, &to)?,
            _ => {
                std::fs::copy(&from, &to).map_err(|e| LabError::io(&to, "copying the pool", e))?;
            }
        }
    }
    Ok(copies)
}

fn copy_through_mapping(from: &Path, to: &Path) -> Result<(), LabError> {
    let fail = |e| LabError::io(from, "copying the pool", e);
    let mut file = File::open(from).map_err(fail)?;
    let bytes = file.metadata().map_err(fail)?.len();
    let options = MediaOptions {
        access: Access::Create,
        reserve: bytes.next_multiple_of(1 << 30),
        ..MediaOptions::default()
    };
    let copy = Mapped::open(to, bytes, &options)?;
    let length = usize::try_from(bytes.min(copy.len()))
        .map_err(|_| LabError::parameter("keys", bytes, "what this machine can address"))?;
    // SAFETY: 1. `base` is page-aligned and at least `length` bytes from it are mapped and zeroed;
    // 2. the medium was made here and its file has a new name, so nothing else refers to them.
    let target = unsafe { std::slice::from_raw_parts_mut(copy.base(), length) };
    file.read_exact(target).map_err(fail)?;
    let rounded = copy.len();
    drop(copy);
    if rounded != bytes {
        let file = File::options().write(true).open(to).map_err(fail)?;
        file.set_len(bytes).map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_equal_and_go_away() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.pool");
        let content: Vec<u8> = (0..100_003_u32).map(|i| (i * 7) as u8).collect();
        std::fs::write(&pool, &content).unwrap();
        std::fs::write(dir.path().join("p.pool.journal"), b"lines").unwrap();
        std::fs::write(dir.path().join("other"), b"x").unwrap();
        for kind in [MediumKind::Mapped, MediumKind::Journal] {
            let copies = copy_files(kind, &pool).unwrap();
            assert_eq!(copies.made.len(), 2);
            assert_eq!(std::fs::read(&copies.pool).unwrap(), content);
            let journal = copies.pool.with_file_name("copy-of-p.pool.journal");
            assert_eq!(copies.made[0], journal, "the journal is copied first");
            assert_eq!(std::fs::read(&journal).unwrap(), b"lines");
            std::fs::write(
                copies.pool.with_file_name("copy-of-p.pool.late"),
                b"made later",
            )
            .unwrap();
            drop(copies);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        }
    }
}
