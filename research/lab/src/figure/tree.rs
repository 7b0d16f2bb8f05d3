//! Designs under test, on the device model or loaded in bulk on the host.
//!
//! A design has the name that the device model takes, and figures add its name in the paper's
//! diagrams. On the host it is driven through [`Executes`], like on the model, so that a figure's
//! code is compiled once for all designs.

use super::FigureError;
use crate::LabError;
use crate::micro::MicroParams;
use crate::micro::designs::Inlined;
use crate::micro::reopen::copy_files;
use crate::model::{Executes, Index, Tuning, tuned};
use crate::workload::{Keys, value_of};
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_designs::designs::UnknownDesign;
use bristlecone_designs::engines::{Compiled, Maker};
use bristlecone_designs::{BulkLoad, Fill, SplitLog};
use bristlecone_pmem::media::{Access, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A design that figures compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Design {
    /// Its name for `--index` of `bristlecone-lab model`.
    pub index: &'static str,
    /// Its name in the paper's diagrams.
    pub name: &'static str,
    /// Bytes of a leaf; `None` for the design's default.
    pub node_bytes: Option<u32>,
    /// Its options.
    pub tuning: Tuning,
}

macro_rules! designs {
    ($($(#[$doc:meta])* $id:ident = $index:literal, $name:literal;)*) => {$(
        $(#[$doc])*
        pub(super) const $id: Design = Design {
            index: $index,
            name: $name,
            node_bytes: None,
            tuning: Tuning::Usual,
        };
    )*};
}

designs! {
    /// BzTree.
    BZTREE = "bztree", "BzTree";
    /// LB+-Tree.
    LBTREE = "lbtree", "LB+-Tree";
    /// The same without entry moving.
    LBTREE_TRADITIONAL = "lbtree-traditional", "LB+-Tree, traditional";
    /// wB+-Tree.
    WBTREE = "wbtree", "wB+-Tree";
    /// FPTree.
    FPTREE = "fptree", "FPTree";
    /// LCB+-Tree.
    LCBTREE = "lcbtree", "LCB+-Tree";
    /// CDDS-Tree.
    CDDSTREE = "cddstree", "CDDS-Tree";
    /// The conventional B+-tree, volatile.
    BTREE = "btree", "btree";
    /// The same, flushing neighbouring lines together.
    BTREE_GF = "btree-gf", "btree w GF";
    /// The same while many threads write.
    BTREE_GF_LOAD = "btree-gf-load", "btree w GF under load";
    /// Unsorted leaves, volatile.
    UNSORTED_LEAF = "unsorted-leaf", "unsorted leaf";
    /// Unsorted leaves.
    UNSORTED = "unsorted", "persistent unsorted";
    /// The conventional B+-tree under a write-ahead log.
    BTREE_WAL = "btree-wal", "btree-WAL";
    /// FAST/FAIR.
    FASTFAIR = "fastfair", "FAST/FAIR";
    /// The same under inner nodes in DRAM.
    FASTFAIR_SP = "fastfair-sp", "FAST/FAIR SP";
    /// Log-structured.
    LSTREE = "lstree", "btree-LS";
    /// Crab-tree.
    CRABTREE = "crabtree", "Crab-tree";
    /// Crab-tree with its three optimizations.
    CRABTREE_OPT = "crabtree-opt", "Crab_opt";
    /// NV-Tree's leaves under LCB+-Tree's inner nodes.
    NVTA = "nvta", "NVT-A";
    /// NV-Tree.
    NVTREE = "nvtree", "NV-Tree";
}

/// FPTree and wB+-Tree as the paper's cost of splits suggests: both leaves go into the log whole.
pub(super) const FPTREE_LOGGING: Design =
    FPTREE.named("FPTree, logging leaves").tuned(LOGGING_LEAVES);
pub(super) const WBTREE_LOGGING: Design = WBTREE
    .named("wB+-Tree, logging leaves")
    .tuned(LOGGING_LEAVES);
const LOGGING_LEAVES: Tuning = Tuning::Central {
    split_log: SplitLog::Leaves,
    lazy_removal: false,
};
/// wB+-Tree that removes with one NAW.
pub(super) const WBTREE_LAZY: Design = WBTREE.named("wB+-Tree, one NAW").tuned(Tuning::Central {
    split_log: SplitLog::Words,
    lazy_removal: true,
});

impl Design {
    /// Returns the design with leaves of a number of bytes.
    #[must_use]
    pub const fn sized(self, node_bytes: u32) -> Self {
        Self {
            node_bytes: Some(node_bytes),
            ..self
        }
    }

    /// Returns the design with another name.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Returns the design with other options.
    #[must_use]
    pub const fn tuned(self, tuning: Tuning) -> Self {
        Self { tuning, ..self }
    }

    /// Creates the design on this machine, in a pool at `path`, and loads the sorted `keys`.
    pub fn load(
        &self,
        path: &Path,
        keys: &[u64],
        fill: Fill,
    ) -> Result<Box<dyn Executes>, FigureError> {
        let pool = new_pool(path)?;
        let mut index = self
            .maker(1)?
            .create(&pool, "index")
            .map_err(|e| LabError::index("creating the index", e))?;
        let pairs = keys.iter().map(|key| (*key, value_of(*key)));
        index
            .bulk_load(pairs, fill)
            .map_err(|e| LabError::index("loading in bulk", e))?;
        Ok(Box::new(Index(index)))
    }

    /// Returns the maker that creates and opens it on this machine.
    fn maker(
        &self,
        recovery_threads: usize,
    ) -> Result<Box<dyn Maker<u64, u64, Inlined>>, FigureError> {
        let design = tuned(self.index, self.node_bytes, recovery_threads, self.tuning);
        let maker = Inlined::maker_of(design.map_err(LabError::from)?);
        let unknown = || LabError::from(UnknownDesign::Name(self.index.to_owned()));
        Ok(maker.ok_or_else(unknown)?)
    }
}

/// Creates a pool in shared memory.
pub(super) fn new_pool(path: &Path) -> Result<Arc<Pool<Inlined>>, FigureError> {
    let media = MediaOptions {
        access: Access::Create,
        medium: Some(MediumKind::Mapped),
        ..MediaOptions::default()
    };
    Ok(Pool::create(path, &PoolOptions { media })?)
}

/// Creates a directory for the pools of a run, which is removed with its content when it is
/// dropped.
pub(super) fn scratch() -> Result<Scratch, FigureError> {
    let parent = MicroParams::default().path;
    Scratch::new(&parent, Purpose::Figure)
        .map_err(|e| LabError::io(&parent, "making a directory for the run", e).into())
}

/// Returns the first `count` random keys of `seed`, sorted.
pub(super) fn sorted_keys(seed: u64, count: u64) -> Vec<u64> {
    let spread = Keys::Random { seed };
    let mut keys: Vec<u64> = (0..count).map(|n| spread.key(n)).collect();
    keys.sort_unstable();
    keys
}

/// A tree loaded to 70 % that is not closed. Copies of it are as a kill leaves them.
pub(super) struct Crashed {
    design: Design,
    keys: u64,
    /// Keeps the pool in use.
    _open: Box<dyn Executes>,
    dir: Scratch,
}

impl Crashed {
    /// Creates a tree of `keys` keys.
    pub fn new(design: Design, keys: u64) -> Result<Self, FigureError> {
        let dir = scratch()?;
        let sorted = sorted_keys(0, keys);
        let open = design.load(&dir.path().join(POOL), &sorted, Fill::USUAL)?;
        Ok(Self {
            design,
            keys,
            _open: open,
            dir,
        })
    }

    /// Recovers a fresh copy. Returns the time that the design reports.
    pub fn recover(&self, recovery_threads: usize) -> Result<Duration, FigureError> {
        let copies = copy_files(MediumKind::Mapped, &self.dir.path().join(POOL))?;
        let media = MediaOptions {
            medium: Some(MediumKind::Mapped),
            ..MediaOptions::default()
        };
        let pool = Pool::open(&copies.pool, &PoolOptions { media })?;
        let index = self
            .design
            .maker(recovery_threads)?
            .open(&pool, "index")
            .map_err(|e| LabError::index("opening the index", e))?;
        let report = index.recovery();
        if report.clean || report.entries != self.keys {
            return Err(LabError::WrongAnswer {
                contender: self.design.name.to_owned(),
                phase: "recovering after a kill",
                right: report.entries,
                of: self.keys,
            }
            .into());
        }
        Ok(report.elapsed)
    }
}

/// Name of the pool's file in its directory.
const POOL: &str = "pool";
