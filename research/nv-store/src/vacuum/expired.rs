//! The sweep for values that have expired.

use super::{VERSIONS_PER_LOCK, Vacuum, VacuumReport};
use crate::horizon::Horizon;
use crate::newest::Newest;
use crate::record;
use bristlecone_index::Direction;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use bristlecone_store::WriteError;
use bristlecone_store::engine::split;
use crossbeam_epoch as epoch;
use std::ops::{Bound, ControlFlow};

/// Entries that a sweep looks at for each version that it may free.
const SCANNED_PER_VERSION: usize = 8;

impl<M: Media> Vacuum<M> {
    /// Looks for expired values and frees up to `most`. Returns whether the sweep has reached the
    /// end of the index.
    ///
    /// # Errors
    /// [`WriteError`]; what was freed stays freed.
    pub(super) fn sweep(
        &self,
        horizon: Horizon,
        most: usize,
        report: &mut VacuumReport,
    ) -> Result<bool, WriteError> {
        let mut at = lock(&self.sweep_at);
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
                    // A damaged record stays. Opening and a check report it.
                    if let Ok(header) = record::header(self.pm(), entry)
                        && header.meta(self.pm()).expired(horizon.now)
                    {
                        expired.push(key.to_vec());
                    }
                    if looks >= most.saturating_mul(SCANNED_PER_VERSION) || expired.len() >= most {
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

    /// Removes a key if its value still has expired and no snapshot reads it.
    ///
    /// # Errors
    /// [`WriteError`]; the key stays then.
    fn remove_expired(
        &self,
        key: &[u8],
        horizon: Horizon,
        report: &mut VacuumReport,
    ) -> Result<(), WriteError> {
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        // The versions that it superseded go first, so that no entry of the queue outlives its
        // record.
        while self
            .drain_queue(&mut stripe, horizon, VERSIONS_PER_LOCK, report)?
            .1
        {}
        let Newest::Version(head) = self.newest(key, &epoch::pin()) else {
            return Ok(());
        };
        let gone = head.meta.expired(horizon.now) && head.ts <= horizon.ts;
        if !gone || head.entry != head.off || head.meta.is_tombstone() {
            return Ok(());
        }
        // The expiry itself may be damaged. Then the value stays, and reads of it report the
        // damage.
        if record::verify_checksum(self.pm(), key, head.off, &head.meta).is_err() {
            return Ok(());
        }
        self.remove_entry(key)?;
        let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
        stripe.counts.was_newest(keyspace, &head.meta);
        self.free_version(&mut stripe, head.off, report)?;
        report.expired += 1;
        Ok(())
    }
}
