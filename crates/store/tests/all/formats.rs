//! The format that these tests are about: the clustered tree. `research/nv-store` runs the same
//! tests on NV-Store, with a module of this name of its own.

use crate::common::TREE;
use bristlecone_pmem::{Media, Pool};
use bristlecone_store::{
    BackupError, BackupReport, SalvageReport, Salvaged, Store, StoreError, StoreOptions,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// All designs of a store.
pub const ALL: [&str; 1] = [TREE];

/// The design of stores that are made without naming one.
pub const USUAL: &str = TREE;

/// Makes store `name` of that design.
pub fn create<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    design: &str,
    options: &StoreOptions,
) -> Result<Store<M>, StoreError> {
    assert_eq!(design, TREE);
    Store::create(pool, name, options)
}

/// Opens store `name`, whatever its design.
pub fn open<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    options: &StoreOptions,
) -> Result<Store<M>, StoreError> {
    Store::open(pool, name, options)
}

/// Makes store `name` of that design from a backup.
pub fn restore<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    design: &str,
    options: &StoreOptions,
    from: &mut impl std::io::Read,
) -> Result<(Store<M>, BackupReport), BackupError> {
    assert_eq!(design, TREE);
    Store::restore(pool, name, options, from)
}

/// Visits what store `name` still has.
pub fn salvage<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    now: u64,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Result<SalvageReport, StoreError> {
    Store::salvage(pool, name, now, visit)
}
