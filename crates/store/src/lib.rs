//! NV-Store: a durable multi-version store over an ordered index, with snapshot-isolation transactions.
//!
//! After Yang, Wei, Wang, Chen, Wong, He: *NV-Tree* (IEEE TC), sections 6.1 and 6.6, which puts keys and values of any size, time
//! stamps and snapshot isolation over NV-Tree in a paragraph. Here versions are records of their own, outside the leaves, so that any
//! design will do and leaves stay as small as they are.
//!
//! ```text
//! index (LB+-Tree)               records (scan-recovered heap of the store's root)
//! (keyspace, key) --> offset --> | previous | stamp | length, flags, CRC-32C | expiry | value ... |
//!                                     |
//!                                     +--> the version before, while a snapshot may read it
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `store` | [`Store`]: creating, opening, operations on single keys |
//! | `batch`, `transaction`, `snapshot` | [`Batch`], [`Transaction`], [`Snapshot`] and [`Cursor`] |
//! | `index` | the index behind a table of functions, and index keys |
//! | `record` | version records |
//! | `clock` | time stamps, and the watermark that readers read at |
//! | `stripes`, `slots` | locks of writers, and the commit table |
//! | `commit`, `newest` | the protocols, and what a crash leaves of each; what writers find |
//! | `serial` | validation of what serialisable transactions read |
//! | `pinned` | values that are read in place |
//! | `read`, `horizon` | lock-free reading, and which versions are still read |
//! | `vacuum` | freeing the others |
//! | `keyspace`, `dropped` | named ranges of keys: making, clearing and dropping them |
//! | `feed` | committed changes for subscribers |
//! | `recovery` | opening after a crash |
//! | `backup`, `check` | copies of a snapshot; verification and statistics |
//! | `salvage` | what a damaged store still has |
//!
//! # Example
//! ```
//! use bristlecone_pmem::media::Dram;
//! use bristlecone_pmem::{Pool, PoolOptions};
//! use bristlecone_store::{Store, StoreOptions, TransactionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
//! let store = Store::create(&pool, "store", &StoreOptions::default())?;
//! let accounts = store.keyspace("accounts")?;
//! store.put(&accounts, b"alice", b"10")?;
//!
//! let mut transfer = store.begin(TransactionOptions::default());
//! transfer.put(&accounts, b"alice", b"7")?;
//! transfer.put(&accounts, b"bob", b"3")?;
//! transfer.commit()?;
//! assert_eq!(store.get(&accounts, b"bob")?.as_deref(), Some(&b"3"[..]));
//! store.close().map_err(|(_, e)| e)?;
//! # Ok(())
//! # }
//! ```

mod backup;
mod batch;
mod bounds;
mod catalogue;
mod check;
mod checksum;
mod clock;
mod commit;
mod damaged;
mod dropped;
mod entry;
mod error;
mod feed;
mod horizon;
mod index;
mod key;
mod keyspace;
mod limits;
mod newest;
mod pinned;
mod read;
mod record;
mod recovery;
mod salvage;
mod serial;
mod shared;
mod slots;
mod snapshot;
mod store;
mod stripes;
mod transaction;
mod vacuum;
mod wall;
mod write;

pub use backup::{BackupReport, is_backup};
pub use batch::Batch;
pub use bristlecone_index::engine::{EngineInfo, EngineKind, LbEngine};
pub use catalogue::Keyspace;
pub use check::{CheckReport, StoreStats};
pub use entry::{Entry, Update};
pub use error::{
    BackupError, CloseError, ConflictError, Damage, DamagedRecord, ReadError, StoreError,
    WriteError,
};
pub use feed::{Watch, WatchEvent, WatchLimits};
pub use limits::{MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
pub use pinned::PinnedValue;
pub use recovery::StoreRecovery;
pub use salvage::{SalvageReport, Salvaged};
pub use snapshot::{Cursor, Pair, Snapshot};
pub use store::{Store, StoreOptions};
pub use transaction::{Isolation, Savepoint, Transaction, TransactionOptions};
pub use vacuum::VacuumReport;
pub use wall::WallClock;
pub use write::Step;
