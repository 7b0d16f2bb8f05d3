//! Batches: changes that are committed atomically, without reading anything.

use crate::catalogue::{Catalogue, Keyspace};
use crate::entry::expiry;
use crate::error::WriteError;
use crate::key::{IndexKey, PREFIX};
use crate::write::{Write, check_key, check_value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Changes to any number of keys of any keyspaces, which [`Store::write`](crate::Store::write)
/// commits atomically. The last change of a key counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    writes: BTreeMap<Vec<u8>, Write>,
    /// The first keyspace, and the first one of another store than that. The store refuses the
    /// batch if either is not its own.
    keyspaces: [Option<Keyspace>; 2],
}

/// Changes as a commit takes them: sorted by key, each key once.
pub(crate) type Writes<'a> = Vec<(Cow<'a, [u8]>, Cow<'a, Write>)>;

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a value.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
        self.put_expiring(keyspace, key, value, None);
    }

    /// Puts a value that expires at that time, in ms since 1970.
    pub fn put_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) {
        let write = Write::Put {
            value: value.to_vec(),
            expiry: expiry(expires_at),
        };
        self.change(keyspace, key, write);
    }

    /// Deletes a key, if it is there.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.change(keyspace, key, Write::Delete);
    }

    fn change(&mut self, keyspace: &Keyspace, key: &[u8], write: Write) {
        let [first, other] = &mut self.keyspaces;
        match first {
            None => *first = Some(keyspace.clone()),
            Some(first) if other.is_none() && !first.same_store(keyspace) => {
                *other = Some(keyspace.clone());
            }
            Some(_) => {}
        }
        let key = IndexKey::new(keyspace.number(), key);
        self.writes.insert(key.to_vec(), write);
    }

    /// Returns how many keys the batch changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns whether the batch changes no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the changes, for the store with this catalogue.
    ///
    /// # Errors
    /// [`WriteError::OtherStore`], [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`]
    pub(crate) fn into_writes(self, catalogue: &Catalogue) -> Result<Writes<'static>, WriteError> {
        for keyspace in self.keyspaces.iter().flatten() {
            catalogue.number(keyspace)?;
        }
        checked(&self.writes)?;
        let writes = self.writes.into_iter();
        Ok(writes
            .map(|(key, write)| (Cow::Owned(key), Cow::Owned(write)))
            .collect())
    }
}

/// Checks the lengths of all keys and values.
///
/// # Errors
/// [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`]
pub(crate) fn checked(writes: &BTreeMap<Vec<u8>, Write>) -> Result<(), WriteError> {
    for (key, write) in writes {
        check_key(&key[PREFIX..])?;
        if let Write::Put { value, .. } = write {
            check_value(value)?;
        }
    }
    Ok(())
}
