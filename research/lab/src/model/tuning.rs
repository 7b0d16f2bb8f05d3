//! How a design is run where it is not run as usual: options that figures vary.

use bristlecone_designs::BTreeOptions;
use bristlecone_designs::btree::{GroupFlush, Search};
use bristlecone_designs::designs::{
    Choice, Lcb, Nv, Task, UnknownDesign, Unsorted, Wal, with_design,
};
use bristlecone_designs::nvtree::{Adaptivity, NvOptions};

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

/// As [`with_design`], run as `tuning` says.
///
/// # Errors
/// [`UnknownDesign`]; also for a design that cannot be run so.
pub(crate) fn with_tuned<T: Task>(
    choice: &Choice<'_>,
    tuning: Tuning,
    task: T,
) -> Result<T::Output, UnknownDesign> {
    let (info, bytes) = choice.resolve()?;
    let recovery_threads = choice.recovery_threads;
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
        (Tuning::Usual, _) => return with_design(choice, task),
        (Tuning::Linear, "btree") => task.run(Lcb(volatile)),
        (Tuning::Linear, "btree-gf") => task.run(Lcb(BTreeOptions {
            group_flush: GroupFlush::On,
            ..volatile
        })),
        (Tuning::Linear, "unsorted-leaf") => task.run(Unsorted(volatile)),
        (Tuning::Linear, "btree-wal") => task.run(Wal(btree)),
        (Tuning::Linear, "unsorted") => task.run(Unsorted(btree)),
        (Tuning::Nv(adaptivity), "nvtree") => task.run(Nv(NvOptions {
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
        ) => {
            use bristlecone_designs::crabtree::{CrabOptions, Strategy};
            task.run(bristlecone_designs::designs::Crab(CrabOptions {
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
            }))
        }
        (
            Tuning::Logs {
                logs,
                deltas,
                tags,
                garbage,
            },
            "lstree",
        ) => task.run(bristlecone_designs::designs::Ls(
            bristlecone_designs::LsOptions {
                leaf_bytes: bytes,
                logs,
                cached_deltas: deltas,
                tags,
                garbage_percent: 0,
                garbage_bytes: garbage.unwrap_or(u64::MAX),
                writers_collect: garbage.is_some(),
                recovery_threads,
                ..bristlecone_designs::LsOptions::default()
            },
        )),
        // The figures ask each design for what it has.
        _ => return Err(UnknownDesign::Name(format!("{} {tuning:?}", info.name))),
    })
}
