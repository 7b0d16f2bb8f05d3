//! Salvage: reads what a damaged store still has, entry by entry, without opening it.
//!
//! Opening refuses a store whose catalogue or index is damaged, since everything that it counts
//! depends on them. Salvage walks the index and judges each entry by itself. A committed record
//! whose checksum, which covers the key, is right is as it was written.
//!
//! Nothing in the pool is changed. Inside `bristlecone_index::damage::collecting_damage`, damaged
//! keys of the index are skipped too.

use super::Store;
use crate::error::StoreError;
use crate::report::{SalvageReport, Salvaged};
use crate::root::{self, Format};
use crate::{records, tree};
use bristlecone_index::engine::{EngineKind, LbEngine};
use bristlecone_pmem::{Media, Pool};
use std::ops::ControlFlow;
use std::sync::Arc;

impl<M: Media> Store<M> {
    /// Visits each key of the store `name`, which must not be open. Damaged entries of the
    /// catalogue come first, then all keys that have not expired by `now` (ms since 1970), ordered
    /// by number of keyspace, then by key.
    ///
    /// # Errors
    /// [`StoreError`]: the root, the index as a whole or the commit table is damaged.
    pub fn salvage(
        pool: &Arc<Pool<M>>,
        name: &str,
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        Self::salvage_with(pool, name, &[&LbEngine], now, visit)
    }

    /// As [`salvage`](Self::salvage). The index of a store of version records is of one of these
    /// engines.
    ///
    /// # Errors
    /// As there.
    pub fn salvage_with(
        pool: &Arc<Pool<M>>,
        name: &str,
        kinds: &[&dyn EngineKind<M>],
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        let store = root::open(pool, name)?;
        match store.format {
            Format::Records => records::salvage(pool, &store, kinds, now, visit),
            Format::Tree => tree::salvage(pool, &store, now, visit),
        }
    }
}
