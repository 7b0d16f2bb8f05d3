//! The sweep: removes keys that have expired, and those of dropped keyspaces.
//!
//! Each removal is a change like any other, so snapshots go on seeing what they saw. Keys of a
//! dropped keyspace go once no snapshot from before the drop is left, which would keep each of them
//! in DRAM.

use super::Core;
use super::long;
use super::parts;
use super::value::{Seen, glimpsed};
use crate::bounds::Bounds;
use crate::error::WriteError;
use crate::report::VacuumReport;
use bristlecone_index::clustered::{Current, Modification};
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
    /// [`WriteError`]; what was removed by then stays removed.
    pub(super) fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        let mut report = VacuumReport::default();
        if self.pm().read_only() {
            report.complete = true;
            return Ok(report);
        }
        self.sound()?;
        self.count_keys();
        let (_, bytes) = self.remove_parts()?;
        self.was_removed(0, bytes, &mut report);
        let mut left = most;
        // First: whoever begins to read later does so at that time or after it.
        let durable = self.tree.durable();
        let (oldest, _) = self.tree.readers();
        let oldest = oldest.unwrap_or(u64::MAX).min(durable);
        for number in self.sweep.due(oldest) {
            // Nobody who reads it is left.
            self.counts.forget(number);
            if !self.remove_dropped(number, &mut left, &mut report)? {
                return Ok(report);
            }
            self.sweep.done(number);
            self.counts.remember(number);
        }
        let expiring = self.counts.all().values().any(|count| count.expiring > 0);
        report.complete = !expiring || self.remove_expired(left, &mut report)?;
        Ok(report)
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
        let mut all = VacuumReport::default();
        while !all.complete {
            let one = self.vacuum(KEYS_PER_STEP)?;
            all.versions += one.versions;
            all.bytes += one.bytes;
            all.expired += one.expired;
            all.dropped += one.dropped;
            all.complete = one.complete;
        }
        Ok(all)
    }

    /// Removes keys of a dropped keyspace. Returns whether none are left.
    fn remove_dropped(
        &self,
        number: u32,
        left: &mut usize,
        report: &mut VacuumReport,
    ) -> Result<bool, WriteError> {
        // Spaces of long keys first: a marker that is left leads here again.
        let [first, after] = long::spaces_of(number);
        let spaces = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
        let [first, after] = parts::parts_of(number);
        let parts = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
        let bounds = Bounds::new(number, Bound::Unbounded, Bound::Unbounded);
        loop {
            let most = TOGETHER.min(*left);
            let (mut keys, mut bytes) = self.some_keys(spaces, most)?;
            for rest in [parts, bounds.range()] {
                if keys.is_empty() {
                    (keys, bytes) = self.some_keys(rest, most)?;
                }
            }
            if keys.is_empty() {
                return Ok(*left > 0);
            }
            let all = keys.iter().map(Vec::as_slice);
            let removed = self
                .counts
                .quietly(all.clone(), || self.tree.remove_all(all));
            removed.map_err(|e| super::write_error(None, e))?;
            *left -= keys.len();
            report.dropped += keys.len() as u64;
            self.was_removed(keys.len() as u64, bytes, report);
        }
    }

    /// Returns the first keys of a range, up to `most`, and the bytes of them and their values.
    pub(super) fn some_keys(
        &self,
        range: Range<'_>,
        most: usize,
    ) -> Result<(Vec<Vec<u8>>, u64), WriteError> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        if most == 0 {
            return Ok((keys, 0));
        }
        let scanned = self.tree.scan_present(range, |key, current| {
            bytes += (key.len() + current.glimpse().len) as u64;
            keys.push(key.to_vec());
            Ok(if keys.len() < most {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        });
        scanned.map_err(|e| super::read_error(None, e))?;
        Ok((keys, bytes))
    }

    /// Looks for keys that have expired, and removes up to `most`. Returns whether the end was
    /// reached.
    fn remove_expired(&self, most: usize, report: &mut VacuumReport) -> Result<bool, WriteError> {
        let now = self.wall.now();
        let mut at = lock(&self.sweep.at);
        let mut expired: Vec<Vec<u8>> = Vec::new();
        let (mut looks, mut last) = (0, None);
        let from = at.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let scanned = self.tree.scan_present(range, |key, current| {
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
        });
        let complete = last.is_none();
        *at = last;
        drop(at);
        scanned.map_err(|e| super::read_error(None, e))?;
        for key in expired {
            let mut bytes = key.len();
            let decide = |current: Option<Current<'_, M>>| {
                let glimpse = current.as_ref().map(|current| current.glimpse());
                let seen = glimpse.map_or_else(Seen::default, glimpsed);
                if seen.expiry == 0 || seen.expiry > now {
                    return Ok(Modification::Keep);
                }
                bytes = key.len() + seen.len;
                Ok(Modification::Remove)
            };
            let one = std::iter::once(&key[..]);
            let removed = self.counts.quietly(one, || self.tree.modify(&key, decide));
            let removed = removed.map_err(|e| super::write_error(Some(&key), e))?;
            if removed.stamp.is_some() {
                report.expired += 1;
                self.was_removed(1, bytes as u64, report);
            }
        }
        Ok(complete)
    }

    /// Removes what can be removed, and waits for readers of what was.
    pub(super) fn reclaim_space(&self) {
        // The caller reports the lack of space, and the thread what stops it.
        let _ = self.vacuum_all();
        self.tree.reclaim();
        let _ = (0..MAX_WAITS).any(|_| wait_for_readers());
    }
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
                loop {
                    let at_work = core.control.hold();
                    let step = core.vacuum(KEYS_PER_STEP);
                    drop(at_work);
                    let done = step.as_ref().map_or(true, |report| report.complete);
                    core.control.note(step.err());
                    if done || core.control.is_stopped() {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        })
}
