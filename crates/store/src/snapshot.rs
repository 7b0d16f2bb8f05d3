//! Snapshots: the store as it was at one durable commit; and cursors, which go on where they stopped.

use crate::bounds::Bounds;
use crate::catalogue::{Keyspace, parse};
use crate::clock::Wait;
use crate::entry::{Entry, expires_at};
use crate::error::{OtherStore, ReadError};
use crate::horizon::Ticket;
use crate::key::{CATALOGUE, PREFIX};
use crate::shared::Shared;
use crate::write::check_key;
use bristlecone_index::Direction;
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The store as it was at one durable commit. Reads take no lock, block nobody and are blocked by nobody. What it can read
/// is not vacuumed while it is kept.
pub struct Snapshot<M: Media> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) ticket: Ticket,
    /// What a transaction's commit on it waits for.
    pub(crate) wait: Wait,
}

impl<M: Media> fmt::Debug for Snapshot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("timestamp", &self.ticket.ts)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Clone for Snapshot<M> {
    fn clone(&self) -> Self {
        Self {
            ticket: self.shared.snapshots.enter_again(self.ticket),
            shared: Arc::clone(&self.shared),
            wait: self.wait,
        }
    }
}

impl<M: Media> Drop for Snapshot<M> {
    fn drop(&mut self) {
        self.shared.snapshots.leave(self.ticket);
    }
}

impl<M: Media> Snapshot<M> {
    pub(crate) fn enter(shared: &Arc<Shared<M>>, wait: Wait) -> Self {
        let now = || shared.wall.now();
        Self {
            ticket: shared.snapshots.enter(&shared.clock, wait, now),
            shared: Arc::clone(shared),
            wait,
        }
    }

    /// Returns the keyspaces of the snapshot, by name.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn keyspaces(&self) -> Result<Vec<Keyspace>, ReadError> {
        let mut all = Vec::new();
        let bounds = Bounds::new(CATALOGUE, Bound::Unbounded, Bound::Unbounded);
        self.visit(bounds.range(), Direction::Up, &mut |key, entry| {
            // Opening refuses a store with malformed entries.
            if let Some((name, id)) = parse(key, entry.value) {
                all.push(self.shared.catalogue.handle(id, name));
            }
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// The bounds of a range of keys of any kind.
    ///
    /// # Errors
    /// [`OtherStore`]
    pub(crate) fn bounds_of<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: &impl RangeBounds<K>,
    ) -> Result<Bounds, OtherStore> {
        fn bytes<K: Borrow<[u8]>>(bound: Bound<&K>) -> Bound<&[u8]> {
            bound.map(Borrow::borrow)
        }
        let number = self.shared.catalogue.number(keyspace)?;
        let (start, end) = (bytes(range.start_bound()), bytes(range.end_bound()));
        Ok(Bounds::new(number, start, end))
    }

    /// The bounds of the keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`OtherStore`]
    pub(crate) fn prefix_of(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
    ) -> Result<Bounds, OtherStore> {
        Ok(Bounds::prefix(
            self.shared.catalogue.number(keyspace)?,
            prefix,
        ))
    }

    /// The time stamp of the last commit that it sees.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.ticket.ts
    }

    /// A copy of the value of `key`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get_with(keyspace, key, |entry| entry.value.to_vec())
    }

    /// Calls `f` with the value of `key`, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_with<R>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        self.get_index_key(&self.shared.catalogue.index_key(keyspace, key)?, f)
    }

    pub(crate) fn get_index_key<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        self.shared.get_at(self.ticket, key, |found| {
            let value = found.value(key)?;
            Ok(f(Entry {
                value: &value,
                expires_at: expires_at(found.expiry()),
            }))
        })
    }

    /// When the value of `key` was written: the time stamp of its commit.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn written_at(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<u64>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let at = self.ticket;
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        self.shared.get_at(at, &key, |found| Ok(found.ts))
    }

    /// Visits the keys of `range` with their values, ascending, until `visit` breaks. Memory is not reclaimed while it runs.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        mut visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.bounds_of(keyspace, &range)?;
        self.visit(bounds.range(), Direction::Up, &mut |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// As [`scan`](Self::scan), descending.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan_reverse<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        mut visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.bounds_of(keyspace, &range)?;
        self.visit(bounds.range(), Direction::Down, &mut |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// As [`scan`](Self::scan), the keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn prefix(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.prefix_of(keyspace, prefix)?;
        self.visit(bounds.range(), Direction::Up, &mut |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// Visits index keys.
    pub(crate) fn visit(
        &self,
        range: Range<'_>,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.shared
            .scan_at(self.ticket, range, direction, &mut |key, found| {
                let value = found.value(key)?;
                let entry = Entry {
                    value: &value,
                    expires_at: expires_at(found.expiry()),
                };
                Ok(visit(key, entry))
            })
    }

    /// How many keys of `range` there are. Reads all of them.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn count<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<u64, ReadError> {
        let mut count = 0;
        let bounds = self.bounds_of(keyspace, &range)?;
        let (at, up) = (self.ticket, Direction::Up);
        self.shared.scan_at(at, bounds.range(), up, &mut |_, _| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(count)
    }

    /// A cursor over the keys of `range`, ascending.
    #[must_use]
    pub fn cursor<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self.clone(), bounds, Direction::Up)
    }

    /// A cursor over the keys of `range`, descending.
    #[must_use]
    pub fn cursor_reverse<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self.clone(), bounds, Direction::Down)
    }

    /// A cursor over the keys that begin with `prefix`, ascending.
    #[must_use]
    pub fn cursor_prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Cursor<M> {
        let bounds = self.prefix_of(keyspace, prefix);
        Cursor::new(self.clone(), bounds, Direction::Up)
    }

    /// As [`cursor`](Self::cursor); the snapshot is kept by the cursor alone.
    #[must_use]
    pub fn into_cursor(self, keyspace: &Keyspace, range: impl RangeBounds<Vec<u8>>) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self, bounds, Direction::Up)
    }
}

/// A place in a scan, which goes on from there. It has its snapshot, so what it gives is of one time however long it takes, and
/// the last key that it gave; to go on in another snapshot, or another process, begin one after [that](Self::position).
#[derive(Debug)]
pub struct Cursor<M: Media> {
    snapshot: Snapshot<M>,
    /// Of another store's keyspace there are none, which the first read says.
    bounds: Result<Bounds, OtherStore>,
    direction: Direction,
    /// Index key of what was given last.
    last: Option<Vec<u8>>,
    done: bool,
}

impl<M: Media> Cursor<M> {
    fn new(
        snapshot: Snapshot<M>,
        bounds: Result<Bounds, OtherStore>,
        direction: Direction,
    ) -> Self {
        Self {
            snapshot,
            bounds,
            direction,
            last: None,
            done: false,
        }
    }

    /// The key that was given last.
    #[must_use]
    pub fn position(&self) -> Option<&[u8]> {
        self.last.as_ref().map(|key| &key[PREFIX..])
    }

    /// The next pairs, up to `most`; none at the end.
    ///
    /// # Errors
    /// [`ReadError`]; the cursor stays where it was.
    pub fn next_batch(&mut self, most: usize) -> Result<Vec<Pair>, ReadError> {
        self.next_with(most, |key, entry| (key.to_vec(), entry.value.to_vec()))
    }

    /// The next keys, up to `most`; none at the end.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn next_keys(&mut self, most: usize) -> Result<Vec<Vec<u8>>, ReadError> {
        self.next_with(most, |key, _| key.to_vec())
    }

    /// What `f` makes of the next pairs, up to `most`; nothing at the end.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn next_with<R>(
        &mut self,
        most: usize,
        mut f: impl FnMut(&[u8], Entry<'_>) -> R,
    ) -> Result<Vec<R>, ReadError> {
        let mut given = Vec::new();
        if most > 0 {
            self.next_while(|key, entry| {
                given.push(f(key, entry));
                given.len() < most
            })?;
        }
        Ok(given)
    }

    /// Gives the next pairs while `f` says so. The last one given counts as given.
    pub(crate) fn next_while(
        &mut self,
        mut f: impl FnMut(&[u8], Entry<'_>) -> bool,
    ) -> Result<(), ReadError> {
        if self.done {
            return Ok(());
        }
        let (start, end) = self.bounds.as_ref().map_err(Clone::clone)?.range();
        let range = match (&self.last, self.direction) {
            (None, _) => (start, end),
            (Some(last), Direction::Up) => (Bound::Excluded(last.as_slice()), end),
            (Some(last), Direction::Down) => (start, Bound::Excluded(last.as_slice())),
        };
        let mut last = None;
        let mut broken_off = false;
        self.snapshot
            .visit(range, self.direction, &mut |key, entry| {
                let more = f(&key[PREFIX..], entry);
                if more {
                    return ControlFlow::Continue(());
                }
                last = Some(key.to_vec());
                broken_off = true;
                ControlFlow::Break(())
            })?;
        // A scan that was not broken off came to the end.
        self.done = !broken_off;
        if last.is_some() {
            self.last = last;
        }
        Ok(())
    }
}
