//! Keyspaces: named ranges of the index.
//!
//! A keyspace has a number, which its keys begin with in the index. The catalogue is keyspace 0: name to number (32 bits,
//! little-endian). Numbers are not used again while the store is open, and after that only once nothing is left of their keys. Entries of
//! a number that no name has are those of a keyspace that was dropped ([`dropped`](crate::dropped)), so the catalogue's records are checked before that
//! is believed.

use crate::Snapshot;
use crate::clock::Wait;
use crate::commit::{Inner, Write};
use crate::error::{Damage, OtherStore, ReadError, StoreError, WriteError};
use crate::index::{IndexKey, IndexKeys, split};
use crate::read::Bounds;
use crate::stripes::HeldMany;
use bristlecone_index::Direction;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch as epoch;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Longest name in bytes.
pub const NAME_MOST: usize = 1024;
/// The catalogue's own number.
pub(crate) const CATALOGUE: u32 = 0;

/// A named keyspace of a store. Cheap to clone. It is of use only with the store that gave it, for as
/// long as that is open; any other refuses it with `OtherStore`.
///
/// Two handles are equal if they are of the same keyspace, whatever its name was when they were given.
#[derive(Clone, Debug)]
pub struct Keyspace {
    id: u32,
    /// [`Catalogue::store`] of the store that gave it.
    store: u64,
    name: Arc<str>,
}

impl PartialEq for Keyspace {
    fn eq(&self, other: &Self) -> bool {
        (self.store, self.id) == (other.store, other.id)
    }
}

impl Eq for Keyspace {}

impl Keyspace {
    /// Its name, as it was when this handle was given: [renaming](crate::Store::rename_keyspace) gives a new one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number, which it has for as long as it exists.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id
    }

    /// Whether both were given by one store.
    pub(crate) fn same_store(&self, other: &Self) -> bool {
        self.store == other.store
    }
}

/// # Errors
/// [`WriteError::BadName`]
fn check_name(name: &str) -> Result<(), WriteError> {
    if name.is_empty() || name.len() > NAME_MOST {
        let name = name.into();
        return Err(WriteError::BadName { name });
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<Arc<str>, u32>,
    /// Names of those that were dropped, for messages.
    dropped: BTreeMap<u32, Arc<str>>,
    /// No keyspace ever had this number or a larger one.
    next: u32,
}

impl Known {
    /// The name that a keyspace has now.
    fn name_of(&self, id: u32) -> Option<&Arc<str>> {
        let entry = self.by_name.iter().find(|(_, other)| **other == id);
        entry.map(|(name, _)| name)
    }
}

/// The keyspaces that there are.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// Tells the open stores of a process apart.
    store: u64,
    known: Mutex<Known>,
    /// Held while one is made or forgotten. Before any stripe's lock; `known` is after all of them.
    changing: Mutex<()>,
}

impl Catalogue {
    /// An empty one.
    pub fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(1);
        Self {
            // ORDERING: Relaxed; only that numbers differ matters.
            store: STORES.fetch_add(1, Ordering::Relaxed),
            known: Mutex::default(),
            changing: Mutex::default(),
        }
    }

    /// The name that a keyspace has now.
    ///
    /// # Errors
    /// [`WriteError::Dropped`]
    fn name_now(&self, keyspace: &Keyspace) -> Result<Arc<str>, WriteError> {
        let known = lock(&self.known);
        let name = known.name_of(keyspace.id);
        name.cloned().ok_or_else(|| WriteError::Dropped {
            keyspace: keyspace.name().to_owned(),
        })
    }

    /// The handle of a keyspace of this store.
    pub fn handle(&self, id: u32, name: Arc<str>) -> Keyspace {
        let store = self.store;
        Keyspace { id, store, name }
    }

    /// The number that the keys of a keyspace begin with.
    ///
    /// # Errors
    /// [`OtherStore`]: with another store's number a write would change somebody else's keys.
    pub fn number(&self, keyspace: &Keyspace) -> Result<u32, OtherStore> {
        if keyspace.store != self.store {
            return Err(OtherStore(keyspace.name().to_owned()));
        }
        Ok(keyspace.id)
    }

    /// The name of a keyspace, for messages.
    pub fn name_of(&self, id: u32) -> String {
        let known = lock(&self.known);
        match known.name_of(id).or(known.dropped.get(&id)) {
            Some(name) => name.to_string(),
            None => format!("number {id}"),
        }
    }

    /// Whether there is a keyspace of that number.
    pub fn has(&self, id: u32) -> bool {
        id == CATALOGUE || lock(&self.known).by_name.values().any(|other| *other == id)
    }

    /// A number that no keyspace has or had. It is used up, whether its keyspace comes to be or not: what could not be made
    /// durable may become so.
    pub fn new_number(&self) -> Result<u32, Damage> {
        let mut known = lock(&self.known);
        let id = known.next;
        if id >= u32::MAX - 1 {
            return Err(Damage::new("there are no more numbers for keyspaces"));
        }
        known.next = id + 1;
        Ok(id)
    }
}

/// The name and the number that an entry of the catalogue has.
pub(crate) fn parse(key: &[u8], value: &[u8]) -> Option<(Arc<str>, u32)> {
    let name = std::str::from_utf8(split(key)?.1).ok()?;
    let id = u32::from_le_bytes(*value.first_chunk::<4>()?);
    (id != CATALOGUE && id < u32::MAX - 1).then(|| (name.into(), id))
}

impl<M: Media> Snapshot<M> {
    /// The keyspaces as the snapshot has them, by name.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn keyspaces(&self) -> Result<Vec<Keyspace>, ReadError> {
        let mut all = Vec::new();
        let bounds = Bounds::new(CATALOGUE, Bound::Unbounded, Bound::Unbounded);
        self.visit(bounds.range(), Direction::Up, &mut |key, entry| {
            // Opening has seen to it that there are no others.
            if let Some((name, id)) = parse(key, entry.value) {
                all.push(self.shared.catalogue.handle(id, name));
            }
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }
}

impl<M: Media> Inner<M> {
    /// Reads the catalogue, once the store is recovered. `largest`: the largest number that a key begins with. `damaged`: how many
    /// records opening found damaged.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]
    pub(crate) fn load_catalogue(&self, largest: u32, damaged: u64) -> Result<(), StoreError> {
        let ticket = self.snapshots.enter(&self.clock, Wait::Durable, || 0);
        let mut known = lock(&self.catalogue.known);
        known.next = largest + 1;
        let bounds = Bounds::new(CATALOGUE, Bound::Unbounded, Bound::Unbounded);
        let read = self.scan_at(ticket, bounds.range(), Direction::Up, &mut |key, found| {
            let Some((name, id)) = parse(key, &found.value(key)?) else {
                return Err(Damage::new(format!(
                    "the catalogue's entry \"{}\" is none",
                    key.escape_ascii()
                )));
            };
            if known.by_name.values().any(|other| *other == id) {
                return Err(Damage::new(format!(
                    "keyspace {name:?} has number {id}, which another one has"
                )));
            }
            known.next = known.next.max(id + 1);
            known.by_name.insert(name, id);
            Ok(ControlFlow::Continue(()))
        });
        drop(known);
        self.snapshots.leave(ticket);
        read.map_err(WriteError::from)?;
        let mut nameless = self.stripes.counts().keys;
        nameless.retain(|(id, keys)| *keys > 0 && !self.catalogue.has(*id));
        if nameless.is_empty() {
            return Ok(());
        }
        // Its name may be among what is damaged: then its keys are nobody's to take away.
        let broken = match damaged {
            0 => self
                .index
                .verify()
                .err()
                .map(|violation| violation.to_string()),
            some => Some(format!("{some} records are damaged")),
        };
        if let Some(broken) = broken {
            return Err(StoreError::Damaged(Damage::new(format!(
                "keys of keyspace number {} have no name in the catalogue, and {broken}; `bristlecone \
                 export --skip-damaged` saves what can be read",
                nameless[0].0
            ))));
        }
        for (id, _) in nameless {
            self.dropped.leave(id, self.clock.floor());
        }
        Ok(())
    }

    /// The keyspace of that name, if there is one.
    pub(crate) fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let known = lock(&self.catalogue.known);
        known
            .by_name
            .get_key_value(name)
            .map(|(name, id)| self.catalogue.handle(*id, Arc::clone(name)))
    }

    /// The keyspace of that name, which is made if there is none.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) fn make_keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        check_name(name)?;
        let _changing = lock(&self.catalogue.changing);
        if let Some(there) = self.find_keyspace(name) {
            return Ok(there);
        }
        let id = self.catalogue.new_number()?;
        let key = IndexKey::new(CATALOGUE, name.as_bytes());
        self.with_room(|| {
            let record = self.prepare(&key, Some(&id.to_le_bytes()), 0)?;
            self.modify(&key, None, Wait::Durable, |_| Ok((Some(record), ())))
        })?;
        let name: Arc<str> = name.into();
        let mut known = lock(&self.catalogue.known);
        known.by_name.insert(Arc::clone(&name), id);
        drop(known);
        Ok(self.catalogue.handle(id, name))
    }

    /// The keyspaces, by name.
    pub(crate) fn all_keyspaces(&self) -> Vec<Keyspace> {
        let known = lock(&self.catalogue.known);
        let each = known.by_name.iter();
        each.map(|(name, id)| self.catalogue.handle(*id, Arc::clone(name)))
            .collect()
    }

    /// A key of a keyspace, as the index has it.
    ///
    /// # Errors
    /// [`OtherStore`]
    #[inline]
    pub(crate) fn key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<IndexKey, OtherStore> {
        Ok(IndexKey::new(self.catalogue.number(keyspace)?, key))
    }

    /// Keys of a keyspace, as the index has them.
    ///
    /// # Errors
    /// [`OtherStore`]
    pub(crate) fn keys<'k>(
        &self,
        keyspace: &Keyspace,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) -> Result<IndexKeys, OtherStore> {
        Ok(IndexKeys::new(self.catalogue.number(keyspace)?, keys))
    }

    /// Gives a keyspace another name, by one commit.
    ///
    /// # Errors
    /// [`WriteError::Exists`], [`WriteError::Dropped`], [`WriteError::BadName`], [`WriteError::OtherStore`], and others.
    pub(crate) fn rename_keyspace(
        &self,
        keyspace: &Keyspace,
        to: &str,
    ) -> Result<Keyspace, WriteError> {
        check_name(to)?;
        let id = self.catalogue.number(keyspace)?;
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        let _changing = lock(&self.catalogue.changing);
        let from = self.catalogue.name_now(keyspace)?;
        let to: Arc<str> = to.into();
        if from == to {
            return Ok(self.catalogue.handle(id, to));
        }
        if self.find_keyspace(&to).is_some() {
            let keyspace = to.to_string();
            return Err(WriteError::Exists { keyspace });
        }
        let [old, new] = [&from, &to].map(|name| IndexKey::new(CATALOGUE, name.as_bytes()));
        let put = Write::Put {
            value: id.to_le_bytes().into(),
            expiry: 0,
        };
        let mut writes = [(&old, Write::Delete), (&new, put)]
            .map(|(key, write)| (Cow::Borrowed(&**key), Cow::Owned(write)));
        writes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let ts = self.commit_many(&writes, None, None, Wait::Applied)?;
        let settled = self.settle(ts, Wait::Durable);
        // Applied, so it becomes durable with the next commit that does, even if this one did not.
        let mut known = lock(&self.catalogue.known);
        known.by_name.remove(&from);
        known.by_name.insert(Arc::clone(&to), id);
        drop(known);
        settled?;
        Ok(self.catalogue.handle(id, to))
    }

    /// Drops a keyspace. Its name, which is returned, is no keyspace's then, or that of the empty one with this number.
    ///
    /// # Errors
    /// [`WriteError::Dropped`] if it was before, [`WriteError::OtherStore`], and others.
    pub(crate) fn drop_keyspace(
        &self,
        keyspace: &Keyspace,
        empty: Option<u32>,
    ) -> Result<Arc<str>, WriteError> {
        self.catalogue.number(keyspace)?;
        let _changing = lock(&self.catalogue.changing);
        let name = self.catalogue.name_now(keyspace)?;
        let key = IndexKey::new(CATALOGUE, name.as_bytes());
        let value = empty.map(u32::to_le_bytes);
        let value = value.as_ref().map(<[u8; 4]>::as_slice);
        let ts = self.with_room(|| {
            let record = self.prepare(&key, value, 0)?;
            let mut held = HeldMany::lock(&self.stripes, 0..self.stripes.len());
            let before = self.newest(&key, &epoch::pin());
            let taken = self.clock.take()?;
            let stripe = held.get(self.stripes.of(&key));
            self.publish(stripe, &key, &before, record, taken.ts)?;
            self.dropped.add(keyspace.id, taken.ts);
            self.feed.keyspace_dropped(keyspace.id, empty, taken.ts);
            Ok(taken.ts)
        })?;
        // After the locks: the vacuum takes them while it holds this one.
        self.dropped.leave(keyspace.id, ts);
        let settled = self.settle(ts, Wait::Durable);
        // Not before: who does not find the name any more reads nothing that was under it, either.
        let mut known = lock(&self.catalogue.known);
        known.by_name.remove(&name);
        known.dropped.insert(keyspace.id, Arc::clone(&name));
        if let Some(id) = empty {
            known.by_name.insert(Arc::clone(&name), id);
        }
        settled.map(|()| name)
    }
}
