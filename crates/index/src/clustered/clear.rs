//! Removing the keys of a range that nobody reads any more, by pages.
//!
//! A removal takes a record for each key. Where a whole range goes that no reader can ask for, its
//! pages are merged without its keys instead: of two neighbours the left one stays, empty, and
//! takes the next one in. So it costs what a [merge](super::merge) does for each page, whatever the
//! page has, and has no crash state that merging has not. All keys of a page go with one time
//! stamp. It keeps no old values, and meets no conflict.

use super::merge::{Gone, Joins};
use super::{Handle, HostedTree, KeyRange, ReadError};
use crate::inner::Ranged;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::ops::{Bound, RangeBounds};

/// Pages in a row that cannot be merged, after which one does not go on to the right.
const IN_A_ROW: usize = 4;

impl<M: Media> HostedTree<M> {
    /// Removes keys of a range that nobody reads or changes any more, about `most` of them, by the
    /// pages that have no others. What is in pages that cannot be read or merged is left, to be
    /// [removed](Self::remove_all). Looks before each page whether to stop.
    ///
    /// The removals of a page have one time stamp. Nobody is told before they are durable.
    ///
    /// Persist cost: that of a merge for each page.
    pub fn clear(&self, range: KeyRange<'_>, most: u64, stops: &dyn Fn() -> bool) -> Gone {
        let mut all = Gone::default();
        let stops = |all: &Gone| all.keys >= most || stops();
        if !self.0.read_only {
            // Pages of different parents are merged once these have few pages, and are merged too.
            while self.clear_once(range, &stops, &mut all) && !stops(&all) {}
        }
        all
    }

    /// Goes through the range once. Returns whether it is worth another time.
    fn clear_once(
        &self,
        range: KeyRange<'_>,
        stops: &dyn Fn(&Gone) -> bool,
        all: &mut Gone,
    ) -> bool {
        let is_gone = |key: &[u8]| range.contains(key);
        let mut from = range.0.map(<[u8]>::to_vec);
        let (mut merged, mut left, mut in_a_row) = (false, false, 0);
        while in_a_row < IN_A_ROW && !stops(all) {
            let _storing = self.0.storing();
            let rest = (from.as_ref().map(Vec::as_slice), range.1);
            let Ok(Some(at)) = self.first_inside(rest) else {
                break;
            };
            // Its right neighbour, where that begins in the range.
            let Some(high) = at.high.as_deref().filter(|high| is_gone(high)) else {
                // The page that is empty joins one that is not.
                if let Some(low) = at.low.filter(|_| merged) {
                    self.0.merge(&low);
                }
                break;
            };
            match self.0.merge_two(&at, high, Joins::Without(&is_gone)) {
                Ok(Some(gone)) => {
                    (merged, in_a_row) = (true, 0);
                    all.keys += gone.keys;
                    all.bytes += gone.bytes;
                }
                Err(ReadError::Space(_)) if self.0.retired.wait() => {}
                Err(ReadError::Space(_)) => return false,
                Ok(None) | Err(_) => {
                    (left, in_a_row) = (true, in_a_row + 1);
                    from = Bound::Included(high.to_vec());
                }
            }
        }
        merged && left
    }

    /// The first page that begins in the range, loaded, with its right neighbour loaded.
    fn first_inside(&self, range: KeyRange<'_>) -> Result<Option<Ranged<[u8]>>, ReadError> {
        let tree = &self.0;
        let guard = &epoch::pin();
        let find = |from: Bound<&[u8]>| match from {
            Bound::Unbounded => tree.inner.find_first(guard),
            Bound::Included(key) | Bound::Excluded(key) => tree.inner.find_range(key, guard),
        };
        let mut from = range.0;
        let next;
        let first = find(from);
        let begins_inside = match (&first.low, range.0) {
            (_, Bound::Unbounded) => true,
            (Some(low), Bound::Included(key)) => **low == *key,
            _ => false,
        };
        if !begins_inside {
            let Some(high) = first.high.filter(|high| range.contains(&**high)) else {
                return Ok(None);
            };
            next = high;
            from = Bound::Included(&next);
        }
        loop {
            let at = find(from);
            if let Handle::Unloaded(_) = Handle::decode(at.located.leaf) {
                tree.load_at(&at, guard)?;
                continue;
            }
            let Some(high) = &at.high else {
                return Ok(Some(at));
            };
            if tree.part_of_key(high, guard).is_none() {
                tree.load(high, guard)?;
                continue;
            }
            return Ok(Some(at));
        }
    }
}
