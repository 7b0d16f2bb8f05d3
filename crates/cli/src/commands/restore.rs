//! `restore`: a pool made from a server's backup. From an archive: `archive`.

use crate::args::Restore;
use crate::database::{self, ROOT};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about};
use bristlecone_command::records::survival;
use bristlecone_command::text::{bytes, duration, grouped, program, shell_path};
use bristlecone_command::{print_report, progress};
use bristlecone_pmem::MediumKind;
use bristlecone_store::{BackupError, BackupReport, Store, is_backup};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

#[derive(Debug, Serialize)]
struct Summary {
    pool: String,
    medium: &'static str,
    survives: &'static str,
    index: String,
    keyspaces: u64,
    entries: u64,
    backup_bytes: u64,
    timestamp: u64,
    seconds: f64,
}

/// Makes a pool from a backup.
pub fn run(args: &Restore) -> Outcome {
    let backup = &args.backup;
    if backup.is_dir() {
        return super::archive::restore(args);
    }
    if args.until.is_some() || args.until_commit.is_some() {
        return Err(Failure::Usage(format!(
            "{}: a backup of one moment; --until and --until-commit are for archives",
            backup.display()
        )));
    }
    let file = File::open(backup).map_err(|e| Failure::io(backup, "opening", &e))?;
    let meta = file
        .metadata()
        .map_err(|e| Failure::io(backup, "looking at it", &e))?;
    let bar = progress::file("restoring", meta.len());
    let started = Instant::now();
    let mut from = BufReader::with_capacity(256 << 10, bar.wrap_read(file));
    let start = from
        .fill_buf()
        .map_err(|e| Failure::io(backup, "reading", &e))?;
    if !is_backup(start) {
        return Err(about(backup, &BackupError::NotABackup));
    }
    let restored = restore(args, &mut from)?;
    bar.finish_and_clear();
    tell(args, restored, started.elapsed())
}

/// The database that was made of a backup.
struct Restored {
    report: BackupReport,
    medium: MediumKind,
    /// Design of the index.
    index: String,
}

/// Makes the pool. Nothing of it is left if that fails.
fn restore(args: &Restore, from: &mut impl Read) -> Outcome<Restored> {
    let path = &args.pool;
    let (pool, unfinished) = database::new_pool(path, How::write(args.write))?;
    let medium = pool.info().medium;
    let choice = database::making();
    let (store, report) =
        Store::restore(&pool, ROOT, &choice, from).map_err(|e| explain(args, &e))?;
    let mut rest = [0];
    let more = from
        .read(&mut rest)
        .map_err(|e| Failure::io(&args.backup, "reading", &e))?;
    if more > 0 {
        let what = format!(
            "damaged: the backup ends after {} bytes, and the file goes on",
            report.bytes
        );
        return Err(about(&args.backup, &what));
    }
    let index = store.design().0.to_owned();
    store
        .close()
        .map_err(|(_, e)| about(path, &format_args!("closing: {e}")))?;
    drop(pool);
    unfinished.keep();
    Ok(Restored {
        report,
        medium,
        index,
    })
}

/// Names the file that an error is about.
fn explain(args: &Restore, error: &BackupError) -> Failure {
    match error {
        BackupError::Io(e) => Failure::io(&args.backup, "reading", e),
        BackupError::NotABackup | BackupError::Version(_) | BackupError::Damaged { .. } => {
            about(&args.backup, error)
        }
        _ => about(&args.pool, error),
    }
}

fn tell(args: &Restore, restored: Restored, took: Duration) -> Outcome {
    let Restored {
        report,
        medium,
        index,
    } = restored;
    let pool = shell_path(&args.pool);
    let text = format!(
        "restored {} from {}: {} entries in {} keyspaces, {} of backup, in {}\n{}\n{} serve {pool}    # serves it",
        args.pool.display(),
        args.backup.display(),
        grouped(report.entries),
        report.keyspaces,
        bytes(report.bytes),
        duration(took),
        survival(medium),
        program(),
    );
    let summary = Summary {
        pool: args.pool.display().to_string(),
        medium: medium.name(),
        survives: medium.survives(),
        index,
        keyspaces: report.keyspaces,
        entries: report.entries,
        backup_bytes: report.bytes,
        timestamp: report.timestamp,
        seconds: took.as_secs_f64(),
    };
    print_report(&text, &summary, args.json)
}
