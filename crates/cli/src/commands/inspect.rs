//! `info` and `check`: what a pool is, and whether it is whole.

use crate::args::Inspect;
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::store::{How, Store};
use crate::text::{bytes, duration, grouped};
use bristlecone_pmem::pool::PoolInfo;
use bristlecone_trees::{IndexStats, VerifyReport};
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The fields that scripts rely on, and what is useful besides. Those that are unknown because the
/// pool did not open are null.
#[derive(Debug, Default, Serialize)]
struct Report {
    format: Option<u32>,
    medium: Option<&'static str>,
    survives: Option<&'static str>,
    index: Option<&'static str>,
    entries: Option<u64>,
    pool_bytes: Option<u64>,
    used_bytes: Option<u64>,
    free_bytes: Option<u64>,
    fragmentation: Option<f64>,
    clean: Option<bool>,
    errors: Vec<String>,
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
}

impl Report {
    fn new(store: &Store, info: &PoolInfo, stats: &IndexStats, open: Duration) -> Self {
        Self {
            format: Some(info.format),
            medium: Some(info.medium.name()),
            survives: Some(info.medium.survives()),
            index: Some(store.design().name),
            entries: Some(stats.entries),
            pool_bytes: Some(info.pool_bytes),
            used_bytes: Some(info.used_bytes),
            free_bytes: Some(info.free_bytes),
            fragmentation: Some(info.fragmentation),
            clean: Some(info.was_clean),
            uuid: Some(info.uuid.to_string()),
            node_bytes: Some(store.node_bytes()),
            depth: Some(stats.depth),
            leaves: Some(stats.leaves),
            leaf_fill: Some(stats.leaf_fill),
            index_pm_bytes: Some(stats.pm_bytes),
            index_dram_bytes: Some(stats.dram_bytes),
            open_ms: Some(open.as_secs_f64() * 1e3),
            ..Self::default()
        }
    }

    fn failed(message: &str) -> Self {
        Self {
            errors: vec![message.to_owned()],
            ..Self::default()
        }
    }
}

/// Shows what a pool is.
pub fn info(args: &Inspect) -> Outcome {
    let (store, open) = match open(args) {
        Ok(opened) => opened,
        Err(failure) => return unopened(args, failure),
    };
    let info = store.info();
    let stats = store.stats();
    let mut out: Box<dyn Write> = human(args);
    describe(&mut *out, args, &store, &info, &stats, open).map_err(|e| Failure::output(&e))?;
    if args.json {
        print_json(&Report::new(&store, &info, &stats, open))?;
    }
    Ok(())
}

/// Verifies a pool.
pub fn check(args: &Inspect) -> Outcome {
    let (store, open) = match open(args) {
        Ok(opened) => opened,
        Err(failure) => return unopened(args, failure),
    };
    let started = Instant::now();
    let verified = progress::waiting("checking", || store.verify());
    let took = started.elapsed();
    let info = store.info();
    let stats = store.stats();
    let mut report = Report::new(&store, &info, &stats, open);
    let mut errors = Vec::new();
    match &verified {
        Ok(VerifyReport {
            entries,
            leaves,
            records,
        }) => {
            report.leaves_checked = Some(*leaves);
            report.records_checked = Some(*records);
            if *entries != stats.entries {
                errors.push(format!(
                    "the index counts {} entries, checking found {entries}",
                    stats.entries
                ));
            }
        }
        Err(violation) => errors.push(violation.to_string()),
    }
    let mut out = human(args);
    let name = args.pool.display();
    let printed = match (&verified, errors.is_empty()) {
        (Ok(v), true) => writeln!(
            out,
            "{name}: whole. {} entries in {} leaves, {} records compared with their checksums, in {}",
            grouped(v.entries),
            grouped(v.leaves),
            grouped(v.records),
            duration(took),
        ),
        _ => errors.iter().try_for_each(|e| writeln!(out, "{name}: error: {e}")).and_then(|()| {
            writeln!(
                out,
                "restore a backup, or save what can be read with `bristlecone export`; the file was not changed"
            )
        }),
    };
    printed.map_err(|e| Failure::output(&e))?;
    drop(out);
    let whole = errors.is_empty();
    report.errors = errors;
    if args.json {
        print_json(&report)?;
    }
    if whole {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

fn open(args: &Inspect) -> Outcome<(Store, Duration)> {
    let started = Instant::now();
    let store = progress::waiting("opening", || {
        Store::open(&args.pool, How::read(args.medium))
    })?;
    Ok((store, started.elapsed()))
}

/// Reports a pool that did not open, in JSON too if asked.
fn unopened(args: &Inspect, failure: Failure) -> Outcome {
    if args.json
        && let Some(message) = failure.message()
    {
        print_json(&Report::failed(message))?;
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

fn print_json(report: &Report) -> Outcome {
    super::print_json(report)
}

fn describe(
    out: &mut dyn Write,
    args: &Inspect,
    store: &Store,
    info: &PoolInfo,
    stats: &IndexStats,
    open: Duration,
) -> io::Result<()> {
    writeln!(out, "pool           {}", args.pool.display())?;
    writeln!(out, "format         {}, {}", info.format, info.uuid)?;
    writeln!(out, "medium         {}", info.medium.name())?;
    writeln!(out, "survives       {}", info.medium.survives())?;
    writeln!(
        out,
        "index          {}, {}-byte nodes, {} levels, {} leaves, {:.0} % full",
        store.design().name,
        store.node_bytes(),
        stats.depth,
        grouped(stats.leaves),
        stats.leaf_fill * 100.0
    )?;
    writeln!(out, "entries        {}", grouped(stats.entries))?;
    writeln!(
        out,
        "file           {}: {} used, {} free, {:.1} % fragmentation",
        bytes(info.pool_bytes),
        bytes(info.used_bytes),
        bytes(info.free_bytes),
        info.fragmentation * 100.0
    )?;
    let recovery = store.recovery();
    let closed = if info.was_clean {
        "cleanly"
    } else {
        "by a crash or kill; recovered"
    };
    writeln!(out, "last closed    {closed}")?;
    writeln!(
        out,
        "opened in      {} ({} leaves walked, {} repaired)",
        duration(open),
        grouped(recovery.leaves_scanned),
        grouped(recovery.repaired)
    )
}
