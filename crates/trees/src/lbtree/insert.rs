//! Insertion (Algorithm 2) with entry moving, and replacement of a value.
//!
//! Persist cost of an insert that finds an empty slot: in the header line, 1 line and 1 fence (2
//! fences where the pair has records); in another line, 2 lines and 2 fences. Replacing: 1 line, 1
//! fence (2 fences where the value is a record). Records add their own lines, not fences.

use super::LbTree;
use super::leaf::{Block, Header, Leaf, Place, line_of, slots, slots_in};
use super::read::Found;
use crate::index::{InsertError, UpdateError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering;

/// The planted fault of an insert that others see before a crash keeps it.
const UNLOCK_FIRST: &str = "unlock before fence";

/// What to do with a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfPresent {
    /// Report [`InsertError::KeyExists`].
    Refuse,
    /// Put the new value in its place.
    Replace,
}

/// A pair as a leaf holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub key: u64,
    pub value: u64,
    pub fingerprint: u8,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> LbTree<K, V, M, B> {
    /// True if a pair leads to records, whose lines are to be fenced before it counts.
    pub(super) const RECORDS: bool = K::RECORDS || V::RECORDS;

    /// Makes the words for a pair, records and all; nothing is allocated if it fails.
    pub(super) fn make_pair(&self, key: &K, value: &V, hash: u32) -> Result<Pair, SpaceError> {
        let word = key.make(&self.heap)?;
        let value = value
            .make(&self.heap)
            .inspect_err(|_| K::discard(&self.heap, word))?;
        Ok(Pair {
            key: word,
            value,
            fingerprint: hash as u8,
        })
    }

    pub(super) fn free_pair(&self, pair: Pair) {
        K::discard(&self.heap, pair.key);
        V::discard(&self.heap, pair.value);
    }

    /// Inserts, or does as `present` says, and commits. True if the key was there.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let was_there = self.put_uncommitted(key, value, present)?;
        self.commit()?;
        Ok(was_there)
    }

    /// Inserts, or does as `present` says; what it fenced is still to be committed.
    pub(super) fn put_uncommitted(
        &self,
        key: &K,
        value: &V,
        present: IfPresent,
    ) -> Result<bool, InsertError> {
        let pin = Self::pin();
        let guard = pin.guard();
        let hash = key.hash();
        if Self::RECORDS {
            // Records are made before the lock is taken, but not for nothing.
            if self.find_word(key, guard).is_some() {
                match present {
                    IfPresent::Refuse => return Err(InsertError::KeyExists),
                    IfPresent::Replace => {
                        if self.replace_uncommitted(key, value)? {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        let pair = self.make_pair(key, value, hash)?;
        let (_, leaf, locked) = self.lock_leaf(key, guard);
        if let Some(found) = self.search(leaf, key, hash) {
            match present {
                IfPresent::Refuse => {
                    locked.unlock_unchanged();
                    self.free_pair(pair);
                    return Err(InsertError::KeyExists);
                }
                IfPresent::Replace => {
                    self.swap_value(leaf, found, pair.value);
                    locked.unlock();
                    K::discard(&self.heap, pair.key);
                    V::retire(&self.heap, found.value, guard);
                    return Ok(true);
                }
            }
        }
        let headers = leaf.headers(self.pm());
        if let Some(b) = (0..B).find(|&b| headers[b].empty() != 0) {
            let place = headers[0].place(b);
            self.insert_in_block(&leaf.blocks[b], place, headers[b], pair, Self::RECORDS);
        } else if let Err(e) = self.split(leaf, headers, key, pair) {
            locked.unlock_unchanged();
            self.free_pair(pair);
            return Err(e.into());
        }
        // After the fence: what others see now, a crash keeps.
        locked.unlock();
        if self.pm().planted(UNLOCK_FIRST) {
            // PERSIST: (planted fault) too late; others have seen it since the unlock.
            self.pm().persist(leaf);
        }
        Ok(false)
    }

    /// Puts a pair into a block that has an empty slot (`LBTreeLeafInsert`). `header` is what the
    /// block's durable header says. `unfenced_records`: the pair leads to records that no
    /// fence has made durable yet.
    pub(super) fn insert_in_block(
        &self,
        block: &Block,
        place: Place,
        header: Header,
        pair: Pair,
        unfenced_records: bool,
    ) {
        let pm = self.pm();
        let usable = header.empty();
        let mut header = header;
        if pm.planted("lbtree-lock-bit") {
            block.store_header(pm, place, header.with_lock_bit());
        }
        let line = self.place(block, place, &mut header, usable, pair);
        if line != place.line() {
            // PERSIST: the new and the moved entries, before the header that makes them count.
            pm.flush(block.line(line), 64);
            pm.fence();
        } else if unfenced_records {
            // PERSIST: the records, before the header that leads to them.
            pm.fence();
        }
        block.store_header(pm, place, header);
        if pm.planted(UNLOCK_FIRST) {
            return; // `put_uncommitted` persists after it has unlocked
        }
        // PERSIST: the NAW that makes the insert count; with it, an entry in the same line.
        pm.flush(block.line(place.line()), 64);
        pm.fence();
    }

    /// Writes a pair into a slot of `usable` (slots that neither the durable header nor `header`
    /// counts; not empty), moves entries if that pays, and notes both in `header`. Returns the line
    /// that was written; nothing is flushed.
    pub(super) fn place(
        &self,
        block: &Block,
        place: Place,
        header: &mut Header,
        usable: u32,
        pair: Pair,
    ) -> usize {
        let pm = self.pm();
        let home = slots_in(place.line());
        let candidates = if usable & home != 0 {
            usable & home
        } else {
            usable
        };
        let slot = candidates.trailing_zeros() as usize;
        if pm.planted("lbtree-header-first") {
            let mut early = *header;
            early.set(slot, pair.fingerprint);
            block.store_header(pm, place, early);
            pm.persist(block);
        }
        block.store_entry(pm, slot, pair.key, pair.value);
        header.set(slot, pair.fingerprint);
        let line = line_of(slot);
        if line != place.line() && self.entry_moving {
            // The line is to be written anyway: move what fits out of the header line, so that the
            // next inserts write that line only (Algorithm 2, lines 24 to 31).
            let room = usable & slots_in(line) & !(1 << slot);
            let mut without = *header;
            without.clear(slot);
            for (from, to) in slots(header.bitmap() & home).zip(slots(room)) {
                let (key, value) = block.entry(pm, from);
                if pm.planted("lbtree-delete-then-insert") {
                    without.clear(from);
                    block.store_header(pm, place, without);
                    pm.persist(block);
                }
                block.store_entry(pm, to, key, value);
                header.set(to, header.fingerprint(from));
                header.clear(from);
            }
        }
        line
    }

    /// Stores a value word over that of `found`: crash state 4.
    pub(super) fn swap_value(&self, leaf: &Leaf<B>, found: Found, value: u64) {
        let pm = self.pm();
        if V::RECORDS {
            // PERSIST: the new value's record, before the word that leads to it.
            pm.fence();
        }
        if pm.planted("lbtree-two-stores") {
            // The low byte, then the others.
            let half = found.value & !0xFF | value & 0xFF;
            let word = &leaf.blocks[found.block].entries[found.slot].value;
            word.store(pm, half, Ordering::Relaxed);
        }
        // PERSIST: (in `publish`) the new value counts.
        leaf.blocks[found.block].entries[found.slot]
            .value
            .publish(pm, value);
    }

    /// Replaces the value of a key that is there.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        // A record is made before the lock is taken, but not for nothing.
        let there = !V::RECORDS || self.find_word(key, &epoch::pin()).is_some();
        if !there || !self.replace_uncommitted(key, value)? {
            return Err(UpdateError::NotFound);
        }
        self.commit()?;
        Ok(())
    }

    /// Replaces the value of `key`, if it is there: false if not. What it fenced is still to be
    /// committed.
    fn replace_uncommitted(&self, key: &K, value: &V) -> Result<bool, SpaceError> {
        let pin = Self::pin();
        let guard = pin.guard();
        let hash = key.hash();
        let freed = self.pm().planted("lbtree-free-first");
        if freed && let Some(old) = self.find_word(key, guard) {
            V::discard(&self.heap, old);
        }
        let word = value.make(&self.heap)?;
        let (_, leaf, locked) = self.lock_leaf(key, guard);
        let Some(found) = self.search(leaf, key, hash) else {
            locked.unlock_unchanged();
            V::discard(&self.heap, word);
            return Ok(false);
        };
        self.swap_value(leaf, found, word);
        locked.unlock();
        if !freed {
            V::retire(&self.heap, found.value, guard);
        }
        Ok(true)
    }
}
