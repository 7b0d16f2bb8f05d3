//! The databases that Bristlecone is measured against, behind one trait.
//!
//! Every peer is driven as an application that wants what Bristlecone promises would drive it: 8-byte
//! keys and values, and a call that returns has made its change durable. Each is given its fastest
//! setting that still keeps that promise, and the setting is written down where it is chosen.
//!
//! | peer | feature | compiled from |
//! | --- | --- | --- |
//! | `lmdb::Lmdb` | `lmdb` | C, through `heed` |
//! | `redb::Redb` | `redb` | Rust |
//! | `fjall::Fjall` | `fjall` | Rust |
//!
//! [`Peer`] is an index of numbers, for comparison with a single index; [`store::Store`] is an embedded database,
//! for comparison with the product. The features are off by default: an ordinary build compiles none of them.

use std::fmt;
use std::path::PathBuf;

#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "redb")]
pub mod redb;
pub mod store;

/// What a peer answered when it refused.
#[derive(Debug)]
pub struct PeerError {
    /// The peer's name.
    pub peer: &'static str,
    /// What was being done.
    pub doing: &'static str,
    /// Its own message.
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
/// Every call that changes something returns when the change is durable. Calls may come from any
/// number of threads; peers that allow one writer make the others wait.
pub trait Peer: Send + Sync {
    /// The name that reports use.
    fn name(&self) -> &'static str;

    /// Adds `key`; false if it is there already, and nothing has changed then.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn insert(&self, key: u64, value: u64) -> Result<bool, PeerError>;

    /// Adds `key` or replaces its value, by the peer's cheapest call for it.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn put(&self, key: u64, value: u64) -> Result<(), PeerError>;

    /// Removes `key`; true if it was there.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn remove(&self, key: u64) -> Result<bool, PeerError>;

    /// The value of `key`.
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

    /// Looks up a batch in one snapshot; `out` is cleared and gets one answer per key, in order.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn multi_get(&self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), PeerError>;

    /// Adds a batch in one durable commit; how many were not there before.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message; none of the batch is there then.
    fn multi_insert(&self, pairs: &[(u64, u64)]) -> Result<u64, PeerError>;

    /// Bytes that the peer's live pages take on its medium.
    ///
    /// # Errors
    /// [`PeerError`] with the peer's own message.
    fn stored_bytes(&self) -> Result<u64, PeerError>;

    /// Where its files are.
    fn path(&self) -> PathBuf;
}
