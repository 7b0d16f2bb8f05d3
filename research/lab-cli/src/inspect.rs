//! `info` and `check` of a bare index.

use crate::args::Inspect;
use crate::index::{Index, ROOT};
use bristlecone_command::args::InspectArgs;
use bristlecone_command::failure::Outcome;
use bristlecone_command::inspect::{self, Inspected, Looked, RootReport, without_path};
use bristlecone_command::pool::{How, open_pool};
use bristlecone_command::progress;
use bristlecone_command::text::{duration, grouped};
use bristlecone_designs::{VerifyReport, Violation};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The command that saves what is left of a damaged index.
const SAVED_BY: &str = "export --skip-damaged POOL FILE.jsonl";

/// Describes a pool.
pub fn info(args: &Inspect) -> Outcome {
    let args = &args.inspect;
    inspect::info(args, look_into(args, false))
}

/// Verifies a pool.
pub fn check(args: &Inspect) -> Outcome {
    let args = &args.inspect;
    inspect::check(args, look_into(args, true))
}

/// Opens a pool and examines its index.
fn look_into(args: &InspectArgs, check: bool) -> Outcome<Inspected> {
    let path = &args.pool;
    let pool = progress::waiting("opening", || open_pool(path, How::read(args.medium)))?;
    // The index stays open until the pool's usage is read, since the pool only knows the blocks of
    // open roots.
    let (looked, _index) = look(&pool, path, check)?;
    let others = pool.roots().into_iter().filter(|root| root.name != ROOT);
    let others = others.map(|root| format!("{:?} ({})", root.name, root.kind));
    Ok(Inspected {
        info: pool.info(),
        looked,
        others: others.collect(),
    })
}

/// Examines the index, and returns it if it could be opened.
///
/// # Errors
/// The index cannot be opened; on a check, not even past its damage.
fn look(pool: &Arc<Pool<Auto>>, path: &Path, check: bool) -> Outcome<(Looked, Option<Index>)> {
    let started = Instant::now();
    let opened = progress::waiting("opening", || Index::open_in(pool, path));
    let took = started.elapsed();
    let index = match opened {
        Ok(index) => index,
        Err(failure) if check => {
            let (surveyed, damage) = Index::survey(pool, path);
            let saved_by = surveyed.is_ok().then_some(SAVED_BY);
            let mut errors: Vec<String> = damage.blocks.into_values().collect();
            match surveyed {
                Ok((_, violation)) => errors.extend(violation.map(|v| v.to_string())),
                Err(_) => errors.clear(),
            }
            if errors.is_empty() {
                return Err(failure);
            }
            errors.insert(0, without_path(&failure, path));
            let looked = Looked {
                report: RootReport {
                    name: ROOT.to_owned(),
                    kind: "index",
                    ..RootReport::default()
                },
                lines: Vec::new(),
                errors,
                saved_by,
            };
            return Ok((looked, None));
        }
        Err(failure) => return Err(failure),
    };
    let mut looked = Looked {
        report: report(&index, took),
        lines: Vec::new(),
        errors: Vec::new(),
        saved_by: Some(SAVED_BY),
    };
    if check {
        let started = Instant::now();
        let verified = progress::waiting("checking", || index.verify());
        judge(&index, verified, started.elapsed(), &mut looked);
    } else {
        looked.lines = describe(&index, took);
    }
    Ok((looked, Some(index)))
}

fn report(index: &Index, took: Duration) -> RootReport {
    let stats = index.stats();
    RootReport {
        name: ROOT.to_owned(),
        kind: "index",
        index: Some(index.design().name.to_owned()),
        node_bytes: Some(index.node_bytes()),
        entries: Some(stats.entries),
        depth: Some(stats.depth),
        leaves: Some(stats.leaves),
        leaf_fill: Some(stats.leaf_fill),
        index_pm_bytes: Some(stats.pm_bytes),
        index_dram_bytes: Some(stats.dram_bytes),
        open_ms: Some(took.as_secs_f64() * 1e3),
        ..RootReport::default()
    }
}

fn judge(
    index: &Index,
    verified: Result<VerifyReport, Violation>,
    took: Duration,
    looked: &mut Looked,
) {
    match verified {
        Ok(v) => {
            looked.report.leaves_checked = Some(v.leaves);
            looked.report.records_checked = Some(v.records);
            let counted = looked.report.entries.unwrap_or(0);
            if v.entries != counted {
                looked.errors.push(format!(
                    "the index counts {counted} entries, checking found {}",
                    v.entries
                ));
                return;
            }
            looked.lines.push(format!(
                "whole. {} entries in {} leaves, {} records compared with their checksums, in {}",
                grouped(v.entries),
                grouped(v.leaves),
                grouped(v.records),
                duration(took),
            ));
        }
        // That was the first damage. The second pass finds all of it.
        Err(violation) => {
            let (again, damage) = progress::waiting("listing the damage", || index.verify_all());
            looked.errors.extend(damage.blocks.into_values());
            match again {
                Err(violation) => looked.errors.push(violation.to_string()),
                Ok(_) if looked.errors.is_empty() => looked.errors.push(violation.to_string()),
                Ok(_) => {}
            }
        }
    }
}

fn describe(index: &Index, took: Duration) -> Vec<String> {
    let (stats, recovery) = (index.stats(), index.recovery());
    vec![
        format!(
            "index          {}, {}-byte nodes, {} levels, {} leaves, {:.0} % full",
            index.design().name,
            index.node_bytes(),
            stats.depth,
            grouped(stats.leaves),
            stats.leaf_fill * 100.0
        ),
        format!("entries        {}", grouped(stats.entries)),
        format!(
            "opened in      {} ({} leaves walked, {} repaired)",
            duration(took),
            grouped(recovery.leaves_scanned),
            grouped(recovery.repaired)
        ),
    ]
}
