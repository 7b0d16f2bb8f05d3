//! An embedded, durable, ordered key-value database with transactions.
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod database;
mod durability;
mod error;
#[cfg(feature = "import")]
pub mod import;
pub mod index;
mod iter;
mod keyspace;
mod options;
mod slice;
mod snapshot;
mod transaction;
mod typed;
mod watch;

pub use database::Database;
pub use error::{Error, ErrorKind, Result};
pub use iter::Iter;
pub use keyspace::{Keyspace, ValueReader};
pub use options::Options;
pub use slice::{Slice, Value};
pub use snapshot::{KeyspaceAt, Snapshot};
pub use transaction::{Batch, Savepoint, Transaction, TransactionIter};
#[cfg(feature = "serde")]
pub use typed::Serde;
pub use typed::{Codec, CodecError, KeyCodec, TypedIter, TypedKeyspace};
pub use watch::{Event, Watch, WatchOptions};

/// The durability of commits: of all commits of a database ([`Options::durability`]), or of those
/// that one handle makes ([`Database::with_durability`]).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::Durability;
/// use std::time::Duration;
///
/// let soon = Durability::Interval(Duration::from_millis(50));
/// for (durability, key) in [(Durability::None, "a"), (soon, "b"), (Durability::Immediate, "c")] {
///     db.with_durability(durability).keyspace("k")?.insert(key, "")?;
/// }
/// // The last one has waited until all are durable.
/// assert_eq!(db.keyspace("k")?.iter().count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_pmem::Durability;

/// The medium of a database, which decides what a write survives. [`Options::medium`] asks for one.
///
/// # Examples
/// ```
/// use bristlecone::Medium;
///
/// assert_eq!(Medium::Journal.name(), "journal");
/// assert_eq!(Medium::Journal.survives(), "power failure");
/// ```
pub use bristlecone_pmem::MediumKind as Medium;

/// Counts of [`Database::compact`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let report = db.compact()?;
/// assert!(report.after_bytes <= report.before_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_pmem::pool::CompactReport;

/// The isolation level of a transaction; [`Database::begin_with`] takes it.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::Isolation;
///
/// let k = db.keyspace("k")?;
/// for (isolation, commits) in [(Isolation::Snapshot, true), (Isolation::Serializable, false)] {
///     let mut tx = db.begin_with(isolation);
///     tx.contains_key(&k, "read")?;
///     k.insert("read", "by somebody else")?;
///     tx.insert(&k, "written", "")?;
///     assert_eq!(tx.commit().is_ok(), commits);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::Isolation;

/// The key that another transaction has changed; [`Error::conflict`] returns it.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// let mut tx = db.begin();
/// tx.insert(&orders, "17", "new")?;
/// orders.insert("17", "packed")?;
/// let error = tx.commit().unwrap_err();
/// let conflict = error.conflict().expect("the other one was first");
/// assert!(conflict.keyspace == "orders" && conflict.key == b"17" && !conflict.read);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::ConflictError;

/// How long values are written: [`Options::compression`]. The choices but `None` are features of
/// this crate.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use bristlecone::{Compression, Database};
///
/// let db = Database::builder().compression(Compression::None).open(dir.path().join("pages.db"))?;
/// # drop(db);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::Compression;

/// Counts of [`Database::backup_to`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// db.keyspace("orders")?.insert("17", "packed")?;
/// let report = db.backup_to(dir.path().join("backup"))?;
/// assert_eq!((report.keyspaces, report.entries), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::BackupReport;

/// Where and how a database is archived: [`Options::archive`].
///
/// # Examples
/// ```
/// use bristlecone::ArchiveOptions;
/// use std::time::Duration;
///
/// let mut archive = ArchiveOptions::new("/mnt/backup/orders");
/// // A month can be restored, from a full state that is a day old at most.
/// archive.keep = Some(Duration::from_secs(30 * 24 * 60 * 60));
/// archive.full_every = Some(Duration::from_secs(24 * 60 * 60));
/// ```
pub use bristlecone_store::ArchiveOptions;

/// Counts of archiving; [`Database::archive_stats`] returns them.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let archive = bristlecone::ArchiveOptions::new(dir.path().join("archive"));
/// # let db = bristlecone::Database::builder().archive(Some(archive)).open(dir.path().join("db"))?;
/// let stats = db.archive_stats().expect("it is archived");
/// assert_eq!(stats.commits, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::ArchiveStats;

/// The report of [`Database::restore_archive`].
///
/// # Examples
/// ```
/// use bristlecone::RestoredReport;
///
/// assert_eq!(RestoredReport::default().commits, 0);
/// ```
pub use bristlecone_store::RestoredReport;

/// How far an archive is restored: [`Database::restore_archive`].
///
/// # Examples
/// ```
/// use bristlecone::Until;
///
/// // In ms since 1970.
/// assert_eq!(Until::Time(1_772_366_400_000).to_string(), "2026-03-01T12:00:00.000Z");
/// ```
pub use bristlecone_store::Until;

/// Counts of [`Database::check`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// db.keyspace("orders")?.insert("17", "packed")?;
/// let report = db.check()?;
/// assert_eq!((report.entries, report.dead), (2, 0), "the order, and the keyspace's name");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::CheckReport;

/// The report of opening a database; [`Database::recovery`] returns it.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # db.keyspace("orders")?.insert("17", "packed")?;
/// # let path = db.path().to_owned();
/// db.close()?;
/// let db = bristlecone::Database::open(path)?;
/// assert!(db.recovery().in_order && db.recovery().damaged == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::StoreRecovery;

/// Damage that opening found; [`StoreRecovery::damage`] lists it. Opening looks at the
/// names of keyspaces only.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let damage = &db.recovery().damage;
/// for record in damage {
///     eprintln!("take it from a backup: {record}");
/// }
/// assert!(damage.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::DamagedRecord;

/// Counts of an open database; [`Database::stats`] returns them.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// let before = db.stats();
/// orders.insert("17", "packed")?;
/// let stats = db.stats();
/// assert!(stats.keys > before.keys && stats.durable > before.durable);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use bristlecone_store::StoreStats;

/// The project's README, whose example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The book's pages on this crate, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/hello.md")]
#[doc = include_str!("../../../docs/library.md")]
struct Book;
