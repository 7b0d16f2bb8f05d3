//! Reading damaged pages of a tree under a store, as far as they are sound.

use super::hosted::{Current, HostedTree, KeyRange};
use super::page::Page;
use super::rescue::Rescued;
use super::scan::NOW;
use super::stored::Stored;
use super::visit::Visits;
use super::{Handle, ReadError};
use crate::contract::Direction;
use crate::inner::Ranged;
use bristlecone_pmem::Media;
use crossbeam_epoch::Guard;
use std::cell::RefCell;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// What [`HostedTree::rescue`] cannot give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost<'l> {
    /// Some of the entries in the range of a page.
    Page(KeyRange<'l>),
    /// The value of a key, and what it was before, unless that was nothing, or long.
    Key(&'l [u8], Option<&'l [u8]>),
}

impl<'l> Lost<'l> {
    /// Returns the key, or the one that the page begins with: an empty one for the first page.
    #[must_use]
    pub fn key(&self) -> &'l [u8] {
        match *self {
            Self::Key(key, _) => key,
            Self::Page((Bound::Included(low) | Bound::Excluded(low), _)) => low,
            Self::Page((Bound::Unbounded, _)) => &[],
        }
    }
}

/// Visits an entry as its page has it.
type Visit<'v> = dyn FnMut(&[u8], Stored<'_>) -> Result<ControlFlow<()>, ReadError> + 'v;

/// The range of a page.
fn bounds_of(at: &Ranged<[u8]>) -> KeyRange<'_> {
    let low = at.low.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let high = at.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    (low, high)
}

/// The bound of a range's start that leaves less.
fn later<'k>(a: Bound<&'k [u8]>, b: Bound<&'k [u8]>) -> Bound<&'k [u8]> {
    match (a, b) {
        (Bound::Unbounded, other) | (other, Bound::Unbounded) => other,
        (Bound::Included(one) | Bound::Excluded(one), Bound::Included(other)) if one < other => b,
        (Bound::Included(one) | Bound::Excluded(one), Bound::Excluded(other)) if one <= other => b,
        _ => a,
    }
}

/// The bound of a range's end that leaves less.
fn earlier<'k>(a: Bound<&'k [u8]>, b: Bound<&'k [u8]>) -> Bound<&'k [u8]> {
    match (a, b) {
        (Bound::Unbounded, other) | (other, Bound::Unbounded) => other,
        (Bound::Included(one) | Bound::Excluded(one), Bound::Included(other)) if one > other => b,
        (Bound::Included(one) | Bound::Excluded(one), Bound::Excluded(other)) if one >= other => b,
        _ => a,
    }
}

/// The keys that two ranges share.
fn shared<'k>(a: KeyRange<'k>, b: KeyRange<'k>) -> KeyRange<'k> {
    (later(a.0, b.0), earlier(a.1, b.1))
}

fn contains(range: &KeyRange<'_>, key: &[u8]) -> bool {
    RangeBounds::<[u8]>::contains(range, key)
}

impl<M: Media> HostedTree<M> {
    /// The readable part of the page at `at`, if that is a leaf page which is not loaded.
    fn rescued_at(&self, at: &Ranged<[u8]>) -> Option<(Page<'_, M>, Rescued)> {
        match Handle::decode(at.located.leaf) {
            Handle::Unloaded(id) => self.0.rescue(id),
            Handle::Part(_) => None,
        }
    }

    /// Reads a key in the sound part of a page that cannot be loaded. The page has not changed
    /// since the earliest time that is read at, so the value is that of all of these.
    #[cold]
    pub(super) fn get_rescued<'t>(
        &'t self,
        key: &[u8],
        what: String,
        guard: &Guard,
    ) -> Result<Option<Stored<'t>>, ReadError> {
        let at = self.0.inner.find_range(key, guard);
        let Some((page, rescued)) = self.rescued_at(&at) else {
            return Err(ReadError::Damaged(what));
        };
        let of_key = |(other, _): &(Vec<u8>, _)| (**other).cmp(key);
        match rescued.entries.binary_search_by(of_key) {
            Ok(i) => Ok(Some(page.stored(rescued.entries[i].1))),
            Err(_) if rescued.is_whole(Bound::Included(key), Bound::Included(key)) => Ok(None),
            Err(_) => Err(ReadError::Damaged(what)),
        }
    }

    /// Visits what a range has of a page that cannot be loaded.
    ///
    /// # Errors
    /// Why it cannot, if some of the range cannot be read; those of `visit`.
    #[cold]
    pub(super) fn scan_rescued(
        &self,
        (range, direction): (KeyRange<'_>, Direction),
        at: &Ranged<[u8]>,
        e: ReadError,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let Some((page, rescued)) = self.rescued_at(at) else {
            return Err(e);
        };
        let range = shared(range, bounds_of(at));
        if !rescued.is_whole(range.0, range.1) {
            return Err(e);
        }
        let entries = rescued.entries.iter();
        let mut entries: Vec<_> = entries.filter(|(key, _)| contains(&range, key)).collect();
        if direction == Direction::Down {
            entries.reverse();
        }
        for (key, value) in entries {
            if visit(key, page.stored(*value))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits what the range has now, in the order of keys. `damaged` gets the bounds of each page
    /// that cannot be read, and why; the scan goes on behind it.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn salvage(
        &self,
        range: KeyRange<'_>,
        visit: impl FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
        damaged: impl FnMut(KeyRange<'_>, &ReadError),
    ) -> Result<(), ReadError> {
        self.salvage_at(NOW, range, visit, damaged)
    }

    /// As [`salvage`](Self::salvage), of what the range has at a time that has begun and not ended.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn salvage_at(
        &self,
        time: u64,
        range: KeyRange<'_>,
        mut visit: impl FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
        mut damaged: impl FnMut(KeyRange<'_>, &ReadError),
    ) -> Result<(), ReadError> {
        let visit = |key: &[u8], stored: Stored<'_>| visit(key, &Current::new(&self.0, stored));
        let damaged = |at: &Ranged<[u8]>, e| {
            damaged(bounds_of(at), &e);
            Ok(ControlFlow::Continue(()))
        };
        (self.0).scan_stored(
            &range,
            Direction::Up,
            time,
            &mut (Visits::Keys, visit, damaged),
        )
    }

    /// As [`salvage`](Self::salvage), and visits what is left of pages that cannot be read.
    /// `lost` gets these pages, and the keys in them that may have other values than the page still
    /// says.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn rescue(
        &self,
        range: KeyRange<'_>,
        mut visit: impl FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
        mut lost: impl FnMut(Lost<'_>, &str),
    ) -> Result<(), ReadError> {
        let visit = RefCell::new(|key: &[u8], stored: Stored<'_>| {
            visit(key, &Current::new(&self.0, stored))
        });
        let one = |key: &[u8], stored: Stored<'_>| (visit.borrow_mut())(key, stored);
        let damaged = |at: &Ranged<[u8]>, e: ReadError| {
            let Some((page, rescued)) = self.rescued_at(at) else {
                lost(Lost::Page(bounds_of(at)), &e.to_string());
                return Ok(ControlFlow::Continue(()));
            };
            let what = format!("{e}; {} of its entries cannot be read", rescued.lost);
            lost(Lost::Page(bounds_of(at)), &what);
            let range = shared(range, bounds_of(at));
            let uncertain = rescued.uncertain.iter();
            for (key, value) in uncertain.filter(|(key, _)| contains(&range, key)) {
                let before = value.map(|value| page.stored(value));
                let before = before.filter(|stored| !stored.outer);
                let before = before.map(|stored| stored.bytes);
                let what = "a damaged change may have changed it";
                lost(Lost::Key(key, before), what);
            }
            let entries = rescued.entries.iter();
            for (key, value) in entries.filter(|(key, _)| contains(&range, key)) {
                if one(key, page.stored(*value))?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        (self.0).scan_stored(
            &range,
            Direction::Up,
            NOW,
            &mut (Visits::Keys, one, damaged),
        )
    }
}
