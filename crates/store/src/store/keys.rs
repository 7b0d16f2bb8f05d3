//! Operations on keys, one at a time or several at once.

use super::Store;
use crate::catalogue::Keyspace;
use crate::engine::At;
use crate::entry::{Entry, Longer, Update, expiry};
use crate::error::{ReadError, WriteError};
use crate::key::PREFIX;
use crate::pinned::PinnedValue;
use crate::streams::positions;
use crate::write::{Step, check_key};
use bristlecone_pmem::Media;
use std::io::Read;
use std::ops::{ControlFlow, RangeBounds};

impl<M: Media> Store<M> {
    /// Returns a copy of the value of `key`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get_with(keyspace, key, |entry| entry.value.to_vec())
    }

    /// Calls `f` with the value of `key`, if there is one. The value is read in place; one of more
    /// than 1 MiB is copied first. No memory is reclaimed before `f` returns.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_with<R>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let (mut f, mut answer) = (Some(f), None);
        let at = At::Latest(self.wait);
        self.shared.engine.get(at, &key, &mut |entry| {
            answer = f.take().map(|f| f(entry));
        })?;
        Ok(answer)
    }

    /// As [`get_with`](Self::get_with), if the value has at most `most` bytes. Returns what a
    /// longer one is as the error inside, mostly without reading it.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_within<R>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        most: u64,
        f: impl FnOnce(Entry<'_>) -> R,
    ) -> Result<Option<Result<R, Longer>>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let (mut f, mut answer) = (Some(f), None);
        let at = At::Latest(self.wait);
        let longer = self
            .shared
            .engine
            .get_within(at, &key, most, &mut |entry| {
                answer = f.take().map(|f| Ok(f(entry)));
            })?;
        Ok(longer.map(Err).or(answer))
    }

    /// Adds the bytes of a range of the value of `key` to `into`, as far as the value has them, and
    /// returns the value's length; `None` if there is no value. A value in parts, of 64 MiB or more
    /// or from [`put_from`](Self::put_from), is read 8 MiB at a time, as far as it is asked for.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_range(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        range: impl RangeBounds<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        if check_key(key).is_err() {
            return Ok(None);
        }
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let at = At::Latest(self.wait);
        self.shared
            .engine
            .get_range(at, &key, positions(range), into)
    }

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
        let at = At::Latest(self.wait());
        self.shared.engine.get_pinned(at, &key)
    }

    /// Calls `f` with the value of each key in order, `None` if there is none, until `f` breaks.
    /// The keys are read at one timestamp, except that a key that is changed and vacuumed
    /// meanwhile, and those after it, are read at a later one. The cache misses of the searches
    /// overlap.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn multi_get(
        &self,
        keyspace: &Keyspace,
        keys: &[&[u8]],
        f: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.multi_get_within(keyspace, keys, u64::MAX, f)
    }

    /// As [`multi_get`](Self::multi_get), up to the first value of more than `most` bytes, which
    /// `f` is not called with.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn multi_get_within(
        &self,
        keyspace: &Keyspace,
        keys: &[&[u8]],
        most: u64,
        mut f: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let keys = self
            .shared
            .catalogue
            .index_keys(keyspace, keys.iter().copied())?;
        let keys: Vec<&[u8]> = keys.iter().collect();
        (self.shared.engine).multi_get(self.wait, &keys, most, &mut f)
    }

    /// Prefetches what reading or writing these keys will access, so that cache misses overlap.
    pub fn prefetch(&self, keyspace: &Keyspace, keys: &[&[u8]]) {
        // An operation on another store's keyspace will be refused anyway.
        let Ok(keys) = self
            .shared
            .catalogue
            .index_keys(keyspace, keys.iter().copied())
        else {
            return;
        };
        let keys: Vec<&[u8]> = keys.iter().collect();
        self.shared.engine.prefetch(&keys);
    }

    /// Puts a value.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn put(&self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.put_expiring(keyspace, key, value, None)
    }

    /// Puts a value that expires at that time, in ms since 1970. From then on it reads as absent,
    /// and the vacuum removes it.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn put_expiring(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(), WriteError> {
        check_key(key)?;
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let expiry = expiry(expires_at);
        self.shared.engine.put(&key, value, expiry, self.wait)
    }

    /// Puts the value that a stream gives up to its end, and returns its length. Others see the
    /// value once all of it is there. No more than 8 MiB of it are in memory, and nobody waits
    /// while the stream is slow.
    ///
    /// # Errors
    /// [`WriteError`]; [`WriteError::Source`] if the stream fails. The key has what it had then.
    pub fn put_from(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        mut from: impl Read,
        expires_at: Option<u64>,
    ) -> Result<u64, WriteError> {
        check_key(key)?;
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let (expiry, engine) = (expiry(expires_at), &self.shared.engine);
        engine.put_from(&key, &mut from, expiry, self.wait)
    }

    /// Puts a prefix of `puts` under one timestamp, and returns its length. Readers see all of them
    /// or none, and they become durable together; a crash before this returns may keep some of
    /// them, each complete. The prefix ends before a key that occurs again, before a value, expired
    /// or not, that `replaces` refuses to have replaced, and after 1,024 puts.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`].
    pub fn multi_put<V: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        puts: &[(&[u8], V)],
        replaces: impl Fn(Entry<'_>) -> bool,
    ) -> Result<usize, WriteError> {
        let steps = puts
            .iter()
            .map(|(key, value)| (*key, Step::Put(value.as_ref())));
        let steps: Vec<_> = steps.collect();
        let each = |entry: Option<Entry<'_>>| {
            if entry.is_none_or(&replaces) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        match self.try_batch(keyspace, &steps, each) {
            Err(WriteError::Space(_)) => {
                self.shared.engine.reclaim_space();
                self.try_batch(keyspace, &steps, each)
            }
            done => done,
        }
    }

    /// Executes a prefix of `steps` under one timestamp, and returns its length. Nobody changes the
    /// keys between two of the steps, and readers see all of the puts or none. Puts are as durable
    /// as those of [`multi_put`](Self::multi_put).
    ///
    /// The prefix ends before a key that occurs again (unless both steps read it), before a value
    /// of more than 64 KiB that is to be read, before a step at which `each` breaks, and after
    /// 1,024 steps. `each` is called at each step with the current value; for a put, that is the
    /// value to be replaced, expired or not. It runs under locks, so it should be short and must
    /// not use the store.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, except for [`WriteError::Commit`]. After
    /// [`WriteError::Space`] a [`put`](Self::put) may still succeed: it vacuums and tries again,
    /// which this does only if `each` was not called yet.
    pub fn execute_batch(
        &self,
        keyspace: &Keyspace,
        steps: &[(&[u8], Step<'_>)],
        mut each: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        let mut called = false;
        let done = self.try_batch(keyspace, steps, |entry| {
            called = true;
            each(entry)
        });
        match done {
            Err(WriteError::Space(_)) if !called => {
                self.shared.engine.reclaim_space();
                self.try_batch(keyspace, steps, each)
            }
            done => done,
        }
    }

    /// As [`execute_batch`](Self::execute_batch), without a second attempt for want of space.
    fn try_batch(
        &self,
        keyspace: &Keyspace,
        steps: &[(&[u8], Step<'_>)],
        mut each: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        for (key, _) in steps {
            check_key(key)?;
        }
        let keys = self
            .shared
            .catalogue
            .index_keys(keyspace, steps.iter().map(|(key, _)| *key))?;
        let steps: Vec<_> = keys
            .iter()
            .zip(steps.iter().map(|(_, step)| *step))
            .collect();
        self.shared.engine.execute(&steps, self.wait, &mut each)
    }

    /// Deletes a key. Returns whether it had a value.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn delete(&self, keyspace: &Keyspace, key: &[u8]) -> Result<bool, WriteError> {
        check_key(key)?;
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        self.shared.engine.delete(&key, self.wait)
    }

    /// Atomically changes a key to what `f` returns for its current value, and returns the other
    /// result of `f`. `f` runs under the lock of the key's stripe or page, so it should be short
    /// and must not use the store. If there is no space for the new value, the store is vacuumed
    /// and `f` called again.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn update<R>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        mut f: impl FnMut(Option<Entry<'_>>) -> Result<(Update, R), WriteError>,
    ) -> Result<R, WriteError> {
        check_key(key)?;
        let key = self.shared.catalogue.index_key(keyspace, key)?;
        let mut answer = None;
        self.shared.engine.update(&key, self.wait, &mut |entry| {
            let (update, its) = f(entry)?;
            answer = Some(its);
            Ok(update)
        })?;
        // It was called, and has not failed.
        Ok(answer.unwrap_or_else(|| unreachable!("the change has been decided on")))
    }

    /// Replaces the value of `key` by `new` if it is `expected`. `None` stands for no value in
    /// both. Returns `Ok` if it was replaced, else the current value.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn compare_and_swap(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Vec<u8>>>, WriteError> {
        self.update(keyspace, key, |entry| {
            let found = entry.map(|entry| entry.value);
            if found != expected {
                return Ok((Update::Keep, Err(found.map(<[u8]>::to_vec))));
            }
            let update = match new {
                Some(value) => Update::Put {
                    value: value.to_vec(),
                    expires_at: None,
                },
                None => Update::Delete,
            };
            Ok((update, Ok(())))
        })
    }

    /// Adds `by` to a decimal number and returns the sum. A key without a value counts as 0. The
    /// expiry is kept.
    ///
    /// # Errors
    /// [`WriteError::NotANumber`], [`WriteError::Overflow`], and those of a write.
    pub fn increment(&self, keyspace: &Keyspace, key: &[u8], by: i64) -> Result<i64, WriteError> {
        self.update(keyspace, key, |entry| {
            let number = match entry {
                None => 0,
                Some(entry) => parse(entry.value).ok_or_else(|| WriteError::NotANumber {
                    keyspace: keyspace.name().to_owned(),
                    key: key.to_vec(),
                })?,
            };
            let sum = number
                .checked_add(by)
                .ok_or(WriteError::Overflow { number, by })?;
            let update = Update::Put {
                value: sum.to_string().into_bytes(),
                expires_at: entry.and_then(|entry| entry.expires_at),
            };
            Ok((update, sum))
        })
    }

    /// Replaces the value of `key` by what `f` returns for it. `None` stands for no value in both.
    /// Otherwise as [`update`](Self::update); the expiry is kept.
    ///
    /// `f` is called at once, under the lock of the key, so it may be any function, and another one
    /// each time. Stores that log operands and merge them later need functions that are registered
    /// by name.
    ///
    /// # Errors
    /// [`WriteError`]
    ///
    /// # Example
    /// ```
    /// # use bristlecone_pmem::{Pool, PoolOptions, media::Dram};
    /// # use bristlecone_store::{Store, StoreOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::<Dram>::create("merges".as_ref(), &PoolOptions::default())?;
    /// # let store = Store::create(&pool, "store", &StoreOptions::default())?;
    /// /// Appends to a list with commas in between.
    /// fn append(list: Option<&[u8]>, item: &str) -> Option<Vec<u8>> {
    ///     let list = list.map_or_else(Vec::new, |list| [list, b","].concat());
    ///     Some([&list, item.as_bytes()].concat())
    /// }
    ///
    /// let tags = store.keyspace("tags")?;
    /// for tag in ["old", "conifer"] {
    ///     store.merge(&tags, b"bristlecone", |list| append(list, tag))?;
    /// }
    /// assert_eq!(store.get(&tags, b"bristlecone")?.as_deref(), Some(&b"old,conifer"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn merge(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        mut f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<(), WriteError> {
        self.update(keyspace, key, |entry| {
            let update = match f(entry.map(|entry| entry.value)) {
                Some(value) => Update::Put {
                    value,
                    expires_at: entry.and_then(|entry| entry.expires_at),
                },
                None => Update::Delete,
            };
            Ok((update, ()))
        })
    }

    /// Sets the expiry of `key`, in ms since 1970; `None` removes it. Returns whether the key has a
    /// value.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn expire(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        expires_at: Option<u64>,
    ) -> Result<bool, WriteError> {
        self.update(keyspace, key, |entry| {
            let Some(entry) = entry else {
                return Ok((Update::Keep, false));
            };
            let value = entry.value.to_vec();
            Ok((Update::Put { value, expires_at }, true))
        })
    }
}

/// Parses a decimal number in the form that this crate writes: no sign except `-`, no leading
/// zeros.
fn parse(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}
