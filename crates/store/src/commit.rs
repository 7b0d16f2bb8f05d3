//! How changes are committed: one key, or several.
//!
//! | change | protocol | persist cost besides the index's own |
//! | --- | --- | --- |
//! | one key | record flushed, fence, index leads to it | the record's lines, 1 fence |
//! | keys put together | records flushed, fence, index leads to each, fence where it was not fenced | the records' lines, 1 fence, and 1 more for updates; those of an LB+-Tree have none of their own |
//! | n keys | records flushed as pending, fence, index leads to them, NAW of the slot; stamps with the slot's next commit | the records' lines, 2 fences, 1 line, and 1 line a record later |
//!
//! # Crash states
//! | crash | what it leaves | recovery |
//! | --- | --- | --- |
//! | before the index leads to a record | blocks that nothing reaches | free |
//! | one key, after the index's own NAW | the change | nothing to do |
//! | keys put together, before the second fence | some of the changes, each wholly | nothing to do |
//! | n keys, before the NAW of the slot | 0 to n entries that lead to pending records, each to the old one in turn | they lead to the old ones again, or go |
//! | n keys, after it | n pending records | stamped |
//! | stamps, not all of them durable | stamped and pending records, the slot as it was | stamped, durably |
//! | the slot's next commit, before its NAW | as before its NAW; the stamps of the last one are durable | as before its NAW |
//! | a superseded version is cut off | newest version, whose `previous` may lead anywhere | void: what is committed follows nothing |
//! | a tombstone is vacuumed | the tombstone, or no entry | tombstones go |
//! | an undone commit's entry could not be given back | a dead record before the old one | kept: readers pass it, the next write replaces it |
//!
//! What is none of these is damage: it is kept and named (`recovery.rs`).
//!
//! # Concurrency
//! Writers hold the stripes of their keys (ascending) from before they look at what is there until their change can no longer be
//! refused: so what is newest under the lock is committed or dead. Time stamps are taken under these locks, so those of one key's
//! versions rise in the order in which they follow each other. What is put together has one time stamp: no key is in it
//! twice, and the locks are held, and the time stamp is not applied, until all of it is fenced, though the index leads to it before. Waiting for durability is done without locks.

use crate::clock::{Clock, Wait};
use crate::dropped::Dropped;
use crate::error::{ConflictError, WriteError};
use crate::horizon::{Snapshots, Ticket};
use crate::index::{KEY_MOST, PREFIX, split};
use crate::keyspace::Catalogue;
use crate::newest::{Current, Newest, Suspects};
use crate::record::{self, Prepared, Stamp, Terms, VALUE_MOST};
use crate::serial::ReadSet;
use crate::slots::Slots;
use crate::store::WallClock;
use crate::stripes::{HeldMany, Obsolete, Stripe, Stripes};
use crate::vacuum::Control;
use bristlecone_index::Hint;
use bristlecone_index::engine::Engine;
use bristlecone_pmem::media::deferring_commits;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::sync::wait_for_readers;
use bristlecone_pmem::{Heap, Media};
use crossbeam_epoch as epoch;
use std::borrow::Cow;

/// How often readers are waited for where there is no room.
const WAITS: usize = 10;
/// How often the vacuum is begun again behind what is damaged, for want of room.
const PASSES: usize = 64;

/// Bytes of values that are written where they cost least: under the locks. Where they are written before, the first lock waits until they are.
const FILLED_LATE: usize = 1024;

/// Longest value that is read under the locks of other keys, in bytes.
const GOT_MOST: usize = 64 << 10;
/// Steps that are taken at one time.
const STEPS_MOST: usize = 1024;

/// Everything that the handles of a store share.
pub(crate) struct Inner<M: Media> {
    // First: it is closed while the rest is there.
    pub index: Box<dyn Engine>,
    pub clock: Clock,
    pub stripes: Stripes,
    pub snapshots: Snapshots,
    pub slots: Slots,
    pub catalogue: Catalogue,
    pub suspects: Suspects,
    pub dropped: Dropped,
    pub control: Control,
    pub wall: WallClock,
    pub name: String,
    pub design: String,
    pub node_bytes: u32,
    /// A block of a tombstone's size, which nothing leads to: its chunk stays, so that a full pool has room for deletions. 0 if
    /// there was none to be had.
    pub spare: u64,
    pub heap: Heap<M>,
    pub root: Root<M>,
}

/// One of the steps of [`Store::run_together`](crate::Store::run_together).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'v> {
    /// Reads the key.
    Get,
    /// Puts this value.
    Put(&'v [u8]),
}

impl<'v> Step<'v> {
    fn value(self) -> Option<&'v [u8]> {
        match self {
            Self::Get => None,
            Self::Put(value) => Some(value),
        }
    }
}

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put { value: Vec<u8>, expiry: u64 },
    Delete,
}

impl Write {
    /// The value to be written, and its expiry.
    fn parts(&self) -> (Option<&[u8]>, u64) {
        match self {
            Self::Put { value, expiry } => (Some(value), *expiry),
            Self::Delete => (None, 0),
        }
    }
}

/// # Errors
/// [`WriteError::KeyTooLong`]
pub(crate) fn check_key(key: &[u8]) -> Result<(), WriteError> {
    if key.len() <= KEY_MOST {
        return Ok(());
    }
    Err(WriteError::KeyTooLong {
        len: key.len(),
        most: KEY_MOST,
    })
}

/// # Errors
/// [`WriteError::ValueTooLong`]
pub(crate) fn check_value(value: &[u8]) -> Result<(), WriteError> {
    if value.len() <= VALUE_MOST {
        return Ok(());
    }
    Err(WriteError::ValueTooLong {
        len: value.len(),
        most: VALUE_MOST,
    })
}

impl<M: Media> Inner<M> {
    #[inline]
    pub fn pm(&self) -> &M {
        self.heap.pool().pm()
    }

    /// What `op` does; once more, after vacuuming, if there was no room, in the heap or in the index. It has left nothing then. The caller
    /// holds no lock.
    ///
    /// # Errors
    /// Those of `op`.
    pub fn with_room<T>(
        &self,
        mut op: impl FnMut() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        match op() {
            Err(WriteError::Space(_)) => {
                self.make_room();
                op()
            }
            done => done,
        }
    }

    /// Reserves the records of the values that are put, and fills those that are long.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is allocated then.
    fn reserve_together<'a>(
        &'a self,
        steps: &[(&'a [u8], Step<'a>)],
        sums: &[u32],
        stripes: &[usize],
    ) -> Result<Vec<Change<'a, M>>, WriteError> {
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        self.clock.sound()?;
        for (key, step) in steps {
            check_key(key.get(PREFIX..).unwrap_or(key))?;
            check_value(step.value().unwrap_or(&[]))?;
        }
        let puts = (steps.iter().zip(sums).zip(stripes))
            .filter_map(|(((key, step), sum), stripe)| Some((*key, step.value()?, *sum, *stripe)));
        let mut changes = Vec::with_capacity(steps.len());
        let lens = puts.clone().map(|(_, value, ..)| value.len());
        let mut each = puts;
        record::reserve(&self.heap, lens, |record| {
            if let Some((key, value, sum, stripe)) = each.next() {
                changes.push(Change {
                    key,
                    put: Some((value, sum)),
                    stripe,
                    before: Newest::None,
                    hint: None,
                    record,
                });
            }
        })?;
        for change in &mut changes {
            if change
                .put
                .is_some_and(|(value, _)| value.len() > FILLED_LATE)
            {
                change.fill();
            }
        }
        Ok(changes)
    }

    /// Makes a record.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is allocated then.
    pub fn prepare(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        expiry: u64,
    ) -> Result<Prepared<'_, M>, WriteError> {
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        self.clock.sound()?;
        check_key(key.get(PREFIX..).unwrap_or(key))?;
        check_value(value.unwrap_or(&[]))?;
        let sum = crc32c::crc32c(key);
        Ok(record::prepare(&self.heap, sum, value, expiry)?)
    }

    /// Lets the index lead to `off` instead of what it leads to.
    fn lead_to(&self, key: &[u8], off: u64, there: bool) -> Result<(), WriteError> {
        deferring_commits(|| -> Result<(), WriteError> {
            if there {
                Ok(self.index.update(key, &off)?)
            } else {
                Ok(self.index.insert(key, &off)?)
            }
        })
    }

    /// Takes an entry out of the index.
    pub fn remove_entry(&self, key: &[u8]) -> Result<(), WriteError> {
        deferring_commits(|| self.index.remove(key))?;
        Ok(())
    }

    /// Notes that a record has taken the place of what was newest.
    fn superseded(
        &self,
        stripe: &mut Stripe,
        key: &[u8],
        before: &Newest,
        (off, terms, ts): (u64, &Terms, u64),
    ) {
        let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
        stripe.counts.made(terms);
        match before {
            Newest::Version(head) => stripe.counts.replaced(keyspace, &head.terms, terms),
            _ => stripe.counts.is_newest(keyspace, terms),
        }
        if before.obsolete() != 0 || terms.is_tombstone() {
            let tombstone = terms.is_tombstone().then(|| key.into());
            stripe.obsolete.push_back(Obsolete {
                ts,
                off,
                before: before.obsolete(),
                plain: before.plain(),
                tombstone,
            });
        }
        self.bury(stripe, before);
    }

    /// Frees the dead record that the index no longer leads to, if there was one.
    pub fn bury(&self, stripe: &mut Stripe, before: &Newest) {
        let dead = match before {
            Newest::Dead(off) => *off,
            Newest::Version(head) if head.entry != head.off => head.entry,
            _ => return,
        };
        if let Ok(header) = record::header(self.pm(), dead) {
            let terms = header.terms(self.pm());
            // What cannot be freed is found by the next opening.
            if record::retire(&self.heap, dead, &terms, &epoch::pin()).is_ok() {
                stripe.counts.gone(terms.bytes());
            }
        }
    }

    /// Returns once the commit of that time stamp, and all before it, are what `wait` says.
    pub fn settle(&self, ts: u64, wait: Wait) -> Result<(), WriteError> {
        match wait {
            // Those before it, too: so that who made it reads it.
            Wait::Applied => Ok(self.clock.wait_applied(ts)?),
            Wait::Durable => Ok(self.clock.make_durable(self.pm(), ts)?),
        }
    }

    /// Publishes a record as the newest version, under the lock of its stripe. Its time stamp is to be applied.
    pub fn publish(
        &self,
        stripe: &mut Stripe,
        key: &[u8],
        before: &Newest,
        mut record: Prepared<'_, M>,
        ts: u64,
    ) -> Result<(), WriteError> {
        record.stamp(Stamp::At(ts), before.off())?;
        // PERSIST: the record, before the index leads to it.
        self.pm().fence();
        self.lead_to(key, record.off, before.entry() != 0)?;
        let terms = record.terms;
        let off = record.keep();
        self.superseded(stripe, key, before, (off, &terms, ts));
        Ok(())
    }

    /// Changes one key to what `decide` makes of what is there: a record, or no change. `since`: only if nothing newer than
    /// that snapshot is there. The answer is what `wait` says, and so is what it rests on. The change's time stamp; 0 for no change.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn modify<'s, R>(
        &'s self,
        key: &[u8],
        since: Option<Ticket>,
        wait: Wait,
        decide: impl FnOnce(Option<Current<'s, M>>) -> Result<(Option<Prepared<'s, M>>, R), WriteError>,
    ) -> Result<(R, u64), WriteError> {
        let now = || since.map_or_else(|| self.wall.now(), |ticket| ticket.now);
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        let guard = epoch::pin();
        if let Err(refused) = self.may_write(key, &guard) {
            drop((stripe, guard));
            return Err(self.refused(refused, wait));
        }
        let before = self.newest(key, &guard);
        if since.is_some_and(|ticket| before.ts() > ticket.ts) {
            return Err(self.conflict(key, false).into());
        }
        let current = self.current(key, &before, now);
        let (record, answer) = decide(current)?;
        let record = record.filter(|record| !record.terms.is_tombstone() || before.is_value());
        let Some(record) = record else {
            drop(stripe);
            self.settle(before.ts(), wait)?;
            return Ok((answer, 0));
        };
        // Not pinned any more: an index without room waits for readers to leave. The lock keeps what is there from being freed.
        drop(guard);
        let taken = self.clock.take()?;
        let ts = taken.ts;
        let published = self.publish(&mut stripe, key, &before, record, ts);
        drop((taken, stripe));
        published?;
        self.settle(ts, wait)?;
        Ok((answer, ts))
    }

    /// Takes steps that do not depend on each other, at one time: the first ones of `steps`, up to a key that was there before (but to
    /// be read, both times), a long value that is to be read, or a step at which `each` says no. `each` is called with what is there, in order; of what is to be replaced,
    /// also if it has expired. Puts have one time stamp and two fences in all; each is durable or absent for itself. How many
    /// steps were taken; the answer is what `wait` says, and so is what it rests on.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was put then, but for [`WriteError::Commit`].
    pub fn run_together(
        &self,
        steps: &[(&[u8], Step<'_>)],
        wait: Wait,
        mut each: impl FnMut(&[u8], Option<&Current<'_, M>>) -> Result<bool, WriteError>,
    ) -> Result<usize, WriteError> {
        if steps.is_empty() {
            return Ok(0);
        }
        let pm = self.pm();
        let steps = &steps[..steps.len().min(STEPS_MOST)];
        let sums: Vec<u32> = steps.iter().map(|(key, _)| crc32c::crc32c(key)).collect();
        let mut stripes: Vec<usize> = sums.iter().map(|sum| self.stripes.of_sum(*sum)).collect();
        let steps = &steps[..distinct(steps, &sums)];
        stripes.truncate(steps.len());
        stripes.iter().for_each(|at| self.stripes.prefetch(*at));
        let mut changes = self.reserve_together(steps, &sums, &stripes)?;
        let keys: Vec<&[u8]> = steps.iter().map(|(key, _)| *key).collect();
        let mut held = HeldMany::lock(&self.stripes, stripes.iter().copied());
        held.prefetch_queues(pm);
        let guard = epoch::pin();
        if let Err(refused) = keys.iter().try_for_each(|key| self.may_write(key, &guard)) {
            drop((changes, held, guard));
            return Err(self.refused(refused, wait));
        }
        let found = self.find_ahead(&keys);
        let mut next = changes.iter_mut();
        // What the answer rests on that is not changed.
        let mut read = 0;
        let (mut count, mut puts) = (0, 0);
        for ((key, step), (entry, hint)) in steps.iter().zip(found) {
            let before = self.newest_of(key, entry, &guard);
            let current = self.current(key, &before, || match step {
                Step::Get => self.wall.now(),
                // What has expired is there for who replaces it.
                Step::Put(_) => 0,
            });
            let len = current.as_ref().map_or(0, Current::len);
            if *step == Step::Get && len > GOT_MOST {
                break;
            }
            let goes_on = each(key, current.as_ref())?;
            if !goes_on || *step == Step::Get {
                read = read.max(before.ts());
            }
            if !goes_on {
                break;
            }
            count += 1;
            if let Step::Put(_) = step
                && let Some(change) = next.next()
            {
                change.before = before;
                change.hint = entry.map(|_| hint);
                puts += 1;
            }
        }
        // Not pinned any more, as in `modify`.
        drop(guard);
        changes.truncate(puts);
        if changes.is_empty() {
            drop(held);
            self.settle(read, wait)?;
            return Ok(count);
        }
        let taken = self.clock.take()?;
        let ts = taken.ts;
        for change in &mut changes {
            change.fill();
            change.record.stamp(Stamp::At(ts), change.before.off())?;
        }
        // PERSIST: the records, before the index leads to them.
        pm.fence();
        if let Err((led, e)) = self.lead_together(&changes) {
            let each = changes.iter_mut().enumerate();
            let led = each.filter_map(|(i, change)| led.contains(&i).then_some(change));
            self.undo(&mut held, led);
            drop((taken, held, changes));
            // Another thread may have made durable what was led to.
            self.settle(ts, wait)?;
            return Err(e);
        }
        for change in &mut changes {
            let off = change.record.keep();
            let stripe = held.get(change.stripe);
            let terms = &change.record.terms;
            self.superseded(stripe, change.key, &change.before, (off, terms, ts));
        }
        let garbage = self.take_along(&mut held);
        drop((taken, held));
        self.heap.retire_all(garbage, &epoch::pin());
        self.settle(ts, wait)?;
        Ok(count)
    }

    /// Lets the index lead to the records of these changes, durably. An error comes with the places of those that it leads to by then.
    fn lead_together(&self, changes: &[Change<'_, M>]) -> Result<(), (Vec<usize>, WriteError)> {
        let pm = self.pm();
        // What is added comes first: mostly there is no room for that only.
        let added = || {
            changes
                .iter()
                .enumerate()
                .filter(|(_, change)| change.hint.is_none())
        };
        let entries: Vec<_> = added()
            .map(|(_, change)| (change.key, &change.record.off))
            .collect();
        let mut led = Vec::with_capacity(changes.len());
        let mut outcome = Ok(());
        if !entries.is_empty() {
            let outcomes = deferring_commits(|| self.index.insert_many(&entries));
            for ((i, _), one) in added().zip(outcomes) {
                match one {
                    Ok(()) => led.push(i),
                    Err(e) => outcome = Err(e.into()),
                }
            }
        }
        let mut unflushed = Vec::with_capacity(changes.len());
        for (i, change) in changes.iter().enumerate() {
            let Some(hint) = &change.hint else { continue };
            if outcome.is_err() {
                break;
            }
            let (key, off) = (change.key, &change.record.off);
            match deferring_commits(|| self.index.update_unflushed(hint, key, off)) {
                Ok(word) => {
                    unflushed.extend(word);
                    led.push(i);
                }
                Err(e) => outcome = Err(e.into()),
            }
        }
        // After all of them: a lock that is taken waits for what is being written back.
        for word in &unflushed {
            // PERSIST: what the index leads to; fenced with the others, below.
            pm.flush(pm.base().wrapping_add(*word as usize), size_of::<u64>());
        }
        if !unflushed.is_empty() {
            // PERSIST: what the index leads to, before anyone reads at that time stamp, and before the locks are given back.
            pm.fence();
        }
        outcome.map_err(|e| (led, e))
    }

    /// The error for a key that someone else changed.
    pub fn conflict(&self, key: &[u8], read: bool) -> ConflictError {
        let (keyspace, key) = split(key).unwrap_or((0, key));
        ConflictError {
            keyspace: self.catalogue.name_of(keyspace),
            key: key.to_vec(),
            read,
        }
    }

    /// Commits changes to several keys (each once), or none of them; gives the time stamp, 0 if nothing was to be changed. `since`: only if
    /// nothing newer than that snapshot is there. `reads`: only if that is what these reads would find now.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn commit_many(
        &self,
        writes: &[(Cow<'_, [u8]>, Cow<'_, Write>)],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        match (writes, reads) {
            ([], _) => Ok(0),
            ([(key, write)], None) => self.with_room(|| {
                let (value, expiry) = write.parts();
                let record = self.prepare(key, value, expiry)?;
                let (_, ts) = self.modify(key, since, wait, |_| Ok((Some(record), ())))?;
                Ok(ts)
            }),
            _ => self.with_room(|| self.try_commit_many(writes, since, reads, wait)),
        }
    }

    /// As [`commit_many`](Self::commit_many), if there is room.
    fn try_commit_many(
        &self,
        writes: &[(Cow<'_, [u8]>, Cow<'_, Write>)],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        let mut records = Vec::with_capacity(writes.len());
        for (key, write) in writes {
            let (value, expiry) = write.parts();
            records.push(Some(self.prepare(key, value, expiry)?));
        }
        let stripes = writes.iter().map(|(key, _)| self.stripes.of(key));
        let stripes: Vec<usize> = stripes.collect();
        let mut held = HeldMany::lock(&self.stripes, stripes.iter().copied());
        let guard = epoch::pin();
        let mut changes = Vec::with_capacity(writes.len());
        let mut latest = 0;
        let may_write = |(key, _): &(Cow<'_, [u8]>, _)| self.may_write(key, &guard);
        if let Err(refused) = writes.iter().try_for_each(may_write) {
            drop((held, guard));
            return Err(self.refused(refused, wait));
        }
        for (((key, _), stripe), record) in writes.iter().zip(stripes).zip(&mut records) {
            let before = self.newest(key, &guard);
            if since.is_some_and(|ticket| before.ts() > ticket.ts) {
                return Err(self.conflict(key, false).into());
            }
            latest = latest.max(before.ts());
            let record = record
                .take()
                .filter(|record| !record.terms.is_tombstone() || before.is_value());
            if let Some(record) = record {
                changes.push(Change {
                    key,
                    put: None,
                    stripe,
                    before,
                    hint: None,
                    record,
                });
            }
        }
        if changes.is_empty() && reads.is_none() {
            // The answer rests on what is there: deletions, say, that are not durable yet.
            drop((held, guard));
            self.settle(latest, wait)?;
            return Ok(0);
        }
        // Not pinned any more, as in `modify`.
        drop(guard);
        let outcome = self.commit_locked(&mut held, changes, since, reads);
        drop(held);
        let ts = outcome?;
        self.settle(ts, wait)?;
        Ok(ts)
    }

    /// Commits under the locks of the keys' stripes. The time stamp, which is applied, is to be settled, but on an error.
    fn commit_locked(
        &self,
        held: &mut HeldMany<'_>,
        mut changes: Vec<Change<'_, M>>,
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
    ) -> Result<u64, WriteError> {
        let pm = self.pm();
        let mut slot = self.slots.take(pm);
        let taken = self.clock.take()?;
        let ts = taken.ts;
        if let (Some(reads), Some(ticket)) = (reads, since) {
            self.validate(reads, ticket, ts)?;
        }
        let stamp = Stamp::Pending {
            slot: slot.number,
            ts,
        };
        for change in &changes {
            change.record.stamp(stamp, change.before.off())?;
        }
        slot.stamp(pm, &self.slots)?;
        // PERSIST: the records, before the index leads to them; the stamps of the slot's last commit.
        pm.fence();
        for (i, change) in changes.iter().enumerate() {
            let there = change.before.entry() != 0;
            if let Err(e) = self.lead_to(change.key, change.record.off, there) {
                self.undo(held, changes.iter_mut().take(i));
                return Err(e);
            }
        }
        self.slots.commit(pm, &slot, ts);
        slot.keep(changes.iter().map(|change| change.record.off));
        for change in &mut changes {
            let off = change.record.keep();
            let stripe = held.get(change.stripe);
            let terms = &change.record.terms;
            self.superseded(stripe, change.key, &change.before, (off, terms, ts));
        }
        Ok(ts)
    }

    /// Lets the entries of these keys, which lead to the new records, lead to what they led to before. Readers have passed the new records by, since their time
    /// stamp is not applied.
    fn undo<'c, 'a: 'c>(
        &self,
        held: &mut HeldMany<'_>,
        led: impl Iterator<Item = &'c mut Change<'a, M>>,
    ) where
        M: 'a,
    {
        let pm = self.pm();
        for change in led {
            let stripe = held.get(change.stripe);
            let before = change.before.off();
            if let Ok(header) = record::header(pm, change.record.off) {
                header.set_stamp(pm, Stamp::Dead);
                // PERSIST: the record is dead, before its slot may say anything else.
                pm.persist(&header.stamp);
            }
            let undone = if before == 0 {
                self.remove_entry(change.key)
            } else {
                self.lead_to(change.key, before, true)
            };
            let terms = change.record.terms;
            let off = change.record.keep();
            if undone.is_err() {
                // It stays where it is, dead, before the old one.
                stripe.counts.made(&terms);
            } else {
                // What cannot be freed is found by the next opening.
                let _ = record::retire(&self.heap, off, &terms, &epoch::pin());
            }
            self.bury(stripe, &change.before);
        }
    }

    /// Frees what can be freed, and waits until it can be used.
    pub fn make_room(&self) {
        // What keeps the vacuum from going on is said by the thread that vacuums, and by a check; who lacks room says that.
        // Each of these passes goes past some damage.
        let goes_on = |pass: &_| matches!(pass, Err(WriteError::Damaged(_)));
        (0..PASSES)
            .take_while(|_| goes_on(&self.vacuum_everything()))
            .count();
        // Whoever reads meanwhile, in this store or another one, keeps what was freed from being used again. They may have to
        // wait for a processor.
        let _ = (0..WAITS).any(|_| wait_for_readers());
        self.heap.trim();
    }
}

/// How many of these steps have keys that were not there before, or are only read. `sums`: the keys'.
fn distinct(steps: &[(&[u8], Step<'_>)], sums: &[u32]) -> usize {
    let mut order: Vec<(u32, usize)> = sums.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let mut count = steps.len();
    for (at, (sum, later)) in order.iter().enumerate() {
        let (key, step) = steps[*later];
        let before = order[..at].iter().rev();
        let mut alike = before.take_while(|(other, _)| other == sum);
        if alike.any(|(_, i)| steps[*i].0 == key && (steps[*i].1, step) != (Step::Get, Step::Get)) {
            count = count.min(*later);
        }
    }
    count
}

/// A change to one key that is being committed with others.
struct Change<'a, M: Media> {
    key: &'a [u8],
    /// The value that the record is yet to be filled with, and the CRC-32C of the key.
    put: Option<(&'a [u8], u32)>,
    /// The key's.
    stripe: usize,
    before: Newest,
    /// The hint that the search for the entry gave, if there was one.
    hint: Option<Hint>,
    record: Prepared<'a, M>,
}

impl<M: Media> Change<'_, M> {
    /// Fills the record, unless it is.
    fn fill(&mut self) {
        if let Some((value, sum)) = self.put.take() {
            self.record.fill(sum, Some(value), 0);
        }
    }
}
