//! Shared parts of the Crab-tree paper's figures: its board, its node sizes, its trees, and the
//! experiment of most of them, insertions into an empty tree.
//!
//! # The board
//! The board is a Raspberry Pi 3 B+, whose whole memory stands for persistent memory as fast as
//! DRAM. Its core's constants follow from the paper's Figure 2 (63 pairs shifted in a node of 2
//! KB), measured by the model's 58 ns for a line that is flushed and fenced: volatile 1, flushed
//! 5.1, with store fences 15.8, with 16 flushed lines and 126 fenced stores. So a store fence is a
//! third of a fenced line, and an access takes 0.9 ns. A line of a batch takes 1 / 3.5 of a line
//! that is fenced alone, so four flushes run at the same time. `dc cvac` leaves the line in the
//! caches. A small core in order has a prefetcher that runs two lines ahead of a stream, not eight.

use super::tree::{BTREE, CRABTREE, CRABTREE_OPT, Design, FASTFAIR, NVTREE};
use super::trial::{Outcome, Trial, with_each};
use super::{FigureError, On, Panel, Setting};
use crate::model::{Device, Phase, Shifts, Tuning, Workload};
use bristlecone_designs::Fill;
use bristlecone_designs::nvtree::Adaptivity;

/// Bytes of a node.
pub(super) const SIZES: [u32; 4] = [1024, 2048, 4096, 8192];
pub(super) const LARGEST: usize = SIZES.len() - 1;

/// The compared trees, by the paper's names.
pub(super) const DESIGNS: [Design; 5] = [
    BTREE.named("Volatile"),
    FASTFAIR,
    CRABTREE,
    CRABTREE_OPT,
    NVTREE.tuned(Tuning::Nv {
        adaptivity: Adaptivity::Off,
        blind: false,
    }),
];
pub(super) const FAIR: usize = 1;
pub(super) const CRAB: usize = 2;
pub(super) const OPT: usize = 3;
pub(super) const NV: usize = 4;

/// Returns a Crab-tree that changes its leaves in this way, with these of its optimizations.
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

/// Returns the keys of a tree for which the paper has a million.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(400_000, PAPER_KEYS),
        _ => setting.scale.amount(20_000, PAPER_KEYS),
    }
}

/// Returns the keys of a tree for which the paper has ten million.
pub(super) fn more_keys(setting: &Setting<'_>) -> u64 {
    match setting.on {
        On::Host => setting.scale.amount(1_600_000, 10 * PAPER_KEYS),
        _ => setting.scale.amount(45_000, 4 * PAPER_KEYS),
    }
}

/// Returns the board, with caches that hold the same share of a tree of `keys` keys as its own hold
/// of a million's.
pub(super) fn board(keys: u64) -> Result<Device, FigureError> {
    Ok(Device::load("nvdimm")?.with_core(|core| {
        core.l1_bytes = 8 << 10;
        core.l2_bytes = 8 << 10;
        core.l3_bytes = ((LAST_CACHE * keys / PAPER_KEYS) >> 10 << 10).max(16 << 10);
        core.line_fill_buffers = 4;
        core.stream_lines = 2;
        core.access_ns = 0.9;
        core.store_fence_ns = 19.0;
        core.flush_keeps_line = true;
    })?)
}

/// Returns the trial of insertions of random keys into a tree with one key.
pub(super) fn insertions(design: Design, size: u32, device: &Device, keys: u64) -> Trial {
    let phases = [Phase::of(Workload::Insert, keys)];
    Trial::new(design.sized(size), device, 1, Fill::FULL, &phases)
}

/// Returns the trials of `designs` in every node size, by size.
pub(super) fn by_size(
    designs: &[Design],
    device: &Device,
    trial: impl Fn(Design, u32, &Device) -> Trial,
) -> Vec<Vec<Trial>> {
    let trials = |bytes: &u32| {
        let designs = designs.iter();
        designs
            .map(|design| trial(*design, *bytes, device))
            .collect()
    };
    SIZES.iter().map(trials).collect()
}

/// Returns a panel of all of [`DESIGNS`] over all sizes.
pub(super) fn panel(
    (title, y): (&str, &str),
    outcomes: &[Vec<Vec<Outcome>>],
    of: impl Fn(&[Outcome]) -> f64,
) -> Panel {
    let panel = Panel::lines(title, "bytes of a node", y, SIZES.map(f64::from));
    with_each(panel, &DESIGNS, |design| {
        outcomes.iter().map(|trees| of(&trees[design])).collect()
    })
}

/// Returns the note on how a figure of this paper was measured.
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

/// The NV-Tree's options.
pub(super) const NV_PLAIN: &str = "the NV-Tree is without workload adaptivity";
