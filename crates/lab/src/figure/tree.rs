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
use bristlecone_trees::DurableIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::{BulkLoad, Fill, OrderedIndex};
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
    host: Load,
}

/// Makes a design's pool at a path, with these sorted keys in it.
type Load = fn(&Path, &[u64], Fill) -> Result<Box<dyn Subject>, FigureError>;

/// The LB+-Tree with leaves of 256 bytes.
pub(super) const LBTREE: Design = Design {
    index: "lbtree",
    name: "entry moving",
    host: |path, keys, fill| lbtree(path, keys, fill, true),
};

/// The same without entry moving.
pub(super) const LBTREE_TRADITIONAL: Design = Design {
    index: "lbtree-traditional",
    name: "traditional",
    host: |path, keys, fill| lbtree(path, keys, fill, false),
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
        (self.host)(path, keys, fill)
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

fn lbtree(
    path: &Path,
    keys: &[u64],
    fill: Fill,
    entry_moving: bool,
) -> Result<Box<dyn Subject>, FigureError> {
    let media = MediaOptions {
        access: Access::Create,
        ..MediaOptions::default()
    };
    let pool = Pool::<Mapped>::create(path, &PoolOptions { media })?;
    let options = LbOptions {
        entry_moving,
        ..LbOptions::default()
    };
    let mut tree = LbTree::<u64, u64, Mapped, 1>::create(&pool, "index", &options)
        .map_err(|e| LabError::index("creating the index", e))?;
    tree.bulk_load(keys.iter().map(|key| (*key, value_of(*key))), fill)
        .map_err(|e| LabError::index("loading in bulk", e))?;
    Ok(Box::new(Loaded(tree)))
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
