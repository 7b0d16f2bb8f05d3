//! Validation of serialisable transactions: what they read must be what they would read at their
//! own timestamp.
//!
//! Snapshot isolation checks a transaction against others that write the same keys. A serialisable
//! transaction that writes is also checked against the keys and ranges that it read:
//!
//! 1. It takes its timestamp T, while it holds the locks of what it writes.
//! 2. It waits until every commit before T is applied.
//! 3. It checks what it read again: no version may have been committed between its snapshot and T,
//!    and none of the keyspaces dropped.
//!
//! Reading at T would then return the same, phantoms included, so the whole transaction takes place
//! at T. Serialisable transactions that write are therefore ordered by their timestamps, whatever
//! others do meanwhile, and read-only ones by their snapshots. Other transactions pay nothing. A
//! serialisable one waits once more for the commits before it, and while it validates, commits
//! after T stay invisible: validating a large range delays everybody.
//!
//! Waiting cannot deadlock: a transaction with a timestamp holds all the locks that it needs, and
//! waits for lower timestamps only.

use crate::read::Reader;
use crate::record::{self, Stamp};
use bristlecone_index::Direction;
use bristlecone_pmem::Media;
use bristlecone_store::engine::{ReadSet, Ticket};
use bristlecone_store::{Damage, WriteError};
use crossbeam_epoch as epoch;
use std::ops::ControlFlow;

impl<M: Media> Reader<M> {
    /// Returns an index key that a commit between the snapshot `since` and `ts` changed, if there
    /// is one. Waits until all commits before `ts` are applied.
    ///
    /// # Errors
    /// [`WriteError::Damaged`], or the failure of a commit.
    pub(crate) fn first_conflict(
        &self,
        reads: &ReadSet,
        since: Ticket,
        ts: u64,
    ) -> Result<Option<Vec<u8>>, WriteError> {
        self.clock.wait_applied(ts - 1)?;
        let guard = epoch::pin();
        // A keyspace that was dropped before the snapshot stays dropped: only a drop since then is
        // a conflict.
        let dropped = reads.of_keyspaces().find(|key| {
            self.is_visible(key, since.ts, &guard) && !self.is_visible(key, ts, &guard)
        });
        if let Some(key) = dropped {
            return Ok(Some(key.to_vec()));
        }
        let changed = |key: &[u8], entry: u64| {
            changed_between(self, entry, since.ts, ts).map_err(|e| Damage::of_key(key, &e))
        };
        for key in reads.keys() {
            if let Some(entry) = self.index.get(key)
                && changed(key, entry)?
            {
                return Ok(Some(key.to_vec()));
            }
        }
        for range in reads.ranges() {
            let mut found = Ok(None);
            self.index
                .scan(range, Direction::Up, None, &mut |key, &entry| {
                    found = match changed(key, entry) {
                        Ok(false) => return ControlFlow::Continue(()),
                        Ok(true) => Ok(Some(key.to_vec())),
                        Err(e) => Err(e),
                    };
                    ControlFlow::Break(())
                });
            if let Some(key) = found? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

/// Returns whether a version was committed after `since` and before `ts`, in the chain that begins
/// at the record `entry`.
fn changed_between<M: Media>(
    reader: &Reader<M>,
    entry: u64,
    since: u64,
    ts: u64,
) -> Result<bool, Damage> {
    let pm = reader.pm();
    let mut off = entry;
    while off != 0 {
        let header = record::header(pm, off)?;
        match reader.stamp_of(off, header, since)? {
            Stamp::At(at) | Stamp::Pending { ts: at, .. } if at <= since => return Ok(false),
            Stamp::At(at) | Stamp::Pending { ts: at, .. } if at < ts => return Ok(true),
            _ => off = header.previous(pm),
        }
    }
    Ok(false)
}
