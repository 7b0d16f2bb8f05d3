//! `info` and `check`: what a database is, and whether it is whole.

use crate::args::Inspect;
use crate::damage::Survey;
use crate::database::{self, ROOT, server_bookkeeping};
use bristlecone::Database;
use bristlecone_command::args::InspectArgs;
use bristlecone_command::failure::Outcome;
use bristlecone_command::inspect::{
    self, Inspected, KeyspaceReport, Looked, RootReport, without_path,
};
use bristlecone_command::pool::{How, open_pool};
use bristlecone_command::progress;
use bristlecone_command::text::{bytes, duration, grouped, quoted};
use std::path::Path;
use std::time::{Duration, Instant};

/// The command that saves what is left of a damaged database.
const SAVED_BY: Option<&str> = Some("repair POOL NEW");

/// Shows what a database is.
pub fn info(args: &Inspect) -> Outcome {
    let args = &args.inspect;
    inspect::info(args, look_into(args, false))
}

/// Verifies a database.
pub fn check(args: &Inspect) -> Outcome {
    let args = &args.inspect;
    inspect::check(args, look_into(args, true))
}

/// Looks at a database, also at one that does not open if it is to be checked.
fn look_into(args: &InspectArgs, check: bool) -> Outcome<Inspected> {
    let (path, how) = (&args.pool, How::read(args.medium));
    let started = Instant::now();
    let opened = progress::waiting("opening", || database::open(path, how));
    let took = started.elapsed();
    let db = match opened {
        Ok(db) => db,
        Err(failure) if check => {
            let pool = match open_pool(path, how) {
                Ok(pool) if database::expect(&pool, path).is_ok() => pool,
                _ => return Err(failure),
            };
            let Ok(survey) = Survey::of(&pool, path) else {
                return Err(failure);
            };
            return Ok(Inspected {
                info: pool.info(),
                looked: surveyed(&survey, &without_path(&failure, path)),
                others: Vec::new(),
            });
        }
        Err(failure) => return Err(failure),
    };
    let store = db.store();
    let info = store.pool().info();
    let of_database = [ROOT.to_owned(), format!("{ROOT}.index")];
    let others = store.pool().roots().into_iter();
    let others = others.filter(|root| !of_database.contains(&root.name));
    let others = others.map(|root| format!("{:?} ({})", root.name, root.kind));
    let others: Vec<String> = others.collect();
    let looked = if check {
        verify(db, path, how, took)?
    } else {
        let report = report(&db, took);
        Looked {
            lines: describe(&db, &report, took),
            report,
            errors: Vec::new(),
            saved_by: SAVED_BY,
        }
    };
    Ok(Inspected {
        info,
        looked,
        others,
    })
}

/// Checks a database that could be opened.
fn verify(db: Database, path: &Path, how: How, took: Duration) -> Outcome<Looked> {
    let started = Instant::now();
    let checked = progress::waiting("checking", || db.store().check());
    // Afterwards: pages that nobody has read are not counted.
    let mut report = report(&db, took);
    match checked {
        Ok(checked) => {
            report.leaves_checked = report.leaves;
            report.records_checked = Some(checked.versions);
            let line = format!(
                "whole. {} entries in {} keyspaces, {} keys and values ({}) compared with their checksums, in {}",
                grouped(report.entries.unwrap_or(0)),
                report.keyspaces.len(),
                grouped(checked.versions),
                bytes(checked.bytes),
                duration(started.elapsed()),
            );
            Ok(Looked {
                report,
                lines: vec![line],
                errors: Vec::new(),
                saved_by: SAVED_BY,
            })
        }
        // The first. Once more, for all of them; closed, since each entry is judged by itself.
        Err(violation) => {
            drop(db);
            let pool = open_pool(path, how)?;
            let survey = progress::waiting("listing the damage", || Survey::of(&pool, path))?;
            let mut all = surveyed(&survey, &violation.to_string());
            all.report = report;
            Ok(all)
        }
    }
}

/// Returns what is damaged; `first`, if a survey finds nothing.
fn surveyed(survey: &Survey, first: &str) -> Looked {
    let mut errors: Vec<String> = survey.problems().collect();
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
            name: ROOT.to_owned(),
            kind: "database",
            index: Some(survey.report.design.clone()),
            node_bytes: Some(survey.report.node_bytes),
            entries: Some(survey.whole.values().sum()),
            keyspaces: keyspaces.collect(),
            ..RootReport::default()
        },
        lines: Vec::new(),
        errors,
        saved_by: SAVED_BY,
    }
}

fn report(db: &Database, took: Duration) -> RootReport {
    let store = db.store();
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
        kind: "database",
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

fn describe(db: &Database, report: &RootReport, took: Duration) -> Vec<String> {
    let store = db.store();
    let stats = store.stats();
    let (design, node_bytes) = store.design();
    let servers = server_bookkeeping(
        report
            .keyspaces
            .iter()
            .map(|keyspace| keyspace.name.as_str()),
    );
    let (levels, leaves) = (report.depth.unwrap_or(0), report.leaves.unwrap_or(0));
    let leaves = grouped(leaves);
    let percent = report.leaf_fill.unwrap_or(0.0) * 100.0;
    let mut lines = vec![
        format!(
            "index          {design}, {node_bytes}-byte pages, {levels} levels, {leaves} pages, {percent:.0} % full"
        ),
        format!(
            "records        {}: {} of keys and values",
            grouped(stats.keys),
            bytes(stats.live_bytes)
        ),
        format!(
            "entries        {} in {} keyspaces{}",
            grouped(report.entries.unwrap_or(0)),
            report.keyspaces.len(),
            if servers { ", a server's" } else { "" }
        ),
    ];
    for keyspace in &report.keyspaces {
        if keyspace.entries > 0 || !servers {
            lines.push(format!(
                "  {:<12} {}",
                quoted(keyspace.name.as_bytes()),
                grouped(keyspace.entries)
            ));
        }
    }
    lines.push(format!("opened in      {} (no keys read)", duration(took)));
    lines
}
