//! Values that are read in place, in records that are not freed meanwhile.

use crate::catalogue::Keyspace;
use crate::entry::expires_at;
use crate::error::{Damage, ReadError};
use crate::key::PREFIX;
use crate::read::Found;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::write::check_key;
use bristlecone_pmem::Media;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// The value of a key, in place; one of more than 1 MiB is a copy. While it exists, freed memory is
/// not reused in this process, so drop it soon.
pub struct PinnedValue<'s> {
    value: Cow<'s, [u8]>,
    expires_at: Option<u64>,
    /// Pinned before the record was found, so its block is not reused before this is dropped.
    _guard: Guard,
}

impl<'s> PinnedValue<'s> {
    /// Pins an epoch and returns what `find` finds under it.
    fn of<M: Media>(
        key: &[u8],
        find: impl FnOnce(&Guard, Take<'_, 's, M>) -> Result<Option<Parts<'s>>, ReadError>,
    ) -> Result<Option<Self>, ReadError> {
        let guard = epoch::pin();
        let found = find(&guard, &|found: &Found<'s, M>| {
            Ok((found.value(key)?, expires_at(found.expiry())))
        })?;
        Ok(found.map(|(value, expires_at)| Self {
            value,
            expires_at,
            _guard: guard,
        }))
    }

    /// Returns when the value expires, in ms since 1970.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

/// A value and its expiry.
type Parts<'s> = (Cow<'s, [u8]>, Option<u64>);

/// Extracts them from a version.
type Take<'a, 's, M> = &'a dyn Fn(&Found<'s, M>) -> Result<Parts<'s>, Damage>;

impl Deref for PinnedValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.value
    }
}

impl fmt::Debug for PinnedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl<M: Media> Store<M> {
    /// Returns the value of `key`, in place.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_pinned(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<PinnedValue<'_>>, ReadError> {
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        if check_key(&key[PREFIX..]).is_err() {
            return Ok(None);
        }
        PinnedValue::of(&key, |guard, take| {
            self.shared.get_latest_in(guard, self.wait(), &key, take)
        })
    }
}

impl<M: Media> Snapshot<M> {
    /// Returns the value of `key` in the snapshot, in place.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_pinned(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<PinnedValue<'_>>, ReadError> {
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        if check_key(&key[PREFIX..]).is_err() {
            return Ok(None);
        }
        PinnedValue::of(&key, |guard, take| {
            self.shared.get_at_in(guard, self.ticket, &key, take)
        })
    }

    /// Returns the pool that the store is in.
    #[must_use]
    pub fn pool(&self) -> &std::sync::Arc<bristlecone_pmem::Pool<M>> {
        self.shared.heap.pool()
    }
}
