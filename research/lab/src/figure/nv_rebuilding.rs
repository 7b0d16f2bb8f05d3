//! The number and the time of an NV-Tree's rebuildings of inner nodes while it is filled (NV-Tree,
//! table 4 and figure 9a).

use super::tree::{new_pool, scratch};
use super::{FigureError, Setting};
use crate::LabError;
use crate::micro::designs::Inlined;
use crate::workload::value_of;
use bristlecone_designs::nvtree::{Adaptivity, NvOptions, NvTree};
use bristlecone_designs::{DurableIndex, OrderedIndex};
use std::time::Instant;

/// The cost of filling a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rebuilding {
    pub rebuilds: u64,
    pub rebuilding_ms: f64,
    /// The whole time, including rebuilding.
    pub ms: f64,
}

impl Rebuilding {
    pub fn share(&self) -> f64 {
        self.rebuilding_ms / self.ms
    }
}

/// A panel: its title, its unit, its numbers.
pub(super) type Row = (&'static str, &'static str, fn(&Rebuilding) -> f64);

/// The progress of a figure of several trees.
pub(super) struct Total {
    pub done: u64,
    pub of: u64,
}

/// Insertions between two calls of `progress`.
const STRIDE: u64 = 10_000;

/// Inserts `count` keys, number 0 first, into an empty tree.
pub(super) fn fill(
    setting: &mut Setting<'_>,
    total: &mut Total,
    (leaf_bytes, adaptivity): (u32, Adaptivity),
    count: u64,
    key: impl Fn(u64) -> u64,
) -> Result<Rebuilding, FigureError> {
    let dir = scratch()?;
    let pool = new_pool(&dir.path().join("pool"))?;
    let options = NvOptions {
        leaf_bytes,
        adaptivity,
        ..NvOptions::default()
    };
    let tree = NvTree::<u64, u64, Inlined>::create(&pool, "index", &options)
        .map_err(|e| LabError::index("creating the index", e))?;
    let mut ms = 0.0;
    for first in (0..count).step_by(STRIDE as usize) {
        let started = Instant::now();
        for n in first..(first + STRIDE).min(count) {
            let key = key(n);
            tree.insert(&key, &value_of(key))
                .map_err(|e| LabError::index("inserting", e))?;
        }
        ms += started.elapsed().as_secs_f64() * 1e3;
        setting.step("inserting", total.done + first, total.of);
    }
    total.done += count;
    let stats = tree.nv_stats();
    let entries = tree.stats().entries;
    if entries != count {
        return Err(LabError::WrongAnswer {
            contender: "nvtree".to_owned(),
            phase: "insert",
            right: entries,
            of: count,
        }
        .into());
    }
    Ok(Rebuilding {
        rebuilds: stats.rebuilds,
        rebuilding_ms: stats.rebuild_time.as_secs_f64() * 1e3,
        ms,
    })
}
