//! The instructions of an operation: flushed cache lines and fences, per key.
//!
//! A pass of its own counts them on volatile memory and one thread, so that counting does not slow
//! the timed run. They do not depend on the medium. The pass runs the same phases on the same kind
//! of keys, over at most [`MAX_KEYS`] of them.

use super::Op;
use super::plan::Plan;
use super::target::Maker;
use crate::LabError;

/// Largest number of keys loaded for the count.
const MAX_KEYS: u64 = 1_000_000;
/// Largest number of operations of each later phase.
const MAX_OPS: u64 = 100_000;

/// Lines and fences per key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub lines: f64,
    pub fences: f64,
}

/// Counts for each of `ops`. Returns the counts, and the number of loaded keys.
pub(crate) fn count(
    maker: &Maker,
    plan: &Plan,
    ops: &[Op],
) -> Result<(Vec<(Op, Counted)>, u64), LabError> {
    let plan = plan.small(MAX_KEYS, MAX_OPS);
    let target = (maker.counting)()?;
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
