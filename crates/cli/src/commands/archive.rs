//! `archive`: the archive of a database brought up to date, shown and checked; and `restore` from
//! one.

use crate::args::{Archive as Command, ArchiveLook, ArchiveUpdate, Restore};
use crate::contents::close;
use crate::database::{self, ROOT};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about};
use bristlecone_command::records::survival;
use bristlecone_command::text::{bytes, duration, grouped, program, shell_path};
use bristlecone_command::{print_report, progress};
use bristlecone_store::{
    Archive, ArchiveError, ArchiveOptions, ArchiveStats, FileKind, Plan, Store, Until,
};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How often `update` looks whether the archive is up to date.
const LOOK: Duration = Duration::from_millis(20);

/// Runs one of the commands.
pub fn run(command: &Command) -> Outcome {
    match command {
        Command::Update(args) => update(args),
        Command::List(args) => look(args, false),
        Command::Check(args) => look(args, true),
    }
}

#[derive(Debug, Serialize)]
struct Updated {
    pool: String,
    archive: String,
    timestamp: u64,
    full_states: u64,
    incremental_states: u64,
    bytes: u64,
    seconds: f64,
}

/// Brings an archive up to date.
fn update(args: &ArchiveUpdate) -> Outcome {
    let path = &args.pool;
    let mut archive = ArchiveOptions::new(&args.dir);
    archive.every = LOOK;
    archive.full_every = Some(args.full_every);
    let started = Instant::now();
    let opened = database::options(path, How::write(args.write))
        .archive(Some(archive))
        .open(path);
    let db = opened.map_err(|e| database::unopened(path, &e))?;
    let bar = progress::counter("entries");
    let stats = loop {
        let stats = db.archive_stats().unwrap_or_default();
        if let Some(e) = &stats.error {
            return Err(about(&args.dir, e));
        }
        bar.set_position(stats.writing.unwrap_or(0));
        if stats.archived >= Some(db.store().applied()) && stats.writing.is_none() {
            break stats;
        }
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    close(path, db)?;
    let took = started.elapsed();
    let ArchiveStats {
        full_states,
        incremental_states,
        ..
    } = stats;
    let what = match (full_states, incremental_states) {
        (0, 0) => "nothing had changed".to_owned(),
        (0, _) => format!("what may have changed, {}", bytes(stats.bytes)),
        (_, 0) => format!("all of the database, {}", bytes(stats.bytes)),
        _ => format!(
            "what may have changed, and all of the database, {}",
            bytes(stats.bytes)
        ),
    };
    let text = format!(
        "archived {} to {}: {what}, in {}\n{} restore {} NEW    # makes it again",
        path.display(),
        args.dir.display(),
        duration(took),
        program(),
        shell_path(&args.dir),
    );
    let summary = Updated {
        pool: path.display().to_string(),
        archive: args.dir.display().to_string(),
        timestamp: stats.archived.unwrap_or(0),
        full_states,
        incremental_states,
        bytes: stats.bytes,
        seconds: took.as_secs_f64(),
    };
    print_report(&text, &summary, args.json)
}

#[derive(Debug, Serialize)]
struct Listed {
    archive: String,
    bytes: u64,
    /// The archive leads from its first full state to its end.
    leads_to_its_end: bool,
    /// The last time stamp that it leads to.
    timestamp: Option<u64>,
    /// When that was.
    time: Option<String>,
    /// Why it leads no further.
    error: Option<String>,
    files: Vec<ListedFile>,
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ListedFile {
    file: String,
    kind: String,
    /// The commits that it has; a state has all up to the last one.
    first_timestamp: u64,
    last_timestamp: Option<u64>,
    begun: String,
    until: String,
    entries: u64,
    bytes: u64,
    damage: Option<String>,
}

/// A time in ms since 1970.
fn time(ms: u64) -> String {
    Until::Time(ms).to_string()
}

/// Shows an archive; with `all`, reads all of it.
fn look(args: &ArchiveLook, all: bool) -> Outcome {
    let dir = &args.dir;
    let mut archive = Archive::open(dir).map_err(|e| failure(&e))?;
    if all {
        let bar = progress::file("checking", archive.bytes());
        let checked = archive.verify(&mut |read| bar.set_position(read));
        checked.map_err(|e| failure(&e))?;
        bar.finish_and_clear();
    }
    let plan = archive.plan(Until::End);
    let (reached, error) = match &plan {
        Ok(plan) => (plan.below.checked_sub(1), None),
        Err(e @ ArchiveError::Unreachable { reached, .. }) => (*reached, Some(e.to_string())),
        Err(e) => (None, Some(e.to_string())),
    };
    let reached_at = plan.as_ref().ok().map(|plan: &Plan| time(plan.at));
    let files = archive.files.iter().map(|file| ListedFile {
        file: name(&file.path),
        kind: file.kind.to_string(),
        first_timestamp: file.from,
        last_timestamp: file.below.checked_sub(1).filter(|_| file.counts()),
        begun: time(file.begun),
        until: time(file.until),
        entries: file.entries,
        bytes: file.bytes,
        damage: (file.damage.as_ref()).map(|(at, what)| format!("{what}, {at} bytes in")),
    });
    let unreadable = archive.unreadable.iter();
    let listed = Listed {
        archive: dir.display().to_string(),
        bytes: archive.bytes(),
        leads_to_its_end: error.is_none(),
        timestamp: reached,
        time: reached_at,
        error,
        files: files.collect(),
        unreadable: unreadable
            .map(|file| format!("{}: {}", name(&file.path), file.what))
            .collect(),
    };
    print_report(&shown(&listed), &listed, args.json)?;
    let whole = listed.files.iter().all(|file| file.damage.is_none());
    let whole = whole && archive.unreadable.iter().all(|file| file.is_empty);
    match (&listed.error, whole) {
        (None, true) => Ok(()),
        // The report says why.
        _ => Err(Failure::Reported),
    }
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A report in words.
fn shown(listed: &Listed) -> String {
    let mut text = String::new();
    for file in &listed.files {
        let upto = match file.last_timestamp {
            Some(last) => format!("up to time stamp {last}"),
            None if file.kind == FileKind::Commits.to_string() => "no commits".to_owned(),
            None => "incomplete".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}  {:17}  {}  {:>10}  {upto}, {} changes or entries",
            file.file,
            file.kind,
            file.begun,
            bytes(file.bytes),
            grouped(file.entries),
        );
        if let Some(damage) = &file.damage {
            let _ = writeln!(text, "    damaged: {damage}");
        }
    }
    for what in &listed.unreadable {
        let _ = writeln!(text, "{what}");
    }
    let end = match (&listed.error, listed.timestamp, &listed.time) {
        (Some(e), _, _) => e.clone(),
        (None, Some(ts), Some(at)) => {
            format!("leads to any commit of its files, up to time stamp {ts} of {at}")
        }
        (None, _, _) => "leads nowhere".to_owned(),
    };
    let _ = write!(text, "{}: {}; {end}", listed.archive, bytes(listed.bytes));
    text
}

fn failure(e: &ArchiveError) -> Failure {
    Failure::new(e.to_string())
}

#[derive(Debug, Serialize)]
struct Restored {
    pool: String,
    medium: &'static str,
    survives: &'static str,
    timestamp: u64,
    time: String,
    entries: u64,
    commits: u64,
    archive_bytes: u64,
    seconds: f64,
}

/// Reads a time, as 2026-03-01T12:00:00Z.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let time = humantime::parse_rfc3339_weak(text)
        .map_err(|_| "expected a time in UTC, as 2026-03-01T12:00:00Z".to_owned())?;
    let since = time.duration_since(UNIX_EPOCH);
    let since = since.map_err(|_| "expected a time after 1970".to_owned())?;
    u64::try_from(since.as_millis()).map_err(|e| e.to_string())
}

/// Makes a database of an archive.
pub fn restore(args: &Restore) -> Outcome {
    let (dir, path) = (&args.backup, &args.pool);
    let until = match (args.until, args.until_commit) {
        (Some(ms), _) => Until::Time(ms),
        (None, Some(ts)) => Until::Timestamp(ts),
        (None, None) => Until::End,
    };
    let started = Instant::now();
    // A wrong directory is told before a pool is made.
    Archive::open(dir).map_err(|e| failure(&e))?;
    let (pool, unfinished) = database::new_pool(path, How::write(args.write))?;
    let medium = pool.info().medium;
    let choice = database::making();
    let bar = progress::file("restoring", 0);
    let from = (dir.as_path(), until);
    let restored = Store::restore_archive(&pool, ROOT, &choice, from, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    let (store, report) = restored.map_err(|e| match &e {
        ArchiveError::Store(_) | ArchiveError::Write(_) => about(path, &e),
        _ => failure(&e),
    })?;
    bar.finish_and_clear();
    store
        .close()
        .map_err(|(_, e)| about(path, &format_args!("closing: {e}")))?;
    drop(pool);
    unfinished.keep();
    let took = started.elapsed();
    let text = format!(
        "restored {} from {}, as of time stamp {} at {}: {} entries of states, {} commits, {} of archive, in {}\n{}\n{} serve {}    # \
         serves it",
        path.display(),
        dir.display(),
        report.timestamp,
        time(report.at),
        grouped(report.entries),
        grouped(report.commits),
        bytes(report.bytes),
        duration(took),
        survival(medium),
        program(),
        shell_path(path),
    );
    let summary = Restored {
        pool: path.display().to_string(),
        medium: medium.name(),
        survives: medium.survives(),
        timestamp: report.timestamp,
        time: time(report.at),
        entries: report.entries,
        commits: report.commits,
        archive_bytes: report.bytes,
        seconds: took.as_secs_f64(),
    };
    print_report(&text, &summary, args.json)
}
