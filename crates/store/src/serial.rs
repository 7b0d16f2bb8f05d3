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

use crate::error::{Damage, WriteError};
use crate::horizon::Ticket;
use crate::read::Reader;
use crate::record::{self, Stamp};
use crate::write::check_key;
use bristlecone_index::Direction;
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

/// Bounds of index keys.
type OwnedRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The index keys and ranges that a transaction has read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadSet {
    keys: BTreeSet<Vec<u8>>,
    ranges: Vec<OwnedRange>,
}

impl ReadSet {
    pub fn key(&mut self, key: &[u8]) {
        // A key that is too long is never there.
        if check_key(key).is_ok() && !self.keys.contains(key) {
            self.keys.insert(key.to_vec());
        }
    }

    pub fn range(&mut self, range: Range<'_>) {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        self.ranges.push((owned(range.0), owned(range.1)));
    }

    /// Returns an index key that a commit between the snapshot `since` and `ts` changed, if there
    /// is one. Waits until all commits before `ts` are applied.
    ///
    /// # Errors
    /// [`WriteError::Damaged`], or the failure of a commit.
    pub fn first_conflict<M: Media>(
        &self,
        reader: &Reader<M>,
        since: Ticket,
        ts: u64,
    ) -> Result<Option<Vec<u8>>, WriteError> {
        reader.clock.wait_applied(ts - 1)?;
        let guard = epoch::pin();
        let starts = self.ranges.iter().map(|(start, _)| start);
        let firsts = starts.filter_map(|start| match start {
            Bound::Included(first) | Bound::Excluded(first) => Some(first),
            Bound::Unbounded => None,
        });
        // A keyspace that was dropped before the snapshot stays dropped: only a drop since then is
        // a conflict.
        let mut read = self.keys.iter().chain(firsts);
        let dropped = read.find(|key| {
            reader.is_visible(key, since.ts, &guard) && !reader.is_visible(key, ts, &guard)
        });
        if let Some(key) = dropped {
            return Ok(Some(key.clone()));
        }
        let changed = |key: &[u8], entry: u64| {
            changed_between(reader, entry, since.ts, ts).map_err(|e| Damage::of_key(key, &e))
        };
        for key in &self.keys {
            if let Some(entry) = reader.index.get(key)
                && changed(key, entry)?
            {
                return Ok(Some(key.clone()));
            }
        }
        for (start, end) in &self.ranges {
            let mut found = Ok(None);
            let range = (
                start.as_ref().map(Vec::as_slice),
                end.as_ref().map(Vec::as_slice),
            );
            (reader.index).scan(range, Direction::Up, None, &mut |key, &entry| {
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
