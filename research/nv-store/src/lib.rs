//! NV-Store: a durable multi-version store of version records, to which an ordered index leads.
//!
//! It follows Yang, Wei, Wang, Chen, Wong, He: *NV-Tree* (IEEE TC), sections 6.1 and 6.6, which
//! outlines keys and values of any size, timestamps and snapshot isolation over an NV-Tree. The
//! paper keeps a timestamp in each element of a leaf. Here versions are records of their own
//! outside the leaves, so any index design works ([`EngineKind`]), and leaves stay small.
//!
//! ```text
//! index (LB+-Tree)               records (scan-recovered heap of the store's root)
//! (keyspace, key) --> offset --> | previous | stamp | length, flags, CRC-32C | expiry | value ... |
//!                                     |
//!                                     +--> the version before, while a snapshot may read it
//! ```
//!
//! It is a format of `bristlecone-store` ([`NvStore`]), whose handles, transactions, snapshots,
//! change feeds and backups work on it. The product keeps its keys in a clustered tree instead.
//!
//! # Costs
//! | what | costs |
//! | --- | --- |
//! | a write of one key | the lines of its record (24 bytes and the value) and a fence, then the index's insertion or update |
//! | a commit of several | the records, and one slot of the commit table, whose NAW commits all of them |
//! | a read | the index's lookup, and the record |
//! | opening | a walk through all keys, on two threads at most |
//! | a wrong byte | the key whose record it is in |
//!
//! Values are not compressed, compacting moves nothing, and
//! [`len`](bristlecone_store::Store::len) takes each stripe's lock for a moment.
//!
//! # Modules
//! Three roles build on one another, each a type: the `Reader`, the `Vacuum`, which adds what
//! writers and it share, and the `Committer`, which adds the keyspaces. Modules import only from
//! their own row and those below.
//!
//! | modules | hold |
//! | --- | --- |
//! | this one, `open`, `salvage` | [`NvStore`]; making and opening; what a damaged store still has |
//! | `engine`, `check` | the engine of an open store; verification and statistics |
//! | `keyspaces` | what the catalogue says; dropping keyspaces |
//! | `commit` | commits, and what a crash leaves of each |
//! | `vacuum`, `recovery` | freeing versions; opening after a crash |
//! | `newest`, `serial` | the newest version, for writers; validation of serialisable transactions |
//! | `read` | reading without locks |
//! | `stripes`, `slots`, `index` | writers' locks; the commit table; opening the index |
//! | `record` | version records |
//! | `clock`, `horizon`, `damaged` | timestamps and watermarks; versions that are still read; damaged entries |
//! | `checksum` | CRC-32C |
//!
//! # Example
//! ```
//! use bristlecone_nv_store::{LbEngine, NvStore};
//! use bristlecone_pmem::media::Dram;
//! use bristlecone_pmem::{Pool, PoolOptions};
//! use bristlecone_store::{Store, StoreOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
//! let format = NvStore::over(&[&LbEngine]);
//! let store = Store::create_as(&pool, "store", &StoreOptions::default(), &format)?;
//! let accounts = store.keyspace("accounts")?;
//! store.put(&accounts, b"alice", b"10")?;
//! store.close().map_err(|(_, e)| e)?;
//!
//! let store = Store::open_with(&pool, "store", &StoreOptions::default(), &[&format])?;
//! let accounts = store.keyspace("accounts")?;
//! assert_eq!(store.get(&accounts, b"alice")?.as_deref(), Some(&b"10"[..]));
//! # Ok(())
//! # }
//! ```

mod check;
mod checksum;
mod clock;
mod commit;
mod damaged;
mod engine;
mod horizon;
mod index;
mod keyspaces;
mod newest;
mod open;
mod read;
mod record;
mod recovery;
mod salvage;
mod serial;
mod slots;
mod stripes;
mod vacuum;

pub use bristlecone_index::engine::{EngineKind, LbEngine};

use bristlecone_pmem::{Media, Pool};
use bristlecone_store::engine::{NV_STORE, Shares, StorageEngine, StoreFormat, StoreRoot};
use bristlecone_store::{SalvageReport, Salvaged, StoreError, StoreOptions};
use engine::Records;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The format of NV-Store, over indexes of some designs.
///
/// [`StoreOptions::node_bytes`] is the size of the index's leaves. [`StoreOptions::compression`]
/// and [`StoreOptions::memory`] mean nothing to it.
pub struct NvStore<'k, M: Media> {
    kinds: Vec<&'k dyn EngineKind<M>>,
    recovery_threads: usize,
}

impl<'k, M: Media> NvStore<'k, M> {
    /// Over these designs: a new store has the first of them, one that is opened has any of them.
    ///
    /// Making a store, or opening one, fails with [`StoreError::NoDesign`] where none of them fits.
    #[must_use]
    pub fn over(kinds: &[&'k dyn EngineKind<M>]) -> Self {
        Self {
            kinds: kinds.to_vec(),
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Sets the threads that recover the index, by default as many as there are processors. The
    /// store's own walk uses at most two.
    #[must_use]
    pub fn recovery_threads(mut self, threads: usize) -> Self {
        self.recovery_threads = threads;
        self
    }
}

impl<M: Media> fmt::Debug for NvStore<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.kinds.iter().map(|kind| kind.info().name);
        f.debug_list().entries(kinds).finish()
    }
}

impl<M: Media> StoreFormat<M> for NvStore<'_, M> {
    fn version(&self) -> u64 {
        NV_STORE
    }

    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        unfinished: bool,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError> {
        let made = Records::create(self, pool, (name, unfinished), options, shares)?;
        Ok(Box::new(made))
    }

    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError> {
        Ok(Box::new(Records::open(self, pool, store, options, shares)?))
    }

    fn salvage(
        &self,
        pool: &Arc<Pool<M>>,
        store: &StoreRoot<M>,
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        salvage::salvage(pool, store, &self.kinds, now, visit)
    }
}
