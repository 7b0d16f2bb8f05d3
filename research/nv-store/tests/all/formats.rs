//! The format that these tests are about: NV-Store. `crates/store` runs the same tests on the
//! clustered tree, with a module of this name of its own.

use bristlecone_designs::engines::NVTREE;
use bristlecone_index::engine::{EngineKind, LbEngine};
use bristlecone_nv_store::NvStore;
use bristlecone_pmem::{Media, Pool};
use bristlecone_store::{
    BackupError, BackupReport, SalvageReport, Salvaged, Store, StoreError, StoreOptions,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The designs of the index of a store.
pub const ALL: [&str; 2] = ["nvtree", "lbtree"];

/// The design of stores that are made without naming one.
pub const USUAL: &str = "lbtree";

/// Returns the engine of a design.
fn kind<M: Media>(design: &str) -> &'static dyn EngineKind<M> {
    match design {
        "lbtree" => &LbEngine,
        "nvtree" => &NVTREE,
        _ => panic!("no test has {design}"),
    }
}

/// Makes store `name` with an index of that design.
pub fn create<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    design: &str,
    options: &StoreOptions,
) -> Result<Store<M>, StoreError> {
    let format = &NvStore::over(&[kind(design)]).recovery_threads(2);
    Store::create_as(pool, name, options, format)
}

/// Opens store `name`, whatever its index's design.
pub fn open<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    options: &StoreOptions,
) -> Result<Store<M>, StoreError> {
    let kinds = ALL.map(kind);
    let format = &NvStore::over(&kinds).recovery_threads(2);
    Store::open_with(pool, name, options, &[format])
}

/// Makes store `name`, with an index of that design, from a backup.
pub fn restore<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    design: &str,
    options: &StoreOptions,
    from: &mut impl std::io::Read,
) -> Result<(Store<M>, BackupReport), BackupError> {
    let format = &NvStore::over(&[kind(design)]).recovery_threads(2);
    Store::restore_as(pool, name, options, format, from)
}

/// Visits what store `name` still has, whatever its index's design.
pub fn salvage<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    now: u64,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Result<SalvageReport, StoreError> {
    let kinds = ALL.map(kind);
    Store::salvage_with(pool, name, &[&NvStore::over(&kinds)], now, visit)
}
