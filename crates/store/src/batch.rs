//! Batches: changes that are committed atomically, without reading anything.

use crate::catalogue::{Catalogue, Keyspace};
use crate::engine::KeyWrite;
use crate::entry::expiry;
use crate::error::WriteError;
use crate::key::PREFIX;
use crate::write::{check_key, check_value};
use bristlecone_index::sorted::order_of;

/// Changes to any number of keys of any keyspaces, which [`Store::write`](crate::Store::write)
/// commits atomically. The last change of a key counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The index key and the value of each change, one behind the other.
    bytes: Vec<u8>,
    changes: Vec<Change>,
    /// The first keyspace, and the first one of another store than that. The store refuses the
    /// batch if either is not its own.
    keyspaces: [Option<Keyspace>; 2],
}

/// Where the bytes of a change are.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: usize,
    /// Bytes of the index key.
    key: usize,
    /// Bytes of the value; `None` if the key is deleted.
    value: Option<usize>,
    expiry: u64,
}

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
        self.change(keyspace, key, Some(value), expiry(expires_at));
    }

    /// Deletes a key, if it is there.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.change(keyspace, key, None, 0);
    }

    fn change(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>, expiry: u64) {
        let [first, other] = &mut self.keyspaces;
        match first {
            None => *first = Some(keyspace.clone()),
            Some(first) if other.is_none() && !first.same_store(keyspace) => {
                *other = Some(keyspace.clone());
            }
            Some(_) => {}
        }
        let at = self.bytes.len();
        self.bytes
            .extend_from_slice(&keyspace.number().to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or(&[]));
        self.changes.push(Change {
            at,
            key: PREFIX + key.len(),
            value: value.map(<[u8]>::len),
            expiry,
        });
    }

    /// Returns how many changes there are. A key that is changed twice counts twice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns whether the batch changes no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn write(&self, change: Change) -> KeyWrite<'_> {
        let (key, rest) = self.bytes[change.at..].split_at(change.key);
        KeyWrite {
            key,
            value: change.value.map(|len| &rest[..len]),
            expiry: change.expiry,
        }
    }

    /// Returns the changes as a commit takes them, for the store with this catalogue.
    ///
    /// # Errors
    /// [`WriteError::OtherStore`], [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`]
    pub(crate) fn writes(&self, catalogue: &Catalogue) -> Result<Vec<KeyWrite<'_>>, WriteError> {
        for keyspace in self.keyspaces.iter().flatten() {
            catalogue.number(keyspace)?;
        }
        let mut writes: Vec<_> = self.changes.iter().map(|one| self.write(*one)).collect();
        if let Some(order) = order_of(writes.len(), |i| writes[i].key) {
            writes = order.into_iter().map(|i| writes[i as usize]).collect();
        }
        // The last one of each key.
        writes.reverse();
        writes.dedup_by_key(|write| write.key);
        writes.reverse();
        checked(&writes)?;
        Ok(writes)
    }
}

/// Checks the lengths of all keys and values.
///
/// # Errors
/// [`WriteError::KeyTooLong`], [`WriteError::ValueTooLong`]
pub(crate) fn checked(writes: &[KeyWrite<'_>]) -> Result<(), WriteError> {
    for write in writes {
        check_key(&write.key[PREFIX..])?;
        check_value(write.value.unwrap_or(&[]))?;
    }
    Ok(())
}
