//! The vacuum: unlinks versions that nobody can read any more, and frees them once readers have
//! left.
//!
//! | garbage | how it is found | when it goes |
//! | --- | --- | --- |
//! | a superseded version | in its stripe's queue, with the version that superseded it | once that version is at or below the horizon |
//! | a tombstone | likewise | once it is at or below the horizon; the index's entry goes first |
//! | an expired value | by a sweep of the index, while any value has an expiry | likewise, once it has expired for every snapshot |
//! | a key of a dropped keyspace | in the keyspace's range of the index | once the horizon has reached the commit that dropped it |
//!
//! Queues are ordered by timestamp and emptied from the front, so a version that is freed has
//! nothing behind it any more, and no entry of a queue outlives its record. A step holds a stripe's
//! lock for a few versions at a time.
//!
//! Damaged records stay where they are. The checksum of an expired value is compared before it is
//! removed, since the expiry itself may be damaged. Before the segments of a long value are freed,
//! each must be a live block of the right size.
//!
//! # Persist cost
//! Versions: none, except that the records of a commit of several keys cost a line each and a
//! fence, if one of them belongs to the last commit through its slot. Tombstones, expired values
//! and keys of dropped keyspaces: the index's removal.

mod dropped;
mod expired;
mod thread;

pub(crate) use thread::spawn;

use crate::horizon::Horizon;
use crate::newest::Newest;
use crate::read::Reader;
use crate::record::{self, Stamp};
use crate::stripes::{LockedStripes, Obsolete, Stripe, Stripes};
use bristlecone_pmem::media::{LINE, cpu, deferring_commits};
use bristlecone_pmem::sync::{lock, wait_for_readers};
use bristlecone_pmem::{Media, POff};
use bristlecone_store::engine::Control;
use bristlecone_store::{Damage, VacuumReport, WriteError};
use crossbeam_epoch as epoch;
use dropped::DroppedRanges;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Versions that are freed before a stripe's lock is given back.
const VERSIONS_PER_LOCK: usize = 32;
/// Versions that a writer frees for each stripe that it holds.
const VERSIONS_PER_WRITE: usize = 2;
/// Length of a queue above which a writer advances the horizon.
const LONG_QUEUE: usize = 4;
/// Versions that the thread frees before it looks whether it is to stop.
const VERSIONS_PER_STEP: usize = 4096;
/// How often readers are waited for when there is no space.
const MAX_WAITS: usize = 10;
/// How often the vacuum is run again past damaged records when there is no space.
const MAX_PASSES: usize = 64;

/// The vacuum, with what writers and it share: the stripes.
pub(crate) struct Vacuum<M: Media> {
    pub reader: Reader<M>,
    pub stripes: Stripes,
    pub dropped_ranges: DroppedRanges,
    /// For the thread.
    pub control: Control,
    /// The stripe that the next step begins at.
    next_stripe: AtomicUsize,
    /// The sweep for expired values goes on after this index key.
    sweep_at: Mutex<Option<Vec<u8>>>,
}

impl<M: Media> Deref for Vacuum<M> {
    type Target = Reader<M>;

    fn deref(&self) -> &Reader<M> {
        &self.reader
    }
}

impl<M: Media> Vacuum<M> {
    pub fn new(reader: Reader<M>, stripes: Stripes) -> Self {
        Self {
            reader,
            stripes,
            dropped_ranges: DroppedRanges::default(),
            control: Control::default(),
            next_stripe: AtomicUsize::new(0),
            sweep_at: Mutex::default(),
        }
    }

    /// Frees up to `most` versions.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed stays freed.
    pub(crate) fn step(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.step_to(self.horizon(), most)
    }

    /// Advances the horizon as far as snapshots allow.
    fn horizon(&self) -> Horizon {
        self.snapshots.advance(&self.clock, self.wall.now())
    }

    /// As [`step`](Self::step), up to a horizon.
    fn step_to(&self, horizon: Horizon, most: usize) -> Result<VacuumReport, WriteError> {
        let mut report = VacuumReport::default();
        if self.pm().read_only() {
            report.complete = true;
            return Ok(report);
        }
        self.clock.sound()?;
        let stripes = self.stripes.len();
        let mut left = most;
        let mut expiring = 0u64;
        // ORDERING: Relaxed; any stripe will do. Two vacuums may begin at the same one, since each
        // visits all.
        let first = self.next_stripe.load(Ordering::Relaxed);
        for turn in 0..stripes {
            let at = first.wrapping_add(turn) % stripes;
            loop {
                let mut stripe = self.stripes.lock(at);
                self.prefetch_queue(&stripe, horizon, left.min(VERSIONS_PER_LOCK));
                let (freed, more) = self.drain_queue(
                    &mut stripe,
                    horizon,
                    left.min(VERSIONS_PER_LOCK),
                    &mut report,
                )?;
                left -= freed;
                if !more {
                    expiring = stripe.counts.expiring.wrapping_add(expiring);
                    break;
                }
                if left == 0 {
                    return Ok(report);
                }
            }
            // ORDERING: Relaxed; as above.
            self.next_stripe.store(at + 1, Ordering::Relaxed);
        }
        if let Some(left) = self.vacuum_dropped(horizon, left, &mut report)? {
            report.complete = expiring == 0 || self.sweep(horizon, left, &mut report)?;
        }
        Ok(report)
    }

    /// Frees all that can be freed.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn run_to_end(&self) -> Result<VacuumReport, WriteError> {
        *lock(&self.sweep_at) = None;
        let mut all = VacuumReport::default();
        loop {
            let one = self.step(VERSIONS_PER_STEP)?;
            all.versions += one.versions;
            all.bytes += one.bytes;
            all.tombstones += one.tombstones;
            all.expired += one.expired;
            all.dropped += one.dropped;
            if one.complete {
                all.complete = true;
                return Ok(all);
            }
        }
    }

    /// Frees up to `most` versions at the front of a stripe's queue. Returns how many, and whether
    /// more are due.
    ///
    /// # Errors
    /// [`WriteError`]; the version that failed stays at the front.
    pub(crate) fn drain_queue(
        &self,
        stripe: &mut Stripe,
        horizon: Horizon,
        most: usize,
        report: &mut VacuumReport,
    ) -> Result<(usize, bool), WriteError> {
        let mut done = 0;
        loop {
            let due = stripe
                .obsolete
                .front()
                .is_some_and(|first| first.ts <= horizon.ts);
            if !due || done == most {
                return Ok((done, due));
            }
            let Some(mut first) = stripe.obsolete.pop_front() else {
                return Ok((done, false));
            };
            if let Err(e) = self.release(stripe, &mut first, report) {
                stripe.obsolete.push_front(first);
                return Err(e);
            }
            done += 1;
        }
    }

    /// Prefetches the records that freeing up to `most` versions of a queue will read.
    fn prefetch_queue(&self, stripe: &Stripe, horizon: Horizon, most: usize) {
        let pm = self.pm();
        let prefetch = |off: u64| cpu::prefetch(pm.base().wrapping_add(off as usize), LINE);
        let due = || {
            let queue = stripe.obsolete.iter().take(most);
            queue.take_while(|obsolete| obsolete.ts <= horizon.ts)
        };
        for obsolete in due() {
            prefetch(obsolete.off);
            if obsolete.plain_bytes == 0 && obsolete.before != 0 {
                prefetch(obsolete.before);
            }
        }
    }

    /// Takes versions that are due from the queues of locked stripes, up to [`VERSIONS_PER_WRITE`]
    /// of each, as long as only the queue has to be read for that. Returns the records, which the
    /// caller retires. Writers call it, since they have the queues in the cache anyway.
    pub(crate) fn drain_simple(&self, held: &mut LockedStripes<'_>) -> Vec<u64> {
        let pm = self.pm();
        let mut garbage = Vec::with_capacity(VERSIONS_PER_WRITE * held.len());
        let mut due = self.snapshots.horizon();
        let mut advanced = false;
        for stripe in held.iter_mut() {
            if !advanced && stripe.obsolete.len() > LONG_QUEUE {
                advanced = true;
                due = self.snapshots.advance(&self.clock, self.wall.now()).ts;
            }
            for _ in 0..VERSIONS_PER_WRITE {
                let simple = |first: &&Obsolete| {
                    first.ts <= due && first.plain_bytes != 0 && first.tombstone.is_none()
                };
                let Some(first) = stripe.obsolete.front().filter(simple) else {
                    break;
                };
                let Ok(header) = record::header(pm, first.off) else {
                    break;
                };
                header.cut(pm);
                garbage.push(first.before);
                stripe.counts.gone(first.plain_bytes);
                stripe.obsolete.pop_front();
            }
        }
        garbage
    }

    /// Frees the version that this one superseded, and this one too if it is a tombstone. May be
    /// repeated after an error.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed by then is not freed again.
    fn release(
        &self,
        stripe: &mut Stripe,
        obsolete: &mut Obsolete,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let pm = self.pm();
        if obsolete.before != 0 {
            record::header(pm, obsolete.off)?.cut(pm);
            // Taken out first, so that a repeated call does not free it twice.
            let before = std::mem::take(&mut obsolete.before);
            let plain_bytes = std::mem::take(&mut obsolete.plain_bytes);
            if plain_bytes == 0 {
                self.free_version(stripe, before, report)?;
            } else {
                self.heap.retire(POff::new(before), &epoch::pin());
                stripe.counts.gone(plain_bytes);
                report.versions += 1;
                report.bytes += plain_bytes;
            }
        }
        if let Some(key) = &obsolete.tombstone {
            let newest = self.newest(key, &epoch::pin());
            // The tombstone may be behind the dead record of an undone commit.
            if let Newest::Version(head) = newest
                && head.off == obsolete.off
            {
                self.remove_entry(key)?;
                self.free_dead_record(stripe, &newest);
                self.free_version(stripe, obsolete.off, report)?;
                report.tombstones += 1;
            }
        }
        Ok(())
    }

    /// Frees the record of a version that nothing leads to any more.
    ///
    /// # Errors
    /// [`Damage`]; nothing is freed then.
    fn free_version(
        &self,
        stripe: &mut Stripe,
        off: u64,
        report: &mut VacuumReport,
    ) -> Result<(), Damage> {
        let header = record::header(self.pm(), off)?;
        if let Stamp::Pending { slot, .. } = header.stamp(self.pm()) {
            // Otherwise the slot's next commit would stamp a freed record.
            self.slots.stamp(self.pm(), slot)?;
        }
        let meta = header.meta(self.pm());
        record::retire(&self.heap, off, &meta, &epoch::pin())?;
        stripe.counts.gone(meta.bytes());
        report.versions += 1;
        report.bytes += meta.bytes();
        Ok(())
    }

    /// Frees the dead record that the index no longer leads to, if there was one.
    pub fn free_dead_record(&self, stripe: &mut Stripe, before: &Newest) {
        let dead = match before {
            Newest::Dead(off) => *off,
            Newest::Version(head) if head.entry != head.off => head.entry,
            _ => return,
        };
        if let Ok(header) = record::header(self.pm(), dead) {
            let meta = header.meta(self.pm());
            // A record that cannot be freed is reclaimed when the store is opened again.
            if record::retire(&self.heap, dead, &meta, &epoch::pin()).is_ok() {
                stripe.counts.gone(meta.bytes());
            }
        }
    }

    /// Removes an entry from the index.
    ///
    /// # Errors
    /// [`WriteError`]; the entry stays then.
    pub fn remove_entry(&self, key: &[u8]) -> Result<(), WriteError> {
        deferring_commits(|| self.index.remove(key))?;
        Ok(())
    }

    /// Frees all that can be freed, and waits until it can be allocated again. The caller holds no
    /// lock.
    pub fn reclaim_space(&self) {
        // Damage that stops the vacuum is reported by its thread and by a check. The caller reports
        // the lack of space. Each of these passes gets past some damage.
        let damaged = |pass: &_| matches!(pass, Err(WriteError::Damaged(_)));
        (0..MAX_PASSES)
            .take_while(|_| damaged(&self.run_to_end()))
            .count();
        // Readers of this process, of this store or another, keep freed blocks from being reused.
        // They may have to wait for a processor.
        let _ = (0..MAX_WAITS).any(|_| wait_for_readers());
        self.heap.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NvStore;
    use crate::engine::Records;
    use bristlecone_index::engine::LbEngine;
    use bristlecone_pmem::media::Dram;
    use bristlecone_pmem::{Pool, PoolOptions};
    use bristlecone_store::StoreOptions;
    use bristlecone_store::engine::{CATALOGUE, IndexKey};
    use bristlecone_store::engine::{Shares, StorageEngine, Wait};

    fn key() -> IndexKey {
        IndexKey::new(1, b"key")
    }

    fn put(store: &Records<Dram>, value: &[u8]) {
        store.put(&key(), value, 0, Wait::Durable).unwrap();
    }

    /// A store with a keyspace `k`, number 1, whose only key had two values and was deleted.
    fn store() -> Records<Dram> {
        let pool = Pool::<Dram>::create("vacuum".as_ref(), &PoolOptions::default()).unwrap();
        let options = StoreOptions::default().without_thread();
        let shares = Shares::default();
        lock(&shares.catalogue.known).by_name.insert("k".into(), 1);
        let format = NvStore::over(&[&LbEngine]);
        let store = Records::create(&format, &pool, ("s", false), &options, shares).unwrap();
        let name = IndexKey::new(CATALOGUE, b"k");
        let number = 1_u32.to_le_bytes();
        store.put(&name, &number, 0, Wait::Durable).unwrap();
        put(&store, b"1");
        put(&store, b"2");
        store.delete(&key(), Wait::Durable).unwrap();
        store
    }

    #[test]
    fn a_release_repeated_after_a_failure_frees_once() {
        let store = store();
        let vacuum: &Vacuum<Dram> = &store;
        let at = vacuum.stripes.of(&key());
        let mut stripe = vacuum.stripes.lock(at);
        assert_eq!(stripe.obsolete.len(), 2);
        let mut report = VacuumReport::default();
        let mut last = stripe.obsolete.pop_back().unwrap();
        // As if removing its index entry had failed: it goes back into the queue.
        let key = last.tombstone.take();
        vacuum.release(&mut stripe, &mut last, &mut report).unwrap();
        assert_eq!((report.versions, last.before), (1, 0));
        last.tombstone = key;
        stripe.obsolete.push_back(last);
        drop(stripe);
        let rest = store.vacuum_all().unwrap();
        assert_eq!((rest.versions, rest.tombstones), (2, 1));
        store.check().unwrap();
        assert_eq!(store.stats().versions, 1, "the keyspace's name");
    }

    #[test]
    fn writers_free_due_versions_and_leave_tombstones() {
        let store = store();
        let vacuum: &Vacuum<Dram> = &store;
        let at = vacuum.stripes.of(&key());
        let take = || {
            let mut held = LockedStripes::lock(&vacuum.stripes, std::iter::once(at));
            let garbage = vacuum.drain_simple(&mut held);
            let taken = garbage.len();
            vacuum.heap.retire_all(garbage, &epoch::pin());
            (taken, held.get(at).obsolete.len())
        };
        let snapshot = store.enter(Wait::Durable);
        assert_eq!(take(), (0, 2), "the horizon is where it was");
        vacuum.horizon();
        // The first version's successor is at or below the snapshot, and so is the tombstone.
        assert_eq!(take(), (1, 1));
        store.leave(snapshot);
        assert_eq!(take(), (0, 1));
        // With that many entries in its queue, a writer advances the horizon.
        for i in 0..LONG_QUEUE {
            put(&store, format!("{i}").as_bytes());
        }
        store.step(1).unwrap();
        assert_eq!(
            take(),
            (VERSIONS_PER_WRITE, LONG_QUEUE - VERSIONS_PER_WRITE)
        );
        store.check().unwrap();
    }
}
