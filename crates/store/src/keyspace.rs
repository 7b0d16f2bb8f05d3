//! Making, finding, renaming and dropping keyspaces.
//!
//! Numbers of keyspaces are not reused while the store is open, and after that only once none of
//! their keys are left.

use crate::catalogue::{Keyspace, is_name};
use crate::engine::Wait;
use crate::error::WriteError;
use crate::shared::Shared;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::sync::Arc;

/// Checks that a keyspace can have that name.
///
/// # Errors
/// [`WriteError::BadName`]
fn check_name(name: &str) -> Result<(), WriteError> {
    if !is_name(name) {
        let name = name.into();
        return Err(WriteError::BadName { name });
    }
    Ok(())
}

impl<M: Media> Shared<M> {
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
        let ts = self.engine.name_keyspace(id, None, name)?;
        let waited = self.engine.wait_for(ts, Wait::Durable);
        // It is applied, so it becomes durable with the next commit that does.
        let name: Arc<str> = name.into();
        let mut known = lock(&self.catalogue.known);
        known.by_name.insert(Arc::clone(&name), id);
        drop(known);
        waited?;
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
        if self.engine.pool().pm().read_only() {
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
        let ts = self.engine.name_keyspace(id, Some(&from), &to)?;
        let waited = self.engine.wait_for(ts, Wait::Durable);
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
        let ts = (self.engine).drop_keyspace(&name, keyspace.id, empty)?;
        let waited = self.engine.wait_for(ts, Wait::Durable);
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
        waited?;
        Ok(name)
    }
}
