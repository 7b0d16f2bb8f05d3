//! What the figures of the Crab-tree paper share: its board, its node sizes, its trees, and the experiment that
//! most of them look at, insertions into an empty tree.
//!
//! # The board
//! A Raspberry Pi 3 B+, all of whose memory stands for persistent memory as fast as DRAM. Its core's constants
//! follow from the paper's Figure 2 (63 pairs shifted in a node of 2 KB), with the model's 58 ns for a line flushed
//! and fenced as the measure: volatile 1, flushed 5.1, with store fences 15.8, where 16 lines are flushed and 126
//! stores fenced. So a store fence is a third of a fenced line, an access 0.9 ns; a batch takes 1 / 3.5 of a line
//! that is fenced alone, which is four flushes at a time. `dc cvac` leaves the line in the caches.

use super::tree::{BTREE, CRABTREE, CRABTREE_OPT, Design, FASTFAIR, NVTREE};
use super::trial::{Outcome, Trial};
use super::{FigureError, On, Panel, Setting};
use crate::model::{Device, Phase, Shifts, Tuning, Workload};
use bristlecone_designs::Fill;
use bristlecone_designs::nvtree::Adaptivity;

/// Bytes of a node.
pub(super) const SIZES: [u32; 4] = [1024, 2048, 4096, 8192];
pub(super) const LARGEST: usize = SIZES.len() - 1;

/// What is compared, by what the paper calls it; the NV-Tree last, whose nodes have 4 KB at most.
pub(super) const DESIGNS: [Design; 5] = [
    BTREE.named("Volatile"),
    FASTFAIR,
    CRABTREE,
    CRABTREE_OPT,
    NVTREE.tuned(Tuning::Nv(Adaptivity::Off)),
];
pub(super) const FAIR: usize = 1;
pub(super) const CRAB: usize = 2;
pub(super) const OPT: usize = 3;
pub(super) const NV: usize = 4;

/// Whether a design has nodes of that size.
pub(super) fn has(design: usize, size: usize) -> bool {
    design != NV || size < LARGEST
}

/// A Crab-tree that changes its leaves so, with these of its optimizations.
pub(super) const fn crab(
    name: &'static str,
    shifts: Shifts,
    [self_managed, probe, atomic16]: [bool; 3],
) -> Design {
    CRABTREE.named(name).tuned(Tuning::Crab {
        shifts,
        self_managed,
        probe,
        atomic16,
    })
}

/// Keys of the paper's smaller trees, and the last cache of its board.
const PAPER_KEYS: u64 = 1_000_000;
const LAST_CACHE: u64 = 512 << 10;

/// Keys of a tree, where the paper has a million.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(400_000, PAPER_KEYS),
        _ => setting.scale.amount(20_000, PAPER_KEYS),
    }
}

/// Keys of a tree, where the paper has ten million.
pub(super) fn more_keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(1_600_000, 10 * PAPER_KEYS),
        _ => setting.scale.amount(45_000, 4 * PAPER_KEYS),
    }
}

/// The board, behind caches that hold as much of a tree of `keys` keys as its own do of a million's.
pub(super) fn board(keys: u64) -> Result<Device, FigureError> {
    Ok(Device::load("nvdimm")?.with_core(|core| {
        core.l1_bytes = 8 << 10;
        core.l2_bytes = 8 << 10;
        core.l3_bytes = ((LAST_CACHE * keys / PAPER_KEYS) >> 10 << 10).max(16 << 10);
        core.line_fill_buffers = 4;
        core.access_ns = 0.9;
        core.store_fence_ns = 19.0;
        core.flush_keeps_line = true;
    })?)
}

/// Insertions of random keys into a tree that has one key.
pub(super) fn insertions(design: Design, size: u32, device: &Device, keys: u64) -> Trial {
    let phases = [Phase::of(Workload::Insert, keys)];
    Trial::new(design.sized(size), device, 1, Fill::FULL, &phases)
}

/// Those of `designs` in nodes of every size that they have, by size.
pub(super) fn by_size(
    designs: &[Design],
    device: &Device,
    trial: impl Fn(Design, u32, &Device) -> Trial,
) -> Vec<Vec<Trial>> {
    let sizes = (0..).zip(SIZES);
    let trials = sizes.map(|(size, bytes)| {
        let there = (0..).zip(designs).filter(|(design, _)| has(*design, size));
        there
            .map(|(_, design)| trial(*design, bytes, device))
            .collect()
    });
    trials.collect()
}

/// A panel of all of [`DESIGNS`] but the NV-Tree over all sizes, and one with it over those that it has.
pub(super) fn panels(
    titles: (&str, &str),
    outcomes: &[Vec<Vec<Outcome>>],
    of: impl Fn(&[Outcome]) -> f64,
) -> [Panel; 2] {
    let (title, y) = titles;
    let panel = |title: &str, designs: &[usize], sizes: usize| {
        let places = SIZES.iter().take(sizes).map(|size| f64::from(*size));
        let panel = Panel::lines(title, "bytes of a node", y, places);
        designs.iter().fold(panel, |panel, design| {
            let values = outcomes.iter().take(sizes);
            let values = values.map(|trees| of(&trees[*design]));
            panel.with(DESIGNS[*design].name, values.collect())
        })
    };
    let beside = format!("{title}, with NV-Tree");
    [
        panel(title, &[0, FAIR, CRAB, OPT], SIZES.len()),
        panel(&beside, &[CRAB, OPT, NV], LARGEST),
    ]
}

/// What a figure of these says of how it was had.
pub(super) fn note(setting: &Setting<'_>, keys: u64) -> String {
    format!(
        "trees of {keys} random keys of 8 bytes with 8-byte values, 1 thread{}",
        match setting.on {
            On::Host => "; pools in shared memory; trees take turns",
            On::Model =>
                "; on a model of the paper's board, whose constants follow from its figure 2; caches in proportion to \
                 the board's at a million keys",
            On::Counted => "",
        }
    )
}

/// What tells the NV-Tree here from the paper's.
pub(super) const NV_NODES: &str =
    "the NV-Tree is without workload adaptivity and has nodes of 4 KB at most";
