//! Vacuum: what nobody can read any more is unlinked, and freed once readers have left.
//!
//! | garbage | found | goes when |
//! | --- | --- | --- |
//! | a superseded version | in its stripe's queue, by the version that superseded it | that is at or below the horizon |
//! | a tombstone | likewise | it is at or below the horizon: the index's entry first |
//! | an expired value | by a sweep of the index, while there are any with an expiry | likewise, and every snapshot reads it as absent |
//! | an entry of a dropped keyspace | in its range of the index (`dropped`) | the commit that dropped it is at or below the horizon |
//!
//! A queue is in the order of the time stamps and is worked off from its front, so a version that is let go of has nothing
//! behind it any more, and no entry of the queue outlives its record. Each step takes a stripe's lock for a few
//! versions at a time, and does no more than it was told to.
//!
//! What is damaged stays where it is. Before a value that has expired is taken away its checksum is compared, as it may be the expiry that is
//! damaged; before the blocks of a long value go, that they are blocks of such sizes and in use.
//!
//! # Persist cost
//! None for versions, but a fence and a line for each record of a commit of several keys, if one of them is the last commit's through
//! its slot; for tombstones, expired values and entries of dropped keyspaces, the index's removal.

use crate::commit::Inner;
use crate::error::{Damage, WriteError};
use crate::horizon::Horizon;
use crate::index::split;
use crate::newest::Newest;
use crate::record::{self, Stamp};
use crate::stripes::{HeldMany, Obsolete, Stripe};
use bristlecone_index::Direction;
use bristlecone_pmem::media::{LINE, cpu};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff};
use crossbeam_epoch as epoch;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Versions that a stripe's lock is held for.
pub(crate) const AT_A_TIME: usize = 32;
/// Versions that who writes takes along from each stripe.
const ALONG: usize = 2;
/// Entries of a queue from which on who writes asks for the horizon.
const QUEUE_LONG: usize = 4;
/// Versions of a step of the background thread.
const STEP: usize = 4096;
/// Entries that a sweep looks at for each version that it may free.
const LOOKS: usize = 8;

/// What a vacuum did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacuumReport {
    /// Versions that were freed, tombstones and expired ones included.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, tombstones.
    pub tombstones: u64,
    /// Of these, values that had expired.
    pub expired: u64,
    /// Of these, values of keyspaces that were dropped.
    pub dropped: u64,
    /// True if there was nothing left that could have been freed.
    pub complete: bool,
}

/// Where vacuuming is, and what its thread is told.
#[derive(Debug, Default)]
pub(crate) struct Control {
    next_stripe: AtomicUsize,
    /// The sweep goes on after this index key.
    sweep: Mutex<Option<Vec<u8>>>,
    /// What the thread failed with, if it did the last time, or found damage before.
    failed: Mutex<Option<WriteError>>,
    stop: Mutex<bool>,
    told: Condvar,
    /// The thread's, for as long as it changes anything.
    at_work: Mutex<()>,
}

impl Control {
    /// Ends the thread.
    pub fn stop(&self) {
        *lock(&self.stop) = true;
        self.told.notify_all();
    }

    /// Keeps the thread from changing anything, once it has done what it is at, until the guard goes.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.at_work)
    }

    /// Notes how a step of the thread went, for who closes the store. Damage does not pass.
    fn note(&self, failure: Option<WriteError>) {
        let mut failed = lock(&self.failed);
        if !matches!(*failed, Some(WriteError::Damaged(_))) {
            *failed = failure;
        }
    }

    /// What the thread failed with; said once.
    pub fn take_failure(&self) -> Option<WriteError> {
        lock(&self.failed).take()
    }

    /// Waits; true if the thread is to end.
    fn nap(&self, interval: Duration) -> bool {
        let stop = lock(&self.stop);
        if *stop {
            return true;
        }
        let told = self.told.wait_timeout(stop, interval);
        *told.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Vacuums every `interval` until told to stop.
///
/// # Errors
/// The system's, which refused a thread.
pub(crate) fn spawn<M: Media>(
    inner: &Arc<Inner<M>>,
    interval: Duration,
) -> std::io::Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    std::thread::Builder::new()
        .name("store-vacuum".into())
        .spawn(move || {
            // What became garbage since the last time is left to who writes: that costs less.
            let mut due = inner.horizon();
            while !inner.control.nap(interval) {
                let horizon = std::mem::replace(&mut due, inner.horizon());
                loop {
                    let at_work = inner.control.hold();
                    let step = inner.vacuum_step_to(horizon, STEP);
                    drop(at_work);
                    let done = step.as_ref().map_or(true, |report| report.complete);
                    inner.control.note(step.err());
                    if done || *lock(&inner.control.stop) {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        })
}

impl<M: Media> Inner<M> {
    /// Frees up to `most` versions.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed stays freed.
    pub(crate) fn vacuum_step(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.vacuum_step_to(self.horizon(), most)
    }

    fn horizon(&self) -> Horizon {
        self.snapshots.advance(&self.clock, self.wall.now())
    }

    /// As [`vacuum_step`](Self::vacuum_step), of what nobody read any more at that time.
    fn vacuum_step_to(&self, horizon: Horizon, most: usize) -> Result<VacuumReport, WriteError> {
        let mut report = VacuumReport::default();
        if self.pm().read_only() {
            report.complete = true;
            return Ok(report);
        }
        self.clock.sound()?;
        let stripes = self.stripes.len();
        let mut left = most;
        let mut expiring = 0u64;
        // ORDERING: Relaxed; where to begin does not matter. Another vacuum may begin at the same place: each looks at all.
        let first = self.control.next_stripe.load(Ordering::Relaxed);
        for turn in 0..stripes {
            let at = first.wrapping_add(turn) % stripes;
            loop {
                let mut stripe = self.stripes.lock(at);
                self.look_ahead(&stripe, horizon, left.min(AT_A_TIME));
                let (freed, more) =
                    self.work_off(&mut stripe, horizon, left.min(AT_A_TIME), &mut report)?;
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
            self.control.next_stripe.store(at + 1, Ordering::Relaxed);
        }
        if let Some(left) = self.take_remains(horizon, left, &mut report)? {
            report.complete = expiring == 0 || self.sweep(horizon, left, &mut report)?;
        }
        Ok(report)
    }

    /// Frees all that can be freed.
    ///
    /// # Errors
    /// As [`vacuum_step`](Self::vacuum_step).
    pub(crate) fn vacuum_everything(&self) -> Result<VacuumReport, WriteError> {
        *lock(&self.control.sweep) = None;
        let mut all = VacuumReport::default();
        loop {
            let one = self.vacuum_step(STEP)?;
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

    /// Works off up to `most` entries of a stripe's queue. How many it were, and whether there are more that can be.
    pub(crate) fn work_off(
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
            if let Err(e) = self.let_go(stripe, &mut first, report) {
                stripe.obsolete.push_front(first);
                return Err(e);
            }
            done += 1;
        }
    }

    /// Asks for what working off up to `most` entries of a queue is going to read, so that its waits for memory overlap.
    fn look_ahead(&self, stripe: &Stripe, horizon: Horizon, most: usize) {
        let pm = self.pm();
        let ask = |off: u64| cpu::prefetch(pm.base().wrapping_add(off as usize), LINE);
        let due = || {
            let queue = stripe.obsolete.iter().take(most);
            queue.take_while(|obsolete| obsolete.ts <= horizon.ts)
        };
        for obsolete in due() {
            ask(obsolete.off);
            if obsolete.plain == 0 && obsolete.before != 0 {
                ask(obsolete.before);
            }
        }
    }

    /// Takes out of these stripes' queues, up to [`ALONG`] each, what is due and needs no look at anything but the queue: the versions to be
    /// retired. Who writes has the queues at hand anyway.
    pub(crate) fn take_along(&self, held: &mut HeldMany<'_>) -> Vec<u64> {
        let pm = self.pm();
        let mut garbage = Vec::with_capacity(ALONG * held.len());
        let mut due = self.snapshots.horizon();
        let mut asked = false;
        for stripe in held.iter_mut() {
            if !asked && stripe.obsolete.len() > QUEUE_LONG {
                asked = true;
                due = self.snapshots.advance(&self.clock, self.wall.now()).ts;
            }
            for _ in 0..ALONG {
                let simple = |first: &&Obsolete| {
                    first.ts <= due && first.plain != 0 && first.tombstone.is_none()
                };
                let Some(first) = stripe.obsolete.front().filter(simple) else {
                    break;
                };
                let Ok(header) = record::header(pm, first.off) else {
                    break;
                };
                header.cut(pm);
                garbage.push(first.before);
                stripe.counts.gone(first.plain);
                stripe.obsolete.pop_front();
            }
        }
        garbage
    }

    /// Frees what a version superseded, and the version itself if it is a tombstone.
    fn let_go(
        &self,
        stripe: &mut Stripe,
        obsolete: &mut Obsolete,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let pm = self.pm();
        if obsolete.before != 0 {
            record::header(pm, obsolete.off)?.cut(pm);
            // Once, whatever fails from here on.
            let before = std::mem::take(&mut obsolete.before);
            let plain = std::mem::take(&mut obsolete.plain);
            if plain == 0 {
                self.free_version(stripe, before, report)?;
            } else {
                self.heap.retire(POff::new(before), &epoch::pin());
                stripe.counts.gone(plain);
                report.versions += 1;
                report.bytes += plain;
            }
        }
        if let Some(key) = &obsolete.tombstone {
            let newest = self.newest(key, &epoch::pin());
            // Perhaps behind a dead record, that of a commit that was undone.
            if let Newest::Version(head) = newest
                && head.off == obsolete.off
            {
                self.remove_entry(key)?;
                self.bury(stripe, &newest);
                self.free_version(stripe, obsolete.off, report)?;
                report.tombstones += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn free_version(
        &self,
        stripe: &mut Stripe,
        off: u64,
        report: &mut VacuumReport,
    ) -> Result<(), Damage> {
        let header = record::header(self.pm(), off)?;
        if let Stamp::Pending { slot, .. } = header.stamp(self.pm()) {
            // The slot's next commit would stamp it.
            self.slots.stamp(self.pm(), slot)?;
        }
        let terms = header.terms(self.pm());
        record::retire(&self.heap, off, &terms, &epoch::pin())?;
        stripe.counts.gone(terms.bytes());
        report.versions += 1;
        report.bytes += terms.bytes();
        Ok(())
    }

    /// Looks for expired values, and frees up to `most`. True if the sweep has come to the end of the index.
    fn sweep(
        &self,
        horizon: Horizon,
        most: usize,
        report: &mut VacuumReport,
    ) -> Result<bool, WriteError> {
        let mut at = lock(&self.control.sweep);
        let mut expired: Vec<Vec<u8>> = Vec::new();
        let (mut looks, mut last) = (0, None);
        {
            let _guard = epoch::pin();
            let from = at.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            self.index.scan(
                (from, Bound::Unbounded),
                Direction::Up,
                None,
                &mut |key, &entry| {
                    looks += 1;
                    // What is damaged stays; opening and a check name it.
                    if let Ok(header) = record::header(self.pm(), entry)
                        && header.terms(self.pm()).expired(horizon.now)
                    {
                        expired.push(key.to_vec());
                    }
                    if looks >= most.saturating_mul(LOOKS) || expired.len() >= most {
                        last = Some(key.to_vec());
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                },
            );
        }
        let complete = last.is_none();
        *at = last;
        drop(at);
        for key in expired {
            self.remove_expired(&key, horizon, report)?;
        }
        Ok(complete)
    }

    /// Takes a key out whose value has expired, if it still has, and nobody reads an older one.
    fn remove_expired(
        &self,
        key: &[u8],
        horizon: Horizon,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        // What it superseded goes first, so that no entry of the queue outlives it.
        while self.work_off(&mut stripe, horizon, AT_A_TIME, report)?.1 {}
        let Newest::Version(head) = self.newest(key, &epoch::pin()) else {
            return Ok(());
        };
        let gone = head.terms.expired(horizon.now) && head.ts <= horizon.ts;
        if !gone || head.entry != head.off || head.terms.is_tombstone() {
            return Ok(());
        }
        // Perhaps it is its expiry that is damaged: who reads it is told so.
        if record::check_sum(self.pm(), key, head.off, &head.terms).is_err() {
            return Ok(());
        }
        self.remove_entry(key)?;
        let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
        stripe.counts.was_newest(keyspace, &head.terms);
        self.free_version(&mut stripe, head.off, report)?;
        report.expired += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};
    use bristlecone_pmem::media::Dram;
    use bristlecone_pmem::{Pool, PoolOptions};

    /// A store without a vacuum's thread, where two values of one key and a tombstone follow each other.
    fn store() -> Store<Dram> {
        let pool = Pool::<Dram>::create("vacuum".as_ref(), &PoolOptions::default()).unwrap();
        let options = StoreOptions {
            vacuum_every: None,
            ..StoreOptions::default()
        };
        let store = Store::create(&pool, "store", &options).unwrap();
        let k = store.keyspace("k").unwrap();
        store.put(&k, b"key", b"1").unwrap();
        store.put(&k, b"key", b"2").unwrap();
        store.delete(&k, b"key").unwrap();
        store
    }

    #[test]
    fn what_is_let_go_of_again_after_a_failure_is_freed_once() {
        let store = store();
        let inner: &Inner<Dram> = &store.shared;
        let at = inner.stripes.of(&inner
            .key(&store.find_keyspace("k").unwrap(), b"key")
            .unwrap());
        let mut stripe = inner.stripes.lock(at);
        assert_eq!(stripe.obsolete.len(), 2);
        let mut report = VacuumReport::default();
        let mut last = stripe.obsolete.pop_back().unwrap();
        // As if its entry could not be taken out of the index: it goes back into the queue.
        let key = last.tombstone.take();
        inner.let_go(&mut stripe, &mut last, &mut report).unwrap();
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
    fn who_puts_together_takes_along_what_is_due_and_leaves_tombstones() {
        let store = store();
        let inner: &Inner<Dram> = &store.shared;
        let k = store.find_keyspace("k").unwrap();
        let at = inner.stripes.of(&inner.key(&k, b"key").unwrap());
        let take = || {
            let mut held = HeldMany::lock(&inner.stripes, std::iter::once(at));
            let garbage = inner.take_along(&mut held);
            let taken = garbage.len();
            inner.heap.retire_all(garbage, &epoch::pin());
            (taken, held.get(at).obsolete.len())
        };
        let snapshot = store.snapshot();
        assert_eq!(take(), (0, 2), "the horizon is where it was");
        inner.horizon();
        // The first one's successor is at or below the snapshot, as is the tombstone.
        assert_eq!(take(), (1, 1));
        drop(snapshot);
        assert_eq!(take(), (0, 1));
        // With that many, who writes moves the horizon.
        for i in 0..QUEUE_LONG {
            store.put(&k, b"key", format!("{i}").as_bytes()).unwrap();
        }
        store.vacuum(1).unwrap();
        assert_eq!(take(), (ALONG, QUEUE_LONG - ALONG));
        store.check().unwrap();
    }
}
