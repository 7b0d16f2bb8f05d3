//! Operations on keys, one at a time or some together.

use super::{Entry, Store, Update, expires_at, expiry};
use crate::commit::{Inner, Step, check_key};
use crate::error::{ReadError, WriteError};
use crate::keyspace::Keyspace;
use crate::newest::Current;
use crate::record::Prepared;
use bristlecone_pmem::Media;
use std::ops::ControlFlow;

impl<M: Media> Store<M> {
    /// A copy of the value of `key`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.get_with(keyspace, key, |entry| entry.value.to_vec())
    }

    /// Calls `f` with the value of `key`, if there is one, in place (values of more than 1 MiB are copied first). What
    /// is deleted meanwhile is not freed before `f` returns.
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
        let key = self.shared.key(keyspace, key)?;
        self.shared.get_latest(self.wait, &key, |found| {
            let value = found.value(&key)?;
            Ok(f(Entry {
                value: &value,
                expires_at: expires_at(found.expiry()),
            }))
        })
    }

    /// Calls `f` with the value of each of these keys, or that there is none, in order, until it breaks, as [`get_with`](Self::get_with)
    /// does with one. They are read at one time, but if one is changed and vacuumed meanwhile, it and those after it are read later. The searches'
    /// waits for memory overlap.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn get_together(
        &self,
        keyspace: &Keyspace,
        keys: &[&[u8]],
        mut f: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let keys = self.shared.keys(keyspace, keys.iter().copied())?;
        let keys: Vec<&[u8]> = keys.iter().collect();
        self.shared.get_together(self.wait, &keys, |key, found| {
            let Some(found) = found else {
                return Ok(f(None));
            };
            let value = found.value(key)?;
            Ok(f(Some(Entry {
                value: &value,
                expires_at: expires_at(found.expiry()),
            })))
        })
    }

    /// Asks for what reading or writing these keys is going to look at, so that waits for memory overlap. Nothing else happens.
    pub fn prefetch(&self, keyspace: &Keyspace, keys: &[&[u8]]) {
        // Nothing is to be had ahead of an operation that is going to be refused.
        let Ok(keys) = self.shared.keys(keyspace, keys.iter().copied()) else {
            return;
        };
        let keys: Vec<&[u8]> = keys.iter().collect();
        self.shared.find_ahead(&keys);
    }

    /// Puts a value.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn put(&self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.put_expiring(keyspace, key, value, None)
    }

    /// Puts a value that expires at that time, in ms since 1970. From then on it is read as absent, and vacuumed.
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
        let inner: &Inner<M> = &self.shared;
        let key = inner.key(keyspace, key)?;
        inner.with_room(|| {
            let record = inner.prepare(&key, Some(value), expiry(expires_at))?;
            inner.modify(&key, None, self.wait, |_| Ok((Some(record), ())))?;
            Ok(())
        })
    }

    /// Puts values one after the other, as [`put`](Self::put) does, but makes them durable together, and readers see all or none of them. A
    /// crash before this returns keeps some of them, each wholly. It ends before a key that was there before in `puts`,
    /// before one whose value `replaces` refuses to have replaced, expired or not, and after 1,024: how many were put is what it returns.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, but for [`WriteError::Commit`].
    pub fn put_together<V: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        puts: &[(&[u8], V)],
        replaces: impl Fn(Entry<'_>) -> bool,
    ) -> Result<usize, WriteError> {
        let steps = puts
            .iter()
            .map(|(key, value)| (*key, Step::Put(value.as_ref())));
        let steps: Vec<_> = steps.collect();
        self.shared.with_room(|| {
            self.try_together(keyspace, &steps, |entry| {
                if entry.is_none_or(&replaces) {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        })
    }

    /// Gets and puts values, in order and at one time: nobody changes these keys between two of the steps, and readers see all or none of what is
    /// put. It ends before a key that comes again, unless both steps read it, before a value of more than 64 KiB that is to be read, before a step
    /// at which `each` breaks, and after 1,024 steps: how many were taken is what it returns. `each` is called at each step with what is there: for a put, that is the value to be replaced, expired or not. It runs
    /// under locks: it should be short, and must not use the store. Puts are as durable as those of [`put_together`](Self::put_together).
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, but for [`WriteError::Commit`]. After [`WriteError::Space`] a [`put`](Self::put) may
    /// find room all the same: `each` is not called twice for a step, so where it was called nothing is tried again.
    pub fn run_together(
        &self,
        keyspace: &Keyspace,
        steps: &[(&[u8], Step<'_>)],
        mut each: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        let mut asked = false;
        let done = self.try_together(keyspace, steps, |entry| {
            asked = true;
            each(entry)
        });
        match done {
            Err(WriteError::Space(_)) if !asked => {
                self.shared.make_room();
                self.try_together(keyspace, steps, each)
            }
            done => done,
        }
    }

    /// As [`run_together`](Self::run_together), if there is room.
    fn try_together(
        &self,
        keyspace: &Keyspace,
        steps: &[(&[u8], Step<'_>)],
        mut each: impl FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        for (key, _) in steps {
            check_key(key)?;
        }
        let keys = (self.shared).keys(keyspace, steps.iter().map(|(key, _)| *key))?;
        let steps: Vec<_> = keys
            .iter()
            .zip(steps.iter().map(|(_, step)| *step))
            .collect();
        self.shared.run_together(&steps, self.wait, |key, current| {
            with_entry(key, current, |entry| Ok(each(entry).is_continue()))
        })
    }

    /// Deletes a key; true if it was there.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn delete(&self, keyspace: &Keyspace, key: &[u8]) -> Result<bool, WriteError> {
        check_key(key)?;
        let inner: &Inner<M> = &self.shared;
        let key = inner.key(keyspace, key)?;
        inner.with_room(|| {
            let tombstone = inner.prepare(&key, None, 0)?;
            let (there, _) = inner.modify(&key, None, self.wait, |current| {
                let there = current.is_some();
                Ok((Some(tombstone), there))
            })?;
            Ok(there)
        })
    }

    /// Changes a key to what `f` makes of it, atomically, and returns what else `f` returns. `f` runs under the lock of the key's
    /// stripe: it should be short, and must not use the store. It is called again, with what is there by then, if there was no room for
    /// what it made of it before.
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
        let inner: &Inner<M> = &self.shared;
        let key = inner.key(keyspace, key)?;
        inner.with_room(|| {
            let (answer, _) = inner.modify(&key, None, self.wait, |current| {
                let (update, answer) = with_entry(&key, current.as_ref(), &mut f)?;
                Ok((prepared(inner, &key, update)?, answer))
            })?;
            Ok(answer)
        })
    }

    /// If the value of `key` is `expected` (`None`: there is none), replaces it by `new` (`None`: deletes it). Returns `Ok` if so, else what is there.
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

    /// Adds to a decimal number, 0 if the key is not there, and returns the sum. The expiry stays.
    ///
    /// # Errors
    /// [`WriteError::NotANumber`], [`WriteError::Overflow`] and others.
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

    /// Replaces the value of `key` by what `f` makes of it; `None` stands for no value. As [`update`](Self::update), and the expiry stays.
    ///
    /// Merging takes place at once, under the lock of the key, so `f` is any function, and may be another one each time. (Stores that
    /// write operands down, and merge them when somebody reads or compacts, have functions registered when they are opened, by name, as
    /// later openings have to know them.)
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

    /// Sets when the value of `key` expires, in ms since 1970, or that it does not; false if it is not there.
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

/// A decimal number as this crate writes it: no sign but `-`, no leading zeros.
fn parse(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

fn with_entry<M: Media, R>(
    key: &[u8],
    current: Option<&Current<'_, M>>,
    f: impl FnOnce(Option<Entry<'_>>) -> Result<R, WriteError>,
) -> Result<R, WriteError> {
    let Some(current) = current else {
        return f(None);
    };
    let value = current.value(key)?;
    f(Some(Entry {
        value: &value,
        expires_at: expires_at(current.expiry()),
    }))
}

fn prepared<'s, M: Media>(
    inner: &'s Inner<M>,
    key: &[u8],
    update: Update,
) -> Result<Option<Prepared<'s, M>>, WriteError> {
    match update {
        Update::Keep => Ok(None),
        Update::Put { value, expires_at } => {
            let record = inner.prepare(key, Some(&value), expiry(expires_at))?;
            Ok(Some(record))
        }
        Update::Delete => Ok(Some(inner.prepare(key, None, 0)?)),
    }
}
