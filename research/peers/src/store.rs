//! Embedded stores behind one trait: 8-byte keys, values of any length, and every change durable
//! when its call returns.
//!
//! [`Peer`](crate::Peer) drives a peer as an index of numbers. [`Store`] drives it as an embedded
//! database, so that whole databases can be compared. Each engine uses its fastest setting that
//! makes a change durable before the call returns. [`Store::setting`] names it.
//!
//! | engine | feature | a change is durable because |
//! | --- | --- | --- |
//! | `lmdb::Lmdb` | `lmdb` | each write transaction is synced, with or without `WRITEMAP` |
//! | `redb::Redb` | `redb` | each write transaction commits with `Durability::Immediate` |
//! | `fjall::Fjall` | `fjall` | each write is followed by `persist(SyncData)` |
//! | `rocksdb::RocksDb` | `rocksdb` | each write has `WriteOptions.sync` |
//! | `sqlite::Sqlite` | `sqlite` | each transaction syncs its log (`synchronous=FULL`) |
//!
//! [`Model`] checks that an engine answers as it should.

mod model;

pub use model::Model;

use crate::PeerError;

/// A durable ordered map from 8-byte keys, in the order of the numbers, to byte strings.
///
/// Every call that changes something returns when the change is durable. Any number of threads may
/// call. Engines with a single writer make the others wait.
pub trait Store: Send + Sync {
    /// Returns the name that reports use.
    fn name(&self) -> &'static str;

    /// Returns the engine's version.
    fn version(&self) -> String;

    /// Returns the setting that makes a change durable when its call returns, in a few words.
    fn setting(&self) -> &'static str;

    /// Adds `key` or replaces its value.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError>;

    /// Adds all `pairs`, or replaces their values, in one durable commit.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message. None of the batch was added then.
    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError>;

    /// Calls `visit` with the value of `key`. Returns true if there is one.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError>;

    /// Visits up to `limit` entries in ascending order of keys, from `from` on.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError>;

    /// Removes `key`, by the engine's cheapest call for an existing key.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn remove(&self, key: u64) -> Result<(), PeerError>;
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(dead_code, reason = "the peers that use them are behind features")]

    use super::{Model, Store};
    use crate::PeerError;

    /// Tests any engine: it answers as the model does, also after it was closed and opened again.
    pub(crate) fn answers_as_the_model<S: Store>(open: &dyn Fn() -> Result<S, PeerError>) {
        let mut model = Model::new(7);
        for _ in 0..3 {
            let store = open().unwrap();
            model.holds(&store).unwrap();
            model.steps(&store, 300).unwrap();
            model.holds(&store).unwrap();
            assert!(!store.version().is_empty() && !store.setting().is_empty());
        }
    }

    /// Returns the version of a library of the system, or `None` if it is not installed, with a
    /// note. Fails if it must be: with `BRISTLECONE_NEED_LIBRARIES=1`.
    pub(crate) fn or_skip<T>(found: Result<T, PeerError>) -> Option<T> {
        let needed = std::env::var_os("BRISTLECONE_NEED_LIBRARIES").is_some();
        match found {
            Ok(found) => Some(found),
            Err(e) if needed => panic!("{e}"),
            Err(e) => {
                eprintln!("skipped: {e}");
                None
            }
        }
    }
}
