//! The store: a map whose entries have one to three copies, which one commit writes.
//!
//! ```text
//! key k   --> copies 0 to k mod 3, in keyspaces a and b: "k/copy";
//!             every fifth key has them in a keyspace of its own, "k"
//! value v --> v, and 0 to 142 bytes that depend on it
//! ```
//!
//! | operation | is |
//! | --- | --- |
//! | one copy | an operation on a single key |
//! | several | a transaction, serialisable for half of the keys; a batch if it reads nothing |
//! | removal | a deletion; for every other key, a write that has expired |
//! | removal, own keyspace | dropping or clearing the keyspace, and a step of the vacuum |
//! | lookup, compacting | a step of the vacuum before it, all of the vacuum |
//!
//! Copies that differ, or of which some are missing, show a commit that took effect in part. Later
//! operations vacuum the older versions that removals and updates leave, so the vacuum has crash
//! points too.
//!
//! # Crash states
//! The states of the commit in flight, of the vacuum and of the index.

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_designs::engines::NVTREE;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::RootError;
use bristlecone_store::{
    Batch, EngineKind, Entry, Keyspace, LbEngine, Store, StoreError, StoreOptions,
    TransactionOptions, WallClock, WriteError,
};
use std::cell::Cell;
use std::ops::ControlFlow;

const ROOT: &str = "store";
/// The current time. Entries that expire at it or before have expired.
const NOW: u64 = 1000;
/// Number of value lengths.
const LENGTHS: u64 = 143;
/// An odd number without a pattern.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Versions that a step of the vacuum frees.
const STEP: usize = 2;

/// The store as a subject, over one design.
#[derive(Clone, Copy)]
pub struct StoreSubject {
    kind: &'static dyn EngineKind<Sim>,
    node_bytes: u32,
}

impl StoreSubject {
    /// Returns the store over each of the designs that it is explored on.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let kinds: [&'static dyn EngineKind<Sim>; 2] = [&LbEngine, &NVTREE];
        let node_bytes = 256;
        kinds.map(|kind| Self { kind, node_bytes }).to_vec()
    }

    fn options(self) -> StoreOptions {
        StoreOptions {
            node_bytes: Some(self.node_bytes),
            recovery_threads: 2,
            clock: WallClock::new(|| NOW),
            ..StoreOptions::default().without_thread()
        }
    }

    /// Returns the open store with its keyspaces, which a crash may have kept from being created.
    fn live(store: Store<Sim>) -> Result<Box<dyn Live>, WriteError> {
        let report = store.recovery();
        let settled = report.index.repaired + report.undone + report.tombstones == 0;
        let there = ["a", "b"].map(|name| store.find_keyspace(name).is_some());
        let keyspaces = [store.keyspace("a")?, store.keyspace("b")?];
        Ok(Box::new(LiveStore {
            store,
            keyspaces,
            settled: Cell::new(settled && there == [true; 2]),
        }))
    }
}

impl Subject for StoreSubject {
    fn name(&self) -> String {
        format!("store-{}-{}", self.kind.info().name, self.node_bytes)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = make_pool()?;
        let store = Store::create_with(&pool, ROOT, &self.options(), self.kind);
        let store = store.map_err(|e| Fault::new(FaultKind::Progress, e.to_string()))?;
        Self::live(store).map_err(|e| Fault::new(FaultKind::Progress, e.to_string()))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let store = match Store::open_with(&pool, ROOT, &self.options(), &[self.kind]) {
            Ok(store) => store,
            Err(StoreError::Root(RootError::NotFound(_))) => return Ok(Opened::Absent),
            Err(e) => return Err(Fault::new(FaultKind::Recovery, e.to_string())),
        };
        // A crash must not leave anything that the store takes for damage.
        if let Some(damaged) = store.recovery().damage.first() {
            return Err(Fault::new(FaultKind::Recovery, damaged.to_string()));
        }
        Self::live(store)
            .map(Opened::Live)
            .map_err(|e| Fault::new(FaultKind::Recovery, e.to_string()))
    }
}

struct LiveStore {
    store: Store<Sim>,
    keyspaces: [Keyspace; 2],
    /// True if no operation was done since recovery, and recovery left no chunk without a live
    /// block.
    settled: Cell<bool>,
}

fn copies(key: u64) -> u64 {
    1 + key % 3
}

/// Returns true if a key has a keyspace of its own.
fn is_alone(key: u64) -> bool {
    key % 5 == 1
}

fn name(key: u64, copy: u64) -> Vec<u8> {
    [&key.to_be_bytes()[..], &[b'0' + copy as u8]].concat()
}

/// Returns the bytes of value `number`.
fn value(number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(GOLDEN);
    let mut bytes = Vec::from(number.to_le_bytes());
    // Never 0, since a lost store leaves 0.
    bytes.extend((0..(mixed >> 32) % LENGTHS).map(|i| (mixed >> (i % 7 * 8)) as u8 ^ i as u8 | 1));
    bytes
}

/// Returns the number of a value.
fn number(bytes: &[u8]) -> Result<u64, Fault> {
    let number = bytes.first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
    match number {
        Some(number) if value(number) == bytes => Ok(number),
        _ => Err(Fault::new(
            FaultKind::Torn,
            format!("no value was ever: {bytes:?}"),
        )),
    }
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

impl LiveStore {
    fn keyspace(&self, copy: u64) -> &Keyspace {
        &self.keyspaces[(copy % 2) as usize]
    }

    /// Returns the value of a key, if all its copies have it.
    fn find(&self, key: u64) -> Result<Option<u64>, Fault> {
        let snapshot = self.store.snapshot();
        let own = if is_alone(key) {
            let all = snapshot.keyspaces().map_err(progress)?;
            match all.into_iter().find(|one| one.name() == key.to_string()) {
                None => return Ok(None),
                own => own,
            }
        } else {
            None
        };
        let mut found = Vec::new();
        for copy in 0..copies(key) {
            let keyspace = own.as_ref().unwrap_or_else(|| self.keyspace(copy));
            let bytes = snapshot.get(keyspace, &name(key, copy)).map_err(progress)?;
            found.push(bytes.as_deref().map(number).transpose()?);
        }
        if found.iter().any(|other| *other != found[0]) {
            let what = format!("key {key}: its copies have {found:?}");
            return Err(Fault::new(FaultKind::Torn, what));
        }
        Ok(found[0])
    }

    /// Sets the value of a key to `new`, or removes it. Returns false if the key exists against
    /// `there`.
    fn change(&self, key: u64, new: Option<u64>, there: Option<bool>) -> Result<bool, WriteError> {
        if is_alone(key) {
            return self.change_alone(key, new, there);
        }
        let (bytes, expires_at) = match new {
            Some(number) => (Some(value(number)), None),
            // An expired write is as good as a deletion.
            None if key.is_multiple_of(2) => (Some(value(key)), Some(NOW)),
            None => (None, None),
        };
        if copies(key) == 1 {
            return self.change_one(key, bytes.as_deref(), expires_at, there);
        }
        if there.is_none() {
            let mut batch = Batch::new();
            for copy in 0..copies(key) {
                let (keyspace, name) = (self.keyspace(copy), name(key, copy));
                match &bytes {
                    Some(bytes) => batch.put_expiring(keyspace, &name, bytes, expires_at),
                    None => batch.delete(keyspace, &name),
                }
            }
            self.store.write(batch)?;
            return Ok(true);
        }
        loop {
            let options = match key % 4 {
                0 | 1 => TransactionOptions::default(),
                _ => TransactionOptions::serializable(),
            };
            let mut tx = self.store.begin(options);
            for copy in 0..copies(key) {
                let (keyspace, name) = (self.keyspace(copy), name(key, copy));
                let found = tx.get_with(keyspace, &name, |_| ())?.is_some();
                if there.is_some_and(|there| there != found) {
                    return Ok(false);
                }
                match &bytes {
                    Some(bytes) => tx.put_expiring(keyspace, &name, bytes, expires_at)?,
                    None => tx.delete(keyspace, &name)?,
                }
            }
            match tx.commit() {
                Ok(_) => return Ok(true),
                Err(WriteError::Conflict(_)) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// As [`change`](Self::change), for a key with a keyspace of its own, which other threads may
    /// drop.
    fn change_alone(
        &self,
        key: u64,
        new: Option<u64>,
        there: Option<bool>,
    ) -> Result<bool, WriteError> {
        loop {
            let done = match new {
                Some(number) => self.put_alone(key, number, there),
                None => self.remove_alone(key),
            };
            match done {
                Err(WriteError::Conflict(_) | WriteError::Dropped { .. }) => {}
                done => return done,
            }
        }
    }

    fn put_alone(&self, key: u64, number: u64, there: Option<bool>) -> Result<bool, WriteError> {
        let own = match there {
            Some(true) => self.store.find_keyspace(&key.to_string()),
            _ => Some(self.store.keyspace(&key.to_string())?),
        };
        let Some(own) = own else {
            return Ok(false);
        };
        let mut tx = self.store.begin(TransactionOptions::default());
        for copy in 0..copies(key) {
            let name = name(key, copy);
            let found = tx.get_with(&own, &name, |_| ())?.is_some();
            if there.is_some_and(|there| there != found) {
                return Ok(false);
            }
            tx.put(&own, &name, &value(number))?;
        }
        tx.commit().map(|_| true)
    }

    fn remove_alone(&self, key: u64) -> Result<bool, WriteError> {
        let Some(own) = self.store.find_keyspace(&key.to_string()) else {
            return Ok(false);
        };
        if self.store.get(&own, &name(key, 0))?.is_none() {
            return Ok(false);
        }
        if key.is_multiple_of(2) {
            self.store.drop_keyspace(own)?;
        } else {
            self.store.clear(own)?;
        }
        self.store.vacuum(STEP)?;
        Ok(true)
    }

    /// Inserts keys with one copy, as far as they do not exist.
    fn multi_insert(&self, keys: &[u64], number: u64) -> Result<(), WriteError> {
        let names: Vec<_> = keys.iter().map(|key| name(*key, 0)).collect();
        let mut puts: Vec<_> = (names.iter())
            .map(|name| (&name[..], value(number)))
            .collect();
        while !puts.is_empty() {
            let expired = |entry: Entry<'_>| entry.expires_at.is_some();
            let put = self.store.multi_put(self.keyspace(0), &puts, expired)?;
            // The entry that it stopped at is tried again as the first one, and skipped if it
            // exists.
            puts.drain(..put.max(1));
        }
        Ok(())
    }

    /// As [`change`](Self::change), for a key with one copy.
    fn change_one(
        &self,
        key: u64,
        bytes: Option<&[u8]>,
        expires_at: Option<u64>,
        there: Option<bool>,
    ) -> Result<bool, WriteError> {
        use bristlecone_store::Update;
        let (keyspace, name) = (self.keyspace(0), name(key, 0));
        match (there, bytes) {
            (None, Some(bytes)) if expires_at.is_none() && key.is_multiple_of(2) => {
                let puts = [(&name[..], bytes)];
                let put = self.store.multi_put(keyspace, &puts, |_| true)?;
                debug_assert_eq!(put, 1);
                Ok(true)
            }
            (None, Some(bytes)) => {
                self.store
                    .put_expiring(keyspace, &name, bytes, expires_at)?;
                Ok(true)
            }
            (Some(true), None) => self.store.delete(keyspace, &name),
            _ => self.store.update(keyspace, &name, |entry| {
                if there.is_some_and(|there| there != entry.is_some()) {
                    return Ok((Update::Keep, false));
                }
                let update = match bytes {
                    Some(bytes) => Update::Put {
                        value: bytes.to_vec(),
                        expires_at,
                    },
                    None => Update::Delete,
                };
                Ok((update, true))
            }),
        }
    }
}

impl Live for LiveStore {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.settled.set(false);
        let failed = |e: WriteError| progress(format!("{op:?}: {e}"));
        let done = match *op {
            Op::Insert(key, value) => self.change(key, Some(value), Some(false)),
            Op::Upsert(key, value) => self.change(key, Some(value), None),
            Op::Update(key, value) => self.change(key, Some(value), Some(true)),
            Op::Remove(key) => self.change(key, None, Some(true)),
            Op::Get(key) => {
                self.store.vacuum(STEP).map_err(failed)?;
                return Ok(Reply::Found(self.find(key)?));
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                let keys = super::batch_keys(first, step, count);
                let (single, several): (Vec<u64>, Vec<u64>) =
                    (keys.into_iter()).partition(|key| copies(*key) == 1 && !is_alone(*key));
                self.multi_insert(&single, value).map_err(failed)?;
                for key in several {
                    self.change(key, Some(value), Some(false)).map_err(failed)?;
                }
                Ok(true)
            }
            Op::Compact => {
                self.store.vacuum_all().map_err(failed)?;
                self.store
                    .pool()
                    .compact()
                    .map_err(|e| progress(format!("{op:?}: {e}")))?;
                Ok(true)
            }
            Op::Reopen => {
                return Err(progress(format!("{op:?}: the explorer closes and opens")));
            }
        };
        Ok(match done.map_err(failed)? {
            true => Reply::Done,
            false => Reply::Refused,
        })
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        let snapshot = self.store.snapshot();
        let mut keys = std::collections::BTreeSet::new();
        for keyspace in &snapshot.keyspaces().map_err(progress)? {
            let seen = snapshot.scan::<Vec<u8>>(keyspace, .., |key, _| {
                keys.insert(key.to_vec());
                ControlFlow::Continue(())
            });
            seen.map_err(progress)?;
        }
        let mut last = None;
        for bytes in keys {
            let (Some(key), 9) = (bytes.first_chunk::<8>(), bytes.len()) else {
                let what = format!("no key was ever: {bytes:?}");
                return Err(Fault::new(FaultKind::Torn, what));
            };
            let key = u64::from_be_bytes(*key);
            if last.replace(key) == Some(key) {
                continue;
            }
            match self.find(key)? {
                Some(value) => each(key, value),
                None => {
                    let what = format!("key {key}: copies that it has not: {bytes:?}");
                    return Err(Fault::new(FaultKind::Torn, what));
                }
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        (self.store.check()).map_err(|found| Fault::broken(found.what, found.leak))?;
        verify_pool(self.store.pool(), self.settled.get())?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // Dropping the store closes it.
        Ok(())
    }
}
