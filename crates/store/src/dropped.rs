//! Dropped keyspaces: one commit takes the name away, and the vacuum removes the keys later.
//!
//! ```text
//! drop    with all writers kept out, at timestamp T: the catalogue's name --> nothing, or a new number if
//!         the keyspace is cleared; since[number] = T
//! read    at T or later: nothing is there. Snapshots from before T see all of it until they end
//! write   refused
//! vacuum  once the horizon has reached T: the keys of that number go, a few at a time
//! open    the vacuum goes on with what it had not reached
//! ```
//!
//! While a store is open no number is issued twice, so a handle of a dropped keyspace never leads
//! to another one.
//!
//! # Crash states
//! | crash | what it leaves |
//! | --- | --- |
//! | before the commit | the whole keyspace |
//! | after it, until the vacuum is done | no such keyspace, and the keys that the vacuum had not reached, which nobody reads |
//!
//! # Concurrency
//! Writers look at `since` where a drop keeps them out: under the gate of the tree, or in NV-Store
//! under the lock of their key's stripe. So every write to the keyspace is before T, and nothing is
//! added once the vacuum begins. Readers take no lock. They are pinned, and T is in the list before
//! it is applied, so a reader at T finds it there.

use crossbeam_epoch::{self as epoch, Guard};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The numbers that were dropped since the store was opened, ascending, each with the timestamp of
/// its drop.
type Since = Vec<(u32, u64)>;

/// A dropped keyspace, and the timestamp of its drop.
#[derive(Clone, Copy, Debug)]
pub struct DroppedAt {
    /// Its number.
    pub number: u32,
    /// The timestamp.
    pub since: u64,
}

/// The keyspaces that were dropped since the store was opened.
#[derive(Default)]
pub struct Dropped {
    since: epoch::Atomic<Since>,
    any: AtomicBool,
}

impl fmt::Debug for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dropped").finish_non_exhaustive()
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let since = std::mem::take(&mut self.since);
        // SAFETY: 1. nobody else has the list, since its owner is being dropped; 2. it is null, or
        // a box that `add` made.
        drop(unsafe { since.try_into_owned() });
    }
}

impl Dropped {
    /// Returns whether none was dropped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of `add`.
        !self.any.load(Ordering::Acquire)
    }

    /// Returns the timestamp at which a keyspace was dropped, if it was.
    #[inline]
    pub fn since(&self, number: u32, guard: &Guard) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release of `add`.
        let list = self.since.load(Ordering::Acquire, guard);
        // SAFETY: 1. null, or a list that `add` made and nobody changes; 2. a replaced list is
        // freed once every thread that was pinned at that moment has unpinned, and `guard` is
        // pinned.
        let list = unsafe { list.as_ref() }?;
        let at = list.binary_search_by_key(&number, |(number, _)| *number);
        at.ok().map(|at| list[at].1)
    }

    /// Notes that a keyspace is dropped from `ts` on. The caller keeps all
    /// writers out, so calls exclude each other.
    pub fn add(&self, number: u32, ts: u64) {
        let guard = epoch::pin();
        // ORDERING: Acquire; pairs with the Release below.
        let before = self.since.load(Ordering::Acquire, &guard);
        // SAFETY: as in `since`.
        let mut list = unsafe { before.as_ref() }.cloned().unwrap_or_default();
        let at = list.partition_point(|(other, _)| *other < number);
        list.insert(at, (number, ts));
        // ORDERING: Release; pairs with the Acquire of `since`.
        self.since.store(epoch::Owned::new(list), Ordering::Release);
        // ORDERING: Release; pairs with the Acquire of `is_empty`: who sees it finds the list.
        self.any.store(true, Ordering::Release);
        if !before.is_null() {
            // SAFETY: 1. made from a box by an earlier call; 2. no new reader can find it; 3. each
            // list is retired once, since calls exclude each other.
            unsafe { guard.defer_destroy(before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keyspace_has_the_time_of_its_drop() {
        let dropped = Dropped::default();
        let guard = epoch::pin();
        assert!(dropped.is_empty() && dropped.since(5, &guard).is_none());
        for (number, ts) in [(5, 10), (3, 20), (9, 15), (4, 30)] {
            dropped.add(number, ts);
        }
        let since = (2..=10).map(|number| dropped.since(number, &guard));
        let expected = [
            None,
            Some(20),
            Some(30),
            Some(10),
            None,
            None,
            None,
            Some(15),
            None,
        ];
        assert!(since.eq(expected) && !dropped.is_empty());
    }
}
