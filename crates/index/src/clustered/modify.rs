//! Changing a key by what it has: read and written under one lock.

use super::find::Found;
use super::outer::Given;
use super::part::Part;
use super::{ClusteredTree, ReadError};
use crate::contract::InsertError;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::borrow::Borrow;

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

/// Why a modification was not made.
enum Refused {
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
        let mut turn = 0;
        loop {
            match self.try_modify(key, &mut decide) {
                Ok((changed, sparse)) => {
                    if sparse {
                        self.merge(key);
                    }
                    if changed {
                        self.commit()?;
                    }
                    return Ok(changed);
                }
                Err(Refused::Itself(e)) => return Err(e),
                Err(Refused::Page(e, removes)) if self.may_find_space(&e, removes, &mut turn) => {}
                Err(Refused::Page(e, _)) => return Err(Self::space_of(e).into()),
            }
        }
    }

    /// Returns whether the key was changed, and whether its page is worth merging.
    fn try_modify(
        &self,
        key: &K,
        decide: &mut impl FnMut(Option<&V>) -> Modification<V::Owned>,
    ) -> Result<(bool, bool), Refused> {
        let refused = |e: ReadError| Refused::Page(e, false);
        key.with_bytes(|bytes| {
            let located = Self::with_guard(|guard| self.locate(key, bytes, guard));
            let (part, found) = located.map_err(refused)?;
            let unlock = Unlock(part);
            let modification = match found {
                Found::Absent => decide(None),
                Found::Value(value) => {
                    let value = self.resolve(self.page_of(part).stored(value));
                    let decided =
                        V::with_value_of(value.map_err(refused)?, |value| decide(Some(value)));
                    // Bytes of values of the tree are values.
                    decided.unwrap_or(Modification::Keep)
                }
            };
            let about = (bytes, key.hash() as u8, found);
            let removes = matches!(modification, Modification::Remove);
            let (changed, sparse) = match modification {
                Modification::Keep => return Ok((false, false)),
                Modification::Remove if found == Found::Absent => return Ok((false, false)),
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
            changed.map_err(|e| Refused::Page(e, removes))?;
            Ok((true, sparse))
        })
    }
}
