//! NV-Store: a durable multi-version store over an ordered index, with snapshot-isolation
//! transactions.
//!
//! It follows Yang, Wei, Wang, Chen, Wong, He: *NV-Tree* (IEEE TC), sections 6.1 and 6.6, which
//! outlines keys and values of any size, timestamps and snapshot isolation over an NV-Tree. The
//! paper keeps a timestamp in each element of a leaf. Here versions are records of their own
//! outside the leaves, so any index design works, and leaves stay small.
//!
//! ```text
//! index (LB+-Tree)               records (scan-recovered heap of the store's root)
//! (keyspace, key) --> offset --> | previous | stamp | length, flags, CRC-32C | expiry | value ... |
//!                                     |
//!                                     +--> the version before, while a snapshot may read it
//! ```
//!
//! Three roles build on one another, each a type: the `Reader`, the `Vacuum`,
//! which adds what writers and it share, and the `Committer`, which adds the keyspaces.
//! Modules import only from their own row and those below.
//!
//! | modules | hold |
//! | --- | --- |
//! | `backup`, `pinned`, `salvage` | copies of a snapshot; values read in place; what a damaged store still has |
//! | `store` | [`Store`]: making, opening, operations on keys |
//! | `transaction`, `batch`, `snapshot`, `check` | [`Transaction`], [`Batch`], [`Snapshot`] and [`Cursor`]; verification and statistics |
//! | `shared`, `keyspace` | what all handles of a store share; making and dropping keyspaces |
//! | `feed` | committed changes for subscribers |
//! | `commit` | commits, and what a crash leaves of each |
//! | `vacuum`, `recovery` | freeing versions; opening after a crash |
//! | `newest`, `serial` | the newest version, for writers; validation of serialisable transactions |
//! | `read` | reading without locks |
//! | `stripes`, `slots`, `index` | writers' locks; the commit table; opening the index |
//! | `record`, `catalogue`, `write` | version records; the keyspaces there are; what a commit is asked for |
//! | `clock`, `horizon`, `dropped`, `damaged` | timestamps and watermarks; versions that are still read; dropped keyspaces; damaged entries |
//! | `error`, `key`, `bounds`, `entry`, `limits`, `checksum`, `wall` | errors; index keys and ranges; values with expiries; limits; CRC-32C; the wall clock |
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
mod control;
mod dropped;
mod engine;
mod entry;
mod error;
mod feed;
mod key;
mod keyspace;
mod limits;
mod options;
mod pinned;
mod reads;
mod records;
mod report;
mod root;
mod shared;
mod snapshot;
mod store;
mod sync;
mod transaction;
mod tree;
mod wall;
mod write;

pub use backup::{BackupReport, is_backup};
pub use batch::Batch;
pub use bristlecone_index::engine::{EngineInfo, EngineKind, LbEngine};
pub use catalogue::Keyspace;
pub use entry::{Entry, Update};
pub use error::{
    BackupError, CloseError, ConflictError, Damage, DamagedRecord, ReadError, StoreError,
    WriteError,
};
pub use feed::{Watch, WatchEvent, WatchLimits};
pub use limits::{MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
pub use options::{Layout, StoreOptions};
pub use pinned::PinnedValue;
pub use report::{CheckReport, SalvageReport, Salvaged, StoreRecovery, StoreStats, VacuumReport};
pub use snapshot::{Cursor, Pair, Snapshot};
pub use store::Store;
pub use transaction::{Isolation, Savepoint, Transaction, TransactionOptions};
pub use wall::WallClock;
pub use write::Step;
