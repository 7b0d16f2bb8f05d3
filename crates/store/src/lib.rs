//! A durable multi-version store: keyspaces of keys and values of any bytes, with
//! snapshot-isolation transactions.
//!
//! Handles work on an engine, which keeps the keys and their versions. This crate's engine is a
//! clustered tree, which has keys and values in its pages. Other crates can bring an engine of
//! another format (`engine`), as the research crate `bristlecone-nv-store` does.
//!
//! Modules import only from their own row and those below. Only `store` and `backup` name an
//! engine.
//!
//! | modules | hold |
//! | --- | --- |
//! | `backup`, `check` | copies of a snapshot; verification and statistics |
//! | `store` | [`Store`]: making, opening, operations on keys, what a damaged store still has |
//! | `transaction`, `batch`, `snapshot` | [`Transaction`], [`Batch`], [`Snapshot`] and [`Cursor`] |
//! | `shared`, `keyspace` | what all handles of a store share; making, renaming and dropping keyspaces |
//! | `tree` | the engine |
//! | `archive` | states and commits in files, from which a store is made again as it was at any commit |
//! | `engine`, `format` | what handles ask of an engine, and of a store's format |
//! | `feed`, `root`, `control`, `dropped` | committed changes for subscribers; a store's root; orders to an engine's thread; dropped keyspaces |
//! | `catalogue`, `reads`, `write`, `pinned` | the keyspaces there are; what a transaction has read; what a commit is asked for; values read in place |
//! | `options`, `report` | how a store is run; what opening, vacuuming and checking report |
//! | `error`, `key`, `bounds`, `entry`, `limits`, `sync`, `wall` | errors; index keys and ranges; values with expiries; limits; waiting for threads; the wall clock |
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

mod archive;
mod backup;
mod batch;
mod bounds;
mod catalogue;
mod check;
mod control;
mod dropped;
#[doc(hidden)]
pub mod engine;
mod entries;
mod entry;
mod error;
mod feed;
mod format;
mod key;
mod keyspace;
mod limits;
mod options;
mod pinned;
mod reads;
mod report;
mod root;
mod shared;
mod snapshot;
mod store;
mod streams;
mod sync;
mod transaction;
mod tree;
mod wall;
mod write;

pub use archive::{
    Archive, ArchiveFile, ArchiveOptions, ArchiveStats, FORMAT as ARCHIVE_FORMAT, FileKind, Plan,
    Step as PlanStep, UnreadableFile, Until,
};
pub use backup::{BackupReport, FORMAT as BACKUP_FORMAT, is_backup};
pub use batch::Batch;
pub use bristlecone_index::Direction;
pub use catalogue::Keyspace;
pub use entries::{Entries, Place};
pub use entry::{Entry, Longer, Update};
pub use error::{
    ArchiveError, BackupError, CloseError, ConflictError, Damage, DamagedRecord, ReadError,
    SalvageError, StoreError, WriteError,
};
pub use feed::{Watch, WatchEvent, WatchLimits};
pub use format::CLUSTERED as STORE_FORMAT;
pub use limits::{MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
pub use options::{Compression, StoreOptions};
pub use pinned::PinnedValue;
pub use report::{
    CheckReport, NAMELESS, SalvageReport, Salvaged, ScrubStats, StoreRecovery, StoreStats,
    VacuumReport,
};
pub use snapshot::{Cursor, Pair, Snapshot};
pub use store::{RestoredReport, Store};
pub use transaction::{Isolation, Savepoint, Transaction, TransactionOptions};
pub use wall::WallClock;
pub use write::Step;
