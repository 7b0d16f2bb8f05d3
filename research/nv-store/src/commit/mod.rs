//! Commits: how changes become durable and visible, of one key or of several.
//!
//! | change | protocol | persist cost besides the index's own |
//! | --- | --- | --- |
//! | one key | record flushed, fence, the index leads to it | the record's lines, 1 fence |
//! | a batch of steps (`steps`) | records flushed, fence, the index leads to each, fence for what is not fenced | the records' lines, 1 fence, 1 more for updates; updates of an LB+-Tree have none of their own |
//! | n keys, atomically | records flushed as pending, fence, the index leads to them, NAW of the slot; stamps with the slot's next commit | the records' lines, 2 fences, 1 line, and 1 line a record later |
//!
//! # Crash states
//! | crash | what it leaves | recovery |
//! | --- | --- | --- |
//! | before the index leads to a record | blocks that nothing reaches | frees them |
//! | one key, after the index's own NAW | the change | does nothing |
//! | a batch, before the second fence | some of its puts, each complete | does nothing |
//! | n keys, before the NAW of the slot | 0 to n entries that lead to pending records, each with the old version behind it | makes them lead to the old versions again, or removes them |
//! | n keys, after it | n pending records | stamps them |
//! | while stamps become durable | stamped and pending records, the slot unchanged | stamps them durably |
//! | the slot's next commit, before its NAW | as before its NAW; the stamps of the last commit are durable | as before its NAW |
//! | after a superseded version is unlinked | the newest version, whose `previous` may lead anywhere | ignores `previous` of committed records |
//! | after a tombstone is vacuumed | the tombstone, or no entry | removes tombstones |
//! | after an undone commit whose entry could not be restored | a dead record in front of the old version | keeps it; readers skip it, and the next write replaces it |
//!
//! Anything else is damage, which recovery keeps and reports (`recovery.rs`).
//!
//! # Concurrency
//! Writers hold the stripes of their keys, locked in ascending order, from before they read the
//! current versions until their change can no longer fail. So under the lock the newest version is
//! committed or dead. Timestamps are taken under these locks, so along the versions of a key they
//! rise. The puts of a batch share one timestamp: no key occurs twice, and the locks are held, and
//! the timestamp is not applied, until all of it is fenced, although the index leads to the records
//! before. Nobody holds a lock while waiting for durability.

mod reporting;
mod steps;

use crate::newest::{Current, Newest};
use crate::record::{self, Meta, Prepared, Stamp};
use crate::stripes::{LockedStripes, Obsolete, Stripe};
use crate::vacuum::Vacuum;
use bristlecone_index::Hint;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::deferring_commits;
use bristlecone_store::engine::{
    Catalogue, DroppedAt, Feed, KeyWrite, PREFIX, ReadSet, Ticket, Wait, check_key, check_value,
    retry_for_space, split,
};
use bristlecone_store::{ConflictError, WriteError};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::Deref;
use std::sync::Arc;

/// The committer: makes changes durable and visible. It adds the keyspaces and the change
/// feed to what the [vacuum](Vacuum) and it share.
pub(crate) struct Committer<M: Media> {
    pub vacuum: Arc<Vacuum<M>>,
    pub catalogue: Arc<Catalogue>,
    pub feed: Arc<Feed>,
}

impl<M: Media> Deref for Committer<M> {
    type Target = Vacuum<M>;

    fn deref(&self) -> &Vacuum<M> {
        &self.vacuum
    }
}

impl<M: Media> Committer<M> {
    /// Runs `op`, and once more after vacuuming if there was no space, in the heap or in the index.
    /// The caller holds no lock, and a failed `op` has left nothing behind.
    ///
    /// # Errors
    /// Those of `op`.
    pub fn retry_for_space<T>(
        &self,
        op: impl FnMut() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        retry_for_space(|| self.reclaim_space(), op)
    }

    /// Checks that the keyspace of an index key was not dropped. The caller holds the key's stripe.
    ///
    /// # Errors
    /// The drop. The caller returns its [error](Self::dropped_error) once it holds no locks.
    pub fn check_not_dropped(&self, key: &[u8], guard: &Guard) -> Result<(), DroppedAt> {
        let number = split(key).map_or(0, |(number, _)| number);
        match self.dropped.since(number, guard) {
            None => Ok(()),
            Some(since) => Err(DroppedAt { number, since }),
        }
    }

    /// Returns the error of a write to a dropped keyspace, once reads show that it is gone.
    pub fn dropped_error(&self, dropped: DroppedAt, wait: Wait) -> WriteError {
        match self.wait_for(dropped.since, wait) {
            Ok(()) => WriteError::Dropped {
                keyspace: self.catalogue.name_of(dropped.number),
            },
            Err(e) => e,
        }
    }

    /// Waits until the commit of that timestamp, and all before it, are applied or durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]
    pub fn wait_for(&self, ts: u64, wait: Wait) -> Result<(), WriteError> {
        match wait {
            // Those before it too, so that the writer reads its own change.
            Wait::Applied => Ok(self.clock.wait_applied(ts)?),
            Wait::Durable => Ok(self.make_durable(ts)?),
        }
    }

    /// Writes the record of a change to one key.
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
        self.sound()?;
        check_key(key.get(PREFIX..).unwrap_or(key))?;
        check_value(value.unwrap_or(&[]))?;
        let sum = crc32c::crc32c(key);
        Ok(record::prepare(&self.heap, sum, value, expiry)?)
    }

    /// Makes the index lead to the record `off`, as a new entry or in place of the record that it
    /// leads to.
    ///
    /// # Errors
    /// [`WriteError`]; the index leads where it did.
    fn publish_entry(&self, key: &[u8], off: u64, there: bool) -> Result<(), WriteError> {
        deferring_commits(|| -> Result<(), WriteError> {
            if there {
                Ok(self.index.update(key, &off)?)
            } else {
                Ok(self.index.insert(key, &off)?)
            }
        })
    }

    /// Counts a new version, queues the one that it superseded for the vacuum, and frees a dead
    /// record in between.
    fn superseded(
        &self,
        stripe: &mut Stripe,
        key: &[u8],
        before: &Newest,
        (off, meta, ts): (u64, &Meta, u64),
    ) {
        let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
        stripe.counts.made(meta);
        match before {
            Newest::Version(head) => stripe.counts.replaced(keyspace, &head.meta, meta),
            _ => stripe.counts.is_newest(keyspace, meta),
        }
        if before.obsolete() != 0 || meta.is_tombstone() {
            let tombstone = meta.is_tombstone().then(|| key.into());
            stripe.obsolete.push_back(Obsolete {
                ts,
                off,
                before: before.obsolete(),
                plain_bytes: before.plain_bytes(),
                tombstone,
            });
        }
        self.free_dead_record(stripe, before);
        if self.feed.is_watched() {
            self.report(key, off, meta, ts);
        }
    }

    /// Publishes a record as the newest version of a key, under the lock of its stripe. The caller
    /// applies its timestamp afterwards.
    ///
    /// # Errors
    /// [`WriteError`]; the index leads where it did.
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
        self.publish_entry(key, record.off, before.entry() != 0)?;
        let meta = record.meta;
        let off = record.release();
        self.superseded(stripe, key, before, (off, &meta, ts));
        Ok(())
    }

    /// Changes one key to the record that `decide` returns for its current value; `None` is no
    /// change. With `since`, a version newer than that snapshot is a conflict. Returns the answer
    /// of `decide` and the change's timestamp, 0 for no change, once the change, or the version
    /// that the answer rests on, is as durable as `wait` says.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`].
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
        if let Err(dropped) = self.check_not_dropped(key, &guard) {
            drop((stripe, guard));
            return Err(self.dropped_error(dropped, wait));
        }
        let before = self.newest(key, &guard);
        if since.is_some_and(|ticket| before.ts() > ticket.ts) {
            return Err(self.conflict(key, false).into());
        }
        let current = self.current(key, &before, now);
        let (record, answer) = decide(current)?;
        let record = record.filter(|record| !record.meta.is_tombstone() || before.is_value());
        let Some(record) = record else {
            drop(stripe);
            self.wait_for(before.ts(), wait)?;
            return Ok((answer, 0));
        };
        // Unpinned, since an index without room waits for pinned readers. The lock keeps the
        // current version from being freed.
        drop(guard);
        let taken = self.clock.take()?;
        let ts = taken.ts;
        let published = self.publish(&mut stripe, key, &before, record, ts);
        drop((taken, stripe));
        published?;
        self.wait_for(ts, wait)?;
        Ok((answer, ts))
    }

    /// Returns the error for a key that another commit changed. `read`: this transaction only read
    /// it.
    pub fn conflict(&self, key: &[u8], read: bool) -> ConflictError {
        let (keyspace, key) = split(key).unwrap_or((0, key));
        ConflictError::over(self.catalogue.name_of(keyspace), key, read)
    }

    /// Commits changes to several keys, each of which occurs once: all of them, or none. With
    /// `since`, a version newer than that snapshot is a conflict; with `reads`, so is a change of
    /// what was read. Returns the timestamp, 0 if nothing was to be changed.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`].
    pub fn commit_many(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        match (writes, reads) {
            ([], _) => Ok(0),
            ([KeyWrite { key, value, expiry }], None) => self.retry_for_space(|| {
                let record = self.prepare(key, *value, *expiry)?;
                let (_, ts) = self.modify(key, since, wait, |_| Ok((Some(record), ())))?;
                Ok(ts)
            }),
            _ => self.retry_for_space(|| self.try_commit_many(writes, since, reads, wait)),
        }
    }

    /// As [`commit_many`](Self::commit_many), without a second attempt for want of space.
    fn try_commit_many(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        let mut records = Vec::with_capacity(writes.len());
        for write in writes {
            records.push(Some(self.prepare(write.key, write.value, write.expiry)?));
        }
        let stripes = writes.iter().map(|write| self.stripes.of(write.key));
        let stripes: Vec<usize> = stripes.collect();
        let mut held = LockedStripes::lock(&self.stripes, stripes.iter().copied());
        let guard = epoch::pin();
        let mut changes = Vec::with_capacity(writes.len());
        let mut latest = 0;
        let check_not_dropped = |write: &KeyWrite<'_>| self.check_not_dropped(write.key, &guard);
        if let Err(dropped) = writes.iter().try_for_each(check_not_dropped) {
            drop((held, guard));
            return Err(self.dropped_error(dropped, wait));
        }
        for ((KeyWrite { key, .. }, stripe), record) in writes.iter().zip(stripes).zip(&mut records)
        {
            let before = self.newest(key, &guard);
            if since.is_some_and(|ticket| before.ts() > ticket.ts) {
                return Err(self.conflict(key, false).into());
            }
            latest = latest.max(before.ts());
            let record = record
                .take()
                .filter(|record| !record.meta.is_tombstone() || before.is_value());
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
            // That nothing changes may rest on versions that are not durable yet, such as
            // deletions.
            drop((held, guard));
            self.wait_for(latest, wait)?;
            return Ok(0);
        }
        // Unpinned, as in `modify`.
        drop(guard);
        let outcome = self.commit_locked(&mut held, changes, since, reads);
        drop(held);
        let ts = outcome?;
        self.wait_for(ts, wait)?;
        Ok(ts)
    }

    /// Commits under the locks of the keys' stripes. Returns the timestamp, which is applied; the
    /// caller waits for it.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then.
    fn commit_locked(
        &self,
        held: &mut LockedStripes<'_>,
        mut changes: Vec<Change<'_, M>>,
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
    ) -> Result<u64, WriteError> {
        let pm = self.pm();
        let mut slot = self.slots.take(pm);
        let taken = self.clock.take()?;
        let ts = taken.ts;
        if let (Some(reads), Some(ticket)) = (reads, since)
            && let Some(key) = self.first_conflict(reads, ticket, ts)?
        {
            return Err(self.conflict(&key, true).into());
        }
        let stamp = Stamp::Pending {
            slot: slot.number,
            ts,
        };
        for change in &changes {
            change.record.stamp(stamp, change.before.off())?;
        }
        slot.stamp(pm, &self.slots)?;
        // PERSIST: the records, before the index leads to them; and the stamps of the slot's last
        // commit, before the slot's new timestamp.
        pm.fence();
        for (i, change) in changes.iter().enumerate() {
            let there = change.before.entry() != 0;
            if let Err(e) = self.publish_entry(change.key, change.record.off, there) {
                self.undo(held, changes.iter_mut().take(i));
                return Err(e);
            }
        }
        self.slots.commit(pm, &slot, ts);
        slot.keep(changes.iter().map(|change| change.record.off));
        for change in &mut changes {
            let off = change.record.release();
            let stripe = held.get(change.stripe);
            let meta = &change.record.meta;
            self.superseded(stripe, change.key, &change.before, (off, meta, ts));
        }
        Ok(ts)
    }

    /// Makes the entries of these changes lead to the versions before them again, or removes them.
    /// No reader has returned the new records, since their timestamp is not applied.
    fn undo<'c, 'a: 'c>(
        &self,
        held: &mut LockedStripes<'_>,
        published: impl Iterator<Item = &'c mut Change<'a, M>>,
    ) where
        M: 'a,
    {
        let pm = self.pm();
        for change in published {
            let stripe = held.get(change.stripe);
            let before = change.before.off();
            if let Ok(header) = record::header(pm, change.record.off) {
                header.set_stamp(pm, Stamp::Dead);
                // PERSIST: the dead stamp, before the slot can get another timestamp.
                pm.persist(&header.stamp);
            }
            let undone = if before == 0 {
                self.remove_entry(change.key)
            } else {
                self.publish_entry(change.key, before, true)
            };
            let meta = change.record.meta;
            let off = change.record.release();
            if undone.is_err() {
                // The dead record stays in the chain, in front of the old version.
                stripe.counts.made(&meta);
            } else {
                // A record that cannot be freed is reclaimed when the store is opened again.
                let _ = record::retire(&self.heap, off, &meta, &epoch::pin());
            }
            self.free_dead_record(stripe, &change.before);
        }
    }
}

/// A change to one key, committed together with others.
struct Change<'a, M: Media> {
    key: &'a [u8],
    /// The value to be written to the record, and the CRC-32C of the key; `None` once it is
    /// written.
    put: Option<(&'a [u8], u32)>,
    /// The key's stripe.
    stripe: usize,
    before: Newest,
    /// The place of the entry in the index, if it is known.
    hint: Option<Hint>,
    record: Prepared<'a, M>,
}

impl<M: Media> Change<'_, M> {
    /// Writes the value to the record, unless that was done.
    fn fill(&mut self) {
        if let Some((value, sum)) = self.put.take() {
            self.record.fill(sum, Some(value), 0);
        }
    }
}
