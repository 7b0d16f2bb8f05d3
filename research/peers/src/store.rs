//! Embedded stores behind one trait: 8-byte keys, values of any length, and every change durable
//! when its call returns.
//!
//! [`Peer`](crate::Peer) drives a peer as an index of numbers. [`Store`] drives it as an embedded
//! database, so that whole databases can be compared. Each engine uses its fastest setting that
//! makes a change durable before the call returns. [`Store::setting`] names it.
//!
//! | engine | feature | a change is durable because |
//! | --- | --- | --- |
//! | `lmdb::Lmdb` | `lmdb` | each write transaction is synced, in the mode `WRITEMAP` |
//! | `redb::Redb` | `redb` | each write transaction commits with `Durability::Immediate` |
//! | `fjall::Fjall` | `fjall` | each write is followed by `persist(SyncData)` |

use crate::PeerError;

/// A durable ordered map from 8-byte keys, in the order of the numbers, to byte strings.
///
/// Every call that changes something returns when the change is durable.
pub trait Store {
    /// Returns the name that reports use.
    fn name(&self) -> &'static str;

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

#[cfg(all(test, any(feature = "lmdb", feature = "redb", feature = "fjall")))]
pub(crate) mod tests {
    use super::Store;

    /// Tests any engine: stored entries are found in order, and removed ones are gone.
    pub(crate) fn keeps_its_contract(store: &dyn Store) {
        // As little-endian strings, 256 sorts before 1.
        for key in [256, 1, u64::MAX, 7] {
            store.put(key, &[key as u8; 100]).unwrap();
        }
        store.put(7, b"seven").unwrap();
        store
            .put_batch(&[(0, vec![9]), (8, b"eight".to_vec())])
            .unwrap();
        let mut seen = Vec::new();
        let mut visit = |key, value: &[u8]| seen.push((key, value.to_vec()));
        store.scan(1, 3, &mut visit).unwrap();
        let expected = [
            (1, vec![1; 100]),
            (7, b"seven".to_vec()),
            (8, b"eight".to_vec()),
        ];
        assert_eq!(seen, expected);
        store.remove(7).unwrap();
        let mut values = Vec::new();
        let mut visit = |value: &[u8]| values.push(value.to_vec());
        assert!(store.get(0, &mut visit).unwrap());
        assert!(!store.get(7, &mut visit).unwrap());
        assert_eq!(values, [vec![9]]);
    }
}
