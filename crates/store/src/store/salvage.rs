//! Salvage: reads what a damaged store still has, entry by entry, without opening it.
//!
//! Salvage walks the tree and judges each entry by itself. One whose checksum is right is as it was
//! written.
//!
//! Nothing in the pool is changed: [`Store::salvage_into`] makes another store of what is whole.
//! Inside `bristlecone_index::damage::collecting_damage`, damaged keys of the index are skipped
//! too.

use super::Store;
use crate::batch::Batch;
use crate::catalogue::Keyspace;
use crate::error::{SalvageError, StoreError, WriteError};
use crate::format::{self, StoreFormat};
use crate::report::{SalvageReport, Salvaged};
use crate::tree::Clustered;
use bristlecone_pmem::{Media, Pool};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of keys and values that are written together.
const TOGETHER: usize = 256 << 10;

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
        let mut passed = Vec::new();
        let (store, format) = format::open_to_salvage(pool, name, formats, &mut passed)?;
        let mut report = format.salvage(pool, &store, now, visit)?;
        report.passed.splice(0..0, passed);
        Ok(report)
    }

    /// Writes all that is whole in the store `name`, which must not be open, to the store `into`,
    /// with its expiries. Keyspaces whose names are lost are named by their
    /// [numbers](Salvaged::keyspace_name), with an apostrophe if another has that name. `seen` is
    /// told of everything, whole and damaged.
    ///
    /// # Errors
    /// [`SalvageError`]; what was written so far is in `into`.
    pub fn salvage_into<N: Media>(
        pool: &Arc<Pool<M>>,
        name: &str,
        now: u64,
        into: &Store<N>,
        seen: &mut dyn FnMut(&Salvaged<'_>),
    ) -> Result<SalvageReport, SalvageError> {
        let mut copy = Copy {
            into,
            keyspaces: BTreeMap::new(),
            nameless: BTreeMap::new(),
            batch: Batch::new(),
            bytes: 0,
        };
        let mut refused = None;
        let report = Self::salvage(pool, name, now, &mut |salvaged| {
            seen(&salvaged);
            match copy.take(&salvaged) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    refused = Some(e);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(e) = refused {
            return Err(e.into());
        }
        copy.write()?;
        // Also those that are empty.
        for name in &report.keyspaces {
            copy.keyspace_named(name)?;
        }
        Ok(report)
    }
}

/// Entries on their way to another store.
struct Copy<'s, N: Media> {
    into: &'s Store<N>,
    /// By their numbers in the damaged store.
    keyspaces: BTreeMap<u32, Keyspace>,
    /// Those whose names are lost, by the names that they have.
    nameless: BTreeMap<String, Keyspace>,
    batch: Batch,
    bytes: usize,
}

impl<N: Media> Copy<'_, N> {
    fn take(&mut self, salvaged: &Salvaged<'_>) -> Result<(), WriteError> {
        let Ok(entry) = &salvaged.found else {
            return Ok(());
        };
        let keyspace = match self.keyspaces.get(&salvaged.number) {
            Some(there) => there,
            None => {
                let made = match salvaged.keyspace {
                    Some(name) => self.keyspace_named(name)?,
                    None => {
                        let name = self.free_name(salvaged.keyspace_name());
                        let made = self.into.keyspace(&name)?;
                        self.nameless.entry(name).or_insert(made).clone()
                    }
                };
                self.keyspaces.entry(salvaged.number).or_insert(made)
            }
        };
        self.batch
            .put_expiring(keyspace, salvaged.key, entry.value, entry.expires_at);
        self.bytes += salvaged.key.len() + entry.value.len();
        if self.bytes >= TOGETHER {
            self.write()?;
        }
        Ok(())
    }

    /// Returns the keyspace of that name, which is not lost. One that has only been called so is
    /// called otherwise.
    fn keyspace_named(&mut self, name: &str) -> Result<Keyspace, WriteError> {
        if let Some(other) = self.nameless.remove(name) {
            let free = self.free_name(name.to_owned());
            let renamed = self.into.rename_keyspace(&other, &free)?;
            self.nameless.insert(free, renamed);
        }
        self.into.keyspace(name)
    }

    fn free_name(&self, mut name: String) -> String {
        while self.into.find_keyspace(&name).is_some() {
            name.push('\'');
        }
        name
    }

    fn write(&mut self) -> Result<(), WriteError> {
        self.bytes = 0;
        self.into.write(std::mem::take(&mut self.batch)).map(drop)
    }
}
