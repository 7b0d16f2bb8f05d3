//! Insertion, replacement and removal. Each changes one leaf, except for what `fair.rs` does.

use super::FastFair;
use super::read::{Corrupt, Goal};
use crate::common::{commit_inserts, make_pair};
use crate::index::{IfPresent, InsertError, RemoveError, UpdateError};
use crate::leaftree::Found;
use crate::repr::{PairOf, Stored, StoredKey};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
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
        // Numbers retire nothing.
        let pin = Self::RECORDS.then(epoch::pin);
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
            let place = match leaf.find(pm, key) {
                Err(place) => place,
                Ok(found) => {
                    if present == IfPresent::Refuse {
                        locked.unlock_unchanged();
                        self.free_pair(pair);
                        return Err(InsertError::KeyExists);
                    }
                    self.swap_value(at.at, found.slot, pair.1);
                    locked.unlock();
                    K::discard(&self.heap, pair.0);
                    if let Some(guard) = &pin {
                        V::retire(&self.heap, found.value, guard);
                    }
                    return Ok(true);
                }
            };
            let n = leaf.count(pm);
            if n < self.capacity {
                leaf.insert(pm, n, place, pair, !Self::RECORDS);
                // After the change is durable, so that others see only what survives a crash.
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

    /// Replaces the value of a locked leaf's entry.
    fn swap_value(&self, leaf: u32, slot: usize, value: V::Word) {
        let pm = self.pm();
        if V::RECORDS {
            // PERSIST: the new value's record, before the word that leads to it.
            pm.fence();
        }
        // PERSIST: (in `publish_value`) the new value.
        self.node(leaf).publish_value(pm, slot, value);
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
        // A record is made only if the operation can succeed.
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
        let pin = Self::RECORDS.then(epoch::pin);
        let word = value.make(&self.heap)?;
        let not_there = |corrupt: Option<Corrupt>| {
            V::discard(&self.heap, word);
            corrupt.map_or(Ok(false), |corrupt| Err(corrupt.into_error()))
        };
        let (at, leaf, locked) = match self.lock_leaf(key) {
            Ok(locked) => locked,
            Err(corrupt) => return not_there(Some(corrupt)),
        };
        let Ok(found) = leaf.find(self.pm(), key) else {
            locked.unlock_unchanged();
            return not_there(None);
        };
        self.swap_value(at.at, found.slot, word);
        locked.unlock();
        self.pm().interleave();
        if let Some(guard) = &pin {
            V::retire(&self.heap, found.value, guard);
        }
        Ok(true)
    }

    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let pin = Self::RECORDS.then(epoch::pin);
        let pm = self.pm();
        // In a corrupt pool the key counts as absent, since `RemoveError` has no such case.
        let Ok((at, leaf, locked)) = self.lock_leaf(key) else {
            return Ok(false);
        };
        let Ok(Found {
            slot,
            key: word,
            value,
        }) = leaf.find(pm, key)
        else {
            locked.unlock_unchanged();
            return Ok(false);
        };
        let left = leaf.remove(pm, slot);
        locked.unlock();
        pm.interleave();
        if let Some(guard) = &pin {
            K::retire(&self.heap, word, guard);
            V::retire(&self.heap, value, guard);
        }
        if left == 0 && at.at != self.top() {
            // The key is removed. If the pool is corrupt, `verify` reports what is wrong.
            let _ = self.shrink(Goal::Key(key), &epoch::pin());
        }
        self.commit()?;
        Ok(true)
    }
}
