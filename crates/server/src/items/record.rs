//! The record of an item.
//!
//! ```text
//! key --> flags (4) | cas (8) | marks (1) | value      big-endian
//! ```
//!
//! The store's expiry of a record is that of the item and [`KEPT`] later: until then a command that
//! finds it tells that it has expired, which memcached counts. In a database it is the item's.

use crate::data::record::ItemHead;
use bristlecone_store::Entry;

/// How long the record of an expired item is kept, in ms.
pub(super) const KEPT: u64 = 60_000;
/// Bytes before the value.
const HEAD: usize = size_of::<ItemHead>();

/// The item is stale: `md` with `I`.
pub const STALE: u8 = 1;
/// A client has been told that it is the one to make the item anew.
pub const WON: u8 = 2;
/// The key was given in base64.
pub const BINARY: u8 = 4;

/// An item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The client's flags.
    pub flags: u32,
    /// Changes with every change of the item. No other item ever has it.
    pub cas: u64,
    /// Bits: 1, stale; 2, a client has been told to make it anew; 4, the key was given in base64.
    pub marks: u8,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
    /// The value.
    pub value: &'a [u8],
}

/// The pool holds a record that is not an item's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl<'a> Item<'a> {
    pub(super) fn decode(entry: Entry<'a>) -> Result<Self, Damaged> {
        let rest = entry.value;
        let (flags, rest) = rest.split_first_chunk().ok_or(Damaged)?;
        let (cas, rest) = rest.split_first_chunk().ok_or(Damaged)?;
        let (marks, value) = rest.split_first().ok_or(Damaged)?;
        Ok(Self {
            flags: u32::from_be_bytes(*flags),
            cas: u64::from_be_bytes(*cas),
            marks: *marks,
            expires_at: entry.expires_at.map(|at| at.saturating_sub(KEPT)),
            value,
        })
    }

    /// Returns true if it has this mark.
    #[must_use]
    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Returns the record of the same item with another cas, marks and expiry.
    pub(crate) fn with(&self, cas: u64, marks: u8, expires_at: Option<u64>) -> Record {
        let head = Item {
            cas,
            marks,
            expires_at,
            ..*self
        };
        Record::new(&head, &[self.value])
    }

    /// Returns the seconds until it expires, begun ones included.
    #[must_use]
    pub fn seconds_left(&self, now: u64) -> Option<u64> {
        seconds_left(self.expires_at, now)
    }
}

/// Returns the seconds until then, begun ones included.
pub(crate) fn seconds_left(expires_at: Option<u64>, now: u64) -> Option<u64> {
    expires_at.map(|at| at.saturating_sub(now).div_ceil(1000))
}

/// A record to be put.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub bytes: Vec<u8>,
    /// Their number, which stays when they are taken.
    pub len: usize,
    pub cas: u64,
    pub expires_at: Option<u64>,
}

impl Record {
    /// Returns the record of an item whose value is these parts together, in the place of its own.
    pub fn new(item: &Item<'_>, parts: &[&[u8]]) -> Self {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(HEAD + len);
        bytes.extend_from_slice(&item.flags.to_be_bytes());
        bytes.extend_from_slice(&item.cas.to_be_bytes());
        bytes.push(item.marks);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Self {
            len: bytes.len(),
            bytes,
            cas: item.cas,
            expires_at: item.expires_at,
        }
    }
}

/// Returns the expiry that the store is told of a record in the items' own keyspace.
pub(super) fn kept_until(expires_at: Option<u64>) -> Option<u64> {
    expires_at.map(|at| at.saturating_add(KEPT))
}

/// Returns the size of an item as memcached counts it: its head, its key with a terminator, flags
/// that are not 0, the value with its line end.
pub(crate) fn size(key: usize, flags: u32, value: usize) -> usize {
    let flags = if flags == 0 { 0 } else { 4 };
    48 + 8 + (key + 1) + flags + value.saturating_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_as_they_were_written() {
        let item = Item {
            flags: 0xdead_beef,
            cas: u64::MAX - 1,
            marks: STALE | BINARY,
            expires_at: Some(1000),
            value: b"",
        };
        let record = Record::new(&item, &[b"a", b"", b"bc"]);
        assert_eq!(kept_until(record.expires_at), Some(1000 + KEPT));
        let read = Item::decode(Entry {
            value: &record.bytes,
            expires_at: kept_until(record.expires_at),
        });
        let whole = Item {
            value: b"abc",
            ..item
        };
        assert_eq!(read, Ok(whole));
        assert!(whole.is(STALE) && !whole.is(WON));
        assert_eq!(
            (whole.seconds_left(999), whole.seconds_left(0)),
            (Some(1), Some(1))
        );
        for len in 0..HEAD {
            let entry = Entry {
                value: &record.bytes[..len],
                expires_at: None,
            };
            assert_eq!(Item::decode(entry), Err(Damaged), "{len}");
        }
    }
}
