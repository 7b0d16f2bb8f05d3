//! Salvage: reads what a damaged store still has, entry by entry, without opening it.
//!
//! Salvage walks the tree and judges each entry by itself. One whose checksum is right is as it was
//! written.
//!
//! Nothing in the pool is changed. Inside `bristlecone_index::damage::collecting_damage`, damaged
//! keys of the index are skipped too.

use super::Store;
use crate::error::StoreError;
use crate::format::{self, StoreFormat};
use crate::report::{SalvageReport, Salvaged};
use crate::tree::Clustered;
use bristlecone_pmem::{Media, Pool};
use std::ops::ControlFlow;
use std::sync::Arc;

impl<M: Media> Store<M> {
    /// Visits each key of the store `name`, which must not be open. Damaged entries of the
    /// catalogue come first, then all keys that have not expired by `now` (ms since 1970), ordered
    /// by number of keyspace, then by key.
    ///
    /// # Errors
    /// [`StoreError`]: the root is damaged, or the tree as a whole.
    pub fn salvage(
        pool: &Arc<Pool<M>>,
        name: &str,
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        Self::salvage_with(pool, name, &[&Clustered], now, visit)
    }

    /// As [`salvage`](Self::salvage), of a store that has one of these formats.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn salvage_with(
        pool: &Arc<Pool<M>>,
        name: &str,
        formats: &[&dyn StoreFormat<M>],
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        let (store, format) = format::open(pool, name, formats)?;
        format.salvage(pool, &store, now, visit)
    }
}
