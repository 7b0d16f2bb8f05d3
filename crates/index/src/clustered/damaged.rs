//! A tree under a store whose pages are damaged: what is sound in them is read all the same.

use super::hosted::{Current, HostedTree, KeyRange};
use super::scan::NOW;
use super::stored::Stored;
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

/// Visits an entry as its page has it.
type Visit<'v> = dyn FnMut(&[u8], Stored<'_>) -> Result<ControlFlow<()>, ReadError> + 'v;

fn bounds_of<'r>(at: &'r Ranged<[u8]>) -> KeyRange<'r> {
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

impl<M: Media> HostedTree<M> {
    /// What a page that cannot be loaded says of a key, whatever the time is: it has not changed
    /// since the tree was opened.
    #[cold]
    pub(super) fn get_rescued<'t>(
        &'t self,
        key: &[u8],
        what: String,
        guard: &Guard,
    ) -> Result<Option<Stored<'t>>, ReadError> {
        let at = self.0.inner.find_range(key, guard);
        let rescued = match Handle::decode(at.located.leaf) {
            Handle::Unloaded(id) => self.0.rescue(id),
            Handle::Part(_) => None,
        };
        let Some((page, rescued)) = rescued else {
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
        let Handle::Unloaded(id) = Handle::decode(at.located.leaf) else {
            return Err(e);
        };
        let Some((page, rescued)) = self.0.rescue(id) else {
            return Err(e);
        };
        let (low, high) = bounds_of(at);
        let (from, to) = (later(range.0, low), earlier(range.1, high));
        if !rescued.is_whole(from, to) {
            return Err(e);
        }
        let inside =
            |(key, _): &&(Vec<u8>, _)| RangeBounds::<[u8]>::contains(&(from, to), &key[..]);
        let mut entries: Vec<_> = rescued.entries.iter().filter(inside).collect();
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
        visit: impl FnMut(&[u8], Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
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
        mut visit: impl FnMut(&[u8], Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
        mut damaged: impl FnMut(KeyRange<'_>, &ReadError),
    ) -> Result<(), ReadError> {
        let visit = |key: &[u8], stored: Stored<'_>| visit(key, Current::new(&self.0, stored));
        (self.0).scan_stored(&range, Direction::Up, time, visit, |at, e| {
            let low = at.low.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let high = at.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            damaged((low, high), &e);
            Ok(ControlFlow::Continue(()))
        })
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
        mut visit: impl FnMut(&[u8], Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
        mut lost: impl FnMut(Lost<'_>, &str),
    ) -> Result<(), ReadError> {
        let visit = RefCell::new(|key: &[u8], stored: Stored<'_>| {
            visit(key, Current::new(&self.0, stored))
        });
        let one = |key: &[u8], stored: Stored<'_>| (visit.borrow_mut())(key, stored);
        (self.0).scan_stored(&range, Direction::Up, NOW, one, |at, e| {
            let low = at.low.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let high = at.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let rescued = match Handle::decode(at.located.leaf) {
                Handle::Unloaded(id) => self.0.rescue(id),
                Handle::Part(_) => None,
            };
            let Some((page, rescued)) = rescued else {
                lost(Lost::Page((low, high)), &e.to_string());
                return Ok(ControlFlow::Continue(()));
            };
            let what = format!("{e}; {} of its entries cannot be read", rescued.lost);
            lost(Lost::Page((low, high)), &what);
            let is_inside = |key: &[u8]| {
                let of_page: KeyRange<'_> = (low, high);
                RangeBounds::<[u8]>::contains(&range, key)
                    && RangeBounds::<[u8]>::contains(&of_page, key)
            };
            for (key, value) in rescued.uncertain.iter().filter(|(key, _)| is_inside(key)) {
                let before = value.map(|value| page.stored(value));
                let before = before
                    .filter(|stored| !stored.outer)
                    .map(|stored| stored.bytes);
                lost(
                    Lost::Key(key, before),
                    "a damaged change may have changed it",
                );
            }
            for (key, value) in rescued.entries.iter().filter(|(key, _)| is_inside(key)) {
                if one(key, page.stored(*value))?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}
