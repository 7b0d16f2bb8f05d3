//! Insertion (Algorithm 2), update and deletion. All of them append.
//!
//! Persist cost: the line of the element (an update's two may be in two lines), a fence, the
//! counter's line, a fence. Records add their lines and no fences.

use super::NvTree;
use super::info::LeafInfo;
use super::leaf::{Element, Leaf};
use super::read::Newest;
use crate::common::make_pair;
use crate::index::{IfPresent, InsertError, RemoveError, UpdateError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Appends to a locked leaf that has room, and makes the elements visible.
    #[inline(always)]
    fn append(&self, info: &LeafInfo, leaf: &Leaf<'_, M>, elements: &[Element]) {
        let n = info.elements();
        leaf.append(n, elements);
        // After the fence, so that readers see only what survives a crash.
        info.publish(n + elements.len());
        if self.adaptive() {
            info.count_writes(elements.len() as u64);
            self.totals.wrote(elements.len() as u64);
        }
    }

    /// Returns the key and value words of a pair, with their records.
    fn make_pair(&self, key: &K, value: &V) -> Result<(u64, u64), SpaceError> {
        make_pair(&self.heap, key, value)
    }

    /// Inserts, or acts as `present` says, and commits. Returns true if the key was present.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let hash = key.hash();
        if Self::RECORDS && self.is_there(key, hash) {
            // Records are made before the lock is taken, but only if the operation can succeed.
            match present {
                IfPresent::Refuse => return Err(InsertError::KeyExists),
                IfPresent::Replace => {
                    if self.replace_uncommitted(key, value, hash)? {
                        self.commit()?;
                        return Ok(true);
                    }
                }
            }
        }
        let (key_word, value_word) = match self.make_pair(key, value) {
            Err(_) if K::RECORDS && self.compact(key) => self.make_pair(key, value)?,
            made => made?,
        };
        let discard = || {
            K::discard(&self.heap, key_word);
            V::discard(&self.heap, value_word);
        };
        loop {
            let guard = epoch::pin();
            let (info, held) = self.lock_leaf(key, &guard);
            let leaf = info.leaf(self.pm());
            let found = match present {
                IfPresent::Refuse if self.blind => None,
                _ => self.newest(&leaf, info.elements(), key, hash),
            };
            let room = match found {
                Some(there) if !there.negative => {
                    if present == IfPresent::Refuse {
                        drop(held);
                        discard();
                        return Err(InsertError::KeyExists);
                    }
                    if info.room() >= 2 {
                        self.append_update(info, &leaf, there, value_word);
                        drop(held);
                        K::discard(&self.heap, key_word);
                        V::retire(&self.heap, there.value, &guard);
                        self.commit()?;
                        return Ok(true);
                    }
                    2
                }
                _ => {
                    if info.room() >= 1 {
                        let element = Element::positive(key_word, value_word);
                        self.append(info, &leaf, &[element]);
                        info.set_live(info.live() + 1);
                        drop(held);
                        self.commit()?;
                        return Ok(false);
                    }
                    1
                }
            };
            drop(held);
            drop(guard);
            // LeafSplitAndInsert: once there is room, the insertion is an ordinary one.
            if let Err(e) = self.make_room(key, room) {
                discard();
                return Err(e.into());
            }
        }
    }

    /// Appends a negative and a positive element, which become visible together.
    fn append_update(&self, info: &LeafInfo, leaf: &Leaf<'_, M>, old: Newest, value: u64) {
        let elements = [
            Element::negative(old.key, old.value),
            Element::positive(old.key, value),
        ];
        if self.pm().planted("nvtree-update-twice") {
            self.append(info, leaf, &elements[..1]);
            self.append(info, leaf, &elements[1..]);
        } else {
            self.append(info, leaf, &elements);
        }
    }

    /// Replaces the value of a key that is present.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        let hash = key.hash();
        // A record is made before the lock is taken, but only if the operation can succeed.
        let there = !V::RECORDS || self.is_there(key, hash);
        if !there || !self.replace_uncommitted(key, value, hash)? {
            return Err(UpdateError::NotFound);
        }
        self.commit()?;
        Ok(())
    }

    /// Replaces the value of `key`. Returns false if the key is absent. The caller commits what was
    /// fenced.
    fn replace_uncommitted(&self, key: &K, value: &V, hash: u32) -> Result<bool, SpaceError> {
        let word = value.make(&self.heap)?;
        loop {
            let guard = epoch::pin();
            let (info, held) = self.lock_leaf(key, &guard);
            let leaf = info.leaf(self.pm());
            let found = self.newest(&leaf, info.elements(), key, hash);
            let Some(there) = found.filter(|found| !found.negative) else {
                drop(held);
                V::discard(&self.heap, word);
                return Ok(false);
            };
            if info.room() >= 2 {
                self.append_update(info, &leaf, there, word);
                drop(held);
                V::retire(&self.heap, there.value, &guard);
                return Ok(true);
            }
            drop(held);
            drop(guard);
            if let Err(e) = self.make_room(key, 2) {
                V::discard(&self.heap, word);
                return Err(e);
            }
        }
    }

    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let hash = key.hash();
        let mut no_space = false;
        loop {
            let guard = epoch::pin();
            let (info, held) = self.lock_leaf(key, &guard);
            let leaf = info.leaf(self.pm());
            let found = self.newest(&leaf, info.elements(), key, hash);
            let Some(there) = found.filter(|found| !found.negative) else {
                return Ok(false);
            };
            // A simulated medium's pools are never full, so there some removals take this way too.
            let in_place = no_space || (self.pm().tiny() && there.index % 4 == 3);
            if info.room() >= 1 {
                self.append(info, &leaf, &[Element::negative(there.key, there.value)]);
            } else if in_place {
                // A removal needs no space: the newest element itself becomes negative.
                info.begin_negating();
                leaf.negate(there.index);
                info.publish(info.elements());
            } else {
                drop(held);
                drop(guard);
                no_space = self.make_room(key, 1).is_err();
                continue;
            }
            let left = info.live().saturating_sub(1);
            info.set_live(left);
            drop(held);
            V::retire(&self.heap, there.value, &guard);
            if left == 0 {
                self.unlink_emptied(key, &guard);
            }
            self.commit()?;
            return Ok(true);
        }
    }
}
