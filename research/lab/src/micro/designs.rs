//! The designs that can be measured: every one of the registry, in every leaf size.
//!
//! # What is compiled for what
//! The loops that are timed, and the index in them, are compiled for exactly the design, leaf size
//! and medium that is measured; which of them runs is decided here, once. All else (plan, phases,
//! peers, reopening, reports) is compiled once and calls the timed loops through [`Measured`], once a
//! slice. The media are three, so that a design costs as little as it can to compile:
//!
//! | asked for | compiled for | because |
//! | --- | --- | --- |
//! | mapped | `Mapped` | what designs are compared on: flush and fence are one inlined instruction each |
//! | dax, journal | [`Auto`] | the foreseen branch that it adds to a flush is lost in what the medium takes |
//! | dram | [`Dram`] | flush and fence are nothing |
//!
//! The pass that counts adds `Counting<Dram>`. A build with assertions, which measures nothing, makes do
//! with that and [`Auto`].

use super::target::{Maker, Target, Usage};
use super::{Event, MicroParams, MicroReport, ScalingReport, run_made, scale_made};
use crate::LabError;
use bristlecone_designs::designs::{Choice, Design, Task, with_design};
use bristlecone_designs::{DurableIndex, OrderedIndex};
use bristlecone_pmem::media::{Auto, Dram, Media, MediaOptions};
use bristlecone_pmem::{Access, MediumKind, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

const ROOT: &str = "bench";

/// What "mapped" is compiled for.
#[cfg(not(debug_assertions))]
pub(crate) type Inlined = bristlecone_pmem::media::Mapped;
#[cfg(debug_assertions)]
pub(crate) type Inlined = Auto;

/// What "dram" is compiled for.
#[cfg(not(debug_assertions))]
pub(crate) type Forgetting = Dram;
#[cfg(debug_assertions)]
pub(crate) type Forgetting = bristlecone_pmem::media::Counting<Dram>;

/// An index of a design `D`, alone in its pool.
struct Alone<D: Design, M: Media> {
    // Before the pool, so that it is closed first.
    index: D::Index<u64, u64, M>,
    pool: Arc<Pool<M>>,
}

impl<D: Design, M: Media> Target<M> for Alone<D, M> {
    type Design = D;
    type Index = D::Index<u64, u64, M>;

    fn create(design: &D, path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = MediaOptions {
            access: Access::Create,
            ..media.clone()
        };
        let pool = Pool::create(path, &PoolOptions { media })?;
        let index = design
            .create(&pool, ROOT)
            .map_err(|e| LabError::index("creating the index", e))?;
        Ok(Self { index, pool })
    }

    fn open(design: &D, path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = media.clone();
        let pool = Pool::open(path, &PoolOptions { media })?;
        let index = design
            .open(&pool, ROOT)
            .map_err(|e| LabError::index("opening the index", e))?;
        Ok(Self { index, pool })
    }

    fn index(&self) -> &Self::Index {
        &self.index
    }

    fn media(&self) -> &M {
        self.pool.pm()
    }

    fn usage(&self) -> Usage {
        let stats = self.index.stats();
        Usage {
            entries: stats.entries,
            // The pool holds nothing else, so its own tables count as well.
            pm_bytes: stats.pm_bytes.max(self.pool.info().used_bytes),
            dram_bytes: stats.dram_bytes,
        }
    }

    fn close(self) -> Result<(), LabError> {
        self.index
            .close()
            .map_err(|e| LabError::index("closing the index", e))
    }
}

/// Makes the chosen design on the medium asked for.
struct Make(MediumKind);

impl Task for Make {
    type Output = Result<Maker, LabError>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        Ok(match self.0 {
            MediumKind::Mapped => Maker::of::<Inlined, Alone<D, _>, Alone<D, _>>(design),
            MediumKind::Dax | MediumKind::Journal => {
                Maker::of::<Auto, Alone<D, _>, Alone<D, _>>(design)
            }
            MediumKind::Dram => Maker::of::<Forgetting, Alone<D, _>, Alone<D, _>>(design),
            MediumKind::Sim => {
                return Err(LabError::parameter(
                    "medium",
                    "sim",
                    "dax, mapped, journal or dram: time on the simulator means nothing",
                ));
            }
        })
    }
}

fn maker(params: &MicroParams) -> Result<Maker, LabError> {
    params.check()?;
    let choice = Choice {
        node_bytes: params.node_bytes,
        ..Choice::of(&params.index)
    };
    with_design(&choice, Make(params.medium))?
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
    run_made(params, &maker(params)?, progress)
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
    scale_made(params, &maker(params)?, threads, progress)
}
