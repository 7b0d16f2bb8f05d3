//! Transactions: a snapshot, and changes on top of it that are committed atomically.

use crate::batch::checked;
use crate::bounds::Bounds;
use crate::catalogue::Keyspace;
use crate::engine::At;
use crate::entry::{Entry, Longer, expires_at, expiry, whole};
use crate::error::{ReadError, WriteError};
use crate::key::PREFIX;
use crate::reads::ReadSet;
use crate::snapshot::Snapshot;
use crate::streams::{positions, slice};
use crate::write::{Write, check_key, check_value};
use bristlecone_index::Direction;
use bristlecone_index::engine::is_empty;
use bristlecone_pmem::Media;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Isolation level of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Snapshot isolation: the transaction reads one snapshot, and commits only if nobody has
    /// changed since then a key that it writes. Write skew is possible.
    #[default]
    Snapshot,
    /// Serialisable: the transaction also commits only if nobody has changed the keys and ranges
    /// that it read, so serialisable transactions are equivalent to some serial order. One that
    /// writes nothing always commits.
    Serializable,
}

/// Options of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    /// The isolation level.
    pub isolation: Isolation,
}

impl TransactionOptions {
    /// Options of a serialisable transaction.
    #[must_use]
    pub fn serializable() -> Self {
        Self {
            isolation: Isolation::Serializable,
        }
    }
}

/// A point in a transaction that it can be rolled back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    /// How many changes there were.
    changes: usize,
    /// The number of the last of them.
    last: u64,
}

/// A change that can be undone.
#[derive(Debug)]
struct Undo {
    key: Vec<u8>,
    /// The entry of `writes` that the change replaced.
    before: Option<Write>,
    /// No other change of the transaction has this number, undone ones included.
    number: u64,
}

/// A transaction. It reads its own changes. Nobody else sees them before it is committed, and
/// dropping it discards them.
#[derive(Debug)]
pub struct Transaction<M: Media> {
    snapshot: Snapshot<M>,
    isolation: Isolation,
    /// By index key.
    writes: BTreeMap<Vec<u8>, Write>,
    /// All changes, in order.
    undo: Vec<Undo>,
    /// Entries of `undo` that were forgotten.
    forgotten: usize,
    /// The number of the last change.
    number: u64,
    /// Bytes that `writes` and `undo` take.
    held: usize,
    reads: ReadSet,
}

/// Approximate bytes of an entry besides its key and its value.
const ENTRY: usize = 64;

/// Returns the approximate bytes of an entry.
fn cost(key: &[u8], write: Option<&Write>) -> usize {
    let value = match write {
        Some(Write::Put { value, .. }) => value.len(),
        Some(Write::Delete) | None => 0,
    };
    ENTRY + key.len() + value
}

impl<M: Media> Transaction<M> {
    pub(crate) fn begin(snapshot: Snapshot<M>, options: TransactionOptions) -> Self {
        Self {
            snapshot,
            isolation: options.isolation,
            writes: BTreeMap::new(),
            undo: Vec::new(),
            forgotten: 0,
            number: 0,
            held: 0,
            reads: ReadSet::default(),
        }
    }

    /// Returns the snapshot that the transaction reads. A serialisable transaction does not know of
    /// direct reads of it, by cursors for example, and does not validate them.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot<M> {
        &self.snapshot
    }

    /// Returns how many keys the transaction has changed.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.writes.len()
    }

    fn serializable(&self) -> bool {
        self.isolation == Isolation::Serializable
    }

    /// Returns a copy of the value of `key`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get_with(keyspace, key, |entry| entry.value.to_vec())
    }

    /// Calls `f` with the value of `key`, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_with<R>(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        let found = self.get_within(keyspace, key, u64::MAX, f)?;
        Ok(found.and_then(Result::ok))
    }

    /// As [`get_with`](Self::get_with), if the value is its own or has at most `most` bytes.
    /// Returns what a longer one is as the error inside, mostly without reading it.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_within<R>(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        most: u64,
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<Result<R, Longer>>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.snapshot.shared.catalogue.index_key(keyspace, key)?;
        if let Some(write) = self.writes.get(&*key) {
            return Ok(own(write, self.snapshot.ticket.now).map(f).map(Ok));
        }
        if self.serializable() {
            self.reads.key(&key);
        }
        self.snapshot.get_index_key_within(&key, most, f)
    }

    /// As [`Store::get_range`](crate::Store::get_range), of the value that the transaction sees.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_range(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        range: impl RangeBounds<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.snapshot.shared.catalogue.index_key(keyspace, key)?;
        let range = positions(range);
        if let Some(write) = self.writes.get(&*key) {
            let own = own(write, self.snapshot.ticket.now);
            return Ok(own.map(|own| {
                into.extend_from_slice(slice(own.value, &range));
                own.value.len() as u64
            }));
        }
        if self.serializable() {
            self.reads.key(&key);
        }
        let at = At::Snapshot(self.snapshot.ticket);
        (self.snapshot.shared.engine).get_range(at, &key, range, into)
    }

    /// Returns the approximate bytes of memory that its changes take, including those that can
    /// still be rolled back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    fn change(&mut self, key: Vec<u8>, write: Write) {
        self.held += cost(&key, Some(&write));
        let before = self.writes.insert(key.clone(), write);
        if before.is_none() {
            self.held += cost(&key, None);
        }
        // The replaced change moves from `writes` to `undo`.
        self.number += 1;
        let number = self.number;
        self.undo.push(Undo {
            key,
            before,
            number,
        });
    }

    /// Puts a value.
    ///
    /// # Errors
    /// [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`], [`WriteError::OtherStore`]
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.put_expiring(keyspace, key, value, None)
    }

    /// Puts a value that expires at that time, in ms since 1970.
    ///
    /// # Errors
    /// [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`], [`WriteError::OtherStore`]
    pub fn put_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(), WriteError> {
        check_key(key)?;
        check_value(value)?;
        let write = Write::Put {
            value: value.to_vec(),
            expiry: expiry(expires_at),
        };
        let key = self.snapshot.shared.catalogue.index_key(keyspace, key)?;
        self.change(key.to_vec(), write);
        Ok(())
    }

    /// Deletes a key, if it is there.
    ///
    /// # Errors
    /// [`WriteError::KeyTooLong`], [`WriteError::OtherStore`]
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<(), WriteError> {
        check_key(key)?;
        let key = self.snapshot.shared.catalogue.index_key(keyspace, key)?;
        self.change(key.to_vec(), Write::Delete);
        Ok(())
    }

    /// Returns a savepoint for [`rollback_to`](Self::rollback_to).
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            changes: self.forgotten + self.undo.len(),
            last: self.undo.last().map_or(0, |undo| undo.number),
        }
    }

    /// Releases all savepoints. Changes made so far can no longer be rolled back one by one, and
    /// replaced values take no memory any more. Rolling back to an earlier savepoint then undoes
    /// the changes made since this call.
    pub fn forget_savepoints(&mut self) {
        self.forgotten += self.undo.len();
        for undo in self.undo.drain(..) {
            self.held -= cost(&undo.key, undo.before.as_ref());
        }
    }

    /// Undoes all changes since the savepoint. A savepoint that was itself undone does nothing.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        let kept = savepoint.changes.saturating_sub(self.forgotten);
        // After it was undone, another change is in the place of the last one before it, or none.
        let is_undone =
            kept > 0 && (self.undo.get(kept - 1)).is_none_or(|last| last.number != savepoint.last);
        if is_undone {
            return;
        }
        for Undo { key, before, .. } in self.undo.drain(kept..).rev() {
            if before.is_none() {
                self.held -= cost(&key, None);
            }
            let taken = match before {
                Some(write) => self.writes.insert(key.clone(), write),
                None => self.writes.remove(&key),
            };
            if taken.is_some() {
                self.held -= cost(&key, taken.as_ref());
            }
        }
    }

    /// Visits the keys of `range` with their values in ascending order, own changes included, until
    /// `visit` breaks.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan<K: Borrow<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.snapshot.bounds_of(keyspace, &range)?;
        self.visit(&bounds, (Direction::Up, u64::MAX), whole(visit))
    }

    /// As [`scan`](Self::scan), in descending order.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan_reverse<K: Borrow<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.snapshot.bounds_of(keyspace, &range)?;
        self.visit(&bounds, (Direction::Down, u64::MAX), whole(visit))
    }

    /// As [`scan`](Self::scan), for the keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn prefix(
        &mut self,
        keyspace: &Keyspace,
        prefix: &[u8],
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.snapshot.prefix_of(keyspace, prefix)?;
        self.visit(&bounds, (Direction::Up, u64::MAX), whole(visit))
    }

    /// Visits the keys of `range` like [`scan`](Self::scan), or
    /// [`scan_reverse`](Self::scan_reverse), with what a value of more than `most` bytes is in its
    /// place, mostly without reading it. Own changes are visited whole.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan_within<K: Borrow<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
        way: (Direction, u64),
        visit: impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let bounds = self.snapshot.bounds_of(keyspace, &range)?;
        self.visit(&bounds, way, visit)
    }

    fn visit(
        &mut self,
        bounds: &Bounds,
        (direction, most): (Direction, u64),
        mut visit: impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let range = bounds.range();
        if is_empty(&range) {
            return Ok(());
        }
        let now = self.snapshot.ticket.now;
        let mut last: Option<Vec<u8>> = None;
        let noted = self.serializable();
        let mut each = |key: &[u8], found: Result<Entry<'_>, Longer>| {
            let step = visit(&key[PREFIX..], found);
            if noted && step.is_break() {
                last = Some(key.to_vec());
            }
            step
        };
        let up = self.writes.range::<[u8], _>(range);
        let own: Box<dyn Iterator<Item = (&Vec<u8>, &Write)>> = match direction {
            Direction::Up => Box::new(up),
            Direction::Down => Box::new(up.rev()),
        };
        let mut own = own.peekable();
        let mut flow = ControlFlow::Continue(());
        let way = (direction, most);
        let read = self.snapshot.visit_within(range, way, &mut |key, found| {
            flow = merged(&mut own, Some((key, found)), direction, now, &mut each);
            flow
        });
        if read.is_ok() && flow.is_continue() {
            let _ = merged(&mut own, None, direction, now, &mut each);
        }
        if noted {
            // Only the part of the range that the scan went through.
            let (start, end) = range;
            let read = match (&last, direction) {
                (None, _) => (start, end),
                (Some(last), Direction::Up) => (start, Bound::Included(last.as_slice())),
                (Some(last), Direction::Down) => (Bound::Included(last.as_slice()), end),
            };
            self.reads.range(read);
        }
        read
    }

    /// Commits all changes atomically. Returns the timestamp of the commit, 0 if there were no
    /// changes. The commit is durable when this returns, and every later snapshot sees it.
    ///
    /// # Errors
    /// [`WriteError::Conflict`] if another transaction committed first, and those of a write.
    /// Nothing has changed then, except for [`WriteError::Commit`].
    pub fn commit(self) -> Result<u64, WriteError> {
        let writes = self.writes.iter().map(|(key, write)| write.of(key));
        let writes: Vec<_> = writes.collect();
        checked(&writes)?;
        let reads = self.serializable().then_some(&self.reads);
        let since = Some(self.snapshot.ticket);
        let wait = self.snapshot.wait;
        self.snapshot
            .shared
            .engine
            .commit(&writes, since, reads, wait)
    }

    /// Discards all changes, as dropping the transaction does.
    pub fn rollback(self) {}
}

/// Returns how an own change reads.
fn own(write: &Write, now: u64) -> Option<Entry<'_>> {
    match write {
        Write::Put { value, expiry } if *expiry == 0 || *expiry > now => Some(Entry {
            value,
            expires_at: expires_at(*expiry),
        }),
        _ => None,
    }
}

/// Visits the own changes that come before `stored`, then `stored` unless an own change replaces
/// it. Without `stored`, visits all remaining own changes.
fn merged<'w>(
    own_changes: &mut Peekable<impl Iterator<Item = (&'w Vec<u8>, &'w Write)>>,
    stored: Option<(&[u8], Result<Entry<'_>, Longer>)>,
    direction: Direction,
    now: u64,
    each: &mut impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let first = |a: &[u8], b: &[u8]| match direction {
        Direction::Up => a < b,
        Direction::Down => a > b,
    };
    while let Some((key, write)) = own_changes.peek().copied() {
        let same = stored.is_some_and(|(stored, _)| stored == key.as_slice());
        if !same && stored.is_some_and(|(stored, _)| first(stored, key)) {
            break;
        }
        own_changes.next();
        if let Some(entry) = own(write, now) {
            each(key, Ok(entry))?;
        }
        if same {
            return ControlFlow::Continue(());
        }
    }
    match stored {
        Some((key, found)) => each(key, found),
        None => ControlFlow::Continue(()),
    }
}
