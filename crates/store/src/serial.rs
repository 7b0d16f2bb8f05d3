//! Serialisable transactions: what they read must be what they would read at their own time stamp.
//!
//! A snapshot-isolation transaction is checked against others that write the same keys. A serialisable one that writes is also
//! checked against what it read, keys and ranges:
//!
//! 1. It takes its time stamp T, with the locks of what it writes held.
//! 2. It waits until every commit before T is applied.
//! 3. It looks again at what it read: no version between its snapshot and T may be there, and no keyspace of it may have been dropped.
//!
//! Then reading at T would have given the same, phantoms included: it takes place at T, as a whole. So all serialisable transactions
//! that write take place in the order of their time stamps, whatever others do meanwhile, and those that only read at their
//! snapshot. Others pay nothing while nobody is serialisable; who is waits once more for the commits before it. While it looks
//! again at what it read, commits after T wait to be seen: a large range is a long wait for all.
//!
//! Waiting is no deadlock: who has a time stamp holds all the locks that it needs, and each waits for lower time stamps only.

use crate::commit::{Inner, check_key};
use crate::error::{Damage, WriteError};
use crate::horizon::Ticket;
use crate::record::{self, Stamp};
use bristlecone_index::Direction;
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

/// Bounds of index keys.
type OwnedRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// What a transaction has read, in index keys.
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
}

impl<M: Media> Inner<M> {
    /// Checks that no commit between the snapshot and `ts` changed what was read.
    ///
    /// # Errors
    /// [`WriteError::Conflict`] and others.
    pub(crate) fn validate(
        &self,
        reads: &ReadSet,
        since: Ticket,
        ts: u64,
    ) -> Result<(), WriteError> {
        self.clock.wait_applied(ts - 1)?;
        let guard = epoch::pin();
        let ranges = reads.ranges.iter().map(|(start, _)| start);
        let firsts = ranges.filter_map(|start| match start {
            Bound::Included(first) | Bound::Excluded(first) => Some(first),
            Bound::Unbounded => None,
        });
        for key in reads.keys.iter().chain(firsts) {
            // Dropped since; what was read as dropped stays so.
            if self.is_there(key, since.ts, &guard) && !self.is_there(key, ts, &guard) {
                return Err(self.conflict(key, true).into());
            }
        }
        for key in &reads.keys {
            if let Some(entry) = self.index.get(key)
                && (self.changed_between(entry, since.ts, ts))
                    .map_err(|e| Damage::of_key(key, &e))?
            {
                return Err(self.conflict(key, true).into());
            }
        }
        for (start, end) in &reads.ranges {
            let mut found: Result<(), WriteError> = Ok(());
            let range = (
                start.as_ref().map(Vec::as_slice),
                end.as_ref().map(Vec::as_slice),
            );
            self.index
                .scan(range, Direction::Up, None, &mut |key, &entry| {
                    found = match self.changed_between(entry, since.ts, ts) {
                        Ok(false) => return ControlFlow::Continue(()),
                        Ok(true) => Err(self.conflict(key, true).into()),
                        Err(e) => Err(Damage::of_key(key, &e).into()),
                    };
                    ControlFlow::Break(())
                });
            found?;
        }
        Ok(())
    }

    /// Whether a version of the key was committed after `since` and before `ts`.
    fn changed_between(&self, entry: u64, since: u64, ts: u64) -> Result<bool, Damage> {
        let pm = self.pm();
        let mut off = entry;
        while off != 0 {
            let header = record::header(pm, off)?;
            match self.stamp_of(off, header, since)? {
                Stamp::At(at) | Stamp::Pending { ts: at, .. } if at <= since => return Ok(false),
                Stamp::At(at) | Stamp::Pending { ts: at, .. } if at < ts => return Ok(true),
                _ => off = header.previous(pm),
            }
        }
        Ok(false)
    }
}
