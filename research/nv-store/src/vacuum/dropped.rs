//! Removal of the keys of dropped keyspaces.

use super::{VERSIONS_PER_LOCK, Vacuum, VacuumReport};
use crate::horizon::Horizon;
use crate::newest::Newest;
use crate::record;
use bristlecone_index::Direction;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use bristlecone_store::WriteError;
use bristlecone_store::engine::{Bounds, split};
use crossbeam_epoch as epoch;
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;

/// Keys that are collected by one scan.
const KEYS_PER_SCAN: usize = 256;

/// The keys of a dropped keyspace that are still to be removed.
#[derive(Debug)]
struct DroppedRange {
    number: u32,
    since: u64,
    /// All keys up to this index key, inclusive, are gone.
    after: Option<Vec<u8>>,
}

/// The dropped keyspaces that still have keys. Locked before any stripe.
#[derive(Debug, Default)]
pub(crate) struct DroppedRanges(Mutex<Vec<DroppedRange>>);

impl DroppedRanges {
    /// Schedules the keys of a keyspace, dropped at `since`, for removal.
    pub fn add(&self, number: u32, since: u64) {
        lock(&self.0).push(DroppedRange {
            number,
            since,
            after: None,
        });
    }

    /// Returns the numbers of the keyspaces whose keys are still to be removed.
    pub fn numbers(&self) -> Vec<u32> {
        lock(&self.0).iter().map(|range| range.number).collect()
    }
}

impl<M: Media> Vacuum<M> {
    /// Removes up to `most` keys of dropped keyspaces. Returns how many more it might have removed,
    /// or `None` if keys that can be removed are left.
    ///
    /// # Errors
    /// [`WriteError`]; the keys removed by then stay removed.
    pub(super) fn vacuum_dropped(
        &self,
        horizon: Horizon,
        most: usize,
        report: &mut VacuumReport,
    ) -> Result<Option<usize>, WriteError> {
        let mut all = lock(&self.dropped_ranges.0);
        let (mut at, mut left) = (0, most);
        while let Some(range) = all.get_mut(at) {
            if range.since > horizon.ts {
                at += 1;
                continue;
            }
            if left == 0 {
                return Ok(None);
            }
            let keys = self.next_keys(range, left.min(KEYS_PER_SCAN));
            if keys.is_empty() {
                all.swap_remove(at);
                continue;
            }
            let recovered = range.since <= self.clock.floor();
            for key in keys {
                self.remove_dropped_key(&key, recovered, horizon, report)?;
                range.after = Some(key);
                left -= 1;
            }
        }
        Ok(Some(left))
    }

    /// Returns the next index keys of a dropped keyspace, up to `most`.
    fn next_keys(&self, range: &DroppedRange, most: usize) -> Vec<Vec<u8>> {
        let _guard = epoch::pin();
        let whole = Bounds::new(range.number, Bound::Unbounded, Bound::Unbounded);
        let (start, end) = whole.range();
        let start = range.after.as_deref().map_or(start, Bound::Excluded);
        let mut keys = Vec::new();
        self.index
            .scan((start, end), Direction::Up, None, &mut |key, _| {
                keys.push(key.to_vec());
                if keys.len() < most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
        keys
    }

    /// Removes the entry of a key of a dropped keyspace, with its records, all of which are older
    /// than the horizon.
    ///
    /// A damaged record stays, for a check to find, and the other keys go on being removed. If
    /// opening found the keyspace without a name (`recovered`), an entry whose record belongs to
    /// another key stays too: the damage may be in the keyspace's number.
    ///
    /// # Errors
    /// [`WriteError`]; the entry stays then.
    fn remove_dropped_key(
        &self,
        key: &[u8],
        recovered: bool,
        horizon: Horizon,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        // Superseded versions go first, so that no entry of the queue outlives its record.
        while (self.drain_queue(&mut stripe, horizon, VERSIONS_PER_LOCK, report)?).1 {}
        let newest = match self.newest(key, &epoch::pin()) {
            Newest::None | Newest::Damaged(_) => return Ok(()),
            newest => newest,
        };
        if let Newest::Version(head) = newest
            && recovered
            && record::verify_checksum(self.pm(), key, head.off, &head.meta).is_err()
        {
            return Ok(());
        }
        self.remove_entry(key)?;
        if let Newest::Version(head) = newest {
            let number = split(key).map_or(0, |(number, _)| number);
            stripe.counts.was_newest(number, &head.meta);
            self.free_version(&mut stripe, head.off, report)?;
            report.dropped += 1;
        }
        self.free_dead_record(&mut stripe, &newest);
        Ok(())
    }
}
