//! Keyspaces whose keys and values have types.

mod codec;
#[cfg(feature = "serde")]
mod serde;

pub use codec::{Codec, CodecError, KeyCodec};
#[cfg(feature = "serde")]
pub use serde::Serde;

use crate::{Database, Error, Iter, Keyspace, Result, Slice};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// A keyspace from keys of type `K` to values of type `V`. Keys are in the order of `K`: that of
/// the numbers for integers, of the parts for tuples.
///
/// The types of a keyspace are not stored: whoever opens it says the same types again. [`Codec`]
/// and [`KeyCodec`] are implemented for integers, `bool`, `String`, `Vec<u8>`, tuples of these and
/// `()`; the feature `serde` adds values of any type that serde knows.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
/// // By station and hour.
/// let readings = db.typed::<(String, u64), i32>("readings")?;
/// readings.insert(&("bergen".into(), 7), &-2)?;
/// readings.insert(&("bergen".into(), 10), &4)?;
/// readings.insert(&("oslo".into(), 7), &-9)?;
/// let (low, high) = (("bergen".into(), 8), ("bergen".into(), u64::MAX));
/// let found: Vec<_> = readings.range(low..=high).collect::<Result<_, _>>()?;
/// assert_eq!(found, [(("bergen".into(), 10), 4)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TypedKeyspace<K, V> {
    bytes: Keyspace,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Clone for TypedKeyspace<K, V> {
    fn clone(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            types: PhantomData,
        }
    }
}

/// As [`Keyspace`]s are.
impl<K, V> PartialEq for TypedKeyspace<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<K, V> Eq for TypedKeyspace<K, V> {}

impl<K, V> Hash for TypedKeyspace<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl<K, V> fmt::Debug for TypedKeyspace<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

impl Database {
    /// Returns the keyspace of that name with typed keys and values, which is made if there is
    /// none. See [`TypedKeyspace`].
    ///
    /// # Errors
    /// As [`keyspace`](Self::keyspace).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("site.db"))?;
    /// let hits = db.typed::<String, u64>("hits")?;
    /// hits.insert(&"/".into(), &1)?;
    /// assert_eq!(hits.get(&"/".into())?, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn typed<K: KeyCodec, V: Codec>(&self, name: &str) -> Result<TypedKeyspace<K, V>> {
        let bytes = self.keyspace(name)?;
        let types = PhantomData;
        Ok(TypedKeyspace { bytes, types })
    }
}

fn encoded<K: KeyCodec>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

impl<K: KeyCodec, V: Codec> TypedKeyspace<K, V> {
    /// Returns the same keyspace with keys and values of bytes, for transactions, batches, watches
    /// and whatever else takes those, with [`key`](Self::key) and [`value`](Self::value).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("bank.db"))?;
    /// let accounts = db.typed::<String, i64>("accounts")?;
    /// let alice = accounts.key(&"alice".into());
    /// db.transaction(|tx| tx.insert(accounts.bytes(), &alice, accounts.value(&10)?))?;
    /// assert_eq!(accounts.get(&"alice".into())?, Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &Keyspace {
        &self.bytes
    }

    /// Returns a key as it is stored.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<(String, u16), i32>("readings")?;
    /// assert_eq!(readings.key(&("oslo".into(), 7)), b"oslo\0\0\0\x07");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(&self, key: &K) -> Vec<u8> {
        encoded(key)
    }

    /// Returns a value as it is stored.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if its codec cannot write it.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// let mut batch = bristlecone::Batch::new();
    /// batch.insert(readings.bytes(), readings.key(&7), readings.value(&-2)?);
    /// db.write(batch)?;
    /// assert_eq!(readings.get(&7)?, Some(-2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn value(&self, value: &V) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match value.encode(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(e) => Err(Error::invalid(format!(
                "a value for keyspace {:?} cannot be written as {}: {e}",
                self.bytes.name(),
                std::any::type_name::<V>()
            ))),
        }
    }

    fn decoded<T>(&self, what: &str, decoded: std::result::Result<T, CodecError>) -> Result<T> {
        decoded.map_err(|e| Error::damaged(format!(
            "a {what} of keyspace {:?} is no {}: {e} (opened with the types that it was written with?)",
            self.bytes.name(),
            std::any::type_name::<T>()
        )))
    }

    /// Puts a value; one that was there is replaced.
    ///
    /// # Errors
    /// As [`Keyspace::insert`] and [`value`](Self::value).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// readings.insert(&7, &-2)?;
    /// readings.insert(&7, &-3)?;
    /// assert_eq!(readings.get(&7)?, Some(-3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, key: &K, value: &V) -> Result<()> {
        self.bytes.insert(encoded(key), self.value(value)?)
    }

    /// Returns the value of a key, or `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Damaged`](crate::ErrorKind::Damaged) if what is stored is no `V`.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// use bristlecone::ErrorKind;
    ///
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// assert_eq!(readings.get(&7)?, None);
    /// readings.bytes().insert(readings.key(&7), "freezing")?;
    /// assert_eq!(readings.get(&7).unwrap_err().kind(), ErrorKind::Damaged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let found = self.bytes.get(encoded(key))?;
        found
            .map(|value| self.decoded("value", V::decode(&value)))
            .transpose()
    }

    /// Returns whether there is such a key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// readings.insert(&7, &-2)?;
    /// assert!(readings.contains_key(&7)? && !readings.contains_key(&8)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        self.bytes.contains_key(encoded(key))
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// readings.insert(&7, &-2)?;
    /// assert!(readings.remove(&7)?);
    /// assert!(!readings.remove(&7)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.bytes.remove(encoded(key))
    }

    /// Returns all entries as they are now, in the order of their keys, from either end.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<i64, i32>("readings")?;
    /// readings.insert(&2, &20)?;
    /// readings.insert(&-10, &-100)?;
    /// let all: Vec<_> = readings.iter().collect::<Result<_, _>>()?;
    /// assert_eq!(all, [(-10, -100), (2, 20)], "as numbers, not as text");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> TypedIter<K, V> {
        self.typed(self.bytes.iter())
    }

    /// Returns the entry with the least key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// assert_eq!(readings.first()?, None);
    /// readings.insert(&7, &-2)?;
    /// assert_eq!(readings.first()?, Some((7, -2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the largest key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// readings.insert(&9, &4)?;
    /// readings.insert(&10, &5)?;
    /// assert_eq!(readings.last()?, Some((10, 5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.iter().next_back().transpose()
    }

    /// Takes the entry with the least key out. As [`Keyspace::pop_first`].
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`Damaged`](crate::ErrorKind::Damaged) if what was stored is no
    /// `K` or no `V`: it is taken out all the same.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("jobs.db"))?;
    /// let jobs = db.typed::<u64, String>("jobs")?;
    /// jobs.insert(&1, &"mail alice".into())?;
    /// assert_eq!(jobs.pop_first()?, Some((1, "mail alice".into())));
    /// assert_eq!(jobs.pop_first()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        let popped = self.bytes.pop_first()?;
        popped.map(|entry| self.decoded_entry(entry)).transpose()
    }

    /// Takes the entry with the largest key out. As [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    /// As [`pop_first`](Self::pop_first).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("jobs.db"))?;
    /// let stack = db.typed::<u64, String>("stack")?;
    /// stack.insert(&1, &"first".into())?;
    /// stack.insert(&2, &"second".into())?;
    /// assert_eq!(stack.pop_last()?, Some((2, "second".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        let popped = self.bytes.pop_last()?;
        popped.map(|entry| self.decoded_entry(entry)).transpose()
    }

    fn decoded_entry(&self, (key, value): (Slice, Slice)) -> Result<(K, V)> {
        let key = self.decoded("key", K::decode_key(&key))?;
        Ok((key, self.decoded("value", V::decode(&value))?))
    }

    /// Returns the entries of a range of keys.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
    /// let readings = db.typed::<u64, i32>("readings")?;
    /// for hour in [7, 10, 300] {
    ///     readings.insert(&hour, &0)?;
    /// }
    /// let hours = readings.range(8..).map(|entry| Ok(entry?.0));
    /// assert_eq!(hours.collect::<bristlecone::Result<Vec<_>>>()?, [10, 300]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self, range: impl RangeBounds<K>) -> TypedIter<K, V> {
        let bytes = |bound: Bound<&K>| bound.map(encoded);
        let range = (bytes(range.start_bound()), bytes(range.end_bound()));
        self.typed(self.bytes.range::<Vec<u8>>(range))
    }

    fn typed(&self, bytes: Iter) -> TypedIter<K, V> {
        let keyspace = self.clone();
        TypedIter { bytes, keyspace }
    }
}

/// The entries of a [`TypedKeyspace`], from either end, like an [`Iter`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
/// let readings = db.typed::<u64, i32>("readings")?;
/// readings.insert(&7, &-2)?;
/// readings.insert(&10, &4)?;
/// let mut entries = readings.iter();
/// assert_eq!(entries.next_back().transpose()?, Some((10, 4)));
/// assert_eq!(entries.next().transpose()?, Some((7, -2)));
/// assert!(entries.next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it reads nothing before it is asked"]
pub struct TypedIter<K, V> {
    bytes: Iter,
    keyspace: TypedKeyspace<K, V>,
}

impl<K, V> fmt::Debug for TypedIter<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

impl<K: KeyCodec, V: Codec> TypedIter<K, V> {
    fn decode(&self, entry: Result<(Slice, Slice)>) -> Result<(K, V)> {
        self.keyspace.decoded_entry(entry?)
    }
}

impl<K: KeyCodec, V: Codec> Iterator for TypedIter<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.bytes.next()?;
        Some(self.decode(entry))
    }
}

impl<K: KeyCodec, V: Codec> DoubleEndedIterator for TypedIter<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let entry = self.bytes.next_back()?;
        Some(self.decode(entry))
    }
}

impl<K: KeyCodec, V: Codec> FusedIterator for TypedIter<K, V> {}

impl<K: KeyCodec, V: Codec> IntoIterator for &TypedKeyspace<K, V> {
    type Item = Result<(K, V)>;
    type IntoIter = TypedIter<K, V>;

    fn into_iter(self) -> TypedIter<K, V> {
        self.iter()
    }
}
