//! The options of designs that figures vary.

use bristlecone_designs::btree::{GroupFlush, Search};
use bristlecone_designs::crabtree::{CrabOptions, Strategy};
use bristlecone_designs::designs::{
    AnyDesign, Choice, Crab, Lb, Lcb, Ls, Nv, UnknownDesign, Unsorted, Wal,
};
use bristlecone_designs::nvtree::{Adaptivity, NvOptions};
use bristlecone_designs::{BTreeOptions, CentralOptions, LbOptions, LsOptions, SplitLog};

/// The options of a design.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Tuning {
    /// The registry's defaults.
    #[default]
    Usual,
    /// A design of the B+-tree family searches its sorted nodes key by key.
    Linear,
    /// An NV-Tree resizes its leaves by this strategy, and looks for a key before it inserts it or
    /// does not.
    Nv { adaptivity: Adaptivity, blind: bool },
    /// A tree with centralised leaves logs this in splits, and, a wB+-Tree, removes lazily.
    Central {
        split_log: SplitLog,
        lazy_removal: bool,
    },
    /// A Crab-tree changes its leaves in this way, with these of its optimizations.
    Crab {
        shifts: Shifts,
        self_managed: bool,
        probe: bool,
        atomic16: bool,
    },
    /// A log-structured tree with a number of logs and mapped deltas, with or without tags on the
    /// deltas. Its writers collect garbage above a number of bytes, or never. Like the paper's
    /// Fill, it inserts keys without looking for them.
    Logs {
        logs: u32,
        deltas: u32,
        tags: bool,
        garbage: Option<u64>,
    },
}

/// The way in which a Crab-tree changes a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shifts {
    /// Shifts or copies, whichever is cheaper.
    Cheaper,
    /// Always copies.
    Never,
    /// Always shifts.
    Always,
}

/// The name of the LB+-Tree without entry moving.
pub(crate) const TRADITIONAL: &str = "lbtree-traditional";

/// Returns the design `index`, run as `tuning` says.
///
/// # Errors
/// [`UnknownDesign`], also for a design that does not have this tuning.
pub(crate) fn tuned(
    index: &str,
    node_bytes: Option<u32>,
    recovery_threads: usize,
    tuning: Tuning,
) -> Result<AnyDesign, UnknownDesign> {
    let traditional = index == TRADITIONAL;
    let choice = Choice {
        name: if traditional { "lbtree" } else { index },
        node_bytes,
        recovery_threads,
    };
    let (info, leaf_bytes) = choice.resolve()?;
    let design = match (tuning, info.name) {
        _ if traditional => Some(without_moving(leaf_bytes, recovery_threads)),
        (Tuning::Usual, _) => return AnyDesign::of(&choice),
        (Tuning::Linear, name) => linear(name, leaf_bytes, recovery_threads),
        (Tuning::Nv { adaptivity, blind }, "nvtree") => Some(AnyDesign::from(Nv(NvOptions {
            leaf_bytes,
            adaptivity,
            blind,
            recovery_threads,
        }))),
        (
            Tuning::Central {
                split_log,
                lazy_removal,
            },
            name,
        ) => AnyDesign::central(
            name,
            leaf_bytes,
            CentralOptions {
                split_log,
                lazy_removal,
                recovery_threads,
            },
        ),
        (
            Tuning::Crab {
                shifts,
                self_managed,
                probe,
                atomic16,
            },
            "crabtree" | "crabtree-opt",
        ) => Some(AnyDesign::from(Crab(CrabOptions {
            leaf_bytes,
            strategy: shifts.strategy(),
            self_managed,
            probe,
            atomic16,
            recovery_threads,
            ..CrabOptions::PLAIN
        }))),
        (
            Tuning::Logs {
                logs,
                deltas,
                tags,
                garbage,
            },
            "lstree",
        ) => Some(AnyDesign::from(Ls(LsOptions {
            leaf_bytes,
            logs,
            cached_deltas: deltas,
            tags,
            garbage_percent: 0,
            garbage_bytes: garbage.unwrap_or(u64::MAX),
            writers_collect: garbage.is_some(),
            blind: true,
            recovery_threads,
            ..LsOptions::default()
        }))),
        _ => None,
    };
    // A figure only asks a design for what it has.
    design.ok_or_else(|| UnknownDesign::Name(format!("{} {tuning:?}", info.name)))
}

impl Shifts {
    fn strategy(self) -> Strategy {
        match self {
            Self::Cheaper => Strategy::Choose,
            Self::Never => Strategy::CopyOnWrite,
            Self::Always => Strategy::ShiftInPlace,
        }
    }
}

/// Returns the LB+-Tree without entry moving.
fn without_moving(leaf_bytes: u32, recovery_threads: usize) -> AnyDesign {
    let options = LbOptions {
        entry_moving: false,
        recovery_threads,
    };
    match leaf_bytes {
        256 => Lb::<1>(options).into(),
        512 => Lb::<2>(options).into(),
        _ => Lb::<4>(options).into(),
    }
}

/// Returns a design of the B+-tree family with linear search; `None` for any other design.
fn linear(name: &str, leaf_bytes: u32, recovery_threads: usize) -> Option<AnyDesign> {
    let durable = BTreeOptions {
        node_bytes: Some(leaf_bytes),
        recovery_threads,
        search: Search::Linear,
        ..BTreeOptions::default()
    };
    let volatile = BTreeOptions {
        volatile: true,
        ..durable
    };
    Some(match name {
        "btree" => Lcb(volatile).into(),
        "btree-gf" => Lcb(BTreeOptions {
            group_flush: GroupFlush::On,
            ..volatile
        })
        .into(),
        "unsorted-leaf" => Unsorted(volatile).into(),
        "btree-wal" => Wal(durable).into(),
        "unsorted" => Unsorted(durable).into(),
        _ => return None,
    })
}
