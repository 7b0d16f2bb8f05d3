//! Serialisable transactions: what they have read must be what they would read at their own stamp.
//!
//! A batch at a [snapshot](super::Snapshot) is made only if nobody has changed its keys since. A
//! serialisable one is also checked against what its transaction has read:
//!
//! 1. It takes its stamp while it holds the locks of the pages that it writes.
//! 2. It waits until all changes with earlier stamps have been shown.
//! 3. It looks for changes of what was read, from the snapshot's time on and before its stamp.
//!
//! If there are none, reading at the stamp would have answered the same, keys that were not there
//! included, so the transaction takes place at its stamp. Others pay nothing for it.
//!
//! # Concurrency
//! Waiting cannot end in a circle: who has a stamp holds all the locks that it needs, and waits for
//! earlier stamps only. Pages that are only read are not locked: what comes to them with a later
//! stamp does not matter.

use super::part::Part;
use super::scan::Bounds;
use super::{ClusteredTree, Handle, ReadError};
use crate::contract::Direction;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};

/// The bounds of a range.
type OwnedRange<K> = (Bound<<K as ToOwned>::Owned>, Bound<<K as ToOwned>::Owned>);

/// The keys and ranges that a transaction has read, for
/// [`Snapshot::write_serializable`](super::Snapshot::write_serializable).
///
/// # Examples
/// As of that.
pub struct Reads<K: ToOwned + ?Sized> {
    keys: Vec<K::Owned>,
    ranges: Vec<OwnedRange<K>>,
}

impl<K: ToOwned + ?Sized> fmt::Debug for Reads<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads")
            .field("keys", &self.keys.len())
            .field("ranges", &self.ranges.len())
            .finish()
    }
}

impl<K: ToOwned + ?Sized> Default for Reads<K> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            ranges: Vec::new(),
        }
    }
}

impl<K: ToOwned + ?Sized> Reads<K> {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key, whether it was there or not.
    pub fn key(&mut self, key: &K) {
        self.keys.push(key.to_owned());
    }

    /// Adds all keys of a range, and that there were no others.
    pub fn range(&mut self, range: impl RangeBounds<K>) {
        let owned = |bound: Bound<&K>| bound.map(ToOwned::to_owned);
        let bounds = (owned(range.start_bound()), owned(range.end_bound()));
        self.ranges.push(bounds);
    }
}

/// Bounds of a range that was read.
type Bounded<'k, K> = (Bound<&'k K>, Bound<&'k K>);

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Returns one of the keys, or a key of the ranges, that has changed at a time of `times`, the
    /// first of which somebody reads at, and which all have been shown.
    ///
    /// # Errors
    /// [`ReadError`]: a page is damaged.
    pub(super) fn have_changed(
        &self,
        reads: &Reads<K>,
        times: &Range<u64>,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        for key in &reads.keys {
            let key: &K = key.borrow();
            if self.key_has_changed(key, times)? {
                return Ok(Some(key.with_bytes(<[u8]>::to_vec)));
            }
        }
        for (from, to) in &reads.ranges {
            let range = (
                from.as_ref().map(Borrow::borrow),
                to.as_ref().map(Borrow::borrow),
            );
            if let Some(key) = self.range_has_changed(range, times)? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    fn key_has_changed(&self, key: &K, times: &Range<u64>) -> Result<bool, ReadError> {
        let guard = &epoch::pin();
        let hash = key.hash();
        key.with_bytes(|bytes| {
            loop {
                let Some((part, version)) = self.part_of_key(key, guard) else {
                    // Nobody has changed it since the earliest time at which somebody reads.
                    return Ok(false);
                };
                let changed = self.has_changed(part, (bytes, hash), times);
                self.pm().interleave();
                if part.version.validate(version) {
                    return changed;
                }
            }
        })
    }

    /// Whether a key of the page has changed at a time of `times`, the first of which somebody
    /// reads at. If the page is changing, the answer, or the error, means nothing.
    ///
    /// # Errors
    /// [`ReadError`]: the page is damaged.
    pub(super) fn has_changed(
        &self,
        part: &Part,
        (key, hash): (&[u8], u32),
        times: &Range<u64>,
    ) -> Result<bool, ReadError> {
        let (page, count) = (self.page_of(part), part.count());
        if part.latest() < times.start {
            return Ok(false);
        }
        let base = part.base();
        if page
            .newest(part, &base, (key, hash), count, |_| true)
            .is_some()
        {
            let stamps = page.stamps(part, self.seed(part.generation()), count);
            let stamps = Self::known(stamps)?;
            let is_earlier = |i: usize| stamps[i] < times.end;
            let newest = page.newest(part, &base, (key, hash), count, is_earlier);
            if newest.is_some_and(|(i, _)| stamps[i] >= times.start) {
                return Ok(true);
            }
        }
        Ok(part.latest_of_base() >= times.start && self.versions.at(times.start, key)?.is_some())
    }

    fn range_has_changed(
        &self,
        range: Bounded<'_, K>,
        times: &Range<u64>,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let mut reached: Option<Bound<K::Owned>> = None;
        loop {
            let guard = &epoch::pin();
            let at = self.next_page(&range, Direction::Up, reached.as_ref(), guard);
            let bounds = Bounds::of(&range, Direction::Up, &at, reached.as_ref());
            match Handle::decode(at.located.leaf) {
                Handle::Part(slot) if slot < self.parts.capacity() => {
                    let part = self.part(slot);
                    let version = part.version.try_read();
                    let Some(version) = version.filter(|_| self.inner.validate(&at.located)) else {
                        self.pm().interleave();
                        continue;
                    };
                    let changed = self.part_has_changed(part, &bounds, times);
                    self.pm().interleave();
                    if !part.version.validate(version) {
                        continue;
                    }
                    if let Some(key) = changed? {
                        return Ok(Some(key));
                    }
                }
                // As of a key.
                Handle::Unloaded(_) if self.inner.validate(&at.located) => {}
                _ => continue,
            }
            if bounds.ends {
                return Ok(None);
            }
            let Some(high) = at.high else {
                return Ok(None);
            };
            reached = Some(Bound::Included(high));
        }
    }

    /// Returns a key of the page that is within the bounds and has changed. If the page is
    /// changing, the answer, or the error, means nothing.
    fn part_has_changed(
        &self,
        part: &Part,
        bounds: &Bounds<'_, K>,
        times: &Range<u64>,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let page = self.page_of(part);
        let count = part.count();
        if part.latest() < times.start {
            return Ok(None);
        }
        let stamps = page.stamps(part, self.seed(part.generation()), count);
        let stamps = Self::known(stamps)?;
        let base = part.base();
        bounds.within_page(|from, to| {
            if part.latest_of_base() >= times.start {
                let kept = self.versions.between(times.start, from, to)?;
                if let Some((key, _)) = kept.into_iter().next() {
                    return Ok(Some(key));
                }
            }
            let prefix = page.prefix(base.prefix);
            let key = |i: usize| {
                let rest = page.bytes(page.record(&base, part.place(i)).0);
                [prefix, rest].concat()
            };
            let changed = (0..count).filter(|i| times.contains(&stamps[*i])).map(key);
            let inside = |key: &Vec<u8>| (from, to).contains(&**key);
            Ok(changed.into_iter().find(inside))
        })
    }
}
