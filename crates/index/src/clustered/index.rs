//! A clustered tree as an index: the contract's traits.

use super::changes::Batch;
use super::open::Loading;
use super::scan::NOW;
use super::write::{Changed, Expected};
use super::{ClusteredOptions, ClusteredTree, MAX_KEY, MAX_VALUE, ReadError};
use crate::contract::{
    BulkLoad, Direction, DurableIndex, Fill, IndexStats, InsertError, OrderedIndex, RecoveryReport,
    RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::DataKind;
use bristlecone_pmem::{CommitError, Media, Pool, SpaceError};
use std::borrow::Borrow;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

impl<K, V, M> DurableIndex<K, V, M> for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = ClusteredOptions;

    fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
    ) -> Result<Self, TreeError> {
        Self::make(pool, name, options)
    }

    fn open(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
    ) -> Result<Self, TreeError> {
        Self::reopen(pool, name, options, Loading::AtOnce)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn compact(&self) -> Result<(), SpaceError> {
        Self::compact(self).map(|_| ()).map_err(Self::space_of)
    }

    fn close(mut self) -> Result<(), CommitError> {
        self.close_now()
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// The result of a read of loaded pages. Opening loads all of them, and compares the sums of
    /// their outer values, and replacing pages loads none, so there is nothing that a read could
    /// find damaged.
    fn loaded<R>(result: Result<R, ReadError>) -> R {
        result.unwrap_or_else(|e| unreachable!("all pages are loaded: {e}"))
    }

    /// The lengths that a key or a value has and may have, if it is too long.
    pub(super) fn key_fits(key: &K) -> Result<(), (usize, usize)> {
        fits(key.bytes(), MAX_KEY, Self::NUMBER_KEYS)
    }

    fn value_fits(value: &V) -> Result<(), (usize, usize)> {
        fits(value.bytes(), MAX_VALUE, matches!(V::KIND, DataKind::U64))
    }

    pub(super) fn fits(key: &K, value: &V) -> Result<(), InsertError> {
        let fits = Self::key_fits(key);
        fits.map_err(|(len, most)| InsertError::KeyTooLong { len, most })?;
        let fits = Self::value_fits(value);
        fits.map_err(|(len, most)| InsertError::ValueTooLong { len, most })
    }

    fn put(&self, key: &K, value: &V, expected: Expected) -> Result<Changed, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        Self::fits(key, value)?;
        let changed = value.with_bytes(|value| self.change(key, Some(value), expected));
        Ok(changed.map_err(Self::space_of)?)
    }
}

/// Insertions that share a fence.
const TOGETHER: usize = 1024;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Makes all of the changes, or none of them: keys with their new values, or none to remove
    /// them. Of several changes of a key the last one counts. Readers at a
    /// [snapshot](Self::snapshot) see all of them or none; others may see some before the rest.
    ///
    /// Persist cost: the lines of a group of records for each page; 1 fence, and 1 line and 1 fence
    /// more if there are several pages. Consolidations, splits and merges are extra.
    ///
    /// # Errors
    /// [`InsertError`], of the first change that is too long, or for want of space. No entry has
    /// changed then, but where it is [`InsertError::Commit`]: then all of it, not durably.
    pub fn write_batch<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
    ) -> Result<(), InsertError>
    where
        K: 'c,
        V: 'c,
    {
        let mut batch = self.batch_of(changes)?;
        self.change_batch(&mut batch, true)
            .map_err(Self::space_of)?;
        Ok(self.commit()?)
    }

    /// The batch of these changes.
    ///
    /// # Errors
    /// [`InsertError`], of the first change that is too long; or the pool is open for reading only.
    pub(super) fn batch_of<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
    ) -> Result<Batch<'c, K>, InsertError>
    where
        K: 'c,
        V: 'c,
    {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let changes = changes.into_iter();
        let mut batch = Batch::with_room(changes.size_hint().0);
        for (key, value) in changes {
            match value {
                Some(value) => Self::fits(key, value)?,
                None => {
                    let fits = Self::key_fits(key);
                    fits.map_err(|(len, most)| InsertError::KeyTooLong { len, most })?;
                }
            }
            batch.add(key, value, Expected::Either);
        }
        Ok(batch)
    }

    /// Inserts pairs under one fence, and adds a result for each to `out`.
    fn insert_together<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        let mut batch = Batch::with_room(pairs.len());
        let from = out.len();
        let mut given = Vec::with_capacity(pairs.len());
        for (i, (key, value)) in pairs.iter().enumerate() {
            let (key, value) = (key.borrow(), value.borrow());
            let fits = Self::fits(key, value);
            if fits.is_ok() {
                batch.add(key, Some(value), Expected::Absent);
                given.push(from + i);
            }
            out.push(fits);
        }
        if self.change_batch(&mut batch, false).is_err() {
            // For want of space for all of them: one by one, as many as find room.
            for (out, (key, value)) in out[from..].iter_mut().zip(pairs) {
                if out.is_ok() {
                    *out = self.insert(key.borrow(), value.borrow());
                }
            }
            return;
        }
        let committed = self.commit().is_ok();
        for (i, refused) in batch.refused() {
            let out = &mut out[given[i]];
            if refused {
                *out = Err(InsertError::KeyExists);
            } else if !committed && let Err(e) = self.commit() {
                *out = Err(e.into());
            }
        }
    }
}

fn fits(len: usize, most: usize, number: bool) -> Result<(), (usize, usize)> {
    if number || len <= most {
        Ok(())
    } else {
        Err((len, most))
    }
}

impl<K, V, M> OrderedIndex<K, V> for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        match self.put(key, value, Expected::Absent)? {
            Changed::Refused => Err(InsertError::KeyExists),
            Changed::Done { .. } => Ok(self.commit()?),
        }
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        let changed = self.put(key, value, Expected::Either)?;
        self.commit()?;
        Ok(matches!(
            changed,
            Changed::Done {
                was_there: true,
                ..
            }
        ))
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        let changed = self
            .put(key, value, Expected::Present)
            .map_err(|e| match e {
                InsertError::ValueTooLong { len, most } => UpdateError::ValueTooLong { len, most },
                InsertError::Space(e) => UpdateError::Space(e),
                InsertError::Commit(e) => UpdateError::Commit(e),
                InsertError::ReadOnly => UpdateError::ReadOnly,
                // A key that is too long cannot be there.
                InsertError::KeyTooLong { .. } | InsertError::KeyExists => UpdateError::NotFound,
            })?;
        match changed {
            Changed::Refused => Err(UpdateError::NotFound),
            Changed::Done { .. } => Ok(self.commit()?),
        }
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        if Self::key_fits(key).is_err() {
            return Ok(false);
        }
        let changed = self.change(key, None, Expected::Present);
        let changed = changed.map_err(|e| RemoveError::from(Self::space_of(e)))?;
        if changed == Changed::Refused {
            return Ok(false);
        }
        self.commit()?;
        Ok(true)
    }

    #[inline]
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        Self::loaded(self.find_value(key, f))
    }

    fn scan<R: RangeBounds<K>>(&self, range: R, visit: impl FnMut(&K, &V) -> ControlFlow<()>) {
        Self::loaded(self.scan_pages(&range, Direction::Up, NOW, visit));
    }

    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        Self::loaded(self.find_batch(keys, out));
    }

    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        if self.read_only {
            out.extend(pairs.iter().map(|_| Err(InsertError::ReadOnly)));
            return;
        }
        for pairs in pairs.chunks(TOGETHER) {
            self.insert_together(pairs, out);
        }
    }

    fn stats(&self) -> IndexStats {
        self.measure()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.check()
    }
}

impl<K, V, M> ReverseScan<K, V> for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        Self::loaded(self.scan_pages(&range, Direction::Down, NOW, visit));
    }
}

impl<K, V, M> BulkLoad<K, V> for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        self.load_sorted(sorted, fill)
    }
}
