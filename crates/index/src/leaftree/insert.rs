//! Insertion, and replacement of a value by one NAW of its word.
//!
//! Persist cost: that of the design for an insert; 1 line and 1 fence for a replacement (2 fences
//! where the value is a record). Records add their own lines and no fences.

use super::entry::{At, Attempt, Found, Pair};
use super::{LeafDesign, LeafTree};
use crate::common::{self, check_pair, check_value};
use crate::contract::{Hint, IfPresent, InsertError, UpdateError};
use crate::repr::{Stored, StoredKey, Word, WordOf};
use crate::sync::wait;
use bristlecone_pmem::planted;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

/// Planted fault: other threads see an insert before it survives a crash.
pub const UNLOCK_FIRST: &str = "unlock before fence";

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// True if a pair leads to records, whose lines must be fenced before it counts.
    pub const RECORDS: bool = K::RECORDS || V::RECORDS;

    /// Makes the words of a pair, with their records. If this fails, nothing stays allocated.
    pub fn make_pair(
        &self,
        key: &K,
        value: &V,
        hash: u32,
    ) -> Result<Pair<WordOf<K>, WordOf<V>>, SpaceError> {
        let (key, value) = common::make_pair(&self.heap, key, value)?;
        Ok(Pair {
            key,
            value,
            fingerprint: hash as u8,
        })
    }

    /// Frees the records of a pair that nothing leads to.
    pub fn free_pair(&self, pair: Pair<K::Word, V::Word>) {
        K::discard(&self.heap, pair.key);
        V::discard(&self.heap, pair.value);
    }

    /// Inserts. The caller commits.
    pub(super) fn insert_uncommitted(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        self.put_uncommitted(key, value, IfPresent::Refuse)
            .map(|_| ())
    }

    /// Checks whether an entry may be stored.
    ///
    /// # Errors
    /// [`InsertError`]: the tree is read-only, or the key or value is too long.
    pub fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }

    /// Inserts, or acts as `present` says. The caller commits.
    pub fn put_uncommitted(
        &self,
        key: &K,
        value: &V,
        present: IfPresent,
    ) -> Result<bool, InsertError> {
        match self.try_put(key, value, present) {
            Err(InsertError::Space(_)) if self.retired.wait() => self.try_put(key, value, present),
            result => result,
        }
    }

    fn try_put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let pin = Self::pin();
        let guard = pin.guard();
        let hash = key.hash();
        if K::ALLOCATES || V::ALLOCATES {
            // Records are made before the lock is taken, but only if the operation can succeed.
            if self.find_word(key, guard).is_some() {
                match present {
                    IfPresent::Refuse => return Err(InsertError::KeyExists),
                    IfPresent::Replace => {
                        if self.replace_uncommitted(key, value, None)?.is_some() {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        let pair = self.make_pair(key, value, hash)?;
        let backoff = Backoff::new();
        let leaf = loop {
            let at = self.lock_leaf(key, guard);
            let leaf = at.leaf;
            match D::put(self, at, key, hash, pair, present) {
                Ok(Attempt::Done) => break leaf,
                Ok(Attempt::There(found, locked)) => match present {
                    IfPresent::Refuse => {
                        locked.unlock_unchanged();
                        self.free_pair(pair);
                        return Err(InsertError::KeyExists);
                    }
                    IfPresent::Replace => {
                        self.swap_value(leaf, found, pair.value, true);
                        locked.unlock();
                        K::discard(&self.heap, pair.key);
                        self.retire_value(found.value, guard);
                        return Ok(true);
                    }
                },
                Ok(Attempt::Again) => wait(&backoff),
                Err(e) => {
                    self.free_pair(pair);
                    return Err(e.into());
                }
            }
        };
        if planted!(self.pm(), UNLOCK_FIRST) {
            // PERSIST: (planted fault) too late; others have seen it since the unlock.
            self.pm().persist(leaf);
        }
        Ok(false)
    }

    /// Replaces the value word of `found`, durably. If `durable` is false, a value of one word that
    /// is no record is not even flushed; the offset of its word is returned instead.
    pub fn swap_value(
        &self,
        leaf: &D::Leaf,
        found: Found<K::Word, V::Word>,
        value: V::Word,
        durable: bool,
    ) -> Option<u64> {
        let pm = self.pm();
        if V::RECORDS {
            // PERSIST: the new value's record, before the word that leads to it.
            pm.fence();
        }
        if planted!(pm, "lbtree-two-stores") {
            // The low byte, then the others.
            let half = found.value.parts()[0] & !0xFF | value.parts()[0] & 0xFF;
            D::value(self, leaf, found.slot).store(pm, half, Ordering::Relaxed);
        }
        if durable || V::RECORDS || V::Word::WORDS > 1 {
            // PERSIST: (in `set_value`) the new value.
            D::set_value(self, leaf, found.slot, value);
            return None;
        }
        let word = D::value(self, leaf, found.slot);
        // ORDERING: Release; as in `PWord::publish`.
        word.store(pm, value.parts()[0], Ordering::Release);
        let place: *const u8 = std::ptr::from_ref(word).cast();
        Some(place.addr() as u64 - self.base.addr() as u64)
    }

    /// Replaces the value of a key that is present. The caller commits. With a `hint` it acts as
    /// [`OrderedIndex::update_unflushed`](crate::OrderedIndex::update_unflushed).
    pub fn replace(
        &self,
        key: &K,
        value: &V,
        hint: Option<&Hint>,
    ) -> Result<Option<u64>, UpdateError> {
        check_value(self.read_only, value)?;
        // A record is made before the lock is taken, but only if the operation can succeed.
        let there = !V::RECORDS || self.find_word(key, &epoch::pin()).is_some();
        if !there {
            return Err(UpdateError::NotFound);
        }
        let replaced = self.replace_uncommitted(key, value, hint)?;
        replaced.ok_or(UpdateError::NotFound)
    }

    /// Replaces the value of `key`, if it is present. The caller commits; `hint` and the result are
    /// as in [`replace`](Self::replace).
    fn replace_uncommitted(
        &self,
        key: &K,
        value: &V,
        hint: Option<&Hint>,
    ) -> Result<Option<Option<u64>>, SpaceError> {
        let pin = Self::pin();
        let guard = pin.guard();
        let freed = planted!(self.pm(), "lbtree-free-first");
        if freed && let Some(old) = self.find_word(key, guard) {
            V::discard(&self.heap, old);
        }
        let word = value.make(&self.heap)?;
        let Some((At { leaf, locked, .. }, found)) = self.lock_found(key, hint, guard) else {
            V::discard(&self.heap, word);
            return Ok(None);
        };
        let unflushed = self.swap_value(leaf, found, word, hint.is_none());
        locked.unlock();
        if !freed {
            self.retire_value(found.value, guard);
        }
        Ok(Some(unflushed))
    }

    /// Frees a replaced value once readers have left it.
    fn retire_value(&self, word: V::Word, guard: &Guard) {
        V::retire(&self.heap, word, guard);
        if V::RECORDS {
            self.retired.note();
        }
    }
}
