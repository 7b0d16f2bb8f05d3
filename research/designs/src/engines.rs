//! Designs as engines of a store, whose own is the LB+-Tree.

use crate::designs::{Design, Nv, table};
use crate::index::TreeError;
use crate::nvtree::NvOptions;
use bristlecone_index::engine::{Engine, EngineInfo, EngineKind, engine};
use bristlecone_pmem::{Media, Pool};
use std::sync::Arc;

/// Engines of a design.
#[derive(Clone, Copy, Debug)]
pub struct Kind<D> {
    info: EngineInfo,
    /// The design with that leaf size, recovered by so many threads.
    design: fn(u32, usize) -> D,
}

impl<D: Design, M: Media> EngineKind<M> for Kind<D> {
    fn info(&self) -> EngineInfo {
        self.info
    }

    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        let design = (self.design)(node_bytes, recovery_threads);
        design.create::<[u8], u64, M>(pool, root).map(engine)
    }

    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        let design = (self.design)(node_bytes, recovery_threads);
        design.open::<[u8], u64, M>(pool, root).map(engine)
    }
}

/// NV-Trees.
pub const NVTREE: Kind<Nv> = Kind {
    info: EngineInfo {
        name: table::NVTREE.name,
        node_bytes: table::NVTREE.node_bytes,
        default_node_bytes: table::NVTREE.default_node_bytes,
    },
    design: |leaf_bytes, recovery_threads| {
        Nv(NvOptions {
            leaf_bytes,
            recovery_threads,
            ..NvOptions::default()
        })
    },
};
