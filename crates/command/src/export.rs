//! `export`: a pool as a file that appears whole or not at all.
//!
//! All that is read is compared with its checksums first: a damaged value is never written as if it
//! were one. With `--skip-damaged` it is left out, and said to be.

use crate::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use crate::import::kind_of;
use crate::records::Visit;
use crate::rows::{Kind, csv, json};
use crate::scratch::Unfinished;
use crate::signals::remove_temporary_files_on_signals;
use crate::text::{duration, grouped, program, rate, shell_path, shell_word};
use crate::{print_report, progress};
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Display;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Records that are exported, damaged or not.
pub trait Source {
    /// Whether values have types, as a server's have.
    fn typed(&self) -> bool;

    /// Returns about how many records there are.
    fn entries(&self) -> u64;

    /// Whether anything is damaged.
    fn is_damaged(&self) -> bool;

    /// Visits the records that are whole, in key order. With a bar, the others are named on
    /// standard error, above it.
    ///
    /// # Errors
    /// The records cannot be walked any more.
    fn each(&mut self, bar: Option<&ProgressBar>, visit: Visit<'_>) -> Outcome;

    /// Names the damage that no key was named for, and returns how many records were skipped where
    /// `written` were not.
    fn finish(&self, written: u64, bar: &ProgressBar) -> u64;
}

/// Prints a line above a bar.
pub fn report(bar: &ProgressBar, what: &dyn Display) {
    bar.suspend(|| eprintln!("{what}"));
}

/// Returns the error that refuses to export a pool with that damage.
pub fn refuse(args: &ExportArgs, what: &dyn Display) -> Failure {
    let (pool, file) = (shell_path(&args.pool), shell_path(&args.file));
    Failure::new(format!(
        "{}: damaged: {what}; nothing was written\n`{1} check {pool}` lists all damage, `{1} export --skip-damaged {pool} {file}` saves the rest",
        args.pool.display(),
        program(),
    ))
}

/// Returns the error where so much is damaged that nothing can be exported.
#[must_use]
pub fn beyond_saving(failure: &Failure) -> Failure {
    if let Failure::Version(message) = failure {
        return Failure::Version(message.clone());
    }
    Failure::new(format!(
        "{}; so much is damaged that no records can be found: restore a backup",
        failure.message().unwrap_or("failed")
    ))
}

/// The counts of an export.
#[derive(Debug, Default, Serialize)]
struct Report {
    records: u64,
    /// Of these: collections of a server's, of which only key and type are there.
    collections: u64,
    skipped: u64,
    /// Where `import` would not guess it.
    key: Option<String>,
}

/// Writes the records that `open` opens to a file.
///
/// # Errors
/// They cannot be opened or walked, or the file cannot be written. A file that was there is as it
/// was.
pub fn run(args: &ExportArgs, open: impl FnOnce() -> Outcome<Box<dyn Source>>) -> Outcome {
    let kind = kind_of(&args.file, "export")?;
    let target = &args.file;
    if target.is_dir() {
        return Err(Failure::new(format!(
            "{}: a directory; name a file in it",
            target.display()
        )));
    }
    if let (Ok(a), Ok(b)) = (args.pool.canonicalize(), target.canonicalize())
        && a == b
    {
        return Err(Failure::Usage(format!(
            "{}: the pool itself; export to another file",
            target.display()
        )));
    }
    let mut source = open()?;
    if kind == Kind::Csv && source.typed() {
        return Err(Failure::Usage(format!(
            "{}: a server's keys have types and expiries, which a .csv file has no room for; name a .jsonl file",
            target.display()
        )));
    }
    let folder = match target.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let failed = |e: &io::Error| Failure::io(target, "writing", e);
    remove_temporary_files_on_signals()?;
    // As a plain creation would make it: the process's umask applies.
    let mut file = tempfile::Builder::new()
        .prefix(".bristlecone-export-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|e| failed(&e))?;
    let unfinished = Unfinished::new([file.path().to_path_buf()]);
    let started = Instant::now();
    let bar = progress::steps("exporting", source.entries());
    let mut report = write(&mut *source, kind, file.as_file_mut(), &bar, target)?;
    report.skipped = source.finish(report.records, &bar);
    bar.finish_and_clear();
    file.as_file().sync_all().map_err(|e| failed(&e))?;
    file.persist(target).map_err(|e| failed(&e.error))?;
    unfinished.keep();
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| failed(&e))?;
    tell(args, &report, started.elapsed())?;
    if source.is_damaged() {
        return Err(Failure::Skipped);
    }
    Ok(())
}

fn tell(args: &ExportArgs, report: &Report, took: Duration) -> Outcome {
    let records = report.records;
    let mut text = format!(
        "exported {} records in {} ({} records/s)",
        grouped(records),
        duration(took),
        rate(records, took),
    );
    if report.skipped > 0 {
        text += &format!(
            "\nskipped {} damaged places, named above",
            grouped(report.skipped)
        );
    }
    if report.collections > 0 {
        text += &format!(
            "\n{} of them are collections, of which only key and type are there: a server's SAVE and `restore` copy all",
            grouped(report.collections)
        );
    }
    let key = report.key.as_ref();
    let key = key
        .map(|k| format!(" --key {}", shell_word(k)))
        .unwrap_or_default();
    text += &format!(
        "\n{} import POOL {}{key}    # reads it back",
        program(),
        shell_path(&args.file),
    );
    print_report(&text, report, args.json)
}

/// Writes all records.
fn write(
    source: &mut dyn Source,
    kind: Kind,
    file: &mut File,
    bar: &ProgressBar,
    target: &Path,
) -> Outcome<Report> {
    let failed = |e: &io::Error| Failure::io(target, "writing", e);
    let mut out = BufWriter::with_capacity(256 << 10, file);
    let mut report = Report::default();
    let mut result = Ok(());
    let mut step = |records: &mut u64, written: io::Result<()>| {
        *records += 1;
        if records.is_multiple_of(4096) {
            bar.set_position(*records);
        }
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                result = Err(e);
                ControlFlow::Break(())
            }
        }
    };
    match kind {
        Kind::Jsonl => {
            let mut line = String::new();
            source.each(Some(bar), &mut |key, shown| {
                line.clear();
                match (shown.kind, shown.value, shown.expires_at) {
                    (None, Some(value), None) => json::push_line(key, value, &mut line),
                    // As a pair, so that an import has the string itself.
                    (Some(_), Some(value), None) => json::push_pair(key, value, &mut line),
                    _ => json::push_shown(key, shown, &mut line),
                }
                report.collections += u64::from(shown.value.is_none());
                line.push('\n');
                step(&mut report.records, out.write_all(line.as_bytes()))
            })?;
        }
        Kind::Csv => {
            let mut survey = csv::Survey::default();
            source.each(None, &mut |key, shown| {
                survey.see(key, shown.value.unwrap_or_default());
                ControlFlow::Continue(())
            })?;
            let plan = survey.plan();
            if let csv::Plan::Table { names, key } = &plan
                && *key > 0
            {
                report.key = Some(names[*key].clone());
            }
            plan.write_header(&mut out).map_err(|e| failed(&e))?;
            source.each(Some(bar), &mut |key, shown| {
                let written = plan.write(key, shown.value.unwrap_or_default(), &mut out);
                step(&mut report.records, written)
            })?;
        }
    }
    result.and_then(|()| out.flush()).map_err(|e| failed(&e))?;
    Ok(report)
}
