//! The read set of a serialisable transaction.

use crate::write::check_key;
use bristlecone_index::engine::Range;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Bounds of index keys.
type OwnedRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The index keys and ranges that a transaction has read.
#[derive(Clone, Debug, Default)]
pub struct ReadSet {
    keys: BTreeSet<Vec<u8>>,
    ranges: Vec<OwnedRange>,
}

impl ReadSet {
    /// Adds an index key.
    pub fn key(&mut self, key: &[u8]) {
        // A key that is too long is never there.
        if check_key(key).is_ok() && !self.keys.contains(key) {
            self.keys.insert(key.to_vec());
        }
    }

    /// Adds a range of index keys.
    pub fn range(&mut self, range: Range<'_>) {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        self.ranges.push((owned(range.0), owned(range.1)));
    }

    /// Returns the keys.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(Vec::as_slice)
    }

    /// Returns keys of all keyspaces that were read.
    pub fn of_keyspaces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = self.ranges.iter().filter_map(|(start, _)| match start {
            Bound::Included(first) | Bound::Excluded(first) => Some(first.as_slice()),
            Bound::Unbounded => None,
        });
        self.keys().chain(starts)
    }

    /// Returns the ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range<'_>> + Clone {
        let bounds = self.ranges.iter();
        bounds.map(|(start, end)| {
            (
                start.as_ref().map(Vec::as_slice),
                end.as_ref().map(Vec::as_slice),
            )
        })
    }
}
