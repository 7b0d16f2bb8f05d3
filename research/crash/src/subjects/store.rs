//! The store: a map whose entries have one to three copies, which one commit writes.
//!
//! ```text
//! key k   --> copies 0 to k mod 3, in keyspaces a and b: "k/copy";
//!             two keys of five have them in a keyspace of their own (`keyspaces.rs`)
//! value v --> v, and 0 to 142 bytes that depend on it
//! ```
//!
//! | operation | is |
//! | --- | --- |
//! | one copy | an operation on a single key |
//! | several | a transaction, serialisable for half of the keys; a batch if it reads nothing |
//! | removal | a deletion; for every other key, a write that has expired |
//! | removal, own keyspace | dropping or clearing the keyspace, and a step of the vacuum |
//! | update of a key whose keyspace says its value | renaming the keyspace |
//! | lookup, compacting | a step of the vacuum before it, all of the vacuum |
//!
//! Copies that differ, or of which some are missing, show a commit that took effect in part. Later
//! operations vacuum the older versions that removals and updates leave, so the vacuum has crash
//! points too.
//!
//! The `watched` subjects answer lookups from the change feed (`follower.rs`), and begin another
//! watch for every other one, whatever commits are under way. They are for threads. The `visited`
//! subjects have a pool that was opened and closed between a crash and the store's opening.
//!
//! # Crash states
//! The states of the commit in flight, of the vacuum and of the index, or of the clustered tree.

mod follower;
mod keyspaces;

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_designs::engines::NVTREE;
use bristlecone_nv_store::{EngineKind, LbEngine, NvStore};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::sync::lock;
use bristlecone_store::{
    Batch, Entry, Keyspace, Snapshot, Store, StoreError, StoreOptions, TransactionOptions,
    WallClock, WriteError,
};
use follower::Follower;
use keyspaces::Home;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Mutex;

const ROOT: &str = "store";
/// The current time. Entries that expire at it or before have expired.
const NOW: u64 = 1000;
/// Number of value lengths.
const LENGTHS: u64 = 143;
/// An odd number without a pattern.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Versions that a step of the vacuum frees.
const STEP: usize = 2;

/// The store as a subject: on the clustered tree, or NV-Store over one design.
#[derive(Clone, Copy)]
pub struct StoreSubject {
    /// The engine of NV-Store's index; `None` for a store on a clustered tree.
    kind: Option<&'static dyn EngineKind<Sim>>,
    node_bytes: u32,
    variant: Variant,
}

/// How the store is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// Lookups are answered from the change feed.
    Watched,
    /// Before the store is opened, the pool is opened and closed without it.
    Visited,
}

impl StoreSubject {
    /// Returns the store over each of the designs that it is explored on.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let over = |kind, variant| Self {
            kind: Some(kind),
            node_bytes: 256,
            variant,
        };
        let tree = |variant| Self {
            kind: None,
            node_bytes: 1024,
            variant,
        };
        vec![
            over(&LbEngine, Variant::Plain),
            over(&NVTREE, Variant::Plain),
            over(&LbEngine, Variant::Watched),
            over(&LbEngine, Variant::Visited),
            tree(Variant::Plain),
            tree(Variant::Watched),
            tree(Variant::Visited),
        ]
    }

    fn options(self) -> StoreOptions {
        StoreOptions {
            node_bytes: Some(self.node_bytes),
            clock: WallClock::new(|| NOW),
            ..StoreOptions::default().without_thread()
        }
    }

    /// The open store, with its keyspaces, which a crash may have left unmade.
    fn live(self, store: Store<Sim>) -> Result<Box<dyn Live>, Fault> {
        let report = store.recovery();
        let settled = report.index.repaired + report.undone + report.tombstones == 0;
        let there = ["a", "b"].map(|name| store.find_keyspace(name).is_some());
        let make = |name| store.keyspace(name).map_err(progress);
        let keyspaces = [make("a")?, make("b")?];
        let follower = if self.variant == Variant::Watched {
            Some(Follower::begin(&store, &keyspaces[0])?)
        } else {
            None
        };
        Ok(Box::new(LiveStore {
            store,
            keyspaces,
            naming: Mutex::default(),
            follower: follower.map(Mutex::new),
            lookups: Cell::new(0),
            settled: Cell::new(settled && there == [true; 2]),
        }))
    }
}

/// Returns NV-Store over that engine.
fn nv_store(kind: &dyn EngineKind<Sim>) -> NvStore<'_, Sim> {
    NvStore::over(&[kind]).recovery_threads(2)
}

impl Subject for StoreSubject {
    fn name(&self) -> String {
        let variant = match self.variant {
            Variant::Plain => "",
            Variant::Watched => "-watched",
            Variant::Visited => "-visited",
        };
        let design = self.kind.map_or("clustered", |kind| kind.info().name);
        format!("store-{design}-{}{variant}", self.node_bytes)
    }

    /// A clustered store posts separators and wipes heads when a page is first touched, so even
    /// reads of one just opened store.
    fn stores_when_observed(&self) -> bool {
        self.kind.is_none()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = make_pool()?;
        let store = match self.kind {
            Some(kind) => Store::create_as(&pool, ROOT, &self.options(), &nv_store(kind)),
            None => Store::create(&pool, ROOT, &self.options()),
        };
        let store = store.map_err(|e| Fault::new(FaultKind::Progress, e.to_string()))?;
        self.live(store)
    }

    fn open(&self) -> Result<Opened, Fault> {
        if self.variant == Variant::Visited {
            drop(open_pool()?);
        }
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let opened = match self.kind {
            Some(kind) => Store::open_with(&pool, ROOT, &self.options(), &[&nv_store(kind)]),
            None => Store::open(&pool, ROOT, &self.options()),
        };
        let store = match opened {
            Ok(store) => store,
            Err(StoreError::Root(RootError::NotFound(_))) => return Ok(Opened::Absent),
            Err(e) => return Err(Fault::new(FaultKind::Recovery, e.to_string())),
        };
        // A crash must not leave anything that the store takes for damage.
        if let Some(damaged) = store.recovery().damage.first() {
            return Err(Fault::new(FaultKind::Recovery, damaged.to_string()));
        }
        // The pool is closed after the store.
        let closed = pool.info().was_clean && self.variant != Variant::Visited;
        if closed && !store.recovery().in_order {
            let what = "the store was closed in order and does not say so";
            return Err(Fault::new(FaultKind::Lost, what));
        }
        self.live(store).map(Opened::Live)
    }
}

struct LiveStore {
    store: Store<Sim>,
    keyspaces: [Keyspace; 2],
    /// Held while a keyspace is made whose name says a value.
    naming: Mutex<()>,
    /// The follower that answers lookups, if the first keyspace is watched.
    follower: Option<Mutex<Follower>>,
    /// How many lookups it has answered.
    lookups: Cell<u64>,
    /// Nothing was done since recovery, which left no chunk without a live block.
    settled: Cell<bool>,
}

fn copies(key: u64) -> u64 {
    1 + key % 3
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

/// The value of a key whose copies have these.
fn agreed(key: u64, found: &[Option<u64>]) -> Result<Option<u64>, Fault> {
    if found.iter().any(|other| *other != found[0]) {
        let what = format!("key {key}: its copies have {found:?}");
        return Err(Fault::new(FaultKind::Torn, what));
    }
    Ok(found[0])
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The store at one time.
struct View {
    /// The keyspaces `a` and `b`.
    shared: [Keyspace; 2],
    snapshot: Snapshot<Sim>,
    keyspaces: Vec<Keyspace>,
}

impl View {
    /// The value of a key, if all its copies have it.
    fn find(&self, key: u64) -> Result<Option<u64>, Fault> {
        let own = match Home::of(key) {
            Home::Named => return self.value_in_name(key),
            Home::Shared => None,
            Home::Own => {
                let own = (self.keyspaces.iter()).find(|one| one.name() == key.to_string());
                if own.is_none() {
                    return Ok(None);
                }
                own
            }
        };
        let mut found = Vec::new();
        for copy in 0..copies(key) {
            let keyspace = own.unwrap_or(&self.shared[(copy % 2) as usize]);
            let bytes = (self.snapshot.get(keyspace, &name(key, copy))).map_err(progress)?;
            found.push(bytes.as_deref().map(number).transpose()?);
        }
        agreed(key, &found)
    }

    /// The entries of a keyspace.
    fn entries(&self, keyspace: &Keyspace) -> Result<Vec<Pair>, Fault> {
        let mut found = Vec::new();
        let seen = (self.snapshot).scan::<Vec<u8>>(keyspace, .., |key, entry| {
            found.push((key.to_vec(), entry.value.to_vec()));
            ControlFlow::Continue(())
        });
        seen.map_err(progress)?;
        Ok(found)
    }
}

impl LiveStore {
    fn keyspace(&self, copy: u64) -> &Keyspace {
        &self.keyspaces[(copy % 2) as usize]
    }

    fn view(&self) -> Result<View, Fault> {
        let snapshot = self.store.snapshot();
        let keyspaces = snapshot.keyspaces().map_err(progress)?;
        Ok(View {
            shared: self.keyspaces.clone(),
            snapshot,
            keyspaces,
        })
    }

    /// The value of a key that is in the keyspace which the follower watches.
    fn look_up(&self, follower: &Mutex<Follower>, key: u64) -> Result<Option<u64>, Fault> {
        let mut follower = lock(follower);
        self.lookups.set(self.lookups.get() + 1);
        if self.lookups.get().is_multiple_of(2) {
            // The commits that are under way come by this watch or are in its snapshot.
            follower.catch_up(&self.store)?;
            *follower = Follower::begin(&self.store, self.keyspace(0))?;
        }
        follower.catch_up(&self.store)?;
        let copies = (0..copies(key)).step_by(2);
        let found = copies.map(|copy| follower.get(&name(key, copy)).map(number).transpose());
        agreed(key, &found.collect::<Result<Vec<_>, _>>()?)
    }

    /// Sets the value of a key to `new`, or removes it. Returns false if the key exists against
    /// `there`.
    fn change(&self, key: u64, new: Option<u64>, there: Option<bool>) -> Result<bool, WriteError> {
        if Home::of(key) != Home::Shared {
            return self.change_own(key, new, there);
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

    /// Inserts keys that have one copy, those that are not there.
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
                let found = match &self.follower {
                    Some(follower) if Home::of(key) == Home::Shared => self.look_up(follower, key),
                    _ => self.view()?.find(key),
                };
                return Ok(Reply::Found(found?));
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                let keys = super::batch_keys(first, step, count);
                let (single, several): (Vec<u64>, Vec<u64>) = (keys.into_iter())
                    .partition(|key| copies(*key) == 1 && Home::of(*key) == Home::Shared);
                self.multi_insert(&single, value).map_err(failed)?;
                for key in several {
                    self.change(key, Some(value), Some(false)).map_err(failed)?;
                }
                Ok(true)
            }
            Op::Compact => {
                self.store.compact().map_err(failed)?;
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
        let view = self.view()?;
        let mut keys = BTreeSet::new();
        for keyspace in &view.keyspaces {
            if view.counts(keyspace)? {
                keys.extend(view.entries(keyspace)?.into_iter().map(|(key, _)| key));
            }
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
            match view.find(key)? {
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
        keyspaces::check_names(self)?;
        if let Some(follower) = &self.follower {
            lock(follower).check(&self.store, self.keyspace(0))?;
        }
        verify_pool(self.store.pool(), self.settled.get())?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // Dropping the store closes it.
        Ok(())
    }
}
