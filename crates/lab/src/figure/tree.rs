//! Designs under test, loaded in bulk, on the host.
//!
//! The papers load a tree to a given share of its leaves and then time few insertions beside the
//! size of the tree. A design is known by the name that the device model takes as well.

use super::FigureError;
use crate::LabError;
use crate::micro::MicroParams;
use crate::workload::{Keys, value_of};
use bristlecone_pmem::media::{Access, Mapped, MediaOptions};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_trees::designs::{self, Choice, Lb, Task, with_design};
use bristlecone_trees::{BulkLoad, Fill, LbOptions, OrderedIndex};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A design that figures compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Design {
    /// What `--index` of `bristlecone model` calls it.
    pub index: &'static str,
    /// What a paper's diagram calls it.
    pub name: &'static str,
}

/// The LB+-Tree with leaves of 256 bytes.
pub(super) const LBTREE: Design = Design {
    index: "lbtree",
    name: "entry moving",
};

/// The same without entry moving.
pub(super) const LBTREE_TRADITIONAL: Design = Design {
    index: "lbtree-traditional",
    name: "traditional",
};

/// A tree under test.
pub(super) trait Subject {
    /// Inserts `keys` one by one.
    fn insert(&self, keys: &[u64]) -> Result<Duration, FigureError>;
}

impl Design {
    /// The design on this machine, in a pool at `path`, with `keys` (sorted) in it.
    pub fn load(
        &self,
        path: &Path,
        keys: &[u64],
        fill: Fill,
    ) -> Result<Box<dyn Subject>, FigureError> {
        let load = Load { path, keys, fill };
        if self.index == LBTREE_TRADITIONAL.index {
            return load.run(Lb::<1>(LbOptions {
                entry_moving: false,
                ..LbOptions::default()
            }));
        }
        with_design(&Choice::of(self.index), load).map_err(LabError::from)?
    }
}

struct Loaded<I>(I);

impl<I: OrderedIndex<u64, u64>> Subject for Loaded<I> {
    fn insert(&self, keys: &[u64]) -> Result<Duration, FigureError> {
        let started = Instant::now();
        for key in keys {
            self.0
                .insert(key, &value_of(*key))
                .map_err(|e| LabError::index("inserting", e))?;
        }
        Ok(started.elapsed())
    }
}

/// Makes a pool with these sorted keys in it.
struct Load<'a> {
    path: &'a Path,
    keys: &'a [u64],
    fill: Fill,
}

impl Task for Load<'_> {
    type Output = Result<Box<dyn Subject>, FigureError>;

    fn run<D: designs::Design>(self, design: D) -> Self::Output {
        let media = MediaOptions {
            access: Access::Create,
            ..MediaOptions::default()
        };
        let pool = Pool::<Mapped>::create(self.path, &PoolOptions { media })?;
        let mut index = design
            .create::<u64, u64, Mapped>(&pool, "index")
            .map_err(|e| LabError::index("creating the index", e))?;
        let pairs = self.keys.iter().map(|key| (*key, value_of(*key)));
        index
            .bulk_load(pairs, self.fill)
            .map_err(|e| LabError::index("loading in bulk", e))?;
        Ok(Box::new(Loaded(index)))
    }
}

/// A directory for the pools of a run, removed with all that is in it when it is dropped.
pub(super) fn scratch() -> Result<TempDir, FigureError> {
    let parent = MicroParams::default().path;
    tempfile::Builder::new()
        .prefix("bristlecone-figure-")
        .tempdir_in(&parent)
        .map_err(|e| LabError::io(&parent, "making a directory for the run", e).into())
}

/// The first `count` random keys of `seed`, sorted.
pub(super) fn sorted_keys(seed: u64, count: u64) -> Vec<u64> {
    let spread = Keys::Random { seed };
    let mut keys: Vec<u64> = (0..count).map(|n| spread.key(n)).collect();
    keys.sort_unstable();
    keys
}
