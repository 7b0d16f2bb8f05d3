//! What `compact` and `backup` print.

use crate::failure::Outcome;
use crate::print_report;
use crate::text::{bytes, program, shell_path};
use bristlecone_pmem::pool::CompactReport;
use serde::Serialize;
use std::path::Path;

/// `compact --json`
#[derive(Serialize)]
struct Compacted<'a> {
    pool: &'a Path,
    before_bytes: u64,
    after_bytes: u64,
    punched_bytes: u64,
}

/// Prints what compacting a pool has given back.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_compacted(pool: &Path, report: CompactReport, json: bool) -> Outcome {
    let text = format_args!(
        "compacted {}: {} before, {} after, {} more given back inside the file",
        pool.display(),
        bytes(report.before_bytes),
        bytes(report.after_bytes),
        bytes(report.punched_bytes),
    );
    let report = Compacted {
        pool,
        before_bytes: report.before_bytes,
        after_bytes: report.after_bytes,
        punched_bytes: report.punched_bytes,
    };
    print_report(&text, &report, json)
}

/// `backup --json`
#[derive(Serialize)]
struct Copied<'a> {
    pool: &'a Path,
    file: &'a Path,
    bytes: u64,
}

/// Prints that `pool` was copied to `file`.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_copied(pool: &Path, file: &Path, written: u64, json: bool) -> Outcome {
    let text = format_args!(
        "copied {} to {}: {}\n{} check {}    # to be sure of the copy",
        pool.display(),
        file.display(),
        bytes(written),
        program(),
        shell_path(file),
    );
    let bytes = written;
    print_report(&text, &Copied { pool, file, bytes }, json)
}
