//! An embedded, durable, ordered key-value database with transactions.
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod database;
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
pub use keyspace::Keyspace;
pub use options::{Durability, Medium, Options};
pub use slice::{Slice, Value};
pub use snapshot::{KeyspaceAt, Snapshot};
pub use transaction::{Batch, Isolation, Savepoint, Transaction, TransactionIter};
#[cfg(feature = "serde")]
pub use typed::Serde;
pub use typed::{Codec, CodecError, KeyCodec, TypedIter, TypedKeyspace};
pub use watch::{Event, Watch, WatchOptions};

pub use bristlecone_pmem::pool::CompactReport;
pub use bristlecone_store::{BackupReport, CheckReport, ConflictError, StoreRecovery, StoreStats};

/// Handles can be shared by threads; iterators, transactions and watches can be sent to another
/// one. A [`Value`] can be neither, as it holds back the freeing of memory for the thread that read
/// it.
const _: () = {
    const fn is_shared<T: Send + Sync + Clone>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Database>();
    is_shared::<Keyspace>();
    is_shared::<Snapshot>();
    is_shared::<Slice>();
    is_shared::<Options>();
    is_shared::<Batch>();
    is_shared::<Event>();
    is_shared::<TypedKeyspace<String, u64>>();
    is_shared::<index::NumberIndex>();
    is_sent::<Transaction>();
    is_sent::<Iter>();
    is_sent::<TypedIter<String, u64>>();
    is_sent::<Watch>();
    is_sent::<index::NumberIter>();
    const fn is_error<E: std::error::Error + Send + Sync + 'static>() {}
    is_error::<Error>();
    is_error::<CodecError>();
};

/// The project's README, whose example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The book's pages on this crate, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/hello.md")]
#[doc = include_str!("../../../docs/library.md")]
struct Book;
