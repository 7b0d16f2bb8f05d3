//! What an operation issues: cache lines flushed and fences, per key.
//!
//! Counted in a pass of its own, on volatile memory and one thread, so that counting costs the
//! timed run nothing; what the code issues does not depend on the medium. The pass runs the same
//! phases on the same kind of keys, over at most [`KEYS`] of them.

use super::Op;
use super::plan::Plan;
use super::target::Maker;
use crate::LabError;
use bristlecone_pmem::media::MediaOptions;
use std::path::Path;

/// Most keys loaded while counting.
const KEYS: u64 = 1_000_000;
/// Most operations of each later phase.
const OPS: u64 = 100_000;

/// Lines and fences per key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub lines: f64,
    pub fences: f64,
}

/// Counts for each of `ops`. Also says how many keys were loaded for it.
pub(crate) fn count(
    maker: &Maker,
    plan: &Plan,
    ops: &[Op],
) -> Result<(Vec<(Op, Counted)>, u64), LabError> {
    let plan = plan.small(KEYS, OPS);
    let target = (maker.counting)(Path::new("counted pass"), &MediaOptions::default())?;
    let mut counted = Vec::new();
    for op in ops {
        let keys = plan.keys(*op, 0);
        let before = target.counts();
        target.slice("the index", *op, &keys, 1, 1)?;
        let issued = target.counts() - before;
        let each = |count: u64| {
            if keys.is_empty() {
                0.0
            } else {
                count as f64 / keys.len() as f64
            }
        };
        counted.push((
            *op,
            Counted {
                lines: each(issued.lines),
                fences: each(issued.fences),
            },
        ));
    }
    Ok((counted, plan.loaded()))
}
