//! How a design is run where it is not run as usual: options that figures vary.

use bristlecone_designs::btree::{GroupFlush, Search};
use bristlecone_designs::crabtree::{CrabOptions, Strategy};
use bristlecone_designs::designs::{
    AnyDesign, Choice, Crab, Lb, Lcb, Ls, Nv, UnknownDesign, Unsorted, Wal,
};
use bristlecone_designs::nvtree::{Adaptivity, NvOptions};
use bristlecone_designs::{BTreeOptions, LbOptions, LsOptions};

/// How a design is run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Tuning {
    /// As the registry says.
    #[default]
    Usual,
    /// A design of the B+-tree family searches its sorted nodes key by key.
    Linear,
    /// An NV-Tree resizes its leaves so.
    Nv(Adaptivity),
    /// A Crab-tree changes its leaves so, with these of its optimizations.
    Crab {
        shifts: Shifts,
        self_managed: bool,
        probe: bool,
        atomic16: bool,
    },
    /// A log-structured tree has so many logs and mapped deltas, with tags to tell them apart or without; its writers
    /// collect when there are so many bytes of garbage, or never.
    Logs {
        logs: u32,
        deltas: u32,
        tags: bool,
        garbage: Option<u64>,
    },
}

/// How a Crab-tree changes a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shifts {
    /// In the cheaper way.
    Cheaper,
    /// Never: it copies.
    Never,
    /// Always.
    Always,
}

/// The LB+-Tree without entry moving, as a design by a name of its own.
pub(crate) const TRADITIONAL: &str = "lbtree-traditional";

/// Returns the design `index`, run as `tuning` says.
///
/// # Errors
/// [`UnknownDesign`]; also for a design that cannot be run so.
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
    let (info, bytes) = choice.resolve()?;
    if traditional {
        let options = LbOptions {
            entry_moving: false,
            recovery_threads,
        };
        return Ok(match bytes {
            256 => Lb::<1>(options).into(),
            512 => Lb::<2>(options).into(),
            _ => Lb::<4>(options).into(),
        });
    }
    let btree = BTreeOptions {
        node_bytes: Some(bytes),
        recovery_threads,
        search: Search::Linear,
        ..BTreeOptions::default()
    };
    let volatile = BTreeOptions {
        volatile: true,
        ..btree
    };
    Ok(match (tuning, info.name) {
        (Tuning::Usual, _) => return AnyDesign::of(&choice),
        (Tuning::Linear, "btree") => AnyDesign::from(Lcb(volatile)),
        (Tuning::Linear, "btree-gf") => AnyDesign::from(Lcb(BTreeOptions {
            group_flush: GroupFlush::On,
            ..volatile
        })),
        (Tuning::Linear, "unsorted-leaf") => AnyDesign::from(Unsorted(volatile)),
        (Tuning::Linear, "btree-wal") => AnyDesign::from(Wal(btree)),
        (Tuning::Linear, "unsorted") => AnyDesign::from(Unsorted(btree)),
        (Tuning::Nv(adaptivity), "nvtree") => AnyDesign::from(Nv(NvOptions {
            leaf_bytes: bytes,
            adaptivity,
            recovery_threads,
        })),
        (
            Tuning::Crab {
                shifts,
                self_managed,
                probe,
                atomic16,
            },
            "crabtree" | "crabtree-opt",
        ) => AnyDesign::from(Crab(CrabOptions {
            leaf_bytes: bytes,
            strategy: match shifts {
                Shifts::Cheaper => Strategy::Choose,
                Shifts::Never => Strategy::CopyOnWrite,
                Shifts::Always => Strategy::ShiftInPlace,
            },
            self_managed,
            probe,
            atomic16,
            recovery_threads,
            ..CrabOptions::PLAIN
        })),
        (
            Tuning::Logs {
                logs,
                deltas,
                tags,
                garbage,
            },
            "lstree",
        ) => AnyDesign::from(Ls(LsOptions {
            leaf_bytes: bytes,
            logs,
            cached_deltas: deltas,
            tags,
            garbage_percent: 0,
            garbage_bytes: garbage.unwrap_or(u64::MAX),
            writers_collect: garbage.is_some(),
            recovery_threads,
            ..LsOptions::default()
        })),
        // The figures ask each design for what it has.
        _ => return Err(UnknownDesign::Name(format!("{} {tuning:?}", info.name))),
    })
}
