//! Databases over a store: where keys and elements are, locks of keys, and transactions.
//!
//! ```text
//! keyspace "0" to "15"   key --> tag, body              all of a string or a small collection; its expiry is the record's
//!                        key --> tag | BIG, id, expiry, body      the head of a large collection
//! keyspace "elements"    id, ... --> ...                its elements: big-endian id, then what its kind puts there
//! keyspace "expiries"    expiry, database, key --> ""   of large collections, for the sweeper
//! keyspace "garbage"     id --> ""                      ids whose elements the sweeper takes away
//! keyspace "databases"   which database has which keyspace, see `swap.rs`; whether there may be elements without a head, see `flush.rs`
//! ```
//!
//! # Concurrency
//! Who writes a key holds its lock stripe, so that commands on one key take place one after the other, and reads what is
//! there without a snapshot. Readers hold no lock. Elements belong to the key whose head has their id. A command's
//! changes are one commit of the store.

mod arguments;
pub mod bitfield;
pub mod bits;
pub mod blocking;
mod collection;
#[cfg(test)]
mod collection_tests;
mod double;
pub mod dump;
pub mod expire;
mod fields;
#[cfg(test)]
pub(crate) mod fixture;
mod flush;
pub mod glob;
pub mod hashes;
pub mod keys;
mod lcs;
mod list;
pub mod lists;
pub mod locks;
pub mod long_double;
pub mod multi;
pub mod ordered;
pub mod scan;
mod scored;
pub mod sets;
pub mod sort;
mod sorted_combined;
mod sorted_ranges;
pub mod sorted_sets;
pub mod strings;
pub mod swap;
pub mod sweep;
pub mod together;
pub mod touched;
mod tx;
pub mod value;
pub mod waiting;

pub use tx::{Space, Tx};

use crate::command::{Access, Arg, Command, Failed, ONE};
use crate::reply::Out;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{CloseError, Keyspace, ReadError, Snapshot, Store, WriteError};
use flush::{Orphans, Spaces};
use locks::Locks;
use scan::Cursors;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use swap::Order;
use touched::Touched;
use waiting::{Waiter, Waiting};

/// How many databases there are.
pub const DATABASES: usize = 16;

/// Databases in a store. See the module's head.
#[derive(Debug)]
pub struct Data {
    store: Store<Auto>,
    deferring: Store<Auto>,
    /// Keyspaces, as they were and as they are: readers have references to them.
    all_spaces: boxcar::Vec<Spaces>,
    /// Which are those that are.
    current_spaces: AtomicUsize,
    /// There may be elements that no head leads to.
    unswept: AtomicBool,
    /// Those that were found, and are being taken away.
    orphans: Mutex<Option<Orphans>>,
    /// The order of the databases.
    order: AtomicU64,
    swaps: AtomicU64,
    /// The last change was refused.
    refused: AtomicBool,
    /// What was changed could not be made durable when that was tried last.
    unsettled: AtomicBool,
    locks: Locks,
    /// Who is told of changes to which keys.
    pub touched: Arc<Touched>,
    /// Who waits for elements of which keys.
    waiting: Waiting,
    next_id: AtomicU64,
    cursors: Mutex<Cursors>,
}

/// What a reading command may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// What is durable: its answer needs no waiting.
    Durable,
    /// What this connection has written too: its answer has to wait as that of the writes.
    Applied,
}

/// All commands on data.
pub fn commands() -> impl Iterator<Item = &'static Command> {
    [
        bitfield::COMMANDS,
        bits::COMMANDS,
        blocking::COMMANDS,
        dump::COMMANDS,
        expire::COMMANDS,
        hashes::COMMANDS,
        keys::COMMANDS,
        lists::COMMANDS,
        ordered::COMMANDS,
        scan::COMMANDS,
        sets::COMMANDS,
        sort::COMMANDS,
        sorted_sets::COMMANDS,
        strings::COMMANDS,
        swap::COMMANDS,
    ]
    .into_iter()
    .flatten()
}

impl Data {
    /// The databases of an open store; their keyspaces are made if they are not there.
    ///
    /// # Errors
    /// Those of a write.
    pub fn open(store: Store<Auto>) -> Result<Self, WriteError> {
        let databases: Result<Vec<_>, _> = (0..DATABASES)
            .map(|number| store.keyspace(&number.to_string()))
            .collect();
        let [elements, expiries, garbage, orders] =
            ["elements", "expiries", "garbage", swap::ORDER_KEYSPACE]
                .map(|name| store.keyspace(name));
        let (elements, garbage, orders) = (elements?, garbage?, orders?);
        let order = Order::load(&store, &orders)?;
        let snapshot = store.snapshot();
        let last = last_id(&snapshot, &elements)?.max(last_id(&snapshot, &garbage)?);
        let spaces = Spaces {
            databases: databases?,
            expiries: expiries?,
            elements,
            garbage,
            orders,
        };
        let data = Self {
            deferring: store.deferring(),
            all_spaces: boxcar::vec![spaces],
            current_spaces: AtomicUsize::new(0),
            unswept: AtomicBool::new(false),
            orphans: Mutex::default(),
            refused: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            order: AtomicU64::new(order.bits()),
            swaps: AtomicU64::new(0),
            locks: Locks::new(),
            touched: Arc::default(),
            waiting: Waiting::default(),
            next_id: AtomicU64::new(last + 1),
            cursors: Mutex::default(),
            store,
        };
        let unswept = data.needs_sweep()?;
        // ORDERING: Relaxed; nobody else has it.
        data.unswept.store(unswept, Ordering::Relaxed);
        Ok(data)
    }

    fn spaces(&self) -> &Spaces {
        // ORDERING: Acquire; pairs with the Release of `use_spaces`.
        &self.all_spaces[self.current_spaces.load(Ordering::Acquire)]
    }

    /// The store: its reads see what is durable.
    #[must_use]
    pub fn store(&self) -> &Store<Auto> {
        &self.store
    }

    /// Closes the store, with all of it durable.
    ///
    /// # Errors
    /// [`CloseError`]; [`InUse`](CloseError::InUse) if somebody else has these databases: it is closed when nobody has any more.
    pub fn close(self: Arc<Self>) -> Result<(), CloseError> {
        let store = self.store.clone();
        drop(self);
        store.close().map_err(|(_, e)| e)
    }

    /// An id that no collection has.
    pub fn new_id(&self) -> u64 {
        // ORDERING: Relaxed; only that it is new matters.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// False only if no large collection can be there.
    #[must_use]
    pub fn any_large(&self) -> bool {
        // ORDERING: Relaxed; who asks holds the lock of the key, as did who gave an id to what is under it.
        self.next_id.load(Ordering::Relaxed) > 1
    }

    /// How many keys a database has, expired ones that are still there included.
    #[must_use]
    pub fn len(&self, db: usize) -> u64 {
        self.store.len(self.keyspace(Space::Keys(db), self.order()))
    }

    fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes a key's record has, if the key is there.
    ///
    /// # Errors
    /// Those of a read.
    pub fn record_bytes(&self, db: usize, key: &[u8]) -> Result<Option<usize>, ReadError> {
        let bytes = |entry: bristlecone_store::Entry<'_>| entry.value.len();
        self.store
            .get_with(self.keyspace(Space::Keys(db), self.order()), key, bytes)
    }

    fn keyspace(&self, space: Space, order: Order) -> &Keyspace {
        self.spaces().of(space, order)
    }

    /// Every commit up to this time stamp has been applied: what an answer has to wait for, with [`settle`](Self::settle).
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.deferring.applied()
    }

    /// Waits until every commit up to that time stamp is durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]: nobody may be answered.
    pub fn settle(&self, ts: u64) -> Result<(), WriteError> {
        let settled = self.store.settle(ts);
        set(&self.unsettled, settled.is_err());
        settled
    }

    /// False if the last change was refused, as by a full pool, or could not be made durable.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        // ORDERING: Relaxed; shown only.
        !self.refused.load(Ordering::Relaxed) && !self.unsettled.load(Ordering::Relaxed)
    }

    /// Notes whether the store has taken a change.
    fn note_write<T>(&self, done: &Result<T, WriteError>) {
        match done {
            Ok(_) => set(&self.refused, false),
            Err(
                WriteError::Space(_)
                | WriteError::Commit(_)
                | WriteError::ReadOnly
                | WriteError::Damaged(_),
            ) => set(&self.refused, true),
            // That is the client's affair.
            Err(_) => {}
        }
    }

    /// Asks for what commands on these keys are going to look at.
    pub fn prefetch(&self, db: usize, keys: &[Arg<'_>]) {
        let keyspace = self.keyspace(Space::Keys(db), self.order());
        self.store.prefetch(keyspace, keys);
    }

    fn reader(&self, reads: Reads) -> &Store<Auto> {
        match reads {
            Reads::Durable => &self.store,
            Reads::Applied => &self.deferring,
        }
    }

    /// Runs one command on database `db`. An error is answered, too; nothing else is in `out` then, and nothing has changed.
    /// True if it may have changed something, or has read what may not be durable yet.
    pub fn run(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> bool {
        self.run_for(command, (db, false), args, reads, out).0
    }

    /// As [`run`](Self::run), for a client that can wait: if it has to, there is no answer yet.
    pub fn run_or_wait(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> (bool, Option<Arc<Waiter>>) {
        self.run_for(command, (db, true), args, reads, out)
    }

    fn run_for(
        &self,
        command: &Command,
        place: (usize, bool),
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> (bool, Option<Arc<Waiter>>) {
        let mark = out.mark();
        let done = self.try_run(command, place, args, reads, out);
        let waiter = done.unwrap_or_else(|e| {
            out.truncate(mark);
            out.error(&e.to_string());
            None
        });
        let writes = matches!(command.access, Access::Write | Access::WriteAll);
        (reads == Reads::Applied || writes, waiter)
    }

    fn try_run(
        &self,
        command: &Command,
        (db, may_wait): (usize, bool),
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> Result<Option<Arc<Waiter>>, Failed> {
        let store = self.reader(reads);
        match command.access {
            Access::ReadOne | Access::Read => loop {
                let (mark, swaps) = (out.mark(), self.swaps());
                let mut tx = Tx::new(self, store, db);
                if command.access == Access::Read {
                    tx.snapshot();
                }
                let done = (command.run)(&mut tx, args, out);
                if self.swaps() == swaps {
                    return done.map(|()| None);
                }
                // What was read may be another database's.
                out.truncate(mark);
            },
            Access::Write => {
                let _held = if command.keys == ONE {
                    self.lock(args.get(1).into_iter().map(|key| (db, *key)))
                } else {
                    let places = command.keys.places(args);
                    self.lock(places.iter().map(|at| (db, args[*at])))
                };
                self.written(command, (db, may_wait), args, out)
            }
            Access::WriteAll => {
                let _held = self.locks.all();
                self.written(command, (db, may_wait), args, out)
            }
        }
    }

    /// Runs a command that writes; its locks are held.
    fn written(
        &self,
        command: &Command,
        (db, may_wait): (usize, bool),
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Result<Option<Arc<Waiter>>, Failed> {
        let mut tx = self.begin(db);
        tx.may_wait = may_wait;
        (command.run)(&mut tx, args, out)?;
        let wants = tx.wants.take();
        let put = tx.commit()?;
        self.serve(put);
        Ok(wants.map(|wants| self.waiting.enter(db, *wants, out.protocol())))
    }

    /// What writes keys whose locks the caller holds.
    fn begin(&self, db: usize) -> Tx<'_> {
        let mut tx = Tx::new(self, &self.deferring, db);
        tx.writes = true;
        tx
    }
}

/// Sets a flag that is nearly always what it is to be: then nobody's cache line is taken away.
fn set(flag: &AtomicBool, to: bool) {
    // ORDERING: Relaxed; shown only.
    if flag.load(Ordering::Relaxed) != to {
        // ORDERING: Relaxed; as above.
        flag.store(to, Ordering::Relaxed);
    }
}

/// The highest id that a keyspace's keys begin with; 0 if there are none.
fn last_id(snapshot: &Snapshot<Auto>, keyspace: &Keyspace) -> Result<u64, ReadError> {
    let mut last = 0;
    let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
    snapshot.scan_reverse::<&[u8]>(keyspace, all, |key, _| {
        if let Some(id) = key.first_chunk() {
            last = u64::from_be_bytes(*id);
        }
        ControlFlow::Break(())
    })?;
    Ok(last)
}

/// The damaged record's error: it cannot come from this program.
pub(crate) fn damaged(what: &str) -> Failed {
    Failed::reply(format!("ERR the pool is damaged: {what}; check it"))
}
