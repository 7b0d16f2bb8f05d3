//! Snapshots, which show the store as it was at one commit, and cursors over them.

use crate::bounds::Bounds;
use crate::catalogue::{Keyspace, parse};
use crate::engine::{At, Ticket, Visit, VisitWithin, Wait};
use crate::entries::Entries;
use crate::entry::{Entry, Longer};
use crate::error::{OtherStore, ReadError};
use crate::key::{CATALOGUE, IndexKey, PREFIX, split};
use crate::pinned::PinnedValue;
use crate::shared::Shared;
use crate::streams::positions;
use crate::write::check_key;
use bristlecone_index::Direction;
use bristlecone_index::engine::Range;
use bristlecone_pmem::{Media, Pool};
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The store as it was at one durable commit. Reads take no lock, block nobody and are blocked by
/// nobody. Versions that it can read are not vacuumed while it exists.
pub struct Snapshot<M: Media> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) ticket: Ticket,
    /// The state that the commit of a transaction on this snapshot waits for.
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
            ticket: self.shared.engine.enter_again(self.ticket),
            shared: Arc::clone(&self.shared),
            wait: self.wait,
        }
    }
}

impl<M: Media> Drop for Snapshot<M> {
    fn drop(&mut self) {
        self.shared.engine.leave(self.ticket);
    }
}

impl<M: Media> Snapshot<M> {
    pub(crate) fn enter(shared: &Arc<Shared<M>>, wait: Wait) -> Self {
        Self {
            ticket: shared.engine.enter(wait),
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

    /// Returns the bounds of a range of keys.
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

    /// Returns the bounds of the keys that begin with `prefix`.
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

    /// Returns the pool that the store is in.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.shared.engine.pool()
    }

    /// Returns the timestamp of the last commit that the snapshot sees.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.ticket.ts
    }

    /// Returns a copy of the value of `key`.
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

    /// As [`Store::get_range`](crate::Store::get_range), of the value in the snapshot.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_range(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        range: impl RangeBounds<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let at = At::Snapshot(self.ticket);
        self.shared
            .engine
            .get_range(at, &key, positions(range), into)
    }

    /// Returns the value of `key` in the snapshot, in place.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_pinned(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<PinnedValue<'_>>, ReadError> {
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        if check_key(&key[PREFIX..]).is_err() {
            return Ok(None);
        }
        let at = At::Snapshot(self.ticket);
        self.shared.engine.get_pinned(at, &key)
    }

    pub(crate) fn get_index_key<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        let found = self.get_index_key_within(key, u64::MAX, f)?;
        Ok(found.and_then(Result::ok))
    }

    /// Returns what a value of more than `most` bytes is as the error inside.
    pub(crate) fn get_index_key_within<R>(
        &self,
        key: &[u8],
        most: u64,
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<Result<R, Longer>>, ReadError> {
        let (mut f, mut answer) = (Some(f), None);
        let at = At::Snapshot(self.ticket);
        let longer = self.shared.engine.get_within(at, key, most, &mut |entry| {
            answer = f.take().map(|f| Ok(f(entry)));
        })?;
        Ok(longer.map(Err).or(answer))
    }

    /// Visits the keys of `range` with their values in ascending order, until `visit` breaks.
    /// Memory is not reclaimed while the scan runs.
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
        self.visit(bounds.range(), Direction::Up, &mut move |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// As [`scan`](Self::scan), in descending order.
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
        self.visit(bounds.range(), Direction::Down, &mut move |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// As [`scan`](Self::scan), for the keys that begin with `prefix`.
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
        self.visit(bounds.range(), Direction::Up, &mut move |key, entry| {
            visit(&key[PREFIX..], entry)
        })
    }

    /// Adds the entries of `range` to `into`, from its start or from its end on, until there is no
    /// room for more.
    ///
    /// # Errors
    /// [`ReadError`]; what comes before has been added.
    pub fn read<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        direction: Direction,
        into: &mut Entries,
    ) -> Result<(), ReadError> {
        let bounds = self.bounds_of(keyspace, &range)?;
        let engine = &self.shared.engine;
        engine.read(self.ticket, bounds.range(), direction, into)
    }

    /// Visits index keys.
    pub(crate) fn visit(
        &self,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReadError> {
        self.shared
            .engine
            .scan(self.ticket, range, direction, visit)
    }

    /// Visits index keys, with what a value of more than `most` bytes is in its place.
    pub(crate) fn visit_within(
        &self,
        range: Range<'_>,
        (direction, most): (Direction, u64),
        visit: &mut VisitWithin<'_>,
    ) -> Result<(), ReadError> {
        let engine = &self.shared.engine;
        engine.scan_within(self.ticket, range, direction, most, visit)
    }

    /// Visits the keys of `range` without their values, in ascending order, until `visit` breaks.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan_keys<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.bounds_of(keyspace, &range)?;
        let engine = &self.shared.engine;
        engine.scan_keys(self.ticket, bounds.range(), &mut move |key| {
            visit(&key[PREFIX..])
        })
    }

    /// Returns where the keys end that a removal had better take together with `key`: those of a
    /// page, which is written anew without them. `None` if it does not matter, or it is all the
    /// keyspace's keys. It may change at any time.
    ///
    /// # Errors
    /// [`OtherStore`]
    pub fn together_until(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, OtherStore> {
        let number = self.shared.catalogue.number(keyspace)?;
        let end = (self.shared.engine).together_until(&IndexKey::new(number, key));
        let end = end.as_deref().and_then(split);
        Ok(end.and_then(|(of, end)| (of == number).then(|| end.to_vec())))
    }

    /// Counts the keys of `range`. Visits all of them.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn count<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<u64, ReadError> {
        let mut count = 0;
        self.scan_keys(keyspace, range, |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Returns a cursor over the keys of `range`, in ascending order.
    #[must_use]
    pub fn cursor<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self.clone(), bounds, Direction::Up)
    }

    /// Returns a cursor over the keys of `range`, in descending order.
    #[must_use]
    pub fn cursor_reverse<K: Borrow<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self.clone(), bounds, Direction::Down)
    }

    /// Returns a cursor over the keys that begin with `prefix`, in ascending order.
    #[must_use]
    pub fn cursor_prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Cursor<M> {
        let bounds = self.prefix_of(keyspace, prefix);
        Cursor::new(self.clone(), bounds, Direction::Up)
    }

    /// As [`cursor`](Self::cursor); the cursor takes the snapshot.
    #[must_use]
    pub fn into_cursor(self, keyspace: &Keyspace, range: impl RangeBounds<Vec<u8>>) -> Cursor<M> {
        let bounds = self.bounds_of(keyspace, &range);
        Cursor::new(self, bounds, Direction::Up)
    }
}

/// A scan that can be paused. All batches are of one snapshot, however long it takes. To go on in
/// another snapshot or another process, begin a cursor after the [last key](Self::position).
#[derive(Debug)]
pub struct Cursor<M: Media> {
    snapshot: Snapshot<M>,
    /// An error if the keyspace is another store's: the first read returns it.
    bounds: Result<Bounds, OtherStore>,
    direction: Direction,
    /// The index key that was returned last.
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

    /// Returns the key that was returned last.
    #[must_use]
    pub fn position(&self) -> Option<&[u8]> {
        self.last.as_ref().map(|key| &key[PREFIX..])
    }

    /// Returns up to `most` further pairs; none at the end.
    ///
    /// # Errors
    /// [`ReadError`]; the cursor stays where it was.
    pub fn next_batch(&mut self, most: usize) -> Result<Vec<Pair>, ReadError> {
        self.next_with(most, |key, entry| (key.to_vec(), entry.value.to_vec()))
    }

    /// Returns up to `most` further keys; none at the end.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn next_keys(&mut self, most: usize) -> Result<Vec<Vec<u8>>, ReadError> {
        self.next_with(most, |key, _| key.to_vec())
    }

    /// Returns the results of `f` for up to `most` further pairs; none at the end.
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

    /// Calls `f` with further pairs until it returns false. The pair of that call counts as
    /// returned.
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
        let (mut last, mut stopped) = (None::<Vec<u8>>, false);
        self.snapshot
            .visit(range, self.direction, &mut |key, entry| {
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(key);
                stopped = !f(&key[PREFIX..], entry);
                if stopped {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
        // A scan that `f` did not stop reached the end.
        self.done = !stopped;
        if last.is_some() {
            self.last = last;
        }
        Ok(())
    }
}
