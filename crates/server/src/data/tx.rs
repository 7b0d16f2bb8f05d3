//! What one command, or one `EXEC`, reads and writes: one commit.
//!
//! Most commands write one record or none. Such a one goes straight to the store; a transaction of the store is begun with
//! the second write, or with a scan, or where several reads have to belong together.

use super::Data;
use super::swap::Order;
use super::waiting::Wants;
use crate::command::{Failed, Outcome};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Entry, MAX_KEY_BYTES, Savepoint, Store, Transaction, TransactionOptions};
use std::ops::{Bound, ControlFlow};

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The keys of a database.
    Keys(usize),
    /// Elements of large collections.
    Elements,
    /// Expiries of large collections.
    Expiries,
    /// Large collections that are gone.
    Garbage,
    /// The order of the databases.
    Databases,
}

/// A key: its database and name.
pub(super) type Name = (usize, Vec<u8>);

/// Bounds of keys.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Bounds that are no longer than keys can be, of the same keys: what is longer lies right after its beginning.
fn cut((start, end): Range<'_>) -> Range<'_> {
    let start = match start {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            Bound::Excluded(&key[..MAX_KEY_BYTES])
        }
        start => start,
    };
    let end = match end {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            Bound::Included(&key[..MAX_KEY_BYTES])
        }
        end => end,
    };
    (start, end)
}

/// Most memory that the changes of one transaction may take.
pub(super) const HELD_MOST: usize = if cfg!(test) { 4 << 20 } else { 2 << 30 };

/// A change to one record.
#[derive(Debug)]
struct Change {
    space: Space,
    key: Vec<u8>,
    /// The value and its expiry; `None` for a deletion.
    put: Option<(Vec<u8>, Option<u64>)>,
}

/// A transaction would hold more than [`HELD_MOST`].
pub(super) fn too_large() -> Failed {
    Failed::reply(format!(
        "ERR the changes of a transaction take more than {HELD_MOST} bytes of memory"
    ))
}

/// A command's view of the data. It reads its own writes.
#[derive(Debug)]
pub struct Tx<'d> {
    data: &'d Data,
    store: &'d Store<Auto>,
    /// The database that the command is for.
    pub db: usize,
    /// The time in ms since 1970.
    pub now: u64,
    /// It may write: locks are held.
    pub(super) writes: bool,
    /// It is part of an `EXEC`, which commits once.
    pub(super) queued: bool,
    one: Option<Change>,
    many: Option<Transaction<Auto>>,
    /// A change was refused: with it there would be more than [`HELD_MOST`].
    pub(super) overfull: bool,
    /// The order of the databases, and whether it is to be that from the commit on.
    pub(super) order: Order,
    reorders: bool,
    /// Its client can be made to wait.
    pub(super) may_wait: bool,
    /// What its client waits for.
    pub(super) wants: Option<Box<Wants>>,
    /// Keys that were changed, if somebody listens.
    touched: Vec<Name>,
    /// Keys that were put, if somebody waits.
    put: Vec<Name>,
}

/// A place to go back to.
#[derive(Debug)]
pub struct Mark {
    savepoint: Savepoint,
    touched: usize,
    put: usize,
}

impl<'d> Tx<'d> {
    pub(super) fn new(data: &'d Data, store: &'d Store<Auto>, db: usize) -> Self {
        Self {
            data,
            store,
            db,
            now: store.now(),
            writes: false,
            queued: false,
            one: None,
            many: None,
            overfull: false,
            order: data.order(),
            reorders: false,
            may_wait: false,
            wants: None,
            touched: Vec::new(),
            put: Vec::new(),
        }
    }

    /// The databases.
    #[must_use]
    pub fn data(&self) -> &'d Data {
        self.data
    }

    /// True if it has changed anything.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.one.is_some() || self.many.as_ref().is_some_and(|many| many.changes() > 0)
    }

    /// From here on all is read on one snapshot. The transaction that it is part of.
    pub fn snapshot(&mut self) -> &mut Transaction<Auto> {
        let many = self
            .many
            .get_or_insert_with(|| self.store.begin(TransactionOptions::default()));
        if let Some(Change { space, key, put }) = self.one.take() {
            let keyspace = self.data.keyspace(space, self.order);
            // Its lengths were checked when it was made.
            let _ = match put {
                Some((value, expires_at)) => many.put_expiring(keyspace, &key, &value, expires_at),
                None => many.delete(keyspace, &key),
            };
        }
        many
    }

    /// Calls `f` with a record's value and expiry.
    ///
    /// # Errors
    /// [`Failed::Read`]
    pub fn get_with<R>(
        &mut self,
        space: Space,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, Failed> {
        let keyspace = self.data.keyspace(space, self.order);
        if let Some(many) = &mut self.many {
            return Ok(many.get_with(keyspace, key, f)?);
        }
        match &self.one {
            Some(one) if one.space == space && one.key == key => {
                let put = one.put.as_ref();
                let live = put.filter(|(_, expiry)| expiry.is_none_or(|at| at > self.now));
                Ok(live.map(|(value, expires_at)| {
                    f(Entry {
                        value,
                        expires_at: *expires_at,
                    })
                }))
            }
            _ => Ok(self.store.get_with(keyspace, key, f)?),
        }
    }

    /// A copy of a record's value.
    ///
    /// # Errors
    /// [`Failed::Read`]
    pub fn get(&mut self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        self.get_with(space, key, |entry| entry.value.to_vec())
    }

    fn change(&mut self, change: Change) -> Outcome {
        let Change { space, key, .. } = &change;
        if let Space::Keys(db) = *space {
            if self.data.touched.any() {
                self.touched.push((db, key.clone()));
            }
            if change.put.is_some() && self.data.waiting.any() {
                self.put.push((db, key.clone()));
            }
        }
        let same = (self.one.as_ref()).is_none_or(|one| one.space == *space && one.key == *key);
        if self.many.is_none() && same {
            self.one = Some(change);
            return Ok(());
        }
        let (data, order, queued) = (self.data, self.order, self.queued);
        let many = self.snapshot();
        let more = change.key.len() + change.put.as_ref().map_or(0, |(value, _)| value.len());
        // One change alone is always possible, as it is without a transaction.
        if many.changes() > 0 && many.held().saturating_add(more) > HELD_MOST {
            self.overfull = true;
            return Err(too_large());
        }
        let keyspace = data.keyspace(change.space, order);
        match change.put {
            Some((value, expires_at)) => {
                many.put_expiring(keyspace, &change.key, &value, expires_at)?;
            }
            None => many.delete(keyspace, &change.key)?,
        }
        if !queued {
            // It is taken back as a whole or not at all.
            many.forget_savepoints();
        }
        Ok(())
    }

    /// Tells who listens to `key` that it was changed, though its record is as it was: the elements of a large collection are
    /// elsewhere.
    pub fn touch(&mut self, key: &[u8]) {
        if self.data.touched.any() {
            self.touched.push((self.db, key.to_vec()));
        }
    }

    /// A key has come to be what it is though nothing was put there.
    pub(super) fn appears(&mut self, db: usize, key: &[u8]) {
        self.touched.push((db, key.to_vec()));
        self.put.push((db, key.to_vec()));
    }

    /// The databases have this order from here on, and for others from the commit on. All locks are held, and it is put.
    pub(super) fn reorder(&mut self, order: Order) {
        self.order = order;
        self.reorders = true;
    }

    /// What `f` reads is not locked: nothing of it is taken away that has expired.
    pub(super) fn reading<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let writes = std::mem::replace(&mut self.writes, false);
        let done = f(self);
        self.writes = writes;
        done
    }

    /// What `f` does is told to nobody.
    pub(super) fn quietly<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = (self.touched.len(), self.put.len());
        let done = f(self);
        self.touched.truncate(before.0);
        self.put.truncate(before.1);
        done
    }

    /// Puts a record, which expires at that time, in ms since 1970.
    ///
    /// # Errors
    /// [`Failed::Reply`] if key or value is too long.
    pub fn put(
        &mut self,
        space: Space,
        key: &[u8],
        value: Vec<u8>,
        expires_at: Option<u64>,
    ) -> Outcome {
        if key.len() > MAX_KEY_BYTES {
            return Err(Failed::reply(format!(
                "ERR a key of {} bytes: at most {MAX_KEY_BYTES} are possible",
                key.len()
            )));
        }
        if value.len() > bristlecone_store::MAX_VALUE_BYTES {
            return Err(Failed::too_long());
        }
        self.change(Change {
            space,
            key: key.to_vec(),
            put: Some((value, expires_at)),
        })
    }

    /// Deletes a record, if it is there.
    ///
    /// # Errors
    /// [`Failed::Write`]
    pub fn delete(&mut self, space: Space, key: &[u8]) -> Outcome {
        if key.len() > MAX_KEY_BYTES {
            return Ok(());
        }
        self.change(Change {
            space,
            key: key.to_vec(),
            put: None,
        })
    }

    /// Visits the records of a range, ascending.
    ///
    /// # Errors
    /// [`Failed::Read`]
    pub fn scan(
        &mut self,
        space: Space,
        range: Range<'_>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        let keyspace = self.data.keyspace(space, self.order);
        let range = cut(range);
        Ok(self.snapshot().scan::<&[u8]>(keyspace, range, visit)?)
    }

    /// Visits the records of a range, descending.
    ///
    /// # Errors
    /// [`Failed::Read`]
    pub fn scan_reverse(
        &mut self,
        space: Space,
        range: Range<'_>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        let keyspace = self.data.keyspace(space, self.order);
        Ok(self
            .snapshot()
            .scan_reverse::<&[u8]>(keyspace, cut(range), visit)?)
    }

    /// Visits the records whose keys begin with `prefix`, ascending.
    ///
    /// # Errors
    /// [`Failed::Read`]
    pub fn prefix(
        &mut self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        if prefix.len() > MAX_KEY_BYTES {
            return Ok(());
        }
        let keyspace = self.data.keyspace(space, self.order);
        Ok(self.snapshot().prefix(keyspace, prefix, visit)?)
    }

    /// A place that [`rollback`](Self::rollback) goes back to.
    pub fn mark(&mut self) -> Mark {
        Mark {
            savepoint: self.snapshot().savepoint(),
            touched: self.touched.len(),
            put: self.put.len(),
        }
    }

    /// What was changed up to here stays: nothing is kept any more to take it back.
    pub fn keep(&mut self) {
        self.snapshot().forget_savepoints();
    }

    /// Takes back all changes since `mark`.
    pub fn rollback(&mut self, mark: &Mark) {
        self.touched.truncate(mark.touched);
        self.put.truncate(mark.put);
        self.snapshot().rollback_to(mark.savepoint);
    }

    /// Commits what was written. The locks of its keys are still held. The keys that were put, in order, if somebody
    /// waits.
    ///
    /// # Errors
    /// [`Failed::Write`]; nothing has changed then, but where the databases were to be swapped: then all but that.
    pub(super) fn commit(self) -> Result<Vec<Name>, Failed> {
        if let Some(many) = self.many {
            let changes = many.changes() > 0;
            let done = many.commit();
            if changes || done.is_err() {
                self.data.note_write(&done);
            }
            done?;
        } else if let Some(Change { space, key, put }) = self.one {
            let keyspace = self.data.keyspace(space, self.order);
            let done = match put {
                Some((value, expires_at)) => {
                    self.store.put_expiring(keyspace, &key, &value, expires_at)
                }
                None => self.store.delete(keyspace, &key).map(drop),
            };
            self.data.note_write(&done);
            done?;
        }
        let reordered = if self.reorders {
            self.data.reorder(self.order)
        } else {
            Ok(())
        };
        for (db, key) in &self.touched {
            self.data.touched.touch(*db, key);
        }
        reordered?;
        Ok(self.put)
    }
}
