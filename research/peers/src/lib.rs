//! The databases that Bristlecone is compared with, behind one trait.
//!
//! Every peer gives Bristlecone's guarantee, with 8-byte keys: a call that returns has made its
//! change durable. Each peer uses its fastest setting with that guarantee, which its module
//! documents. Peers with a cache of their own may use [`CACHE_BYTES`] of memory for it.
//!
//! | peer | feature | is |
//! | --- | --- | --- |
//! | `lmdb::Lmdb` | `lmdb` | compiled from C, through `heed` |
//! | `redb::Redb` | `redb` | Rust |
//! | `fjall::Fjall` | `fjall` | Rust |
//! | `rocksdb::RocksDb` | `rocksdb` | the system's `librocksdb.so`, loaded when it is first opened |
//! | `sqlite::Sqlite` | `sqlite` | the system's `libsqlite3.so.0`, loaded when it is first opened |
//!
//! [`Peer`] is an index of numbers, for comparison with a single index. [`store::Store`] is an
//! embedded database, for comparison with the product, and [`table::Table`] one that is driven by
//! transactions. The features are off by default, so an
//! ordinary build compiles none of the peers.

use std::fmt;
use std::path::PathBuf;

#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
mod library;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;
pub mod table;

/// Size of a peer's cache in bytes: redb's default, which the others get too. LMDB has none, since
/// it maps its file.
pub const CACHE_BYTES: u64 = 1 << 30;

/// An error of a peer.
#[derive(Debug)]
pub struct PeerError {
    /// The peer's name.
    pub peer: &'static str,
    /// The action that failed.
    pub doing: &'static str,
    /// The peer's own message.
    pub message: String,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed: {}", self.peer, self.doing, self.message)
    }
}

impl std::error::Error for PeerError {}

/// A durable ordered map from `u64` to `u64`.
///
/// Every call that changes something returns when the change is durable. Any number of threads may
/// call. Peers with a single writer make the others wait.
pub trait Peer: Send + Sync {
    /// Returns the name that reports use.
    fn name(&self) -> &'static str;

    /// Adds `key`. Returns false, without a change, if it exists.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn insert(&self, key: u64, value: u64) -> Result<bool, PeerError>;

    /// Adds `key` or replaces its value, by the peer's cheapest call.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn put(&self, key: u64, value: u64) -> Result<(), PeerError>;

    /// Removes `key`. Returns true if it existed.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn remove(&self, key: u64) -> Result<bool, PeerError>;

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn get(&self, key: u64) -> Result<Option<u64>, PeerError>;

    /// Visits up to `limit` pairs in ascending order of keys, from `from` on.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn scan(&self, from: u64, limit: usize, visit: impl FnMut(u64, u64)) -> Result<(), PeerError>
    where
        Self: Sized;

    /// Looks up a batch in one snapshot. Replaces the content of `out` with one answer per key, in
    /// order.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn multi_get(&self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), PeerError>;

    /// Adds a batch in one durable commit. Returns the number of keys that did not exist.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message. None of the batch was added then.
    fn multi_insert(&self, pairs: &[(u64, u64)]) -> Result<u64, PeerError>;

    /// Returns the bytes of the peer's live pages on its medium.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn stored_bytes(&self) -> Result<u64, PeerError>;

    /// Returns the directory of its files.
    fn path(&self) -> PathBuf;
}
