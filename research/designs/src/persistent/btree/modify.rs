//! Insertion, replacement and removal. Each changes one leaf, except for what `structure.rs` does.

use super::BTree;
use super::find::Corrupt;
use super::kind::{Kind, Leaf};
use crate::common::{commit_inserts, make_pair};
use crate::index::{IfPresent, InsertError, RemoveError, UpdateError};
use crate::repr::{PairOf, Stored, StoredKey};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Makes the words of a pair, with their records. If this fails, nothing stays allocated.
    pub(super) fn make_pair(&self, key: &K, value: &V) -> Result<PairOf<K, V>, SpaceError> {
        make_pair(&self.heap, key, value)
    }

    pub(super) fn free_pair(&self, (key, value): PairOf<K, V>) {
        K::discard(&self.heap, key);
        V::discard(&self.heap, value);
    }

    /// Inserts, or acts as `present` says, and commits. Returns true if the key was present.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let was_there = self.put_uncommitted(key, value, present)?;
        self.commit()?;
        Ok(was_there)
    }

    /// Inserts, or acts as `present` says. The caller commits what was fenced.
    fn put_uncommitted(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        // Records are made before a lock is taken, but only if the operation can succeed.
        if Self::RECORDS && self.find_word(key).is_some() {
            match present {
                IfPresent::Refuse => return Err(InsertError::KeyExists),
                IfPresent::Replace => {
                    if self.replace_uncommitted(key, value)? {
                        return Ok(true);
                    }
                }
            }
        }
        let pair = self.make_pair(key, value)?;
        let pm = self.pm();
        loop {
            let (at, leaf, locked) = match self.lock_leaf(key) {
                Ok(locked) => locked,
                Err(corrupt) => {
                    self.free_pair(pair);
                    return Err(corrupt.into_error().into());
                }
            };
            if let Some(found) = D::Leaf::find::<K, V, M>(leaf, pm, key) {
                if present == IfPresent::Refuse {
                    locked.unlock_unchanged();
                    self.free_pair(pair);
                    return Err(InsertError::KeyExists);
                }
                D::Leaf::update(self, leaf, found.slot, pair.1);
                locked.unlock();
                K::discard(&self.heap, pair.0);
                V::retire(&self.heap, found.value, guard);
                return Ok(true);
            }
            if D::Leaf::has_room::<K::Word, V::Word, M>(leaf, pm, self.leaf_capacity()) {
                D::Leaf::insert(self, leaf, key, pair);
                // After the change is final, so that others see only what survives a crash.
                locked.unlock();
                pm.interleave();
                return Ok(false);
            }
            locked.unlock_unchanged();
            if let Err(e) = self.make_room(key, at) {
                self.free_pair(pair);
                return Err(e.into());
            }
        }
    }

    /// Inserts a batch, pair by pair, and commits once.
    pub(super) fn insert_batch<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.extend(pairs.iter().map(|(key, value)| {
            let (key, value) = (key.borrow(), value.borrow());
            self.check_pair(key, value)?;
            self.put_uncommitted(key, value, IfPresent::Refuse)
                .map(|_| ())
        }));
        commit_inserts(out, || self.commit());
    }

    /// Replaces the value of a key that is present.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        let there = !V::RECORDS || {
            let _pin = epoch::pin();
            self.find_word(key).is_some()
        };
        if !there || !self.replace_uncommitted(key, value)? {
            return Err(UpdateError::NotFound);
        }
        self.commit()?;
        Ok(())
    }

    /// Replaces the value of `key`. Returns false if the key is absent. The caller commits what was
    /// fenced.
    fn replace_uncommitted(&self, key: &K, value: &V) -> Result<bool, SpaceError> {
        let guard = &epoch::pin();
        let word = value.make(&self.heap)?;
        let not_there = |corrupt: Option<Corrupt>| {
            V::discard(&self.heap, word);
            corrupt.map_or(Ok(false), |corrupt| Err(corrupt.into_error()))
        };
        let (_, leaf, locked) = match self.lock_leaf(key) {
            Ok(locked) => locked,
            Err(corrupt) => return not_there(Some(corrupt)),
        };
        let Some(found) = D::Leaf::find::<K, V, M>(leaf, self.pm(), key) else {
            locked.unlock_unchanged();
            return not_there(None);
        };
        D::Leaf::update(self, leaf, found.slot, word);
        locked.unlock();
        self.pm().interleave();
        V::retire(&self.heap, found.value, guard);
        Ok(true)
    }

    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let guard = &epoch::pin();
        let pm = self.pm();
        loop {
            // In a corrupt pool the key counts as absent, since `RemoveError` has no such case.
            let Ok((at, leaf, locked)) = self.lock_leaf(key) else {
                return Ok(false);
            };
            let Some(found) = D::Leaf::find::<K, V, M>(leaf, pm, key) else {
                locked.unlock_unchanged();
                return Ok(false);
            };
            let found = if D::Leaf::len::<K::Word, V::Word, M>(leaf, pm) > 1 || at.at == self.top {
                D::Leaf::remove(self, leaf, found.slot);
                locked.unlock();
                pm.interleave();
                found
            } else {
                locked.unlock_unchanged();
                match self.unlink(key, guard) {
                    Ok(Some(found)) => found,
                    Ok(None) => continue,
                    Err(Corrupt) => return Ok(false),
                }
            };
            K::retire(&self.heap, found.key, guard);
            V::retire(&self.heap, found.value, guard);
            self.commit()?;
            return Ok(true);
        }
    }
}
