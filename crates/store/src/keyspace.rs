//! Making, finding and dropping keyspaces.
//!
//! Numbers of keyspaces are not reused while the store is open, and after that only once none of
//! their keys are left. Entries of a number without a name belong to a [dropped](crate::dropped)
//! keyspace. The catalogue's records are verified before that is believed, since the vacuum removes
//! such entries.

use crate::bounds::Bounds;
use crate::catalogue::{Keyspace, parse};
use crate::clock::Wait;
use crate::commit::Committer;
use crate::error::{Damage, StoreError, WriteError};
use crate::key::{CATALOGUE, IndexKey};
use crate::limits::MAX_KEYSPACE_NAME_BYTES;
use crate::stripes::LockedStripes;
use crate::write::Write;
use bristlecone_index::Direction;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, planted};
use crossbeam_epoch as epoch;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Checks that a keyspace can have that name.
///
/// # Errors
/// [`WriteError::BadName`]
fn check_name(name: &str) -> Result<(), WriteError> {
    if name.is_empty() || name.len() > MAX_KEYSPACE_NAME_BYTES {
        let name = name.into();
        return Err(WriteError::BadName { name });
    }
    Ok(())
}

impl<M: Media> Committer<M> {
    /// Reads the catalogue of a recovered store. `largest` is the largest number that an index key
    /// begins with, `damaged` the count of damaged records that recovery found.
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
        // Its name may be among the damaged records. Then its keys must not be removed.
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
            self.dropped_ranges.add(id, self.clock.floor());
        }
        Ok(())
    }

    /// Returns the keyspace of that name, if there is one.
    pub(crate) fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        let known = lock(&self.catalogue.known);
        known
            .by_name
            .get_key_value(name)
            .map(|(name, id)| self.catalogue.handle(*id, Arc::clone(name)))
    }

    /// Returns the keyspace of that name, and makes it if there is none.
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
        self.retry_for_space(|| {
            let record = self.prepare(&key, Some(&id.to_le_bytes()), 0)?;
            self.modify(&key, None, Wait::Durable, |_| Ok((Some(record), ())))
        })?;
        let name: Arc<str> = name.into();
        let mut known = lock(&self.catalogue.known);
        known.by_name.insert(Arc::clone(&name), id);
        drop(known);
        Ok(self.catalogue.handle(id, name))
    }

    /// Returns the keyspaces, by name.
    pub(crate) fn all_keyspaces(&self) -> Vec<Keyspace> {
        let known = lock(&self.catalogue.known);
        let each = known.by_name.iter();
        each.map(|(name, id)| self.catalogue.handle(*id, Arc::clone(name)))
            .collect()
    }

    /// Gives a keyspace another name, in one commit.
    ///
    /// # Errors
    /// [`WriteError::Exists`], [`WriteError::Dropped`], [`WriteError::BadName`],
    /// [`WriteError::OtherStore`], and those of a write.
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
        if planted!(self.pm(), "store-rename-in-two") {
            // The mistake: a crash before the commit below leaves no name at all.
            self.commit_many(&writes[..1], None, None, Wait::Applied)?;
        }
        writes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let ts = self.commit_many(&writes, None, None, Wait::Applied)?;
        let waited = self.wait_for(ts, Wait::Durable);
        // The rename is applied, so it becomes durable with the next commit that does, even if this
        // one did not.
        let mut known = lock(&self.catalogue.known);
        known.by_name.remove(&from);
        known.by_name.insert(Arc::clone(&to), id);
        drop(known);
        waited?;
        Ok(self.catalogue.handle(id, to))
    }

    /// Drops a keyspace. With `empty`, its name becomes that of an empty keyspace with this number.
    /// Returns the name.
    ///
    /// # Errors
    /// [`WriteError::Dropped`] if it was dropped before, [`WriteError::OtherStore`], and those of a
    /// write.
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
        let ts = self.retry_for_space(|| {
            let record = self.prepare(&key, value, 0)?;
            let mut held = LockedStripes::lock(&self.stripes, 0..self.stripes.len());
            let before = self.newest(&key, &epoch::pin());
            let taken = self.clock.take()?;
            let stripe = held.get(self.stripes.of(&key));
            self.publish(stripe, &key, &before, record, taken.ts)?;
            self.dropped.add(keyspace.id, taken.ts);
            self.feed.keyspace_dropped(keyspace.id, empty, taken.ts);
            Ok(taken.ts)
        })?;
        // Without the stripes' locks: the vacuum takes them while it holds the lock of the ranges.
        self.dropped_ranges.add(keyspace.id, ts);
        let waited = self.wait_for(ts, Wait::Durable);
        // Only now: a client that no longer finds the name must not be able to read the keyspace's
        // keys.
        let mut known = lock(&self.catalogue.known);
        known.by_name.remove(&name);
        known.dropped.insert(keyspace.id, Arc::clone(&name));
        if let Some(id) = empty {
            known.by_name.insert(Arc::clone(&name), id);
        }
        drop(known);
        // A subscriber that is told of the drop looks the name up.
        self.feed.drop_is_known(ts);
        waited.map(|()| name)
    }
}
