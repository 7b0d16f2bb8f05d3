//! An embedded, durable, ordered key-value database with transactions.
//!
#![doc = include_str!("../README.md")]

mod database;
mod error;
pub mod index;
mod iter;
mod keyspace;
mod options;
mod slice;
mod snapshot;
mod transaction;
mod typed;

pub use database::Database;
pub use error::{Error, ErrorKind, Result};
pub use iter::Iter;
pub use keyspace::{Keyspace, KeyspaceAt};
pub use options::{Durability, Medium, Options};
pub use slice::{Slice, Value};
pub use snapshot::Snapshot;
pub use transaction::{Batch, Isolation, Savepoint, Transaction, TransactionIter};
pub use typed::{Codec, DecodeError, KeyCodec, TypedIter, TypedKeyspace};

pub use bristlecone_pmem::pool::CompactReport;
pub use bristlecone_store::{BackupReport, CheckReport, ConflictError, StoreRecovery, StoreStats};

/// The project's README, whose example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The book's pages on this crate, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/hello.md")]
#[doc = include_str!("../../../docs/library.md")]
struct Book;
