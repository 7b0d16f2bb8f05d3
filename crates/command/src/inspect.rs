//! The reports of `info` and `check`: what a pool is, and whether it is whole.

use crate::args::InspectArgs;
use crate::failure::{Failure, Outcome};
use crate::print_json;
use crate::text::{bytes, program, shell_path};
use bristlecone_pmem::pool::PoolInfo;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// Most errors that are listed.
const MAX_LISTED: usize = 100;

/// The fields that scripts rely on, and what is useful besides. Those that are unknown because the
/// pool did not open are null.
#[derive(Debug, Default, Serialize)]
struct Report {
    format: Option<u32>,
    medium: Option<&'static str>,
    survives: Option<&'static str>,
    index: Option<String>,
    entries: Option<u64>,
    pool_bytes: Option<u64>,
    used_bytes: Option<u64>,
    free_bytes: Option<u64>,
    fragmentation: Option<f64>,
    clean: Option<bool>,
    errors: Vec<String>,
    /// How many there are, of which `errors` has the first.
    error_count: usize,
    uuid: Option<String>,
    node_bytes: Option<u32>,
    depth: Option<u32>,
    leaves: Option<u64>,
    leaf_fill: Option<f64>,
    index_pm_bytes: Option<u64>,
    index_dram_bytes: Option<u64>,
    open_ms: Option<f64>,
    leaves_checked: Option<u64>,
    records_checked: Option<u64>,
    roots: Vec<RootReport>,
}

/// An index or a database.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RootReport {
    /// Its name.
    pub name: String,
    /// `index` or `database`.
    pub kind: &'static str,
    /// Design of the index.
    pub index: Option<String>,
    /// Bytes in a leaf, or in a page.
    pub node_bytes: Option<u32>,
    /// How many entries there are.
    pub entries: Option<u64>,
    /// Levels of the index.
    pub depth: Option<u32>,
    /// Leaves of the index.
    pub leaves: Option<u64>,
    /// Share of the places in leaves that are used.
    pub leaf_fill: Option<f64>,
    /// Bytes of the pool that the index has.
    pub index_pm_bytes: Option<u64>,
    /// Bytes of memory that the index has.
    pub index_dram_bytes: Option<u64>,
    /// How long opening took.
    pub open_ms: Option<f64>,
    /// Leaves that were verified.
    pub leaves_checked: Option<u64>,
    /// Records, or values in pages, that were compared with their checksums.
    pub records_checked: Option<u64>,
    /// Keyspaces of a database.
    pub keyspaces: Vec<KeyspaceReport>,
}

/// A keyspace of a database.
#[derive(Clone, Debug, Serialize)]
pub struct KeyspaceReport {
    /// Its name.
    pub name: String,
    /// How many entries it has.
    pub entries: u64,
}

/// The findings about an index or a database.
pub struct Looked {
    /// For scripts.
    pub report: RootReport,
    /// Lines for a person.
    pub lines: Vec<String>,
    /// Damage, a line each.
    pub errors: Vec<String>,
    /// The words of the command that saves what is not damaged, with POOL in it; `None` if none
    /// can.
    pub saved_by: Option<&'static str>,
}

impl Report {
    fn failed(message: &str) -> Self {
        Self {
            errors: vec![message.to_owned()],
            error_count: 1,
            ..Self::default()
        }
    }

    fn new(info: &PoolInfo, root: RootReport, errors: &[String]) -> Self {
        let first = root.clone();
        Self {
            format: Some(info.format),
            medium: Some(info.medium.name()),
            survives: Some(info.medium.survives()),
            index: first.index,
            entries: first.entries,
            pool_bytes: Some(info.pool_bytes),
            used_bytes: Some(info.used_bytes),
            free_bytes: Some(info.free_bytes),
            fragmentation: Some(info.fragmentation),
            clean: Some(info.was_clean),
            errors: errors.iter().take(MAX_LISTED).cloned().collect(),
            error_count: errors.len(),
            uuid: Some(info.uuid.to_string()),
            node_bytes: first.node_bytes,
            depth: first.depth,
            leaves: first.leaves,
            leaf_fill: first.leaf_fill,
            index_pm_bytes: first.index_pm_bytes,
            index_dram_bytes: first.index_dram_bytes,
            open_ms: first.open_ms,
            leaves_checked: first.leaves_checked,
            records_checked: first.records_checked,
            roots: vec![root],
        }
    }
}

/// The findings about a pool.
pub struct Inspected {
    /// The pool's own description.
    pub info: PoolInfo,
    /// The index or the database in it.
    pub looked: Looked,
    /// Other roots, in words.
    pub others: Vec<String>,
}

/// Shows what a pool is, as `inspect` has found it.
///
/// # Errors
/// That of `inspect`, or standard output cannot be written to.
pub fn info(args: &InspectArgs, inspected: Outcome<Inspected>) -> Outcome {
    let inspected = match inspected {
        Ok(inspected) => inspected,
        Err(failure) => return unopened(args, failure),
    };
    describe(&mut *human(args), args, &inspected).map_err(|e| Failure::output(&e))?;
    if args.json {
        print_json(&Report::new(&inspected.info, inspected.looked.report, &[]))?;
    }
    Ok(())
}

/// Reports whether a pool is whole, as a check has found it.
///
/// # Errors
/// It is not, it could not be looked at, or standard output cannot be written to.
pub fn check(args: &InspectArgs, inspected: Outcome<Inspected>) -> Outcome {
    let Inspected { info, looked, .. } = match inspected {
        Ok(inspected) => inspected,
        Err(failure) => return unopened(args, failure),
    };
    let mut out = human(args);
    tell(&mut *out, args, &looked).map_err(|e| Failure::output(&e))?;
    drop(out);
    let whole = looked.errors.is_empty();
    if args.json {
        print_json(&Report::new(&info, looked.report, &looked.errors))?;
    }
    if whole {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// Prints the findings of a check.
fn tell(out: &mut dyn Write, args: &InspectArgs, looked: &Looked) -> io::Result<()> {
    let name = args.pool.display();
    let errors = &looked.errors;
    for line in &looked.lines {
        writeln!(out, "{name}: {line}")?;
    }
    for error in errors.iter().take(MAX_LISTED) {
        writeln!(out, "{name}: error: {error}")?;
    }
    if errors.is_empty() {
        return Ok(());
    }
    if errors.len() > MAX_LISTED {
        let more = errors.len() - MAX_LISTED;
        writeln!(out, "{name}: {more} more errors, {} in all", errors.len())?;
    }
    if let Some(command) = looked.saved_by {
        writeln!(
            out,
            "restore a backup, or save the rest with `{} {}`; the file was not changed",
            program(),
            command.replace("POOL", &shell_path(&args.pool).to_string())
        )
    } else {
        writeln!(
            out,
            "restore a backup: so much is damaged that the rest cannot be found; the file was not changed"
        )
    }
}

/// Reports a pool that did not open, in JSON too if asked.
fn unopened(args: &InspectArgs, failure: Failure) -> Outcome {
    if args.json
        && let Some(message) = failure.message()
    {
        print_json(&Report::failed(message))?;
    }
    Err(failure)
}

/// Where the words for a person go: standard error when standard output is for a script.
fn human(args: &InspectArgs) -> Box<dyn Write> {
    if args.json {
        Box::new(io::stderr())
    } else {
        Box::new(io::stdout())
    }
}

fn describe(out: &mut dyn Write, args: &InspectArgs, inspected: &Inspected) -> io::Result<()> {
    let info = &inspected.info;
    writeln!(out, "pool           {}", args.pool.display())?;
    writeln!(out, "format         {}, {}", info.format, info.uuid)?;
    writeln!(out, "medium         {}", info.medium.name())?;
    writeln!(out, "survives       {}", info.medium.survives())?;
    writeln!(
        out,
        "file           {}: {} used, {} free, {:.1} % fragmentation",
        bytes(info.pool_bytes),
        bytes(info.used_bytes),
        bytes(info.free_bytes),
        info.fragmentation * 100.0
    )?;
    let closed = if info.was_clean {
        "cleanly"
    } else {
        "by a crash or kill; recovered"
    };
    writeln!(out, "last closed    {closed}")?;
    for line in &inspected.looked.lines {
        writeln!(out, "{line}")?;
    }
    for other in &inspected.others {
        writeln!(
            out,
            "also           root {other}, which only the program that made it reads"
        )?;
    }
    Ok(())
}

/// Returns what an error says without the name of the pool before it.
#[must_use]
pub fn without_path(failure: &Failure, path: &Path) -> String {
    let message = failure.message().unwrap_or("failed");
    let path = format!("{}: ", path.display());
    message.strip_prefix(&path).unwrap_or(message).to_owned()
}
