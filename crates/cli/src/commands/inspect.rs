//! `info` and `check`: what a pool is, and whether it is whole.
//!
//! A pool may have an index, stores (what `serve` keeps), or both. Each of them is looked at by itself.

mod index;
mod store;

use crate::args::Inspect;
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::store::{Contents, How, ROOT, open_pool};
use crate::text::{bytes, program, shell_path};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{Pool, PoolInfo};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Most errors that are listed.
const LISTED_MOST: usize = 100;

/// The fields that scripts rely on, and what is useful besides. Those that are unknown because the
/// pool did not open are null. Those of an index are the first root's.
#[derive(Debug, Default, Serialize)]
struct Report {
    format: Option<u32>,
    medium: Option<&'static str>,
    survives: Option<&'static str>,
    index: Option<String>,
    /// Of all roots together.
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

/// An index or a store.
#[derive(Clone, Debug, Default, Serialize)]
struct RootReport {
    name: String,
    /// `index` or `store`.
    kind: &'static str,
    index: Option<String>,
    node_bytes: Option<u32>,
    entries: Option<u64>,
    depth: Option<u32>,
    leaves: Option<u64>,
    leaf_fill: Option<f64>,
    index_pm_bytes: Option<u64>,
    index_dram_bytes: Option<u64>,
    open_ms: Option<f64>,
    leaves_checked: Option<u64>,
    records_checked: Option<u64>,
    /// Of a store.
    keyspaces: Vec<KeyspaceReport>,
}

#[derive(Clone, Debug, Serialize)]
struct KeyspaceReport {
    name: String,
    entries: u64,
}

/// What was found out about an index or a store.
struct Looked {
    report: RootReport,
    /// Lines for a person.
    lines: Vec<String>,
    /// What is wrong.
    errors: Vec<String>,
    /// Whether what is not damaged can be exported.
    can_be_saved: bool,
}

impl Looked {
    /// One that could not be opened.
    fn unopened(name: &str, kind: &'static str, error: String) -> Self {
        Self {
            report: RootReport {
                name: name.to_owned(),
                kind,
                ..RootReport::default()
            },
            lines: Vec::new(),
            errors: vec![error],
            can_be_saved: false,
        }
    }
}

impl Report {
    fn failed(message: &str) -> Self {
        Self {
            errors: vec![message.to_owned()],
            error_count: 1,
            ..Self::default()
        }
    }

    fn new(info: &PoolInfo, roots: Vec<RootReport>, errors: &[String]) -> Self {
        let first = roots.first().cloned().unwrap_or_default();
        let entries = roots.iter().map(|root| root.entries);
        Self {
            format: Some(info.format),
            medium: Some(info.medium.name()),
            survives: Some(info.medium.survives()),
            index: first.index,
            entries: entries.sum(),
            pool_bytes: Some(info.pool_bytes),
            used_bytes: Some(info.used_bytes),
            free_bytes: Some(info.free_bytes),
            fragmentation: Some(info.fragmentation),
            clean: Some(info.was_clean),
            errors: errors.iter().take(LISTED_MOST).cloned().collect(),
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
            roots,
        }
    }
}

/// What was found out about a pool.
struct Inspected {
    info: PoolInfo,
    looked: Vec<Looked>,
    others: Vec<String>,
}

/// Opens a pool and looks at all that is in it.
fn inspect(args: &Inspect, check: bool) -> Outcome<Inspected> {
    let path = &args.pool;
    let pool = progress::waiting("opening", || open_pool(path, How::read(args.medium)))?;
    let contents = Contents::of(&pool);
    let mut looked = Vec::new();
    // What is open, until the pool has been asked how full it is: it knows nothing of blocks of other roots.
    let mut open: Vec<Box<dyn std::any::Any>> = Vec::new();
    // Where there is something else to report, what cannot be opened does not keep it from being.
    let several = usize::from(contents.index.is_some()) + contents.stores.len() > 1;
    let mut add = |name: &str, kind, result: Outcome<Looked>| match result {
        Ok(root) => {
            looked.push(root);
            Ok(())
        }
        Err(failure) if check && several => {
            looked.push(Looked::unopened(name, kind, without_path(&failure, path)));
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    if contents.index.is_some() || contents.stores.is_empty() {
        let result = index::look(&pool, path, check, &mut open);
        add(ROOT, "index", result)?;
    }
    for name in &contents.stores {
        let result = store::look(&pool, path, name, check, &mut open);
        add(name, "store", result)?;
    }
    let others = contents.others.iter();
    let others = others.map(|root| format!("{:?} ({})", root.name, root.kind));
    Ok(Inspected {
        info: pool.info(),
        looked,
        others: others.collect(),
    })
}

/// Shows what a pool is.
pub fn info(args: &Inspect) -> Outcome {
    let inspected = match inspect(args, false) {
        Ok(inspected) => inspected,
        Err(failure) => return unopened(args, failure),
    };
    describe(&mut *human(args), args, &inspected).map_err(|e| Failure::output(&e))?;
    if args.json {
        let roots = inspected.looked.into_iter().map(|root| root.report);
        super::print_json(&Report::new(&inspected.info, roots.collect(), &[]))?;
    }
    Ok(())
}

/// Verifies a pool.
pub fn check(args: &Inspect) -> Outcome {
    let inspected = match inspect(args, true) {
        Ok(inspected) => inspected,
        Err(failure) => return unopened(args, failure),
    };
    let mut out = human(args);
    let mut all = Vec::new();
    for root in &inspected.looked {
        all.extend(root.errors.iter().cloned());
    }
    tell(&mut *out, args, &inspected, &all).map_err(|e| Failure::output(&e))?;
    drop(out);
    if args.json {
        let roots = inspected.looked.into_iter().map(|root| root.report);
        super::print_json(&Report::new(&inspected.info, roots.collect(), &all))?;
    }
    if all.is_empty() {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// What a check has found.
fn tell(
    out: &mut dyn Write,
    args: &Inspect,
    inspected: &Inspected,
    errors: &[String],
) -> io::Result<()> {
    let name = args.pool.display();
    for line in inspected.looked.iter().flat_map(|root| &root.lines) {
        writeln!(out, "{name}: {line}")?;
    }
    for error in errors.iter().take(LISTED_MOST) {
        writeln!(out, "{name}: error: {error}")?;
    }
    if errors.is_empty() {
        return Ok(());
    }
    if errors.len() > LISTED_MOST {
        let more = errors.len() - LISTED_MOST;
        writeln!(out, "{name}: {more} more errors, {} in all", errors.len())?;
    }
    let mut damaged = inspected
        .looked
        .iter()
        .filter(|root| !root.errors.is_empty());
    if damaged.all(|root| root.can_be_saved) {
        writeln!(
            out,
            "restore a backup, or save the rest with `{} export --skip-damaged {} FILE.jsonl`; the file was not changed",
            program(),
            shell_path(&args.pool)
        )
    } else {
        writeln!(
            out,
            "restore a backup: so much is damaged that the rest cannot be found; the file was not changed"
        )
    }
}

/// Reports a pool that did not open, in JSON too if asked.
fn unopened(args: &Inspect, failure: Failure) -> Outcome {
    if args.json
        && let Some(message) = failure.message()
    {
        super::print_json(&Report::failed(message))?;
    }
    Err(failure)
}

/// Where the words for a person go: standard error when standard output is for a script.
fn human(args: &Inspect) -> Box<dyn Write> {
    if args.json {
        Box::new(io::stderr())
    } else {
        Box::new(io::stdout())
    }
}

fn describe(out: &mut dyn Write, args: &Inspect, inspected: &Inspected) -> io::Result<()> {
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
    for line in inspected.looked.iter().flat_map(|root| &root.lines) {
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

/// What an error says without the name of the pool before it.
fn without_path(failure: &Failure, path: &Path) -> String {
    let message = failure.message().unwrap_or("failed");
    let path = format!("{}: ", path.display());
    message.strip_prefix(&path).unwrap_or(message).to_owned()
}

/// A pool that is open.
type Open = Arc<Pool<Auto>>;
