//! The standard library's `BTreeMap` as a store that keeps nothing.
//!
//! It has no persistence, no versions and no concurrency but a lock, so what the harness and a
//! sorted search tree in DRAM take is in its rates, and little else: a reference for the others.

use super::Engine;
use bristlecone_peers::PeerError;
use bristlecone_peers::store::Store;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// A value, in its node if it is short.
type Value = SmallVec<[u8; 16]>;

/// The map. Its keys are in the order of their numbers, as those of the stores are.
#[derive(Default)]
pub(super) struct Volatile(RwLock<BTreeMap<u64, Value>>);

impl Volatile {
    fn change<R>(&self, f: impl FnOnce(&mut BTreeMap<u64, Value>) -> R) -> R {
        f(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read<R>(&self, f: impl FnOnce(&BTreeMap<u64, Value>) -> R) -> R {
        f(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for Volatile {
    fn name(&self) -> &'static str {
        Engine::BTreeMap.name()
    }

    fn version(&self) -> String {
        "the standard library's".to_owned()
    }

    fn setting(&self) -> &'static str {
        "in DRAM, nothing is kept"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        self.change(|map| map.insert(key, Value::from_slice(value)));
        Ok(())
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let pairs = pairs
            .iter()
            .map(|(key, value)| (*key, Value::from_slice(value)));
        self.change(|map| map.extend(pairs));
        Ok(())
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        Ok(self.read(|map| map.get(&key).map(|value| visit(value)).is_some()))
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        self.read(|map| {
            let entries = map.range(from..).take(limit);
            entries.for_each(|(key, value)| visit(*key, value));
        });
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        self.change(|map| map.remove(&key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_peers::store::Model;

    #[test]
    fn it_answers_as_the_model() {
        let store = Volatile::default();
        let mut model = Model::new(5);
        model.steps(&store, 1000).unwrap();
        model.holds(&store).unwrap();
        assert!(!store.version().is_empty() && !store.setting().is_empty());
    }
}
