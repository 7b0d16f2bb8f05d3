//! Values that are read in place: a record that nobody frees while it is looked at.

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

/// The value of a key, in place (values of more than 1 MiB are copies). While it exists, memory that was
/// freed is not reused in this process, so it should be dropped soon.
pub struct PinnedValue<'s> {
    value: Cow<'s, [u8]>,
    expires_at: Option<u64>,
    /// From before the record was found: its block is not used again before this is dropped.
    _guard: Guard,
}

impl<'s> PinnedValue<'s> {
    /// What `find` finds while the guard that it is given is pinned.
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

    /// When it expires, in ms since 1970.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

/// A value and its expiry.
type Parts<'s> = (Cow<'s, [u8]>, Option<u64>);

/// Takes them out of a version.
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
    /// The value of `key`, in place.
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
    /// The value of `key` then, in place.
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

    /// The pool that its store is in.
    #[must_use]
    pub fn pool(&self) -> &std::sync::Arc<bristlecone_pmem::Pool<M>> {
        self.shared.heap.pool()
    }
}
