//! What a key's record holds: a string, a small collection as a whole, or the head of a large one.
//!
//! ```text
//! tag (1) | body                                    expires with the record
//! tag | BIG (1) | id (8) | expiry (8, 0: none) | body         big-endian; elements in Space::Elements begin with the id
//! ```
//!
//! Records that expire are taken away by the store alone, which knows nothing of elements: so a large collection's expiry is in
//! its head, and in [`Space::Expiries`], where the sweeper finds it.

use super::{Space, Tx, damaged};
use crate::command::{Failed, Outcome};
use bristlecone_store::Entry;

/// Bit of the tag of large collections.
const BIG: u8 = 0x80;
/// Tag of strings.
pub(super) const STRING: u8 = Kind::String as u8;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A string.
    String = 1,
    /// A list.
    List = 2,
    /// A set.
    Set = 3,
    /// A sorted set.
    SortedSet = 4,
    /// A hash.
    Hash = 5,
}

impl Kind {
    /// The name that `TYPE` gives.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Hash => "hash",
        }
    }

    /// The one that a tag stands for.
    pub(super) fn of(tag: u8) -> Result<Self, Failed> {
        [
            Self::String,
            Self::List,
            Self::Set,
            Self::SortedSet,
            Self::Hash,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == tag & !BIG)
        .ok_or_else(|| damaged(&format!("tag {tag:#x} of a value")))
    }
}

/// A key's value, or the head of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub kind: Kind,
    /// The id of its elements, if it is large.
    pub id: Option<u64>,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
    /// What its kind keeps here: all of it, or what a large one's head says.
    pub body: Vec<u8>,
}

impl Value {
    /// One that is all in its record.
    #[must_use]
    pub fn small(kind: Kind, body: Vec<u8>, expires_at: Option<u64>) -> Self {
        Self {
            kind,
            id: None,
            expires_at,
            body,
        }
    }

    fn decode(record: &[u8], expires_at: Option<u64>) -> Result<Self, Failed> {
        let (mut value, body) = Self::parts(record, expires_at)?;
        value.body = body.to_vec();
        Ok(value)
    }

    /// All but the body, and the body.
    fn parts(record: &[u8], expires_at: Option<u64>) -> Result<(Self, &[u8]), Failed> {
        let (tag, rest) = record.split_first().ok_or_else(|| damaged("empty value"))?;
        let kind = Kind::of(*tag)?;
        if tag & BIG == 0 {
            return Ok((Self::small(kind, Vec::new(), expires_at), rest));
        }
        let (id, rest) = rest.split_first_chunk().ok_or_else(|| damaged("head"))?;
        let (expiry, body) = rest.split_first_chunk().ok_or_else(|| damaged("head"))?;
        let expiry = u64::from_be_bytes(*expiry);
        let head = Self {
            kind,
            id: Some(u64::from_be_bytes(*id)),
            expires_at: (expiry != 0).then_some(expiry),
            body: Vec::new(),
        };
        Ok((head, body))
    }

    /// All but the body of what an entry holds: its `body` is empty.
    ///
    /// # Errors
    /// [`Failed::Reply`] if it is damaged.
    pub fn head(entry: &Entry<'_>) -> Result<Self, Failed> {
        Ok(Self::parts(entry.value, entry.expires_at)?.0)
    }

    /// True unless it has expired.
    pub(super) fn lives(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }

    fn encode(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(17 + self.body.len());
        match self.id {
            None => record.push(self.kind as u8),
            Some(id) => {
                record.push(self.kind as u8 | BIG);
                record.extend_from_slice(&id.to_be_bytes());
                record.extend_from_slice(&self.expires_at.unwrap_or(0).to_be_bytes());
            }
        }
        record.extend_from_slice(&self.body);
        record
    }
}

/// The record of a string of these parts.
#[must_use]
pub fn string_record(parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut record = Vec::with_capacity(1 + len);
    record.push(STRING);
    parts.iter().for_each(|part| record.extend_from_slice(part));
    record
}

/// Key of an expiry in [`Space::Expiries`], of a key in the keyspace of that number.
pub(crate) fn expiry_key(expires_at: u64, place: usize, key: &[u8]) -> Vec<u8> {
    [
        &expires_at.to_be_bytes()[..],
        &(place as u16).to_be_bytes(),
        key,
    ]
    .concat()
}

impl Tx<'_> {
    /// The value of `key` in database `db`, unless it has expired.
    ///
    /// # Errors
    /// [`Failed::Read`] and [`Failed::Reply`]
    pub fn load_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, Failed> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::decode(entry.value, entry.expires_at)
        })?;
        match found.transpose()? {
            Some(value) => self.living(db, key, value),
            None => Ok(None),
        }
    }

    /// As [`load_from`](Self::load_from), without the body, which is not read: its `body` is empty.
    ///
    /// # Errors
    /// As there.
    pub fn load_head_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, Failed> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::parts(entry.value, entry.expires_at).map(|(head, _)| head)
        })?;
        match found.transpose()? {
            Some(head) => self.living(db, key, head),
            None => Ok(None),
        }
    }

    /// As [`load_head_from`](Self::load_head_from), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn load_head(&mut self, key: &[u8]) -> Result<Option<Value>, Failed> {
        self.load_head_from(self.db, key)
    }

    /// `value`, which is that of `key`, unless it has expired.
    fn living(&mut self, db: usize, key: &[u8], value: Value) -> Result<Option<Value>, Failed> {
        if value.lives(self.now) {
            return Ok(Some(value));
        }
        if self.writes {
            // Who puts something in its place knows nothing of its elements.
            // Who watches the key finds out by itself that it has expired.
            self.quietly(|tx| tx.erase_from(db, key, &value))?;
        }
        Ok(None)
    }

    /// Calls `f` with the string under `key` and its expiry, in place, if there is one.
    ///
    /// # Errors
    /// [`Failed::wrong_type`] and others.
    pub fn string_with<R>(
        &mut self,
        key: &[u8],
        f: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Result<Option<R>, Failed> {
        let db = self.db;
        let found = self.get_with(Space::Keys(db), key, |entry| {
            match entry.value.split_first() {
                Some((&STRING, bytes)) => Ok(f(bytes, entry.expires_at)),
                _ => Err(Value::parts(entry.value, entry.expires_at).map(|(head, _)| head)),
            }
        })?;
        match found {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(head)) => match self.living(db, key, head?)? {
                Some(_) => Err(Failed::wrong_type()),
                None => Ok(None),
            },
        }
    }

    /// Puts a string's record, made by [`string_record`], under `key`, in place of whatever is there.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn put_string(&mut self, key: &[u8], record: Vec<u8>, expires_at: Option<u64>) -> Outcome {
        let db = self.db;
        // Only what is large leaves something behind.
        if self.data().any_large() {
            let before = self.load_head_from(db, key)?;
            self.unlink(db, key, before.as_ref(), None)?;
        }
        self.put(Space::Keys(db), key, record, expires_at)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`load_from`](Self::load_from).
    pub fn load(&mut self, key: &[u8]) -> Result<Option<Value>, Failed> {
        self.load_from(self.db, key)
    }

    /// The value of `key`, which is of that kind if it is there.
    ///
    /// # Errors
    /// [`Failed::wrong_type`]
    pub fn load_kind(&mut self, key: &[u8], kind: Kind) -> Result<Option<Value>, Failed> {
        match self.load(key)? {
            Some(value) if value.kind != kind => Err(Failed::wrong_type()),
            value => Ok(value),
        }
    }

    /// Makes `value` that of `key` in database `db`, in place of `before`, which [`load_from`](Self::load_from) has given. An id that `before` has, and
    /// `value` has not, goes with its elements.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn save_to(
        &mut self,
        db: usize,
        key: &[u8],
        before: Option<&Value>,
        value: &Value,
    ) -> Outcome {
        self.unlink(db, key, before, Some(value))?;
        if value.id.is_some() {
            let noted = before.is_some_and(|before| {
                before.id == value.id && before.expires_at == value.expires_at
            });
            if let Some(at) = value.expires_at.filter(|_| !noted) {
                let noted = expiry_key(at, self.order.place(db), key);
                self.put(Space::Expiries, &noted, Vec::new(), None)?;
            }
            return self.put(Space::Keys(db), key, value.encode(), None);
        }
        self.put(Space::Keys(db), key, value.encode(), value.expires_at)
    }

    /// As [`save_to`](Self::save_to), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn save(&mut self, key: &[u8], before: Option<&Value>, value: &Value) -> Outcome {
        self.save_to(self.db, key, before, value)
    }

    /// Takes `key` away, whose value [`load_from`](Self::load_from) has given; with its elements.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn erase_from(&mut self, db: usize, key: &[u8], before: &Value) -> Outcome {
        self.unlink(db, key, Some(before), None)?;
        self.delete(Space::Keys(db), key)
    }

    /// As [`erase_from`](Self::erase_from), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn erase(&mut self, key: &[u8], before: &Value) -> Outcome {
        self.erase_from(self.db, key, before)
    }

    /// Takes `key` away, whose value goes on under another key: its elements stay.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn forget(&mut self, db: usize, key: &[u8], value: &Value) -> Outcome {
        if let Some(at) = value.expires_at.filter(|_| value.id.is_some()) {
            let noted = expiry_key(at, self.order.place(db), key);
            self.delete(Space::Expiries, &noted)?;
        }
        self.delete(Space::Keys(db), key)
    }

    /// What a large value leaves behind when `after` takes its place under `key`.
    fn unlink(
        &mut self,
        db: usize,
        key: &[u8],
        before: Option<&Value>,
        after: Option<&Value>,
    ) -> Outcome {
        let Some((before, id)) = before.and_then(|before| Some((before, before.id?))) else {
            return Ok(());
        };
        let same = after.filter(|after| after.id == Some(id));
        if same.is_none() {
            self.put(Space::Garbage, &id.to_be_bytes(), Vec::new(), None)?;
        }
        if let Some(at) = before.expires_at
            && same.is_none_or(|after| after.expires_at != Some(at))
        {
            let noted = expiry_key(at, self.order.place(db), key);
            self.delete(Space::Expiries, &noted)?;
        }
        Ok(())
    }
}
