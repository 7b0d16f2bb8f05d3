//! Changing a key by what it has: read and written under one lock.

use super::away::Room;
use super::find::Found;
use super::outer::Given;
use super::part::Part;
use super::stored::Stored;
use super::write::Changed;
use super::{ClusteredTree, Glimpse, ReadError};
use crate::contract::InsertError;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::ControlFlow;

/// What [`ClusteredTree::modify`] makes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modification<V> {
    /// It stays as it is.
    Keep,
    /// It has this value from now on.
    Put(V),
    /// It is gone.
    Remove,
}

/// The present value of a key that is being visited or changed.
pub struct Current<'v, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    tree: &'v ClusteredTree<K, V, M>,
    stored: Stored<'v>,
    room: Room,
}

impl<K, V, M> fmt::Debug for Current<'_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl<'v, K, V, M> Current<'v, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    pub(super) fn new(tree: &'v ClusteredTree<K, V, M>, stored: Stored<'v>) -> Self {
        Self {
            tree,
            stored,
            room: Room::new(),
        }
    }

    /// Returns its value, if the page has it: one that is not long.
    #[inline(always)]
    #[must_use]
    pub fn short_value(&self) -> Option<&'v [u8]> {
        (!self.stored.outer).then_some(self.stored.bytes)
    }

    /// Returns its value, once its sum has been compared if it is long.
    ///
    /// # Errors
    /// [`ReadError`]: it is damaged.
    pub fn value(&self) -> Result<Cow<'v, [u8]>, ReadError> {
        self.tree.resolve(self.stored)
    }

    /// Returns the value's length and its beginning, without verifying a long one.
    #[must_use]
    pub fn glimpse(&self) -> Glimpse<'_> {
        self.tree.glimpse(self.stored, &self.room)
    }
}

/// Gets what a key has, and says whether to go on.
pub(super) type Each<'e, K, V, M> =
    dyn FnMut(Option<Current<'_, K, V, M>>) -> Result<ControlFlow<()>, ReadError> + 'e;

/// How a modification ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modified {
    /// The time stamp of the change; `None` if the key stays as it is.
    pub stamp: Option<u64>,
    /// No change that was read to decide has a later stamp.
    pub seen: u64,
}

/// Why a modification was not made.
pub(super) enum Refused {
    /// For what it is.
    Itself(InsertError),
    /// For its page, or for want of space; and whether it was a removal.
    Page(ReadError, bool),
}

/// Lets go of a page if what was asked about it panics.
struct Unlock<'p>(&'p Part);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.writer.unlock_unchanged();
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Changes `key` by what it has: `decide` gets its value, or `None` if it is not there. Nobody
    /// changes the key in between. Returns true if it was changed.
    ///
    /// `decide` is called again if there was no space at first, and must not use the tree: other
    /// changes of the page wait for it.
    ///
    /// Persist cost: of an upsert or a removal; nothing if the key stays as it is.
    ///
    /// # Errors
    /// [`InsertError`]; nothing has changed then, but where it is [`InsertError::Commit`].
    ///
    /// # Examples
    /// ```
    /// use bristlecone_index::clustered::{ClusteredOptions, ClusteredTree, Modification};
    /// use bristlecone_index::{DurableIndex, OrderedIndex};
    /// use bristlecone_pmem::media::Dram;
    /// use bristlecone_pmem::{Pool, PoolOptions};
    ///
    /// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
    /// let options = ClusteredOptions::default();
    /// let visits = ClusteredTree::<u64, u64, Dram>::create(&pool, "index", &options)?;
    /// let add_one = |visits: Option<&u64>| Modification::Put(visits.map_or(1, |n| n + 1));
    /// visits.modify(&17, add_one)?;
    /// visits.modify(&17, add_one)?;
    /// assert_eq!(visits.get(&17), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn modify(
        &self,
        key: &K,
        mut decide: impl FnMut(Option<&V>) -> Modification<V::Owned>,
    ) -> Result<bool, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        Self::key_fits(key).map_err(|(len, most)| InsertError::KeyTooLong { len, most })?;
        let modified = self.modify_by(key, |current| {
            let Some(current) = current else {
                return Ok(decide(None));
            };
            let decided = V::with_value_of(&current.value()?, |value| decide(Some(value)));
            // Bytes of values of the tree are values.
            Ok(decided.unwrap_or(Modification::Keep))
        });
        let modified = modified.map_err(|refused| match refused {
            Refused::Itself(e) => e,
            Refused::Page(e, _) => Self::space_of(e).into(),
        })?;
        if modified.stamp.is_some() {
            self.commit()?;
        }
        Ok(modified.stamp.is_some())
    }

    /// Changes `key` to what `decide` makes of what it has, durably but for the commit.
    pub(super) fn modify_by(
        &self,
        key: &K,
        mut decide: impl FnMut(
            Option<Current<'_, K, V, M>>,
        ) -> Result<Modification<V::Owned>, ReadError>,
    ) -> Result<Modified, Refused> {
        let _storing = self.storing();
        let mut turn = 0;
        loop {
            match self.try_modify(key, &mut decide) {
                Ok((modified, sparse)) => {
                    if sparse {
                        self.merge(key);
                    }
                    return Ok(modified);
                }
                Err(Refused::Page(e, removes)) if self.may_find_space(&e, removes, &mut turn) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns how it ended, and whether the key's page is worth merging.
    fn try_modify(
        &self,
        key: &K,
        decide: &mut impl FnMut(
            Option<Current<'_, K, V, M>>,
        ) -> Result<Modification<V::Owned>, ReadError>,
    ) -> Result<(Modified, bool), Refused> {
        let refused = |e: ReadError| Refused::Page(e, false);
        key.with_bytes(|bytes| {
            let located = Self::with_guard(|guard| self.locate(key, bytes, guard));
            let (part, found) = located.map_err(refused)?;
            let unlock = Unlock(part);
            let seen = part.latest();
            let kept = Modified { stamp: None, seen };
            let current = match found {
                Found::Absent => None,
                Found::Value(value) => {
                    let stored = self.page_of(part).stored(value);
                    Some(Current::new(self, stored))
                }
            };
            let modification = decide(current).map_err(refused)?;
            let about = (bytes, key.hash() as u8, found);
            let removes = matches!(modification, Modification::Remove);
            let (changed, sparse) = match modification {
                Modification::Keep => return Ok((kept, false)),
                Modification::Remove if found == Found::Absent => return Ok((kept, false)),
                Modification::Remove => {
                    std::mem::forget(unlock);
                    self.change_and_unlock(part, about, None)
                }
                Modification::Put(value) => {
                    let value: &V = value.borrow();
                    Self::fits(key, value).map_err(Refused::Itself)?;
                    value.with_bytes(|value| {
                        if !self.is_outer(value.len()) {
                            std::mem::forget(unlock);
                            return Ok(self.change_and_unlock(
                                part,
                                about,
                                Some(Given::Here(value)),
                            ));
                        }
                        let outer = self.write_outer(value).map_err(|e| refused(e.into()))?;
                        std::mem::forget(unlock);
                        let given = Some(Given::Outer(&outer));
                        let (changed, sparse) = self.change_and_unlock(part, about, given);
                        if changed.is_err() {
                            self.discard_outer(&outer);
                        }
                        Ok((changed, sparse))
                    })?
                }
            };
            let changed = changed.map_err(|e| Refused::Page(e, removes))?;
            let stamp = match changed {
                Changed::Done { stamp, .. } => Some(stamp),
                Changed::Refused => None,
            };
            let seen = stamp.unwrap_or(seen);
            Ok((Modified { stamp, seen }, sparse))
        })
    }
}
