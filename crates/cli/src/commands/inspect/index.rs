//! The index of a pool.

use super::{Looked, Open, RootReport, without_path};
use crate::failure::Outcome;
use crate::progress;
use crate::store::{ROOT, Store};
use crate::text::{duration, grouped};
use bristlecone_designs::{VerifyReport, Violation};
use std::any::Any;
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks at the index; what was opened is put with what is `open`.
///
/// # Errors
/// It cannot be opened; on a check, not even by passing over what is damaged.
pub fn look(
    pool: &Open,
    path: &Path,
    check: bool,
    open: &mut Vec<Box<dyn Any>>,
) -> Outcome<Looked> {
    let started = Instant::now();
    let opened = progress::waiting("opening", || Store::open_in(pool, path));
    let took = started.elapsed();
    let store = match opened {
        Ok(store) => store,
        Err(failure) if check => {
            let (surveyed, damage) = Store::survey(pool, path);
            let can_be_saved = surveyed.is_ok();
            let mut errors: Vec<String> = damage.blocks.into_values().collect();
            match surveyed {
                Ok((_, violation)) => errors.extend(violation.map(|v| v.to_string())),
                Err(_) => errors.clear(),
            }
            if errors.is_empty() {
                return Err(failure);
            }
            errors.insert(0, without_path(&failure, path));
            return Ok(Looked {
                report: RootReport {
                    name: ROOT.to_owned(),
                    kind: "index",
                    ..RootReport::default()
                },
                lines: Vec::new(),
                errors,
                can_be_saved,
            });
        }
        Err(failure) => return Err(failure),
    };
    let mut looked = Looked {
        report: report(&store, took),
        lines: Vec::new(),
        errors: Vec::new(),
        can_be_saved: true,
    };
    if check {
        let started = Instant::now();
        let verified = progress::waiting("checking", || store.verify());
        judge(&store, verified, started.elapsed(), &mut looked);
    } else {
        looked.lines = describe(&store, took);
    }
    open.push(Box::new(store));
    Ok(looked)
}

fn report(store: &Store, took: Duration) -> RootReport {
    let stats = store.stats();
    RootReport {
        name: ROOT.to_owned(),
        kind: "index",
        index: Some(store.design().name.to_owned()),
        node_bytes: Some(store.node_bytes()),
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
    store: &Store,
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
        // The first. Once more, for all of them.
        Err(violation) => {
            let (again, damage) = progress::waiting("listing the damage", || store.verify_all());
            looked.errors.extend(damage.blocks.into_values());
            match again {
                Err(violation) => looked.errors.push(violation.to_string()),
                Ok(_) if looked.errors.is_empty() => looked.errors.push(violation.to_string()),
                Ok(_) => {}
            }
        }
    }
}

fn describe(store: &Store, took: Duration) -> Vec<String> {
    let (stats, recovery) = (store.stats(), store.recovery());
    vec![
        format!(
            "index          {}, {}-byte nodes, {} levels, {} leaves, {:.0} % full",
            store.design().name,
            store.node_bytes(),
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
