//! The catalogue: which keyspaces a store has.
//!
//! A keyspace is a named range of the index. It has a number, which its index keys begin with. The
//! catalogue is keyspace 0: name to number (32 bits, little-endian).

use crate::error::{Damage, OtherStore, WriteError};
use crate::key::{CATALOGUE, FIRST_RESERVED, IndexKey, IndexKeys, split};
use crate::limits::MAX_KEYSPACE_NAME_BYTES;
use bristlecone_pmem::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A handle of a named keyspace. Cheap to clone. Only the store that returned it takes it, for as
/// long as that is open; any other refuses it with `OtherStore`.
///
/// Two handles are equal if they are of the same keyspace, whatever its name was when they were
/// returned.
#[derive(Clone, Debug)]
pub struct Keyspace {
    pub(crate) id: u32,
    /// [`Catalogue::store`] of the store that returned it.
    store: u64,
    pub(crate) name: Arc<str>,
}

impl PartialEq for Keyspace {
    fn eq(&self, other: &Self) -> bool {
        (self.store, self.id) == (other.store, other.id)
    }
}

impl Eq for Keyspace {}

impl Keyspace {
    /// Returns its name at the time when this handle was returned.
    /// [Renaming](crate::Store::rename_keyspace) returns a new handle.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its number, which does not change while the keyspace exists.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id
    }

    /// Returns whether both handles are of one store.
    pub(crate) fn same_store(&self, other: &Self) -> bool {
        self.store == other.store
    }
}

/// The content of the catalogue, in memory.
#[derive(Debug, Default)]
pub struct Known {
    /// The number of each name.
    pub by_name: BTreeMap<Arc<str>, u32>,
    /// Names of dropped keyspaces, for messages.
    pub dropped: BTreeMap<u32, Arc<str>>,
    /// No keyspace ever had this number or a larger one.
    pub next: u32,
}

impl Known {
    /// Returns the name that a keyspace has now.
    fn name_of(&self, id: u32) -> Option<&Arc<str>> {
        let entry = self.by_name.iter().find(|(_, other)| **other == id);
        entry.map(|(name, _)| name)
    }
}

/// The keyspaces of a store.
#[derive(Debug)]
pub struct Catalogue {
    /// Tells the open stores of a process apart.
    store: u64,
    /// The keyspaces by name. An engine that locks keys, too, locks those first.
    pub known: Mutex<Known>,
    /// Held while a keyspace is made or dropped. Locked before any key.
    pub changing: Mutex<()>,
}

impl Catalogue {
    /// A catalogue without keyspaces.
    pub(crate) fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(1);
        Self {
            // ORDERING: Relaxed; only that numbers differ matters.
            store: STORES.fetch_add(1, Ordering::Relaxed),
            known: Mutex::default(),
            changing: Mutex::default(),
        }
    }

    /// Returns a handle of the keyspace of that number, if there is one.
    pub fn handle_of(&self, id: u32) -> Option<Keyspace> {
        let known = lock(&self.known);
        let name = known.name_of(id).cloned()?;
        drop(known);
        Some(self.handle(id, name))
    }

    /// Returns a handle of a keyspace.
    pub fn handle(&self, id: u32, name: Arc<str>) -> Keyspace {
        let store = self.store;
        Keyspace { id, store, name }
    }

    /// Returns the name that a keyspace has now.
    ///
    /// # Errors
    /// [`WriteError::Dropped`]
    pub fn name_now(&self, keyspace: &Keyspace) -> Result<Arc<str>, WriteError> {
        let known = lock(&self.known);
        let name = known.name_of(keyspace.id);
        name.cloned().ok_or_else(|| WriteError::Dropped {
            keyspace: keyspace.name().to_owned(),
        })
    }

    /// Returns the number that the keyspace's index keys begin with.
    ///
    /// # Errors
    /// [`OtherStore`]: with another store's number a write would change somebody else's keys.
    pub fn number(&self, keyspace: &Keyspace) -> Result<u32, OtherStore> {
        if keyspace.store != self.store {
            return Err(OtherStore(keyspace.name().to_owned()));
        }
        Ok(keyspace.id)
    }

    /// Returns the name of a keyspace, for messages.
    pub fn name_of(&self, id: u32) -> String {
        let known = lock(&self.known);
        match known.name_of(id).or(known.dropped.get(&id)) {
            Some(name) => name.to_string(),
            None => format!("number {id}"),
        }
    }

    /// Returns the index key of a key.
    ///
    /// # Errors
    /// [`OtherStore`]
    #[inline]
    pub fn index_key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<IndexKey, OtherStore> {
        Ok(IndexKey::new(self.number(keyspace)?, key))
    }

    /// Returns the index keys of several keys.
    ///
    /// # Errors
    /// [`OtherStore`]
    pub fn index_keys<'k>(
        &self,
        keyspace: &Keyspace,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    ) -> Result<IndexKeys, OtherStore> {
        Ok(IndexKeys::new(self.number(keyspace)?, keys))
    }

    /// Returns how many keyspaces there are.
    pub fn count(&self) -> u64 {
        lock(&self.known).by_name.len() as u64
    }

    /// Returns whether there is a keyspace of that number.
    pub fn has(&self, id: u32) -> bool {
        id == CATALOGUE || lock(&self.known).by_name.values().any(|other| *other == id)
    }

    /// Returns a number that no keyspace has or had. It is used up even if the keyspace cannot be
    /// made durable now, since it may become durable later.
    ///
    /// # Errors
    /// [`Damage`]: all numbers are used.
    pub fn new_number(&self) -> Result<u32, Damage> {
        let mut known = lock(&self.known);
        let id = known.next;
        if id >= FIRST_RESERVED {
            return Err(Damage::new("there are no more numbers for keyspaces"));
        }
        known.next = id + 1;
        Ok(id)
    }
}

/// Returns the name and the number in an entry of the catalogue, unless it is malformed.
pub fn parse(key: &[u8], value: &[u8]) -> Option<(Arc<str>, u32)> {
    let name = std::str::from_utf8(split(key)?.1).ok()?;
    let id = u32::from_le_bytes(*value.first_chunk::<4>()?);
    (is_name(name) && is_number(id)).then(|| (name.into(), id))
}

/// Whether a keyspace can have that name.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_KEYSPACE_NAME_BYTES).contains(&name.len())
}

/// Whether a keyspace can have that number.
pub fn is_number(id: u32) -> bool {
    (CATALOGUE + 1..FIRST_RESERVED).contains(&id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_keyspaces_have_bounds() {
        assert!(!is_name("") && is_name("n"));
        assert!(is_name(&"n".repeat(MAX_KEYSPACE_NAME_BYTES)));
        assert!(!is_name(&"n".repeat(MAX_KEYSPACE_NAME_BYTES + 1)));
        for (number, expected) in [
            (CATALOGUE, false),
            (1, true),
            (FIRST_RESERVED - 1, true),
            (FIRST_RESERVED, false),
            (u32::MAX, false),
        ] {
            assert_eq!(is_number(number), expected, "{number}");
        }
    }

    #[test]
    fn an_entry_has_a_name_and_a_number() {
        let key = |name: &[u8]| [&CATALOGUE.to_be_bytes()[..], name].concat();
        let number = 7_u32.to_le_bytes();
        assert_eq!(parse(&key(b"name"), &number), Some(("name".into(), 7)));
        assert_eq!(parse(&key(b""), &number), None);
        assert_eq!(parse(&key(b"\xFF"), &number), None);
        assert_eq!(parse(&key(b"name"), &[0; 4]), None);
        assert_eq!(parse(&key(b"name"), &number[..3]), None);
        assert_eq!(parse(b"abc", &number), None);
    }

    #[test]
    fn a_handle_is_of_its_store_and_keyspace() {
        let (here, there) = (Catalogue::new(), Catalogue::new());
        let one = here.handle(7, "name".into());
        assert_eq!(one, here.handle(7, "as it was called".into()));
        assert_ne!(one, here.handle(8, "name".into()));
        assert_ne!(one, there.handle(7, "name".into()));
        assert!(one.same_store(&here.handle(8, "other".into())));
        assert!(!one.same_store(&there.handle(7, "name".into())));
        assert_eq!((one.name(), one.number()), ("name", 7));
        assert_eq!(here.number(&one), Ok(7));
        assert_eq!(there.number(&one), Err(OtherStore("name".into())));
    }

    #[test]
    fn keyspaces_are_found_by_number_and_named_when_they_are_dropped() {
        let catalogue = Catalogue::new();
        {
            let mut known = lock(&catalogue.known);
            known.by_name.insert("one".into(), 1);
            known.by_name.insert("two".into(), 2);
            known.dropped.insert(3, "three".into());
        }
        assert_eq!(catalogue.handle_of(2).unwrap().name(), "two");
        assert!(catalogue.handle_of(3).is_none());
        for (number, name) in [(1, "one"), (2, "two"), (3, "three"), (4, "number 4")] {
            assert_eq!(catalogue.name_of(number), name);
        }
        assert_eq!(catalogue.count(), 2);
        assert_eq!(
            [0, 1, 2, 3].map(|id| catalogue.has(id)),
            [true, true, true, false]
        );
        let now = |id, then: &str| catalogue.name_now(&catalogue.handle(id, then.into()));
        assert_eq!(&*now(1, "before").unwrap(), "one");
        let e = now(3, "before").unwrap_err();
        assert!(matches!(e, WriteError::Dropped { keyspace } if keyspace == "before"));
    }

    #[test]
    fn each_number_is_given_once_and_none_that_is_reserved() {
        let catalogue = Catalogue::new();
        lock(&catalogue.known).next = FIRST_RESERVED - 2;
        assert_eq!(catalogue.new_number(), Ok(FIRST_RESERVED - 2));
        assert_eq!(catalogue.new_number(), Ok(FIRST_RESERVED - 1));
        for _ in 0..2 {
            let e = catalogue.new_number().unwrap_err();
            assert!(e.to_string().contains("no more numbers"), "{e}");
        }
    }
}
