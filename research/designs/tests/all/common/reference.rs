//! A trivially correct index that tests the suite itself: a `BTreeMap` behind one lock.

use super::{Fresh, Harness, Suite, TestKey, TestValue};
use bristlecone_designs::{
    BulkLoad, Fill, IndexStats, InsertError, OrderedIndex, RemoveError, ReverseScan, UpdateError,
    VerifyReport, Violation,
};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The reference index.
pub struct Reference<K: TestKey + ?Sized, V: TestValue + ?Sized> {
    map: RwLock<BTreeMap<K::Owned, V::Owned>>,
}

type Map<K, V> = BTreeMap<<K as ToOwned>::Owned, <V as ToOwned>::Owned>;

/// Returns true if no key can lie in the range; `BTreeMap::range` would panic on it.
pub fn is_void<K: Ord + ?Sized>(range: &impl RangeBounds<K>) -> bool {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a > b,
    }
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> Reference<K, V> {
    /// Returns an empty index.
    pub fn new() -> Self {
        Self {
            map: RwLock::new(BTreeMap::new()),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Map<K, V>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map<K, V>> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_key(key: &K) -> Result<(), InsertError> {
        // The scenarios know only this limit.
        match K::too_long(super::kinds::MAX_KEY) {
            Some(limit) if size_of_val(key) >= size_of_val::<K>(limit.borrow()) => {
                let most = size_of_val::<K>(limit.borrow()) - 1;
                Err(InsertError::KeyTooLong {
                    len: size_of_val(key),
                    most,
                })
            }
            _ => Ok(()),
        }
    }
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> OrderedIndex<K, V> for Reference<K, V> {
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        Self::check_key(key)?;
        let mut map = self.write();
        if map.contains_key(key) {
            return Err(InsertError::KeyExists);
        }
        map.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        Self::check_key(key)?;
        Ok(self
            .write()
            .insert(key.to_owned(), value.to_owned())
            .is_some())
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        match self.write().get_mut(key) {
            Some(old) => {
                *old = value.to_owned();
                Ok(())
            }
            None => Err(UpdateError::NotFound),
        }
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        Ok(self.write().remove(key).is_some())
    }

    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        self.read().get(key).map(|v| f(v.borrow()))
    }

    fn scan<R: RangeBounds<K>>(&self, range: R, mut visit: impl FnMut(&K, &V) -> ControlFlow<()>) {
        if is_void(&range) {
            return;
        }
        for (k, v) in self.read().range::<K, _>(range) {
            if visit(k.borrow(), v.borrow()).is_break() {
                return;
            }
        }
    }

    fn stats(&self) -> IndexStats {
        let entries = self.read().len() as u64;
        IndexStats {
            entries,
            depth: 1,
            leaves: 1,
            ..IndexStats::default()
        }
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        Ok(VerifyReport {
            entries: self.read().len() as u64,
            leaves: 1,
            records: 0,
        })
    }
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> ReverseScan<K, V> for Reference<K, V> {
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        if is_void(&range) {
            return;
        }
        for (k, v) in self.read().range::<K, _>(range).rev() {
            if visit(k.borrow(), v.borrow()).is_break() {
                return;
            }
        }
    }
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> BulkLoad<K, V> for Reference<K, V> {
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        _fill: Fill,
    ) -> Result<u64, InsertError> {
        let mut map = self.write();
        if !map.is_empty() {
            return Err(InsertError::KeyExists);
        }
        let mut loaded: Map<K, V> = BTreeMap::new();
        for (k, v) in sorted {
            Self::check_key(k.borrow())?;
            if loaded
                .last_key_value()
                .is_some_and(|(last, _)| last.borrow() >= k.borrow())
            {
                return Err(InsertError::KeyExists);
            }
            loaded.insert(k.borrow().to_owned(), v.borrow().to_owned());
        }
        *map = loaded;
        Ok(map.len() as u64)
    }
}

/// The harness of the reference index.
pub struct ReferenceHarness<K: ?Sized, V: ?Sized>(PhantomData<fn(&K, &V)>);

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> Suite for ReferenceHarness<K, V> {
    type Harness = Self;
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> Harness for ReferenceHarness<K, V> {
    type Key = K;
    type Value = V;
    type Index = Reference<K, V>;
    type Home = ();

    fn fresh() -> Fresh<Self> {
        Fresh {
            index: Reference::new(),
            home: (),
        }
    }
}
