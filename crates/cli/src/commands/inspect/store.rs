//! A store in a pool.

use super::{KeyspaceReport, Looked, Open, RootReport, without_path};
use crate::failure::Outcome;
use crate::keyspaces::{self, Kept, Survey, is_servers};
use crate::progress;
use crate::text::{bytes, duration, grouped, quoted};
use std::any::Any;
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks at a store; what was opened is put with what is `open`.
///
/// # Errors
/// It cannot be opened; on a check, not even by passing over what is damaged.
pub fn look(
    pool: &Open,
    path: &Path,
    name: &str,
    check: bool,
    open: &mut Vec<Box<dyn Any>>,
) -> Outcome<Looked> {
    let started = Instant::now();
    let opened = progress::waiting("opening", || keyspaces::open(pool, path, name));
    let took = started.elapsed();
    let store = match opened {
        Ok(store) => store,
        Err(failure) if check => {
            return match Survey::of(pool, path, name) {
                Ok(survey) => Ok(surveyed(name, &survey, &without_path(&failure, path))),
                Err(_) => Err(failure),
            };
        }
        Err(failure) => return Err(failure),
    };
    let mut looked = Looked {
        report: report(&store, took),
        lines: Vec::new(),
        errors: Vec::new(),
        can_be_saved: true,
    };
    if !check {
        looked.lines = describe(&store, &looked.report, took);
        open.push(Box::new(store));
        return Ok(looked);
    }
    let started = Instant::now();
    match progress::waiting("checking", || store.check()) {
        Ok(checked) => {
            looked.report.leaves_checked = looked.report.leaves;
            looked.report.records_checked = Some(checked.versions);
            looked.lines.push(format!(
                "store {}: whole. {} entries in {} keyspaces, {} records ({}) compared with their checksums, in {}",
                quoted(name.as_bytes()),
                grouped(looked.report.entries.unwrap_or(0)),
                looked.report.keyspaces.len(),
                grouped(checked.versions),
                bytes(checked.bytes),
                duration(started.elapsed()),
            ));
            open.push(Box::new(store));
            Ok(looked)
        }
        // The first. Once more, for all of them; closed, since each entry is judged by itself.
        Err(violation) => {
            drop(store);
            let first = format!("store {}: {violation}", quoted(name.as_bytes()));
            let survey = progress::waiting("listing the damage", || Survey::of(pool, path, name))?;
            let mut all = surveyed(name, &survey, &first);
            all.report = looked.report;
            Ok(all)
        }
    }
}

/// A damaged store, of which `first` was said.
fn surveyed(name: &str, survey: &Survey, first: &str) -> Looked {
    let of_store = |what: String| format!("store {}: {what}", quoted(name.as_bytes()));
    let mut errors: Vec<String> = survey.problems().map(of_store).collect();
    if errors.is_empty() {
        // Such as space that is lost, which no entry tells of.
        errors.push(first.to_owned());
    }
    let keyspaces = survey.whole.iter();
    let keyspaces = keyspaces.map(|(name, entries)| KeyspaceReport {
        name: name.clone(),
        entries: *entries,
    });
    Looked {
        report: RootReport {
            name: name.to_owned(),
            kind: "store",
            index: Some(survey.report.design.clone()),
            node_bytes: Some(survey.report.node_bytes),
            entries: Some(survey.whole.values().sum()),
            keyspaces: keyspaces.collect(),
            ..RootReport::default()
        },
        lines: Vec::new(),
        errors,
        can_be_saved: true,
    }
}

fn report(store: &Kept, took: Duration) -> RootReport {
    let stats = store.index_stats();
    let (design, node_bytes) = store.design();
    let keyspaces: Vec<KeyspaceReport> = store
        .keyspaces()
        .iter()
        .map(|keyspace| KeyspaceReport {
            name: keyspace.name().to_owned(),
            entries: store.len(keyspace),
        })
        .collect();
    RootReport {
        name: store.name().to_owned(),
        kind: "store",
        index: Some(design.to_owned()),
        node_bytes: Some(node_bytes),
        entries: Some(keyspaces.iter().map(|keyspace| keyspace.entries).sum()),
        depth: Some(stats.depth),
        leaves: Some(stats.leaves),
        leaf_fill: Some(stats.leaf_fill),
        index_pm_bytes: Some(stats.pm_bytes),
        index_dram_bytes: Some(stats.dram_bytes),
        open_ms: Some(took.as_secs_f64() * 1e3),
        keyspaces,
        ..RootReport::default()
    }
}

fn describe(store: &Kept, report: &RootReport, took: Duration) -> Vec<String> {
    let (stats, recovery) = (store.stats(), store.recovery());
    let (design, node_bytes) = store.design();
    let servers = is_servers(
        report
            .keyspaces
            .iter()
            .map(|keyspace| keyspace.name.as_str()),
    );
    let of = if servers { ", a server's" } else { "" };
    let mut lines = vec![
        format!("store          {}{of}", quoted(store.name().as_bytes())),
        format!(
            "  index        {design}, {node_bytes}-byte nodes, {} levels, {} leaves, {:.0} % full",
            report.depth.unwrap_or(0),
            grouped(report.leaves.unwrap_or(0)),
            report.leaf_fill.unwrap_or(0.0) * 100.0
        ),
        format!(
            "  records      {}: {} of values, {} of what the vacuum frees",
            grouped(stats.versions),
            bytes(stats.live_bytes),
            bytes(stats.garbage_bytes)
        ),
        format!(
            "  entries      {} in {} keyspaces",
            grouped(report.entries.unwrap_or(0)),
            report.keyspaces.len()
        ),
    ];
    for keyspace in &report.keyspaces {
        if keyspace.entries > 0 || !servers {
            lines.push(format!(
                "    {:<10} {}",
                quoted(keyspace.name.as_bytes()),
                grouped(keyspace.entries)
            ));
        }
    }
    lines.push(format!(
        "  opened in    {} ({} entries followed, {} undone)",
        duration(took),
        grouped(recovery.entries),
        grouped(recovery.undone)
    ));
    lines
}
