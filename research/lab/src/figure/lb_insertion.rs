//! The three experiments on insertion of the LB+-Tree paper (figures 11 and 13): leaves 70 % full,
//! leaves 100 % full, and dense insertions behind the largest key.
//!
//! The tree is loaded in bulk. It is large beside the number of insertions, so that random ones
//! rarely meet in a leaf.

use super::tree::Design;
use super::trial::Outcome;
use super::{FigureError, On, Setting};
use crate::model::{Device, Workload};
use bristlecone_designs::Fill;

/// One panel: its tree and its insertions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regime {
    pub panel: &'static str,
    pub fill: Fill,
    pub workload: Workload,
}

pub(super) const REGIMES: [Regime; 3] = [
    Regime {
        panel: "70 % full",
        fill: Fill::USUAL,
        workload: Workload::Insert,
    },
    Regime {
        panel: "100 % full",
        fill: Fill::FULL,
        workload: Workload::Insert,
    },
    Regime {
        panel: "dense",
        fill: Fill::USUAL,
        workload: Workload::DenseInsert,
    },
];

/// Returns the number of keys of the tree.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(2_000_000, 40_000_000),
        _ => setting.scale.amount(2_000_000, 20_000_000),
    }
}

/// Returns Optane behind caches that hold as small a share of the tree as the paper's: with 2 x
/// 10^9 keys, leaves and the lower inner nodes are never cached.
pub(super) fn device(keys: u64) -> Result<Device, FigureError> {
    shrunk("optane", keys)
}

/// Returns a device behind small caches, for `keys` keys.
pub(super) fn shrunk(device: &str, keys: u64) -> Result<Device, FigureError> {
    let kib = |bytes: u64| (bytes >> 10).next_power_of_two() << 10;
    Ok(Device::load(device)?.with_core(|core| {
        core.l1_bytes = 16 << 10;
        core.l2_bytes = kib(keys / 32).clamp(32 << 10, 1 << 20);
        core.l3_bytes = kib(keys / 8).clamp(64 << 10, 32 << 20);
    })?)
}

/// Returns notes on the flushed lines and fences of an operation, by design, as the model counts
/// them; none on the host.
pub(super) fn persisting(what: &str, designs: &[Design], phases: &[&Outcome]) -> Vec<String> {
    if phases
        .iter()
        .all(|phase| phase.counted(|r| r.ns_per_op) == 0.0)
    {
        return Vec::new();
    }
    let of = |(design, phase): (&Design, &&Outcome)| {
        format!(
            "{} {:.2} and {:.2}",
            design.name,
            phase.counted(|r| r.flushes_per_op),
            phase.counted(|r| r.fences_per_op)
        )
    };
    let each: Vec<String> = designs.iter().zip(phases).map(of).collect();
    vec![format!(
        "{what}: lines flushed and fences an operation: {}",
        each.join(", ")
    )]
}

/// Returns the note on how a figure of this paper was measured.
pub(super) fn note(setting: &Setting<'_>, keys: u64) -> String {
    format!(
        "trees of {keys} random keys of 8 bytes with 8-byte values, 1 thread{}",
        if setting.on == On::Host {
            "; pools in shared memory"
        } else {
            "; device optane, caches as small beside the tree as the paper's"
        },
    )
}
