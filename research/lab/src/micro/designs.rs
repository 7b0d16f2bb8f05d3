//! The designs that can be measured: every one of the registry, in every leaf size, and those of
//! other programs.
//!
//! # Compilation
//! The timed loops, and the index in them, are compiled for exactly the design, leaf size and
//! medium that is measured. This module chooses among them, in one place ([`Make`]). Everything
//! else (plan, phases, peers, reopening, reports) is compiled once and calls the timed loops
//! through [`Measured`](super::target::Measured), once a slice. There are only three media, so that
//! a design compiles quickly:
//!
//! | requested | compiled for | because |
//! | --- | --- | --- |
//! | mapped | `Mapped` | for comparisons: flush and fence are one inlined instruction each |
//! | dax, journal | [`Auto`] | its predicted branch at a flush is nothing beside the medium |
//! | dram | `Dram` | flush and fence do nothing |
//!
//! The counting pass is on [`Auto`] too. A build with assertions, which measures nothing, is
//! compiled for that only, and calls the designs of the registry as
//! [engines](bristlecone_designs::engines).
//!
//! # Static dispatch
//! A measurement does not go through an engine, because its dynamic calls would be part of the
//! result: an engine's `get` takes 2 ns more (of 20 if everything is cached), and each entry of a
//! scan a tenth to a fifth more. [`Make`] is the only code that is compiled for every design.

use super::target::{Maker as Making, Target, Usage};
use super::{Event, MicroParams, MicroReport, ScalingReport, run_made, scale_made};
use crate::LabError;
use bristlecone_designs::designs::{AnyDesign, Choice, OwnDesign};
#[cfg(debug_assertions)]
use bristlecone_designs::engines::{Compiled, Engine, Maker};
use bristlecone_designs::{Design, DurableIndex, OrderedIndex, TreeError};
#[cfg(not(debug_assertions))]
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::media::{Auto, Media, MediaOptions};
use bristlecone_pmem::{Access, CommitError, MediumKind, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

const ROOT: &str = "bench";

/// The medium that "mapped" is compiled for.
#[cfg(not(debug_assertions))]
pub(crate) type Inlined = bristlecone_pmem::media::Mapped;
#[cfg(debug_assertions)]
pub(crate) type Inlined = Auto;

/// The medium that "dram" is compiled for.
#[cfg(not(debug_assertions))]
pub(crate) type Forgetting = Dram;
#[cfg(debug_assertions)]
pub(crate) type Forgetting = Auto;

/// Makes and opens an index from `u64` to `u64`.
trait Makes<M: Media>: Clone + Send + Sync + 'static {
    /// The index.
    type Index: OrderedIndex<u64, u64> + 'static;

    fn create(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError>;

    fn open(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError>;

    fn close(index: Self::Index) -> Result<(), CommitError>;
}

/// A design for which the timed loops are compiled.
#[derive(Clone)]
struct Static<D>(D);

impl<D: Design, M: Media> Makes<M> for Static<D> {
    type Index = D::Index<u64, u64, M>;

    fn create(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError> {
        self.0.create(pool, ROOT)
    }

    fn open(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError> {
        self.0.open(pool, ROOT)
    }

    fn close(index: Self::Index) -> Result<(), CommitError> {
        DurableIndex::close(index)
    }
}

/// A design as an engine.
#[cfg(debug_assertions)]
#[derive(Clone)]
struct Erased(AnyDesign);

#[cfg(debug_assertions)]
impl Erased {
    fn maker<M: Compiled<u64, u64>>(&self) -> Box<dyn Maker<u64, u64, M>> {
        M::maker_of(self.0.clone()).expect("every design holds numbers")
    }
}

#[cfg(debug_assertions)]
impl<M: Compiled<u64, u64>> Makes<M> for Erased {
    type Index = Box<dyn Engine<u64, u64>>;

    fn create(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError> {
        self.maker().create(pool, ROOT)
    }

    fn open(&self, pool: &Arc<Pool<M>>) -> Result<Self::Index, TreeError> {
        self.maker().open(pool, ROOT)
    }

    fn close(index: Self::Index) -> Result<(), CommitError> {
        index.close()
    }
}

/// An index alone in its pool.
struct Alone<T: Makes<M>, M: Media> {
    // The index comes before the pool, so that it is dropped first.
    index: T::Index,
    pool: Arc<Pool<M>>,
}

impl<T: Makes<M>, M: Media> Target<M> for Alone<T, M> {
    type Design = T;
    type Index = T::Index;

    fn create(design: &T, path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = MediaOptions {
            access: Access::Create,
            ..media.clone()
        };
        let pool = Pool::create(path, &PoolOptions { media })?;
        let index = design
            .create(&pool)
            .map_err(|e| LabError::index("creating the index", e))?;
        Ok(Self { index, pool })
    }

    fn open(design: &T, path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = media.clone();
        let pool = Pool::open(path, &PoolOptions { media })?;
        let index = design
            .open(&pool)
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
            // The pool holds nothing else, so its own tables count too.
            pm_bytes: stats.pm_bytes.max(self.pool.info().used_bytes),
            dram_bytes: stats.dram_bytes,
        }
    }

    fn close(self) -> Result<(), LabError> {
        T::close(self.index).map_err(|e| LabError::index("closing the index", e))
    }
}

/// Makes the chosen design on the requested medium.
struct Make(MediumKind);

impl Make {
    fn of<T>(self, design: T) -> Result<Making, LabError>
    where
        T: Makes<Inlined> + Makes<Auto> + Makes<Forgetting>,
    {
        Ok(match self.0 {
            MediumKind::Mapped => Making::of::<Inlined, Alone<T, _>, Alone<T, _>>(design),
            MediumKind::Dax | MediumKind::Journal => {
                Making::of::<Auto, Alone<T, _>, Alone<T, _>>(design)
            }
            MediumKind::Dram => Making::of::<Forgetting, Alone<T, _>, Alone<T, _>>(design),
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

#[cfg(not(debug_assertions))]
impl bristlecone_designs::designs::Task for Make {
    type Output = Result<Making, LabError>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        self.of(Static(design))
    }
}

fn maker(params: &MicroParams) -> Result<Making, LabError> {
    params.check()?;
    let choice = Choice {
        node_bytes: params.node_bytes,
        ..Choice::of(&params.index)
    };
    let design = AnyDesign::of(&choice)?;
    #[cfg(not(debug_assertions))]
    return design.run(Make(params.medium));
    #[cfg(debug_assertions)]
    Make(params.medium).of(Erased(design))
}

/// Measures `params.index`. Calls `progress` after every slice.
///
/// # Errors
/// [`LabError`] if a parameter is out of range, or a contender refuses an operation or gives a
/// wrong answer. Files are removed in any case.
pub fn run(
    params: &MicroParams,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<MicroReport, LabError> {
    let (info, node_bytes) = params.check()?;
    run_made(params, info.name, node_bytes, &maker(params)?, progress)
}

/// As [`run`], for a design that is not in the registry. `params.index` and `params.node_bytes` do
/// not count.
///
/// # Errors
/// As [`run`].
pub fn run_own<D: Design>(
    params: &MicroParams,
    own: &OwnDesign<D>,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<MicroReport, LabError> {
    params.check_rest()?;
    let maker = Make(params.medium).of(Static(own.design.clone()))?;
    run_made(params, own.name, own.node_bytes, &maker, progress)
}

/// Compares one thread with `threads` on `params.index`. One half of each slice's keys is done by
/// one thread and the other by all, in alternating order.
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
