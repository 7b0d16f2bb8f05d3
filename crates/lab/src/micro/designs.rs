//! The designs that can be measured: one [`Target`] and one line of dispatch each.
//!
//! Medium and leaf size are types, so that the loops that are timed are compiled for exactly the
//! design that is measured; which of them runs is decided here, once.

use super::{
    Design, Event, MicroParams, MicroReport, ScalingReport, Target, Usage, run_on, scaling_on,
};
use crate::LabError;
use bristlecone_pmem::media::{Counting, Dax, Dram, Journal, Mapped, Media, MediaOptions};
use bristlecone_pmem::{Access, MediumKind, Pool, PoolOptions};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::OrderedIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use std::path::Path;
use std::sync::Arc;

const ROOT: &str = "bench";

/// The LB+-Tree with leaves of `B` blocks of 256 bytes.
struct Lb<M: Media, const B: usize> {
    // Before the pool, so that it is closed first.
    tree: LbTree<u64, u64, M, B>,
    pool: Arc<Pool<M>>,
}

impl<M: Media, const B: usize> Target<M> for Lb<M, B> {
    type Index = LbTree<u64, u64, M, B>;

    fn create(path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = MediaOptions {
            access: Access::Create,
            ..media.clone()
        };
        let pool = Pool::create(path, &PoolOptions { media })?;
        let tree = LbTree::create(&pool, ROOT, &LbOptions::default())
            .map_err(|e| LabError::index("creating the index", e))?;
        Ok(Self { tree, pool })
    }

    fn open(path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let pool = Pool::open(
            path,
            &PoolOptions {
                media: media.clone(),
            },
        )?;
        let tree = LbTree::open(&pool, ROOT, &LbOptions::default())
            .map_err(|e| LabError::index("opening the index", e))?;
        Ok(Self { tree, pool })
    }

    fn index(&self) -> &Self::Index {
        &self.tree
    }

    fn media(&self) -> &M {
        self.pool.pm()
    }

    fn usage(&self) -> Usage {
        let stats = self.tree.stats();
        Usage {
            entries: stats.entries,
            // The pool holds nothing else, so its own tables count as well.
            pm_bytes: stats.pm_bytes.max(self.pool.info().used_bytes),
            dram_bytes: stats.dram_bytes,
        }
    }

    fn close(self) -> Result<(), LabError> {
        self.tree
            .close()
            .map_err(|e| LabError::index("closing the index", e))
    }
}

/// What is to be done with the types that were chosen.
trait Task {
    type Output;
    fn run<M, T, C>(self) -> Result<Self::Output, LabError>
    where
        M: Media,
        T: Target<M>,
        C: Target<Counting<Dram>>;
}

struct Run<'a>(&'a MicroParams, &'a mut dyn FnMut(&Event<'_>));

impl Task for Run<'_> {
    type Output = MicroReport;

    fn run<M, T, C>(self) -> Result<MicroReport, LabError>
    where
        M: Media,
        T: Target<M>,
        C: Target<Counting<Dram>>,
    {
        run_on::<M, T, C>(self.0, self.1)
    }
}

struct Scale<'a>(&'a MicroParams, usize, &'a mut dyn FnMut(&Event<'_>));

impl Task for Scale<'_> {
    type Output = ScalingReport;

    fn run<M, T, C>(self) -> Result<ScalingReport, LabError>
    where
        M: Media,
        T: Target<M>,
        C: Target<Counting<Dram>>,
    {
        scaling_on::<M, T>(self.0, self.1, self.2)
    }
}

fn dispatch<K: Task>(params: &MicroParams, task: K) -> Result<K::Output, LabError> {
    params.check()?;
    match params.index {
        Design::LbTree => match params.node_bytes / 256 {
            1 => lbtree::<K, 1>(params, task),
            2 => lbtree::<K, 2>(params, task),
            3 => lbtree::<K, 3>(params, task),
            _ => lbtree::<K, 4>(params, task),
        },
    }
}

fn lbtree<K: Task, const B: usize>(params: &MicroParams, task: K) -> Result<K::Output, LabError> {
    match params.medium {
        MediumKind::Mapped => task.run::<_, Lb<Mapped, B>, Lb<_, B>>(),
        MediumKind::Dax => task.run::<_, Lb<Dax, B>, Lb<_, B>>(),
        MediumKind::Journal => task.run::<_, Lb<Journal, B>, Lb<_, B>>(),
        MediumKind::Dram => task.run::<_, Lb<Dram, B>, Lb<_, B>>(),
        MediumKind::Sim => Err(LabError::parameter(
            "medium",
            "sim",
            "dax, mapped, journal or dram: time on the simulator means nothing",
        )),
    }
}

/// Measures `params.index`; `progress` hears of every slice.
///
/// # Errors
/// [`LabError`] when a parameter makes no sense, a contender refuses an operation, or one answers
/// wrongly. Files are removed in any case.
pub fn run(
    params: &MicroParams,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<MicroReport, LabError> {
    dispatch(params, Run(params, progress))
}

/// Compares one thread with `threads` on `params.index`: each slice's keys are halved, one half
/// done by one thread and one by all, in an order that alternates.
///
/// # Errors
/// As [`run`].
pub fn scaling(
    params: &MicroParams,
    threads: usize,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<ScalingReport, LabError> {
    dispatch(params, Scale(params, threads, progress))
}
