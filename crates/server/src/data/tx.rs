//! Transactions: what one command, or one `EXEC`, reads and writes. Its changes are one commit.
//!
//! Most commands write one record or none. A single write goes straight to the store. A transaction
//! of the store is begun with the second write, with a scan, or when several reads have to see the
//! same snapshot.

use super::Data;
use super::bounds::{Range, cut};
use super::caller::Calls;
use super::record::Kind;
use super::spaces::{Name, Order, Space};
use super::waiting;
use crate::budget::{Part, Scratch};
use crate::error::{CommandError, Outcome};
use crate::reply::Out;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{
    Direction, Entry, Longer, MAX_KEY_BYTES, ReadError, Savepoint, Store, Transaction,
    TransactionOptions, WriteError,
};
use std::fmt::Debug;
use std::ops::{self, ControlFlow};

/// The elements that a waiting client takes from a key.
pub trait Take: Debug + Send + Sync {
    /// Returns the type that the key has to hold.
    fn kind(&self) -> Kind;

    /// Takes it and writes the reply. Returns false, without a reply, if the key does not exist.
    ///
    /// # Errors
    /// [`CommandError`]: the key, or the destination, holds another type.
    fn run(&self, tx: &mut Tx<'_>, key: &[u8], out: &mut Out<'_>) -> Result<bool, CommandError>;
}

/// The demand of a waiting client.
pub type Wants = waiting::Wants<Box<dyn Take>>;

/// A waiting client.
pub type Waiter = waiting::Waiter<Box<dyn Take>>;

/// Visits records until it breaks, with what one is that is too long.
type Visit<'v> = dyn FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> + 'v;

/// The most memory in bytes that the changes of one transaction may take.
pub(crate) const MAX_TRANSACTION_BYTES: usize = if cfg!(test) { 4 << 20 } else { 2 << 30 };

/// The work of a command that other connections of its thread wait for, in bytes; a read or a
/// visit of a record counts as [`WORK_OF_RECORD`] more than its value. This takes 1 or 2 ms.
pub(crate) const SHORT_WORK: usize = 1 << 20;
pub(crate) const WORK_OF_RECORD: usize = 64;

/// A change to one record.
#[derive(Debug)]
struct Change {
    space: Space,
    key: Vec<u8>,
    /// The value and its expiry; `None` for a deletion.
    put: Option<(Vec<u8>, Option<u64>)>,
}

/// The error of a transaction that would hold more than [`MAX_TRANSACTION_BYTES`].
pub(crate) fn too_large() -> CommandError {
    CommandError::reply(format!(
        "ERR the changes of a transaction take more than {MAX_TRANSACTION_BYTES} bytes of memory"
    ))
}

/// Returns a visitor of records of any length.
fn whole(
    mut visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
) -> impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> {
    // None is too long.
    move |key, found| found.map_or(ControlFlow::Continue(()), |entry| visit(key, entry))
}

/// A command's view of the data. It sees its own writes.
#[derive(Debug)]
pub struct Tx<'d> {
    data: &'d Data,
    store: &'d Store<Auto>,
    /// The command's database.
    pub db: usize,
    /// The current time in ms since 1970.
    pub now: u64,
    /// It may write: the locks of its keys are held.
    pub(crate) writes: bool,
    /// The command only reads: the keys that it looks up are counted.
    pub(crate) counts: bool,
    /// It is a part of an `EXEC`, which commits once.
    pub(crate) queued: bool,
    one: Option<Change>,
    many: Option<Transaction<Auto>>,
    /// A change was refused because the transaction would exceed [`MAX_TRANSACTION_BYTES`].
    pub(crate) overfull: bool,
    /// The order of the databases, as this transaction sees it.
    pub(crate) order: Order,
    reorders: bool,
    /// The work that is left before the command has to stop with [`CommandError::Long`]; `None` if
    /// it may take long.
    pub(crate) short: Option<usize>,
    /// Keys that were looked up and counted: those that were there, and others.
    looked_up: (u64, u64),
    /// The memory of intermediate results.
    pub(crate) scratch: Scratch<'d>,
    /// The memory of the changes.
    held: Scratch<'d>,
    /// Its client is able to wait.
    pub(crate) may_wait: bool,
    /// The demand of its client, if that has to wait.
    pub(crate) wants: Option<Box<Wants>>,
    /// The context of its scripts.
    pub(crate) calls: Calls<'d>,
    /// The keys that were changed; empty if there are no watchers.
    touched: Vec<Name>,
    /// The keys that were put; empty if no client waits.
    put: Vec<Name>,
}

/// A point that [`Tx::rollback`] returns to.
#[derive(Debug)]
pub struct Mark {
    savepoint: Savepoint,
    touched: usize,
    put: usize,
}

impl Data {
    /// Begins a transaction that may write. The caller holds the locks of the keys that it writes.
    pub(crate) fn begin(&self, db: usize) -> Tx<'_> {
        let mut tx = Tx::new(self, self.writer(), db);
        tx.writes = true;
        tx
    }

    /// Runs `f` on a transaction that may write, and commits it. The caller holds the locks of the
    /// keys that it writes. Returns what `f` returns, and the keys that were put, as of
    /// [`Tx::commit`].
    ///
    /// The store's sweep takes no locks of keys: it may remove an expired record after the
    /// transaction has begun, which is a conflict to the store. Then `f` is run again, on a new
    /// transaction.
    ///
    /// # Errors
    /// Those of `f` and of [`Tx::commit`].
    pub(crate) fn transact<'d, R>(
        &'d self,
        db: usize,
        mut f: impl FnMut(&mut Tx<'d>) -> Result<R, CommandError>,
    ) -> Result<(R, Vec<Name>), CommandError> {
        loop {
            let mut tx = self.begin(db);
            let done = f(&mut tx).inspect_err(|e| {
                if matches!(e, CommandError::Long) {
                    tx.uncount();
                }
            })?;
            match tx.commit() {
                Err(CommandError::Write(WriteError::Conflict(_))) => {}
                put => return put.map(|put| (done, put)),
            }
        }
    }
}

impl<'d> Tx<'d> {
    pub(crate) fn new(data: &'d Data, store: &'d Store<Auto>, db: usize) -> Self {
        Self {
            data,
            store,
            db,
            now: store.now(),
            writes: false,
            counts: false,
            queued: false,
            one: None,
            many: None,
            overfull: false,
            order: data.order(),
            reorders: false,
            short: None,
            looked_up: (0, 0),
            scratch: Scratch::default(),
            held: Scratch::default(),
            may_wait: false,
            wants: None,
            calls: Calls::default(),
            touched: Vec::new(),
            put: Vec::new(),
        }
    }

    /// Returns the databases.
    #[must_use]
    pub fn data(&self) -> &'d Data {
        self.data
    }

    /// Counts what it holds as memory of the client that `out` belongs to.
    pub(crate) fn charge(&mut self, out: &Out<'d>) {
        self.scratch = out.scratch(Part::Scratch);
        self.held = out.scratch(Part::Changes);
    }

    /// Returns true if its client was evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.held.is_evicted()
    }

    /// Announces work on so many bytes.
    ///
    /// # Errors
    /// [`CommandError::Long`]: that is more than other connections of the thread may wait for.
    pub(crate) fn work(&mut self, bytes: usize) -> Outcome {
        match &mut self.short {
            None => Ok(()),
            Some(left) => match left.checked_sub(bytes) {
                Some(less) => {
                    *left = less;
                    Ok(())
                }
                None => Err(CommandError::Long),
            },
        }
    }

    /// Counts a hit as a miss after all: the value has expired.
    pub(crate) fn count_as_miss(&mut self) {
        self.data.lookups.take_back();
        self.looked_up.0 = self.looked_up.0.saturating_sub(1);
        self.looked_up.1 += 1;
    }

    /// Takes back what it has counted: the command is executed again.
    pub(crate) fn uncount(&mut self) {
        let (hits, misses) = std::mem::take(&mut self.looked_up);
        self.data.lookups.subtract(hits, misses);
    }

    /// Returns true if it has changed anything.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.one.is_some() || self.many.as_ref().is_some_and(|many| many.changes() > 0)
    }

    /// Returns the store's transaction, and begins it if there is none: from here on all reads see
    /// one snapshot.
    pub fn snapshot(&mut self) -> &mut Transaction<Auto> {
        let many = self
            .many
            .get_or_insert_with(|| self.store.begin(TransactionOptions::default()));
        if let Some(Change { space, key, put }) = self.one.take() {
            let keyspace = self.data.keyspace(space, self.order);
            // The lengths were checked when the change was made.
            let _ = match put {
                Some((value, expires_at)) => many.put_expiring(keyspace, &key, &value, expires_at),
                None => many.delete(keyspace, &key),
            };
        }
        many
    }

    /// Calls `f` with the value and the expiry of a record, if it exists.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub fn get_with<R>(
        &mut self,
        space: Space,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, CommandError> {
        match self.get_within(space, key, u64::MAX, f)? {
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(_longer)) => Err(CommandError::Long),
            None => Ok(None),
        }
    }

    /// As [`get_with`](Self::get_with), if the record has at most `most` bytes. Returns what a
    /// longer one is as the error inside, mostly without reading it.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub(crate) fn get_within<R>(
        &mut self,
        space: Space,
        key: &[u8],
        most: u64,
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<Result<R, Longer>>, CommandError> {
        let found = self.look_up(space, key, most, f)?;
        if self.counts && matches!(space, Space::Keys(_)) {
            let hit = u64::from(found.is_some());
            self.data.lookups.note(hit, 1 - hit);
            self.looked_up.0 += hit;
            self.looked_up.1 += 1 - hit;
        }
        Ok(found)
    }

    fn look_up<R>(
        &mut self,
        space: Space,
        key: &[u8],
        most: u64,
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<Result<R, Longer>>, CommandError> {
        self.work(WORK_OF_RECORD)?;
        let short = self.short.map_or(u64::MAX, |left| left as u64);
        let within = most.min(short);
        let mut bytes = 0;
        let f = |entry: Entry<'_>| {
            bytes = entry.value.len();
            f(entry)
        };
        let keyspace = self.data.keyspace(space, self.order);
        let found = if let Some(many) = &mut self.many {
            many.get_within(keyspace, key, within, f)?
        } else {
            match &self.one {
                Some(one) if one.space == space && one.key == key => {
                    let put = one.put.as_ref();
                    let live = put.filter(|(_, expiry)| expiry.is_none_or(|at| at > self.now));
                    live.map(|(value, expires_at)| {
                        Ok(f(Entry {
                            value,
                            expires_at: *expires_at,
                        }))
                    })
                }
                _ => self.store.get_within(keyspace, key, within, f)?,
            }
        };
        if let Some(Err(longer)) = &found
            && longer.len <= most
        {
            return Err(CommandError::Long);
        }
        self.work(bytes)?;
        Ok(found)
    }

    /// Returns the first byte of a record and its length, mostly without reading more of a long
    /// one.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub(crate) fn first_byte(
        &mut self,
        space: Space,
        key: &[u8],
    ) -> Result<Option<(u8, u64)>, CommandError> {
        let mut first = Vec::new();
        let len = self.range(space, key, 0..1, &mut first)?;
        Ok(first.first().copied().zip(len))
    }

    /// Adds the bytes of a range of a record to `into`, as far as it has them. Returns the record's
    /// length, if there is one. Of a long one, mostly only those bytes are read.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub(crate) fn range(
        &mut self,
        space: Space,
        key: &[u8],
        range: ops::Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, CommandError> {
        let keyspace = self.data.keyspace(space, self.order);
        if let Some(many) = &mut self.many {
            return Ok(many.get_range(keyspace, key, range, into)?);
        }
        match &self.one {
            Some(one) if one.space == space && one.key == key => {
                let put = one.put.as_ref();
                let live = put.filter(|(_, expiry)| expiry.is_none_or(|at| at > self.now));
                Ok(live.map(|(value, _)| {
                    let len = value.len() as u64;
                    let (from, to) = (range.start.min(len), range.end.min(len));
                    // Both are at most the length, and no end is before its beginning.
                    into.extend_from_slice(&value[from as usize..to.max(from) as usize]);
                    len
                }))
            }
            _ => Ok(self.store.get_range(keyspace, key, range, into)?),
        }
    }

    /// Returns a copy of the value of a record.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub fn get(&mut self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, CommandError> {
        self.get_with(space, key, |entry| entry.value.to_vec())
    }

    fn change(&mut self, change: Change) -> Outcome {
        let Change { space, key, .. } = &change;
        if let Space::Keys(db) = *space {
            if self.data.watchers.any() {
                self.touched.push((db, key.clone()));
            }
            if change.put.is_some() && self.data.waiting.any() {
                self.put.push((db, key.clone()));
            }
        }
        let same = (self.one.as_ref()).is_none_or(|one| one.space == *space && one.key == *key);
        let more = key.len() + change.put.as_ref().map_or(0, |(value, _)| value.len());
        if self.many.is_none() && same {
            self.one = Some(change);
            return self.hold(more);
        }
        let (data, order, queued) = (self.data, self.order, self.queued);
        let many = self.snapshot();
        let (others, bytes) = (many.changes(), many.held().saturating_add(more));
        // A single change is always accepted, as it is without a transaction.
        if others > 0 && bytes > MAX_TRANSACTION_BYTES {
            self.overfull = true;
            return Err(too_large());
        }
        self.hold(bytes)?;
        let many = self.snapshot();
        let keyspace = data.keyspace(change.space, order);
        match change.put {
            Some((value, expires_at)) => {
                many.put_expiring(keyspace, &change.key, &value, expires_at)?;
            }
            None => many.delete(keyspace, &change.key)?,
        }
        if !queued {
            // It is rolled back as a whole or not at all.
            many.forget_savepoints();
        }
        Ok(())
    }

    /// Counts the memory of the changes so far.
    fn hold(&mut self, bytes: usize) -> Outcome {
        self.held.reset(bytes);
        self.held.check()
    }

    /// Tells the watchers of `key` that it has changed although its record has not: the elements of
    /// a large collection are separate records.
    pub fn touch(&mut self, key: &[u8]) {
        if self.data.watchers.any() {
            self.touched.push((self.db, key.to_vec()));
        }
    }

    /// Notes that a key has got another value although nothing was put there.
    pub(crate) fn appears(&mut self, db: usize, key: &[u8]) {
        self.touched.push((db, key.to_vec()));
        self.put.push((db, key.to_vec()));
    }

    /// Adopts an order of the databases, which was put; others adopt it at the commit. All locks
    /// are held.
    pub(crate) fn reorder(&mut self, order: Order) {
        self.order = order;
        self.reorders = true;
    }

    /// Calls `f`, which counts in the scratch what it keeps, and fails if the client is evicted.
    ///
    /// # Errors
    /// Those of `f`; [`Scratch::check`]
    pub(crate) fn counting<R>(
        &mut self,
        f: impl FnOnce(&mut Self, &mut Scratch<'d>) -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let done = f(self, &mut scratch);
        let checked = scratch.check();
        self.scratch = scratch;
        checked.and(done)
    }

    /// Calls `f`, which reads keys that are not locked: it leaves expired ones alone.
    pub(crate) fn reading<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let writes = std::mem::replace(&mut self.writes, false);
        let done = f(self);
        self.writes = writes;
        done
    }

    /// Calls `f`, whose changes are not reported to watchers or waiters.
    pub(crate) fn quietly<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = (self.touched.len(), self.put.len());
        let done = f(self);
        self.touched.truncate(before.0);
        self.put.truncate(before.1);
        done
    }

    /// Puts a record that expires at `expires_at`, in ms since 1970.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: the key or the value is too long, or the transaction becomes too
    /// large.
    pub fn put(
        &mut self,
        space: Space,
        key: &[u8],
        value: Vec<u8>,
        expires_at: Option<u64>,
    ) -> Outcome {
        if key.len() > MAX_KEY_BYTES {
            return Err(CommandError::reply(format!(
                "ERR a key of {} bytes: at most {MAX_KEY_BYTES} are possible",
                key.len()
            )));
        }
        if value.len() > bristlecone_store::MAX_VALUE_BYTES {
            return Err(CommandError::too_long());
        }
        self.work(WORK_OF_RECORD + value.len())?;
        self.change(Change {
            space,
            key: key.to_vec(),
            put: Some((value, expires_at)),
        })
    }

    /// Deletes a record, if it exists.
    ///
    /// # Errors
    /// [`CommandError::Write`]
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
    /// [`CommandError::Read`]
    pub fn scan(
        &mut self,
        space: Space,
        range: Range<'_>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        self.scan_within(space, range, (Direction::Up, u64::MAX), whole(visit))
    }

    /// Visits the records of a range, with what one of more than `most` bytes is in its place,
    /// mostly without reading it.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub(crate) fn scan_within(
        &mut self,
        space: Space,
        range: Range<'_>,
        (direction, most): (Direction, u64),
        visit: impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()>,
    ) -> Outcome {
        let keyspace = self.data.keyspace(space, self.order);
        let range = cut(range);
        self.visiting(most, visit, |many, within, visit| {
            many.scan_within::<&[u8]>(keyspace, range, (direction, within), visit)
        })
    }

    /// Calls `scan` with a visitor of records of up to `most` bytes that stops where the command
    /// takes long.
    fn visiting(
        &mut self,
        most: u64,
        mut visit: impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()>,
        scan: impl FnOnce(&mut Transaction<Auto>, u64, &mut Visit<'_>) -> Result<(), ReadError>,
    ) -> Outcome {
        let Some(mut left) = self.short else {
            scan(self.snapshot(), most, &mut visit)?;
            return Ok(());
        };
        let mut long = false;
        let within = most.min(left as u64);
        scan(self.snapshot(), within, &mut |key, found| {
            let read = match &found {
                Ok(entry) => Some(entry.value.len()),
                Err(longer) => (longer.len > most).then_some(0),
            };
            match read.and_then(|read| left.checked_sub(WORK_OF_RECORD + read)) {
                Some(less) => left = less,
                None => {
                    long = true;
                    return ControlFlow::Break(());
                }
            }
            visit(key, found)
        })?;
        self.short = Some(left);
        if long {
            return Err(CommandError::Long);
        }
        Ok(())
    }

    /// Visits the records of a range, descending.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub fn scan_reverse(
        &mut self,
        space: Space,
        range: Range<'_>,
        visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
    ) -> Outcome {
        self.scan_within(space, range, (Direction::Down, u64::MAX), whole(visit))
    }

    /// Visits the records whose keys begin with `prefix`, ascending.
    ///
    /// # Errors
    /// [`CommandError::Read`]
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
        self.visiting(u64::MAX, whole(visit), |many, _, visit| {
            many.prefix(keyspace, prefix, |key, entry| visit(key, Ok(entry)))
        })
    }

    /// Returns a point that [`rollback`](Self::rollback) returns to.
    pub fn mark(&mut self) -> Mark {
        Mark {
            savepoint: self.snapshot().savepoint(),
            touched: self.touched.len(),
            put: self.put.len(),
        }
    }

    /// Keeps the changes so far: they cannot be rolled back any more, which frees what that would
    /// need.
    pub fn keep(&mut self) {
        self.snapshot().forget_savepoints();
    }

    /// Rolls back all changes since `mark`.
    pub fn rollback(&mut self, mark: &Mark) {
        self.touched.truncate(mark.touched);
        self.put.truncate(mark.put);
        self.snapshot().rollback_to(mark.savepoint);
    }

    /// Commits the changes. The locks of the keys are still held. Returns the keys that were put,
    /// in order, if a client waits.
    ///
    /// # Errors
    /// [`CommandError::Write`]; then nothing has changed. A swap of databases that fails is an
    /// exception: all other changes stay.
    pub(crate) fn commit(self) -> Result<Vec<Name>, CommandError> {
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
            self.data.watchers.touch(*db, key);
        }
        reordered?;
        Ok(self.put)
    }
}
