//! Flushing: `flush_all`.
//!
//! A flush is one small record: items with a lower cas than its own are gone from then on, however
//! many there are. The sweeper deletes their records afterwards. A flush with a delay is noted, and
//! done before the first command after that time. In a database it deletes everything, when it is
//! due.

use super::place::Place;
use super::{Item, ItemError, Items, number};
use crate::data::Reads;
use crate::error::CommandError;
use bristlecone_store::{Entry, Keyspace, ReadError, Update, WriteError};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// The key of the record.
pub(super) const FLUSH_KEY: &[u8] = b"flush";
/// Records that are looked at in one step of the sweeper.
const AT_ONCE: usize = 1024;
/// Records that are looked at to make room for a flush. A full pool has room for as many deletions.
const SOME: usize = 512;
/// How long the sweeper waits after a flush, in ms: until then commands count what they find
/// flushed.
const PATIENCE: u64 = 1000;

/// The last flush, and the next one.
#[derive(Debug)]
pub(super) struct Flushes {
    /// Items with a lower cas are flushed.
    before: AtomicU64,
    /// The same to whoever changes items: what a change finds is that of its own commit, and the
    /// last flush may not be durable yet.
    before_of_changes: AtomicU64,
    /// Held by changes, and by a flush from taking its number to the end of its commit: an item is
    /// flushed if its change was committed before, whatever number it has.
    changes: RwLock<()>,
    /// When the next one is due, in ms since 1970; 0 for none.
    due: AtomicU64,
    /// Held while a flush is done or noted, and while flushed items are deleted.
    sweep: Mutex<Sweep>,
}

/// The state of deleting flushed items.
#[derive(Debug)]
struct Sweep {
    /// None is left.
    done: bool,
    /// When it may begin, in ms since 1970.
    from: u64,
    /// Where it goes on.
    position: Vec<u8>,
}

/// What was found among some records.
#[derive(Debug, Default)]
struct Found {
    flushed: Vec<Vec<u8>>,
    /// How many records there were.
    looked: usize,
    /// The key of the last one.
    last: Vec<u8>,
}

fn is_flushed(entry: Entry<'_>, before: u64) -> bool {
    Item::decode(entry).is_ok_and(|item| item.cas < before)
}

impl Flushes {
    pub fn decode(record: Option<&[u8]>, place: &Place) -> Self {
        let record = record.unwrap_or_default();
        let before = number(record);
        let swept = record.get(16).is_none_or(|swept| *swept != 0);
        let mut due = number(record.get(8..).unwrap_or_default());
        if due != 0 && record.get(17).copied().unwrap_or(0) != place.number() {
            tracing::warn!(
                "a flush_all was to come for items in another place: memcached-database was changed; it is dropped"
            );
            due = 0;
        }
        Self {
            before: AtomicU64::new(before),
            before_of_changes: AtomicU64::new(before),
            changes: RwLock::default(),
            due: AtomicU64::new(due),
            sweep: Mutex::new(Sweep {
                done: before == 0 || swept,
                from: 0,
                position: Vec::new(),
            }),
        }
    }

    /// Returns the cas below which items are flushed.
    pub fn before(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `flush_now`: the flush is durable.
        self.before.load(Ordering::Acquire)
    }

    /// Keeps flushes off until the guard is dropped.
    pub fn changing(&self) -> RwLockReadGuard<'_, ()> {
        (self.changes.read()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cas below which items are flushed to a change.
    pub fn before_of_changes(&self) -> u64 {
        // ORDERING: Relaxed; it changes under the lock.
        self.before_of_changes.load(Ordering::Relaxed)
    }

    /// Returns the cas below which items are flushed in what is read.
    pub fn before_of(&self, reads: Reads) -> u64 {
        match reads {
            Reads::Durable => self.before(),
            // It was told what changes find.
            Reads::Applied => self.before_of_changes(),
        }
    }

    fn due(&self) -> u64 {
        // ORDERING: Relaxed; it changes under the lock.
        self.due.load(Ordering::Relaxed)
    }

    fn set_due(&self, due: u64) {
        // ORDERING: Relaxed; as above.
        self.due.store(due, Ordering::Relaxed);
    }

    fn sweep(&self) -> MutexGuard<'_, Sweep> {
        self.sweep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Items {
    /// Flushes all items: now, or at that time in ms since 1970. A later flush takes the place of
    /// one that is not due yet.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn flush(&self, at: Option<u64>) -> Result<(), ItemError> {
        // Another flush may wait for a sync.
        tokio::task::block_in_place(|| {
            let mut sweep = self.flushes.sweep();
            match at.filter(|at| *at > self.now()) {
                None => self.flush_now(&mut sweep),
                Some(at) => {
                    self.put_flush(self.flushes.before(), at, sweep.done)?;
                    self.flushes.set_due(at);
                    Ok(())
                }
            }
        })
    }

    /// Does the flush that is due.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn flush_if_due(&self) -> Result<(), ItemError> {
        let is_due = || {
            let due = self.flushes.due();
            due != 0 && due <= self.now()
        };
        if !is_due() {
            return Ok(());
        }
        tokio::task::block_in_place(|| {
            let mut sweep = self.flushes.sweep();
            if is_due() {
                self.flush_now(&mut sweep)
            } else {
                Ok(())
            }
        })
    }

    fn put_flush(&self, before: u64, due: u64, swept: bool) -> Result<(), WriteError> {
        let mut record = before.to_be_bytes().to_vec();
        record.extend_from_slice(&due.to_be_bytes());
        record.push(u8::from(swept));
        record.push(self.place.number());
        let put = self.data.writer().put(&self.state, FLUSH_KEY, &record);
        self.data.note_write(&put);
        put
    }

    fn flush_now(&self, sweep: &mut Sweep) -> Result<(), ItemError> {
        if let Place::Database(db) = self.place {
            self.clear_database(db, || {
                if self.flushes.due() == 0 {
                    return Ok(());
                }
                // Deletions free their space once they are durable.
                self.data.settle(self.data.applied())?;
                // The locks are still held: no later store can be flushed again after a crash.
                self.put_flush(self.flushes.before(), 0, sweep.done)?;
                self.flushes.set_due(0);
                Ok(())
            })?;
            return Ok(self.data.settle(self.data.applied())?);
        }
        let before = self.commit_flush()?;
        // Nobody may miss an item because of a flush that a crash could take back. If that cannot
        // be had, the flush has still been committed, and becomes durable with the next commit that
        // does.
        let settled = self.data.settle(self.data.applied());
        self.flushes.set_due(0);
        *sweep = Sweep {
            done: false,
            // A sweep that has not come to its end is not put off again.
            from: if sweep.done {
                self.data.store().now() + PATIENCE
            } else {
                sweep.from
            },
            position: Vec::new(),
        };
        // ORDERING: Release; pairs with the Acquire of `Flushes::before`.
        self.flushes.before.store(before, Ordering::Release);
        Ok(settled?)
    }

    /// Commits the record of a flush. Returns the cas below which items are flushed.
    ///
    /// # Errors
    /// [`ItemError`]; nothing was flushed then, or some of the items if there was no room.
    fn commit_flush(&self) -> Result<u64, ItemError> {
        let changes = self.flushes.changes.write();
        let _no_change = changes.unwrap_or_else(PoisonError::into_inner);
        let commit = || {
            self.reserve()?;
            let before = self.next_cas();
            self.put_flush(before, 0, false)?;
            Ok(before)
        };
        let before = loop {
            match commit() {
                Err(WriteError::Space(e)) => {
                    // A full store takes deletions, and all items are to go.
                    if !self.delete_some()? {
                        return Err(WriteError::Space(e).into());
                    }
                }
                done => break done?,
            }
        };
        let of_changes = &self.flushes.before_of_changes;
        // ORDERING: Relaxed; under the lock.
        of_changes.store(before, Ordering::Relaxed);
        Ok(before)
    }

    /// Deletes some items to make room. Returns false if there are none.
    fn delete_some(&self) -> Result<bool, ItemError> {
        let Place::Own(keyspace) = &self.place else {
            return Ok(false);
        };
        let found = self.flushed_after(keyspace, &[], u64::MAX, SOME)?;
        self.delete_flushed(keyspace, &found.flushed, u64::MAX)?;
        // Deletions make room once they are durable.
        self.data.settle(self.data.applied())?;
        Ok(!found.flushed.is_empty())
    }

    /// Takes one step: evicts what a store has left to it, and deletes some of the items that were
    /// flushed. Returns true if there may be more.
    ///
    /// # Errors
    /// [`CommandError`]; what was deleted stays deleted.
    pub(crate) fn sweep(&self) -> Result<bool, CommandError> {
        if !self.are_apart() {
            // Redis clients see it, too: it waits for no command.
            let flushed = self.flush_if_due();
            flushed.map_err(|e| CommandError::reply(e.to_string()))?;
        }
        let evicts = self.make_room()?;
        if evicts {
            self.data.settle(self.data.applied())?;
        }
        Ok(self.sweep_flushed()? || evicts)
    }

    fn sweep_flushed(&self) -> Result<bool, CommandError> {
        let Place::Own(keyspace) = &self.place else {
            return Ok(false);
        };
        let mut sweep = self.flushes.sweep();
        if sweep.done || self.data.store().now() < sweep.from {
            return Ok(false);
        }
        let before = self.flushes.before();
        let found = self.flushed_after(keyspace, &sweep.position, before, AT_ONCE)?;
        self.delete_flushed(keyspace, &found.flushed, before)?;
        let more = found.looked == AT_ONCE;
        if !more {
            self.put_flush(before, self.flushes.due(), true)?;
            sweep.done = true;
        }
        sweep.position = found.last;
        drop(sweep);
        self.data.settle(self.data.applied())?;
        Ok(more)
    }

    /// Looks at up to `most` records after a key, or from the first one if it is empty, for items
    /// with a lower cas than `before`.
    fn flushed_after(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        before: u64,
        most: usize,
    ) -> Result<Found, ReadError> {
        let start = if key.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(key)
        };
        let mut found = Found::default();
        let snapshot = self.data.writer().snapshot();
        snapshot.scan::<&[u8]>(keyspace, (start, Bound::Unbounded), |key, entry| {
            found.looked += 1;
            if is_flushed(entry, before) {
                found.flushed.push(key.to_vec());
            }
            found.last.clear();
            found.last.extend_from_slice(key);
            if found.looked < most {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(found)
    }

    /// Deletes those of these items that still have a lower cas than `before`.
    fn delete_flushed(
        &self,
        keyspace: &Keyspace,
        keys: &[Vec<u8>],
        before: u64,
    ) -> Result<(), WriteError> {
        for key in keys {
            if let Some(lru) = &self.lru {
                lru.deleted(key, before - 1);
            }
            // It may have been stored anew meanwhile.
            self.data.writer().update(keyspace, key, |entry| {
                let change = if entry.is_some_and(|entry| is_flushed(entry, before)) {
                    Update::Delete
                } else {
                    Update::Keep
                };
                Ok((change, ()))
            })?;
        }
        Ok(())
    }
}
