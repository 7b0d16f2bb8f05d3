//! The sweep: removes keys that have expired, and those of dropped keyspaces.
//!
//! Each removal is a change like any other, so snapshots go on seeing what they saw. Keys of a
//! dropped keyspace go once no snapshot from before the drop is left, which would keep each of them
//! in DRAM.

use super::Core;
use super::long;
use super::parts;
use super::value::{Found, glimpsed};
use crate::bounds::Bounds;
use crate::error::WriteError;
use crate::report::VacuumReport;
use bristlecone_index::clustered::{self, Modification};
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::{lock, wait_for_readers};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Keys that are removed at once.
const TOGETHER: usize = 256;
/// Keys that a step removes.
pub(super) const KEYS_PER_STEP: usize = 1024;
/// Keys that a step looks at for each one that it may remove.
const LOOKS_PER_KEY: usize = 8;
/// Attempts to get space back from readers that leave.
const MAX_WAITS: usize = 8;

/// What is to be removed.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Dropped keyspaces with keys, and the timestamp of each drop.
    dropped: Mutex<Vec<(u32, u64)>>,
    /// Looking for expired keys goes on after this index key.
    at: Mutex<Option<Vec<u8>>>,
    /// Keys that were removed, and their bytes.
    removed: AtomicU64,
    removed_bytes: AtomicU64,
}

impl Sweep {
    /// The keys of a keyspace that was dropped at `since` are to be removed.
    pub fn add(&self, number: u32, since: u64) {
        lock(&self.dropped).push((number, since));
    }

    /// Returns the numbers of the keyspaces whose keys are still to be removed.
    pub fn numbers(&self) -> Vec<u32> {
        lock(&self.dropped)
            .iter()
            .map(|(number, _)| *number)
            .collect()
    }

    /// Returns the dropped keyspaces that nobody before `oldest` reads.
    fn due(&self, oldest: u64) -> Vec<u32> {
        let dropped = lock(&self.dropped);
        let due = dropped.iter().filter(|(_, since)| *since < oldest);
        due.map(|(number, _)| *number).collect()
    }

    /// Returns how many keys were removed, and their bytes.
    pub fn removed(&self) -> (u64, u64) {
        // ORDERING: Relaxed; statistics.
        let [keys, bytes] = [&self.removed, &self.removed_bytes].map(|n| n.load(Ordering::Relaxed));
        (keys, bytes)
    }

    fn done(&self, number: u32) {
        lock(&self.dropped).retain(|(other, _)| *other != number);
    }
}

impl<M: Media> Core<M> {
    /// Removes up to `most` keys.
    ///
    /// # Errors
    /// The first [`WriteError`]; what could be removed all the same is.
    pub(super) fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        let mut failed = None;
        let report = self.sweep_some(most, &mut failed);
        failed.map_or(Ok(report), Err)
    }

    /// As [`vacuum`](Self::vacuum): notes the first error, and goes on behind what it is about.
    fn sweep_some(&self, most: usize, failed: &mut Option<WriteError>) -> VacuumReport {
        let mut report = VacuumReport {
            complete: true,
            ..VacuumReport::default()
        };
        if self.pm().read_only() {
            return report;
        }
        if let Err(e) = self.sound() {
            failed.get_or_insert(e.into());
            return report;
        }
        self.count_keys();
        let bytes = self.remove_parts(failed);
        self.was_removed(0, bytes, &mut report);
        let mut left = most;
        // First: whoever begins to read later does so at that time or after it.
        let durable = self.tree.durable();
        let (oldest, _) = self.tree.readers();
        let oldest = oldest.unwrap_or(u64::MAX).min(durable);
        for number in self.sweep.due(oldest) {
            // Nobody who reads it is left.
            self.counts.forget(number);
            let done = self.remove_dropped(number, &mut left, &mut report);
            let done = done.and_then(|()| {
                if left > 0 {
                    self.forget_dropped(number)?;
                    self.sweep.done(number);
                    self.counts.remember(number);
                }
                Ok(())
            });
            if let Err(e) = done {
                failed.get_or_insert(e);
            }
            if left == 0 {
                report.complete = false;
                return report;
            }
        }
        let expiring = self.counts.all().values().any(|count| count.expiring > 0);
        report.complete = !expiring || self.remove_expired(left, &mut report, failed);
        report
    }

    /// Notes that a key of so many bytes, with its value, was removed.
    fn was_removed(&self, keys: u64, bytes: u64, report: &mut VacuumReport) {
        report.versions += keys;
        report.bytes += bytes;
        // ORDERING: Relaxed; statistics.
        self.sweep.removed.fetch_add(keys, Ordering::Relaxed);
        self.sweep.removed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes all keys that can be.
    ///
    /// # Errors
    /// As of [`vacuum`](Self::vacuum).
    pub(super) fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        *lock(&self.sweep.at) = None;
        let (mut all, mut failed) = (VacuumReport::default(), None);
        while !all.complete {
            let one = self.sweep_some(KEYS_PER_STEP, &mut failed);
            all.versions += one.versions;
            all.bytes += one.bytes;
            all.expired += one.expired;
            all.dropped += one.dropped;
            all.complete = one.complete;
        }
        failed.map_or(Ok(all), Err)
    }

    /// Removes keys of a dropped keyspace, while some are `left` to be removed.
    ///
    /// # Errors
    /// [`WriteError`]: there are keys that cannot be read, or removed.
    fn remove_dropped(
        &self,
        number: u32,
        left: &mut usize,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        // Spaces of long keys first: a marker that is left leads here again.
        let [first, after] = long::spaces_of(number);
        let spaces = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
        let [first, after] = parts::parts_of(number);
        let parts = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
        let bounds = Bounds::new(number, Bound::Unbounded, Bound::Unbounded);
        let mut unread = None;
        let stops = || self.control.is_stopped();
        for range in [spaces, parts, bounds.range()] {
            loop {
                let most = TOGETHER.min(*left);
                let (keys, bytes) = self.some_keys(range, most, &mut unread);
                if keys.is_empty() {
                    if *left > 0 {
                        // No page stays that is empty.
                        self.tree.clear(range, 1, &stops);
                    }
                    break;
                }
                let removed = self.tree.remove_all(keys.iter().map(Vec::as_slice));
                removed.map_err(|e| super::write_error(None, e))?;
                *left -= keys.len();
                report.dropped += keys.len() as u64;
                self.was_removed(keys.len() as u64, bytes, report);
                // The rest by pages, as far as that goes.
                let gone = self.tree.clear(range, *left as u64, &stops);
                *left = left.saturating_sub(gone.keys as usize);
                report.dropped += gone.keys;
                self.was_removed(gone.keys, gone.bytes, report);
            }
        }
        unread.map_or(Ok(()), Err)
    }

    /// Returns the first keys of a range, up to `most`, and the bytes of them and their values.
    /// Notes the first page that cannot be read, and goes on behind it.
    pub(super) fn some_keys(
        &self,
        range: Range<'_>,
        most: usize,
        unread: &mut Option<WriteError>,
    ) -> (Vec<Vec<u8>>, u64) {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        if most == 0 {
            return (keys, 0);
        }
        // Nothing in it fails.
        let _ = self.tree.salvage(
            range,
            |key, current| {
                bytes += (key.len() + current.glimpse().len) as u64;
                keys.push(key.to_vec());
                Ok(if keys.len() < most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                })
            },
            |_, e| note(unread, e),
        );
        (keys, bytes)
    }

    /// Looks for keys that have expired, and removes up to `most`. Returns whether the end was
    /// reached.
    fn remove_expired(
        &self,
        most: usize,
        report: &mut VacuumReport,
        failed: &mut Option<WriteError>,
    ) -> bool {
        let now = self.wall.now();
        let mut at = lock(&self.sweep.at);
        let mut expired: Vec<Vec<u8>> = Vec::new();
        let (mut looks, mut last) = (0, None);
        let from = at.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        // Nothing in it fails.
        let _ = self.tree.salvage(
            (from, Bound::Unbounded),
            |key, current| {
                looks += 1;
                let expiry = glimpsed(current.glimpse()).expiry;
                if expiry != 0 && expiry <= now {
                    expired.push(key.to_vec());
                }
                if looks >= most.saturating_mul(LOOKS_PER_KEY) || expired.len() >= most {
                    last = Some(key.to_vec());
                    return Ok(ControlFlow::Break(()));
                }
                Ok(ControlFlow::Continue(()))
            },
            |_, e| note(failed, e),
        );
        let complete = last.is_none();
        *at = last;
        drop(at);
        for key in expired {
            let mut bytes = key.len();
            let removed = self.tree.modify(&key, |current| {
                let Some(current) = current else {
                    return Ok(Modification::Keep);
                };
                // Verified: a damaged expiry removes nothing.
                let expiry = match Found::of(&current.value()?).map_err(super::damaged)? {
                    Found::Here(_, expiry) => expiry,
                    Found::Packed(packed) => packed.expiry,
                    Found::Apart(head) => head.expiry,
                };
                if expiry == 0 || expiry > now {
                    return Ok(Modification::Keep);
                }
                bytes = key.len() + glimpsed(current.glimpse()).len;
                Ok(Modification::Remove)
            });
            match removed {
                Ok(removed) if removed.stamp.is_some() => {
                    report.expired += 1;
                    self.was_removed(1, bytes as u64, report);
                }
                Ok(_) => {}
                Err(e) => {
                    failed.get_or_insert(super::write_error(Some(&key), e));
                }
            }
        }
        complete
    }

    /// Removes what can be removed, and waits for readers of what was.
    pub(super) fn reclaim_space(&self) {
        // The caller reports the lack of space, and the thread what stops it.
        let _ = self.vacuum_all();
        let _ = self.tree.reclaim();
        let _ = (0..MAX_WAITS).any(|_| wait_for_readers());
    }
}

/// Notes a page that cannot be read, if it is the first.
fn note(failed: &mut Option<WriteError>, e: &clustered::ReadError) {
    failed.get_or_insert_with(|| super::read_error(None, e).into());
}

/// Starts a thread that counts the keys, and then sweeps every `interval` until it is told to stop.
///
/// # Errors
/// The system refused a thread.
pub(super) fn spawn<M: Media>(
    core: &Arc<Core<M>>,
    interval: Duration,
) -> std::io::Result<JoinHandle<()>> {
    core.thread_counts();
    let core = Arc::clone(core);
    std::thread::Builder::new()
        .name("store-sweep".into())
        .spawn(move || {
            core.count_keys();
            while !core.control.wait_or_stop(interval) {
                let mut failed = None;
                loop {
                    let at_work = core.control.hold();
                    let step = core.sweep_some(KEYS_PER_STEP, &mut failed);
                    drop(at_work);
                    if step.complete || core.control.is_stopped() {
                        break;
                    }
                    std::thread::yield_now();
                }
                {
                    let _at_work = core.control.hold();
                    let compacted = core.compact_if_worth_it();
                    failed = failed.or(compacted.err());
                }
                core.control.note(failed);
            }
        })
}
