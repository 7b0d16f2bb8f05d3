//! A model of a store: the same sequence of operations on both must get the same answers.

use super::Store;
use std::collections::BTreeMap;

/// Keys are drawn from this many, so that many operations hit one that is there.
const KEYS: u64 = 200;

/// A map in memory, and the operations to come, which a seed determines.
#[derive(Clone, Debug)]
pub struct Model {
    pairs: BTreeMap<u64, Vec<u8>>,
    state: u64,
}

impl Model {
    /// Returns an empty model whose operations `seed` determines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            pairs: BTreeMap::new(),
            state: seed,
        }
    }

    /// Returns the next random word (SplitMix64).
    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a key: one of both ends, one in the middle, where numbers become negative if they
    /// are signed, or one that sorts differently as a little-endian string.
    fn key(&mut self) -> u64 {
        let near = self.word() % (KEYS / 4);
        match self.word() % 4 {
            0 => near,
            1 => u64::MAX - near,
            2 => (1 << 63) - KEYS / 8 + near,
            _ => near << 17 | 0x55,
        }
    }

    /// Returns a value of 0 to 1200 bytes, mostly a short one.
    fn value(&mut self) -> Vec<u8> {
        let longest = if self.word().is_multiple_of(8) {
            1200
        } else {
            40
        };
        let len = self.word() % (longest + 1);
        (0..len).map(|_| self.word() as u8).collect()
    }

    /// Does `count` random operations with `store` and compares every answer.
    ///
    /// # Errors
    /// Says which operation got another answer than the model, or failed.
    pub fn steps(&mut self, store: &dyn Store, count: usize) -> Result<(), String> {
        for step in 0..count {
            let done = match self.word() % 8 {
                0..3 => self.put(store),
                3 => self.put_batch(store),
                4 => self.remove(store),
                5 | 6 => self.get(store),
                _ => self.scan(store),
            };
            done.map_err(|e| format!("{}, step {step}: {e}", store.name()))?;
        }
        Ok(())
    }

    fn put(&mut self, store: &dyn Store) -> Result<(), String> {
        let (key, value) = (self.key(), self.value());
        store.put(key, &value).map_err(|e| e.to_string())?;
        self.pairs.insert(key, value);
        Ok(())
    }

    fn put_batch(&mut self, store: &dyn Store) -> Result<(), String> {
        let count = self.word() % 40;
        let pairs: Vec<_> = (0..count).map(|_| (self.key(), self.value())).collect();
        store.put_batch(&pairs).map_err(|e| e.to_string())?;
        self.pairs.extend(pairs);
        Ok(())
    }

    fn remove(&mut self, store: &dyn Store) -> Result<(), String> {
        let from = self.key();
        let Some((&key, _)) = self.pairs.range(from..).next() else {
            return Ok(());
        };
        store.remove(key).map_err(|e| e.to_string())?;
        self.pairs.remove(&key);
        Ok(())
    }

    fn get(&mut self, store: &dyn Store) -> Result<(), String> {
        let key = self.key();
        let mut values = Vec::new();
        let mut visit = |value: &[u8]| values.push(value.to_vec());
        let found = store.get(key, &mut visit).map_err(|e| e.to_string())?;
        let expected: Vec<_> = self.pairs.get(&key).cloned().into_iter().collect();
        if values != expected || found == expected.is_empty() {
            return Err(format!("get {key}: {found}, {values:?} for {expected:?}"));
        }
        Ok(())
    }

    fn scan(&mut self, store: &dyn Store) -> Result<(), String> {
        let (from, limit) = (self.key(), 1 + self.word() as usize % 50);
        self.compare(store, from, limit)
    }

    fn compare(&self, store: &dyn Store, from: u64, limit: usize) -> Result<(), String> {
        let mut visited = Vec::new();
        let mut visit = |key, value: &[u8]| visited.push((key, value.to_vec()));
        store
            .scan(from, limit, &mut visit)
            .map_err(|e| e.to_string())?;
        let expected = self.pairs.range(from..).take(limit);
        let expected: Vec<_> = expected.map(|(key, value)| (*key, value.clone())).collect();
        if visited != expected {
            return Err(format!(
                "scan of {limit} from {from}: {} entries for {}, first difference at {:?}",
                visited.len(),
                expected.len(),
                visited.iter().zip(&expected).position(|(a, b)| a != b)
            ));
        }
        Ok(())
    }

    /// Checks that `store` has what the model has, and nothing else.
    ///
    /// # Errors
    /// Says how they differ.
    pub fn holds(&self, store: &dyn Store) -> Result<(), String> {
        self.compare(store, 0, KEYS as usize * 2)
            .map_err(|e| format!("{}, all entries: {e}", store.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerError;
    use std::sync::Mutex;

    /// A store in memory that is right, or wrong in one way.
    #[derive(Default)]
    struct Memory {
        pairs: Mutex<BTreeMap<u64, Vec<u8>>>,
        /// Scans skip the first entry.
        skips: bool,
        /// Removed keys stay.
        keeps: bool,
    }

    impl Store for Memory {
        fn name(&self) -> &'static str {
            "memory"
        }

        fn version(&self) -> String {
            "1".to_owned()
        }

        fn setting(&self) -> &'static str {
            "none"
        }

        fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
            self.pairs.lock().unwrap().insert(key, value.to_vec());
            Ok(())
        }

        fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
            self.pairs.lock().unwrap().extend(pairs.iter().cloned());
            Ok(())
        }

        fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
            let pairs = self.pairs.lock().unwrap();
            Ok(pairs.get(&key).map(|value| visit(value)).is_some())
        }

        fn scan(
            &self,
            from: u64,
            limit: usize,
            visit: &mut dyn FnMut(u64, &[u8]),
        ) -> Result<(), PeerError> {
            let pairs = self.pairs.lock().unwrap();
            let range = pairs.range(from..).skip(usize::from(self.skips));
            range
                .take(limit)
                .for_each(|(key, value)| visit(*key, value));
            Ok(())
        }

        fn remove(&self, key: u64) -> Result<(), PeerError> {
            if !self.keeps {
                self.pairs.lock().unwrap().remove(&key);
            }
            Ok(())
        }
    }

    #[test]
    fn a_right_store_agrees_and_a_wrong_one_does_not() {
        let agrees = |store: &Memory| {
            let mut model = Model::new(1);
            model.steps(store, 500).and_then(|()| model.holds(store))
        };
        let right = Memory::default();
        agrees(&right).unwrap();
        assert!(right.pairs.lock().unwrap().len() > 50);
        let skips = Memory {
            skips: true,
            ..Memory::default()
        };
        assert!(agrees(&skips).unwrap_err().contains("scan"));
        let keeps = Memory {
            keeps: true,
            ..Memory::default()
        };
        assert!(agrees(&keeps).is_err());
    }
}
