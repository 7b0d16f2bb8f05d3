//! Insertion, update, removal: each appends one record, whatever becomes of the chain.
//!
//! Persist cost: the lines of the record (1 for a delta of numbers), 1 fence. If the chain is full,
//! the lines of a base, or of two in one record, instead of the delta's, and also 1 fence. A string
//! that is too long to be inline adds its lines and 1 fence. A new segment (every 2,000 deltas of
//! numbers) adds 3 lines and 1 fence.

use super::read::Found;
use super::record::{Draft, Field, Kind};
use super::reserve::{Purpose, Refusal};
use super::table::{Entry, Place};
use super::{LsTree, count};
use crate::index::{InsertError, RemoveError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{CommitError, Media, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Number of times that an insertion may find the room that was made for it taken by others.
const REFUSALS: usize = 100;

/// Behaviour for a key that is present or absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Does nothing if the key is present.
    Insert,
    /// Sets the value in any case.
    Upsert,
    /// Does nothing if the key is absent.
    Update,
}

/// A pair of a leaf that is being rewritten.
type Item<'a, K, V> = (Field<'a, K>, Field<'a, V>);

/// A change of one key; `value` is none for a removal.
struct Change<'a, K: ?Sized, V: ?Sized> {
    key: &'a K,
    hash: u32,
    /// The key in the form for the record.
    field: Field<'a, K>,
    value: Option<Field<'a, V>>,
    /// The leaf's current entry of the key.
    found: Option<Found>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Returns true if a string is too long for records of the log.
    pub(super) fn is_long<T: Repr + ?Sized>(&self, value: &T) -> bool {
        T::RECORDS && value.bytes() > self.shape.inline
    }

    /// Returns true if a word leads to a block.
    pub(super) fn leads_to_block<T: Repr + ?Sized>(&self, word: u64) -> bool {
        T::RECORDS && T::read(self.pm(), word, |value| self.is_long(value)).unwrap_or(false)
    }

    /// Returns the word of a number, or of the new block of a long string; 0 for a short string.
    fn make<T: Repr + ?Sized>(&self, value: &T) -> Result<u64, SpaceError> {
        if T::RECORDS && !self.is_long(value) {
            return Ok(0);
        }
        // Long strings may not take what the reserve still lacks.
        self.logs.fill_reserve();
        value.make(&self.heap).or_else(|full| {
            if !self.make_room(Purpose::Put) {
                return Err(full);
            }
            self.logs.free_extra_spares();
            value.make(&self.heap)
        })
    }

    /// Returns the words of a pair. Blocks of long strings are fenced.
    fn make_pair(&self, key: &K, value: &V) -> Result<(u64, u64), SpaceError> {
        let key_word = self.make(key)?;
        let value_word = self
            .make(value)
            .inspect_err(|_| self.discard(key, key_word))?;
        if self.is_long(key) || self.is_long(value) {
            // PERSIST: the long strings, before a record that leads to them.
            self.pm().fence();
        }
        Ok((key_word, value_word))
    }

    /// Frees the block of a long string that no record leads to.
    fn discard<T: Repr + ?Sized>(&self, value: &T, word: u64) {
        if self.is_long(value) {
            T::discard(&self.heap, word);
        }
    }

    /// Writes a pair as `mode` says. Returns true if the key was there. The caller commits what was
    /// fenced.
    pub(super) fn write(&self, key: &K, value: &V, mode: Mode) -> Result<bool, SpaceError> {
        let (long_key, long_value) = (self.is_long(key), self.is_long(value));
        if long_key || long_value {
            // Blocks are made before the lock is taken, but only if the operation can succeed.
            match (mode, self.find_value(key, |_| ()).is_some()) {
                (Mode::Insert, true) => return Ok(true),
                (Mode::Update, false) => return Ok(false),
                _ => {}
            }
        }
        let (key_word, value_word) = self.make_pair(key, value)?;
        let discard = || {
            self.discard(key, key_word);
            self.discard(value, value_word);
        };
        let hash = key.hash();
        let mut refused = 0;
        loop {
            let pin = Self::pin();
            let (lnid, locked) = self.lock_leaf(key, pin.guard());
            let blind = self.options.blind && mode == Mode::Insert && !(K::RECORDS || V::RECORDS);
            let found = if blind {
                None
            } else {
                self.search(self.table.entry(lnid), lnid, key, hash)
            };
            if matches!(
                (mode, found),
                (Mode::Insert, Some(_)) | (Mode::Update, None)
            ) {
                locked.unlock_unchanged();
                discard();
                return Ok(found.is_some());
            }
            let own = Field::New {
                given: key,
                word: key_word,
            };
            let change = Change {
                key,
                hash,
                field: match found {
                    Some(found) if long_key => Field::Word(found.key),
                    _ => own,
                },
                value: Some(Field::New {
                    given: value,
                    word: value_word,
                }),
                found,
            };
            match self.change(lnid, &change) {
                Ok(look) => {
                    let old = found.filter(|old| self.leads_to_block::<V>(old.value));
                    drop(locked);
                    if let Some(old) = old {
                        V::retire(&self.heap, old.value, pin.guard());
                    }
                    if found.is_some() {
                        self.discard(key, key_word);
                    }
                    drop(pin);
                    self.after(look);
                    return Ok(found.is_some());
                }
                Err(refusal) => {
                    locked.unlock_unchanged();
                    drop(pin);
                    match refusal {
                        Refusal::Busy => self.await_room(),
                        Refusal::Full(full) => {
                            // An append that fails even after room was made is refused in the end.
                            refused += 1;
                            if refused > REFUSALS || !self.make_room(Purpose::Put) {
                                discard();
                                return Err(full);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Inserts a batch.
    pub(super) fn insert_batch<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.extend(pairs.iter().map(|(key, value)| {
            let (key, value) = (key.borrow(), value.borrow());
            self.check_pair(key, value)?;
            if self.write(key, value, Mode::Insert)? {
                return Err(InsertError::KeyExists);
            }
            Ok(())
        }));
        if let Err(e) = self.commit() {
            for result in out.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(InsertError::Commit(e.duplicate()));
            }
        }
    }

    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let hash = key.hash();
        let mut hopeless = false;
        let mut waiting = None;
        loop {
            let pin = Self::pin();
            let (lnid, locked) = self.lock_leaf(key, pin.guard());
            let Some(found) = self.search(self.table.entry(lnid), lnid, key, hash) else {
                locked.unlock_unchanged();
                return Ok(false);
            };
            let change = Change {
                key,
                hash,
                field: Field::Word(found.key),
                value: None,
                found: Some(found),
            };
            let changed = self.change(lnid, &change);
            let refusal = match changed {
                Ok(look) => {
                    let (long_key, long_value) = (
                        self.leads_to_block::<K>(found.key),
                        self.leads_to_block::<V>(found.value),
                    );
                    drop(locked);
                    if long_key {
                        K::retire(&self.heap, found.key, pin.guard());
                    }
                    if long_value {
                        V::retire(&self.heap, found.value, pin.guard());
                    }
                    drop(pin);
                    drop(waiting);
                    self.after(look);
                    self.commit()?;
                    return Ok(true);
                }
                Err(refusal) => refusal,
            };
            locked.unlock_unchanged();
            drop(pin);
            let full = match refusal {
                Refusal::Busy => {
                    waiting.get_or_insert_with(|| self.register_removal());
                    self.await_room();
                    continue;
                }
                Refusal::Full(full) => full,
            };
            // Collection may have freed no whole segment and still have left room at the end of
            // some log.
            if !self.make_room(Purpose::Remove) && std::mem::replace(&mut hopeless, true) {
                let source = std::io::Error::other(full.to_string());
                let doing = "removing a key from a full pool";
                return Err(CommitError::NoSpace { doing, source }.into());
            }
        }
    }

    /// Appends a record that changes a locked leaf, and changes its entry. Returns true if it is
    /// time to look for garbage.
    ///
    /// # Errors
    /// [`Refusal`]. Nothing has changed then.
    fn change(&self, lnid: u32, change: &Change<'_, K, V>) -> Result<bool, Refusal> {
        let entry = self.table.entry(lnid);
        let counts = entry.counts();
        let live = match (&change.value, change.found) {
            (Some(_), Some(_)) => counts.live,
            (Some(_), None) => counts.live + 1,
            (None, _) => counts.live.saturating_sub(1),
        };
        let removal = change.value.is_none();
        // An empty leaf needs an empty base (invariant 3 of the tree). A long key's block is freed
        // with its removal, so that no delta may lead there.
        let delta = !entry.base().is_none()
            && counts.pairs + counts.deltas < self.shape.entries
            && counts.deltas < self.shape.deltas.min(entry.room())
            && !(removal && (live == 0 || self.is_long(change.key)));
        if !delta {
            return self.rewrite(lnid, entry, change);
        }
        let (pm, inline) = (self.pm(), self.shape.inline);
        let sequence = entry.sequence() + 1;
        let (mut draft, purpose) = match &change.value {
            Some(value) => {
                let mut draft = Draft::put(lnid, sequence);
                draft.push(pm, &change.field, inline);
                draft.push(pm, value, inline);
                (draft, Purpose::Put)
            }
            None => {
                let mut draft = Draft::remove(lnid, sequence);
                draft.push(pm, &change.field, inline);
                (draft, Purpose::Remove)
            }
        };
        let written = self.logs.append(self.home(lnid), &mut draft, purpose)?;
        entry.push(Place::new(written.off, written.log, change.hash), live);
        entry.set_sequence(sequence);
        entry.add_records(1);
        count(&self.counters.deltas);
        Ok(written.look)
    }

    /// Replaces the chain of a locked leaf by a base with the change in it, or by those of two
    /// leaves.
    fn rewrite(
        &self,
        lnid: u32,
        entry: Entry<'_, M::Dram>,
        change: &Change<'_, K, V>,
    ) -> Result<bool, Refusal> {
        let mut words = Vec::with_capacity(self.shape.entries + 1);
        self.contents(entry, lnid, &mut words);
        let mut items: Vec<Item<'_, K, V>> = words
            .into_iter()
            .map(|(key, value)| (Field::Word(key), Field::Word(value)))
            .collect();
        let at = items.binary_search_by(|(key, _)| {
            let order = key.with(self.pm(), |key| key.cmp(change.key));
            order.unwrap_or(Order::Less)
        });
        match (at, change.value) {
            (Ok(at), Some(value)) => items[at].1 = value,
            (Ok(at), None) => drop(items.remove(at)),
            (Err(at), Some(value)) => items.insert(at, (change.field, value)),
            (Err(_), None) => {}
        }
        let removal = change.value.is_none();
        if items.len() > self.shape.entries * 3 / 4 && items.len() > 1 {
            match self.split(lnid, entry, &items, change) {
                // A removal makes the leaf smaller, so that it fits into one base as well.
                Err(_) if removal => {}
                split => return split,
            }
        }
        let purpose = if removal {
            Purpose::Remove
        } else {
            Purpose::Put
        };
        let mut draft = Draft::base(lnid, entry.sequence() + 1, items.len());
        for (key, value) in &items {
            draft.push(self.pm(), key, self.shape.inline);
            draft.push(self.pm(), value, self.shape.inline);
        }
        let written = self.logs.append(self.home(lnid), &mut draft, purpose)?;
        let place = Place::new(written.off, written.log, 0);
        self.install_base(lnid, entry, place, items.len());
        entry.add_records(1);
        count(&self.counters.rewrites);
        if items.is_empty() && self.inner.remove(lnid, change.key, &epoch::pin()) {
            // The entry keeps the empty base.
            self.table.release(lnid);
            count(&self.counters.unlinks);
        }
        Ok(written.look)
    }

    /// Makes the base at `place`, which has the next sequence number, the chain of a locked leaf.
    pub(super) fn install_base(
        &self,
        lnid: u32,
        entry: Entry<'_, M::Dram>,
        place: Place,
        pairs: usize,
    ) {
        for old in entry.places() {
            self.no_longer_live(lnid, old);
        }
        entry.set_base(place, pairs);
        entry.set_sequence(entry.sequence() + 1);
    }

    /// Splits a full leaf in two. One record holds both, so that a crash keeps both or neither.
    fn split(
        &self,
        lnid: u32,
        entry: Entry<'_, M::Dram>,
        items: &[Item<'_, K, V>],
        change: &Change<'_, K, V>,
    ) -> Result<bool, Refusal> {
        let (pm, inline) = (self.pm(), self.shape.inline);
        self.inner.ensure_room(0)?;
        let (right, right_lock) = self.table.take(&self.locks, Some(lnid))?;
        let new = self.table.entry(right);
        let (low, high) = items.split_at(items.len() / 2);
        let mut sequence = entry.sequence().max(new.sequence()) + 1;
        if pm.planted("lstree-split-in-two") {
            let mut draft = Draft::base(lnid, sequence, low.len());
            for (key, value) in low {
                draft.push(pm, key, inline);
                draft.push(pm, value, inline);
            }
            if (self.logs.append(self.home(lnid), &mut draft, Purpose::Put)).is_ok() {
                entry.add_records(1);
                sequence += 1;
            }
        }
        let mut draft = Draft::split(lnid, sequence, low.len(), right, high.len());
        for (key, value) in items {
            draft.push(pm, key, inline);
            draft.push(pm, value, inline);
        }
        let purpose = Purpose::Put;
        let written = match self.logs.append(self.home(lnid), &mut draft, purpose) {
            Ok(written) => written,
            Err(full) => {
                if let Some(lock) = right_lock {
                    lock.unlock_unchanged();
                }
                self.table.release(right);
                return Err(full);
            }
        };
        let place = Place::new(written.off, written.log, 0);
        for (lnid, entry, n) in [(lnid, entry, low.len()), (right, new, high.len())] {
            self.install_base(lnid, entry, place, n);
            entry.set_sequence(sequence);
            entry.add_records(1);
        }
        let guard = epoch::pin();
        let separator = high[0].0;
        if separator
            .with(pm, |key| self.inner.insert(key, right, &guard))
            .is_none()
        {
            // The pool has become corrupt: keep the leaf reachable.
            self.inner.insert(change.key, right, &guard);
        }
        pm.interleave();
        drop(right_lock);
        count(&self.counters.splits);
        Ok(written.look)
    }

    /// Subtracts a record of a leaf from the estimate of live bytes.
    pub(super) fn no_longer_live(&self, lnid: u32, place: Place) {
        let Some(record) = self.reader().record(place.off()) else {
            return;
        };
        debug_assert!(self.reader().pairs(&record, lnid).is_some());
        // Each of the two leaves of a split has half of it.
        let share = match record.kind {
            Kind::Split => record.footprint() / 2,
            _ => record.footprint(),
        };
        // ORDERING: Relaxed; an estimate.
        let live = &self.logs.log(place.log()).live;
        live.fetch_sub(share as i64, Ordering::Relaxed);
    }
}
