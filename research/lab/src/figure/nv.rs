//! Shared parts of the NV-Tree paper's figures: its machine, its node sizes, and the experiment of
//! most of them, insertions into an empty tree.

use super::tree::{CDDSTREE, Design, LCBTREE, NVTREE};
use super::trial::{Outcome, Trial};
use super::{Claim, Expect, FigureError, On, Setting};
use crate::model::{Device, Phase, Tuning, Workload};
use bristlecone_designs::Fill;
use bristlecone_designs::nvtree::Adaptivity;

/// The compared designs, the NV-Tree last. As the paper's, it inserts a key without looking for it.
pub(super) const DESIGNS: [Design; 3] = [
    LCBTREE,
    CDDSTREE,
    NVTREE.tuned(Tuning::Nv {
        adaptivity: Adaptivity::Balanced,
        blind: true,
    }),
];
pub(super) const LCB: usize = 0;
pub(super) const CDDS: usize = 1;
pub(super) const NV: usize = 2;

/// Bytes of a node.
pub(super) const SIZES: [u32; 4] = [512, 1024, 2048, 4096];

/// Keys of the paper's trees, and the caches of its machine (section 6.1): 8 cores, 512 KB, 2 MB
/// and 20 MB.
const PAPER_KEYS: u64 = 1_000_000;
const L2: u64 = 256 << 10;
const L3: u64 = 20 << 20;

/// Returns the keys of a tree for which the paper has a million.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(200_000, PAPER_KEYS),
        _ => setting.scale.amount(40_000, PAPER_KEYS),
    }
}

/// Returns a device behind caches that hold the same share of a tree of `keys` keys as the paper's
/// hold of a million's.
pub(super) fn device(name: &str, keys: u64) -> Result<Device, FigureError> {
    let share = |bytes: u64| (bytes * keys / PAPER_KEYS) >> 10 << 10;
    Ok(Device::load(name)?.with_core(|core| {
        core.l2_bytes = share(L2).max(core.l1_bytes);
        core.l3_bytes = share(L3).max(2 * core.l1_bytes);
        // The paper's machine has `clflush` and no newer flush.
        core.serial_flush = true;
    })?)
}

/// Returns the trial of insertions of random keys into a tree with one key, in phases of these
/// sizes.
pub(super) fn insertions(design: Design, device: &Device, phases: &[u64]) -> Trial {
    let phases: Vec<Phase> = phases
        .iter()
        .map(|ops| Phase::of(Workload::Insert, *ops))
        .collect();
    Trial::new(design, device, 1, Fill::FULL, &phases)
}

/// Returns the trials of all designs at one node size.
pub(super) fn all(designs: &[Design], size: u32, device: &Device, phases: &[u64]) -> Vec<Trial> {
    designs
        .iter()
        .map(|design| insertions(design.sized(size), device, phases))
        .collect()
}

/// Returns the mean of a number per operation over all phases of a trial.
pub(super) fn mean(phases: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let ops: u64 = phases.iter().map(|phase| phase.ops).sum();
    let sum: f64 = phases
        .iter()
        .map(|phase| of(phase) * phase.ops as f64)
        .sum();
    sum / ops as f64
}

/// Returns the claims that the NV-Tree saves from `low` to `high` of the `what` of another of
/// [`DESIGNS`]. `curve` returns a design's numbers by node size.
pub(super) fn savings(
    what: &str,
    curve: impl Fn(usize) -> Vec<f64>,
    other: usize,
    (low, high): (f64, f64),
) -> [Claim; 2] {
    let what = format!(
        "share of {}'s {what} that NV-Tree saves",
        DESIGNS[other].name
    );
    let shares: Vec<f64> = (curve(NV).into_iter())
        .zip(curve(other))
        .map(|(nv, other)| 1.0 - nv / other)
        .collect();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let claim = |which: &str, share: f64, bound: f64| {
        let expect = Expect::number(bound).within(0.1).more_is_better();
        Claim::new(
            format!("{what}: {which} of all node sizes"),
            bound,
            share,
            expect,
        )
    };
    [claim("least", least, low), claim("most", most, high)]
}

/// Returns the note on how a figure of this paper was measured.
pub(super) fn note(setting: &Setting<'_>, keys: u64) -> String {
    format!(
        "trees of {keys} random keys of 8 bytes with 8-byte values, 1 thread{}",
        if setting.on == On::Host {
            "; pools in shared memory; trees take turns"
        } else {
            "; device nvdimm; flushes as clflush does them, one after the other; caches in proportion to those of \
             the paper's machine at a million keys"
        }
    )
}
