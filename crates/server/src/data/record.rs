//! The record of a key: a string, a whole small collection, or the head of a large one.
//!
//! ```text
//! tag (1) | body                                               the record itself expires
//! tag | ITEM (1) | flags (4) | cas (8) | marks (1) | body      a string that a memcached client has stored (`items::record`)
//! tag | LARGE (1) | id (8) | expiry (8, 0: none) | body        big-endian; keys in Space::Elements begin with the id
//! ```
//!
//! The store deletes expired records by itself, and knows nothing of elements. The expiry of a
//! large collection is therefore in its head, and in `Space::Expiries`, where the sweeper finds it.

use crate::data::spaces::DATABASES;
use crate::error::CommandError;
use bristlecone_store::{Entry, Longer, MAX_KEY_BYTES};
use sha2::{Digest, Sha256};

/// The bit in the tag of a large collection.
const LARGE: u8 = 0x80;
/// The tag of a string that a memcached client has stored, as an item.
pub(crate) const ITEM: u8 = 0x40 | STRING;
/// The head of such a record, between its tag and the string: flags, cas, marks.
pub(crate) type ItemHead = [u8; 13];
/// The longest small collection in a record, in bytes, without the tag.
pub(crate) const MAX_BODY: usize = 4 << 10;
/// The longest record in bytes of anything but a string.
pub(crate) const MAX_OF_OTHERS: u64 = 1 + MAX_BODY as u64;
/// The tag of strings.
pub(crate) const STRING: u8 = Kind::String as u8;

/// The type of a value.
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
    /// Returns its name, as `TYPE` replies it.
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

    /// Returns the kind that a tag encodes.
    pub(crate) fn of(tag: u8) -> Result<Self, CommandError> {
        [
            Self::String,
            Self::List,
            Self::Set,
            Self::SortedSet,
            Self::Hash,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == tag & !LARGE)
        .ok_or_else(|| CommandError::damaged(&format!("tag {tag:#x} of a value")))
    }
}

/// The value of a key, or its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its type.
    pub kind: Kind,
    /// The id of its elements, if it is large.
    pub id: Option<u64>,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
    /// The data of its kind in the record: the whole value of a small one, or the head of a large
    /// one.
    pub body: Vec<u8>,
    /// The head of a string that a memcached client has stored.
    pub(crate) item: Option<ItemHead>,
}

impl Value {
    /// Returns a value that its record holds whole.
    #[must_use]
    pub fn small(kind: Kind, body: Vec<u8>, expires_at: Option<u64>) -> Self {
        Self {
            kind,
            id: None,
            expires_at,
            body,
            item: None,
        }
    }

    pub(crate) fn decode(record: &[u8], expires_at: Option<u64>) -> Result<Self, CommandError> {
        let (mut value, body) = Self::parts(record, expires_at)?;
        value.body = body.to_vec();
        Ok(value)
    }

    /// Splits a record into its head, whose `body` is empty, and its body.
    pub(crate) fn parts(
        record: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(Self, &[u8]), CommandError> {
        let (tag, rest) = record
            .split_first()
            .ok_or_else(|| CommandError::damaged("empty value"))?;
        if *tag == ITEM {
            let (item, body) = rest
                .split_first_chunk()
                .ok_or_else(|| CommandError::damaged("head of an item"))?;
            let mut head = Self::small(Kind::String, Vec::new(), expires_at);
            head.item = Some(*item);
            return Ok((head, body));
        }
        let kind = Kind::of(*tag)?;
        if tag & LARGE == 0 {
            return Ok((Self::small(kind, Vec::new(), expires_at), rest));
        }
        let (id, rest) = rest
            .split_first_chunk()
            .ok_or_else(|| CommandError::damaged("head"))?;
        let (expiry, body) = rest
            .split_first_chunk()
            .ok_or_else(|| CommandError::damaged("head"))?;
        let expiry = u64::from_be_bytes(*expiry);
        let head = Self {
            kind,
            id: Some(u64::from_be_bytes(*id)),
            expires_at: (expiry != 0).then_some(expiry),
            body: Vec::new(),
            item: None,
        };
        Ok((head, body))
    }

    /// Returns the head of a record: its `body` is empty.
    ///
    /// # Errors
    /// [`CommandError::damaged`]
    pub fn head(entry: &Entry<'_>) -> Result<Self, CommandError> {
        Ok(Self::parts(entry.value, entry.expires_at)?.0)
    }

    /// Returns the head of a record that is too long for anything but a string.
    pub(crate) fn long_string(record: &Longer) -> Self {
        Self::small(Kind::String, Vec::new(), record.expires_at)
    }

    /// Returns true unless it has expired.
    pub(crate) fn lives(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(17 + self.body.len());
        match (self.id, self.item) {
            (None, None) => record.push(self.kind as u8),
            (None, Some(item)) => {
                record.push(ITEM);
                record.extend_from_slice(&item);
            }
            (Some(id), _) => {
                record.push(self.kind as u8 | LARGE);
                record.extend_from_slice(&id.to_be_bytes());
                record.extend_from_slice(&self.expires_at.unwrap_or(0).to_be_bytes());
            }
        }
        record.extend_from_slice(&self.body);
        record
    }
}

/// Returns true if a record is the head of a large collection, which has elements in other records.
pub(crate) fn is_large(record: &[u8]) -> bool {
    record.first().is_some_and(|tag| tag & LARGE != 0)
}

/// Returns the bytes of a string's record; `None` if it is another value's.
#[must_use]
pub fn string_of(record: &[u8]) -> Option<&[u8]> {
    match record.split_first()? {
        (&STRING, bytes) => Some(bytes),
        (&ITEM, rest) => rest.get(size_of::<ItemHead>()..),
        _ => None,
    }
}

/// Returns true if records that begin with this tag are strings.
pub(crate) fn is_string(tag: u8) -> bool {
    tag == STRING || tag == ITEM
}

/// Returns the length of what is before the string in a record that begins with this tag.
pub(crate) fn head_len(tag: u8) -> u64 {
    let item = if tag == ITEM {
        size_of::<ItemHead>()
    } else {
        0
    };
    1 + item as u64
}

/// Returns the record of the string that these parts make together.
#[must_use]
pub fn string_record(parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut record = Vec::with_capacity(1 + len);
    record.push(STRING);
    parts.iter().for_each(|part| record.extend_from_slice(part));
    record
}

/// The longest key that an entry in `Space::Expiries` has in its own key. Of a longer one it has a
/// digest there, and the key is its value.
const MAX_NOTED: usize = MAX_KEY_BYTES - size_of::<u64>() - size_of::<u16>();
/// The bit in the place of an entry that has a digest.
const DIGEST: u16 = 0x8000;

/// Returns the key in `Space::Expiries` of a collection's expiry; `place` is the number of the
/// database's keyspace.
pub(crate) fn expiry_key(expires_at: u64, place: usize, key: &[u8]) -> Vec<u8> {
    let (at, place) = (expires_at.to_be_bytes(), place as u16);
    if key.len() > MAX_NOTED {
        let digest = Sha256::digest(key);
        return [&at[..], &(place | DIGEST).to_be_bytes(), &digest].concat();
    }
    [&at[..], &place.to_be_bytes(), key].concat()
}

/// Returns the value in `Space::Expiries` of the expiry of a collection under `key`.
pub(crate) fn expiry_value(key: &[u8]) -> &[u8] {
    if key.len() > MAX_NOTED { key } else { &[] }
}

/// Splits the key of an entry in `Space::Expiries` into the expiry, the number of the database's
/// keyspace, and the collection's key; without that if it is the entry's value.
pub(crate) fn parse_expiry(entry: &[u8]) -> Result<(u64, usize, Option<&[u8]>), CommandError> {
    let bad = || CommandError::damaged("entry of an expiry");
    let (at, rest) = entry.split_first_chunk().ok_or_else(bad)?;
    let (place, key) = rest.split_first_chunk().ok_or_else(bad)?;
    let (at, place) = (u64::from_be_bytes(*at), u16::from_be_bytes(*place));
    let key = (place & DIGEST == 0).then_some(key);
    let place = usize::from(place & !DIGEST);
    if place >= DATABASES {
        return Err(bad());
    }
    Ok((at, place, key))
}
