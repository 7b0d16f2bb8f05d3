//! A sorted array as a store that keeps nothing.
//!
//! A scan of it reads memory from one end to the other and does nothing else: what the harness
//! takes of a scan, or of a batch, is in its rates. What is put is sorted before the next read.

use super::Engine;
use bristlecone_peers::PeerError;
use bristlecone_peers::store::Store;
use smallvec::SmallVec;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A value, in its entry if it is short; `None` if the key was removed.
type Value = Option<SmallVec<[u8; 16]>>;

#[derive(Default)]
struct Entries {
    /// Sorted up to `sorted`; a later entry of a key is the newer one.
    all: Vec<(u64, Value)>,
    sorted: usize,
}

/// The array.
#[derive(Default)]
pub(super) struct Array(RwLock<Entries>);

impl Array {
    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries, sorted, one for each key.
    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        loop {
            let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if entries.sorted == entries.all.len() {
                return entries;
            }
            drop(entries);
            let mut entries = self.write();
            // The newest first, so that it is the one that stays.
            entries.all.reverse();
            entries.all.sort_by_key(|(key, _)| *key);
            entries.all.dedup_by_key(|(key, _)| *key);
            entries.all.retain(|(_, value)| value.is_some());
            entries.sorted = entries.all.len();
        }
    }
}

impl Store for Array {
    fn name(&self) -> &'static str {
        Engine::Array.name()
    }

    fn version(&self) -> String {
        "the standard library's".to_owned()
    }

    fn setting(&self) -> &'static str {
        "in DRAM, nothing is kept"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        self.write()
            .all
            .push((key, Some(SmallVec::from_slice(value))));
        Ok(())
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let pairs = pairs
            .iter()
            .map(|(key, value)| (*key, Some(SmallVec::from_slice(value))));
        self.write().all.extend(pairs);
        Ok(())
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let entries = self.read();
        let found = entries.all.binary_search_by_key(&key, |(key, _)| *key);
        let value = found.ok().and_then(|at| entries.all[at].1.as_ref());
        Ok(value.map(|value| visit(value)).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let entries = self.read();
        let at = entries.all.partition_point(|(key, _)| *key < from);
        for (key, value) in entries.all[at..].iter().take(limit) {
            if let Some(value) = value {
                visit(*key, value);
            }
        }
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        self.write().all.push((key, None));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_peers::store::Model;

    #[test]
    fn it_answers_as_the_model() {
        let store = Array::default();
        let mut model = Model::new(5);
        model.steps(&store, 1000).unwrap();
        model.holds(&store).unwrap();
        assert!(!store.version().is_empty() && !store.setting().is_empty());
    }
}
