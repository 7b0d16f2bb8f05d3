//! The common parts of hashes, sets, sorted sets and lists: the record of a small collection, the
//! keys of the elements of a large one, loading and saving.
//!
//! A collection is small up to `MAX_ENTRIES` entries of `MAX_ITEM` bytes each and `MAX_BODY`
//! bytes in all. The record of a small one is a sequence of strings, each after its length (2
//! bytes, big-endian). A large collection stays large.

use crate::data::record::{Kind, MAX_BODY, Value};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use bristlecone_store::MAX_KEY_BYTES;
use std::ops::Range;

/// The most entries of a small collection.
pub(crate) const MAX_ENTRIES: usize = 128;
/// The longest string in a small collection, in bytes.
pub(crate) const MAX_ITEM: usize = 1 << 10;

/// The strings in one record.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    body: Vec<u8>,
    items: usize,
}

impl Packed {
    /// Parses a record of strings in groups of `width`.
    pub fn open(body: Vec<u8>, width: usize) -> Result<Self, CommandError> {
        let mut rest = body.as_slice();
        let mut items = 0;
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk().ok_or_else(torn)?;
            rest = after
                .get(usize::from(u16::from_be_bytes(*length))..)
                .ok_or_else(torn)?;
            items += 1;
        }
        if items % width != 0 {
            return Err(torn());
        }
        Ok(Self { body, items })
    }

    /// Returns the record.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.items
    }

    /// Returns the length of the record in bytes.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns the strings, each with its place in the record.
    pub fn items(&self) -> Items<'_> {
        Items {
            body: &self.body,
            at: 0,
        }
    }

    /// Returns the strings in pairs: the place of both, the first, the second.
    pub fn pairs(&self) -> impl Iterator<Item = (Range<usize>, &[u8], &[u8])> {
        let mut items = self.items();
        std::iter::from_fn(move || {
            let (first, second) = (items.next()?, items.next()?);
            Some((first.0.start..second.0.end, first.1, second.1))
        })
    }

    /// Replaces the `removed` strings at `place` by `new`, if that leaves the collection small.
    /// Returns false if it does not.
    pub fn splice(
        &mut self,
        place: Range<usize>,
        removed: usize,
        new: &[&[u8]],
        width: usize,
    ) -> bool {
        let items = self.items - removed + new.len();
        let added: usize = new.iter().map(|item| 2 + item.len()).sum();
        let fits = new.is_empty()
            || items <= MAX_ENTRIES * width
                && new.iter().all(|item| item.len() <= MAX_ITEM)
                && self.body.len() - place.len() + added <= MAX_BODY;
        if fits {
            let new = new
                .iter()
                .flat_map(|item| [&(item.len() as u16).to_be_bytes()[..], item].concat());
            self.body.splice(place, new);
            self.items = items;
        }
        fits
    }
}

fn torn() -> CommandError {
    CommandError::damaged("a small collection")
}

/// Returns the error of a large collection that has other elements than its head says.
pub(crate) fn incomplete(kind: Kind, head: u64, found: u64) -> CommandError {
    CommandError::reply(format!(
        "ERR the pool is damaged: a {} of {head} elements has {found}; delete the key, or let `bristlecone repair` make a database of what is whole",
        kind.name()
    ))
}

/// Returns the number of strings in an entry of a small collection.
pub(crate) fn width(kind: Kind) -> usize {
    match kind {
        Kind::Hash | Kind::SortedSet => 2,
        _ => 1,
    }
}

/// The content of a hash, a set or a sorted set.
#[derive(Debug)]
pub(crate) enum Content {
    /// All entries.
    Small(Packed),
    /// The id of the elements, and the number of entries.
    Large { id: u64, count: u64 },
}

impl Content {
    /// Takes the content of a value out of it.
    pub fn take(value: &mut Value) -> Result<Self, CommandError> {
        match value.id {
            Some(id) => {
                let [count] = numbers(&value.body)?;
                Ok(Self::Large { id, count })
            }
            None => {
                let body = std::mem::take(&mut value.body);
                Ok(Self::Small(Packed::open(body, width(value.kind))?))
            }
        }
    }

    /// Returns the number of entries of `width` strings.
    pub fn len(&self, width: usize) -> u64 {
        match self {
            Self::Small(packed) => (packed.len() / width) as u64,
            Self::Large { count, .. } => *count,
        }
    }

    /// Returns the bytes that it takes in memory, besides its own size.
    pub fn held(&self) -> usize {
        match self {
            Self::Small(packed) => packed.bytes(),
            Self::Large { .. } => 0,
        }
    }

    /// Returns the value to be saved; `None` if there are no entries.
    pub fn into_value(self, kind: Kind, expires_at: Option<u64>) -> Option<Value> {
        let (id, body) = match self {
            Self::Small(packed) if packed.len() > 0 => (None, packed.into_body()),
            Self::Large { id, count } if count > 0 => (Some(id), count.to_be_bytes().to_vec()),
            _ => return None,
        };
        Some(Value {
            kind,
            id,
            expires_at,
            body,
            item: None,
        })
    }
}

/// An iterator over strings and their places.
#[derive(Clone, Debug)]
pub(crate) struct Items<'p> {
    body: &'p [u8],
    at: usize,
}

impl<'p> Iterator for Items<'p> {
    type Item = (Range<usize>, &'p [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        let (length, _) = self.body.get(start..)?.split_first_chunk()?;
        let end = start + 2 + usize::from(u16::from_be_bytes(*length));
        let item = self.body.get(start + 2..end)?;
        self.at = end;
        Some((start..end, item))
    }
}

/// Returns the key of an element: the collection's id, `parts`, then `name`, which the client has
/// given.
pub(crate) fn element(id: u64, parts: &[&[u8]], name: &[u8]) -> Result<Vec<u8>, CommandError> {
    let mut key = id.to_be_bytes().to_vec();
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key.extend_from_slice(name);
    if key.len() > MAX_KEY_BYTES {
        let most = MAX_KEY_BYTES - (key.len() - name.len());
        return Err(CommandError::reply(format!(
            "ERR a field or member of {} bytes: at most {most} are possible",
            name.len()
        )));
    }
    Ok(key)
}

/// Returns the place of a field or member in the order of a large collection's elements. Places are
/// evenly spread, and never change: scans continue from them, and random elements are chosen by
/// them.
pub(crate) fn spread(name: &[u8]) -> u32 {
    let mut hash = crc32c::crc32c(name);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x846c_a68b);
    hash ^ (hash >> 16)
}

/// Returns the collection under `key`. A large one is read with its elements on one snapshot.
pub(crate) fn load(tx: &mut Tx<'_>, key: &[u8], kind: Kind) -> Result<Option<Value>, CommandError> {
    let value = tx.load_kind(key, kind)?;
    if tx.writes || value.as_ref().is_none_or(|value| value.id.is_none()) {
        return Ok(value);
    }
    tx.snapshot();
    // It was counted as looked up.
    let counts = std::mem::replace(&mut tx.counts, false);
    let again = tx.load_kind(key, kind);
    tx.counts = counts;
    again
}

/// Saves a collection that has changed, and replaces `before`, whose body may be missing if it was
/// small. With `None` the key is deleted. The head of a large collection is written only if it
/// differs.
pub(crate) fn save(
    tx: &mut Tx<'_>,
    key: &[u8],
    before: Option<&Value>,
    after: Option<&Value>,
) -> Outcome {
    match (before, after) {
        (None, None) => Ok(()),
        (Some(before), None) => tx.erase(key, before),
        (_, Some(after)) if after.id.is_some() && before == Some(after) => {
            tx.touch(key);
            Ok(())
        }
        (_, Some(after)) => tx.save(key, before, after),
    }
}

/// Parses the numbers in the head of a large collection.
pub(crate) fn numbers<const N: usize>(body: &[u8]) -> Result<[u64; N], CommandError> {
    let mut numbers = [0; N];
    if body.len() != 8 * N {
        return Err(CommandError::damaged("the head of a large collection"));
    }
    for (number, bytes) in numbers.iter_mut().zip(body.chunks_exact(8)) {
        *number = u64::from_be_bytes(bytes.try_into().unwrap_or_default());
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_strings_until_it_is_large() {
        let mut packed = Packed::default();
        assert!(packed.splice(0..0, 0, &[b"a", b"1"], 2));
        assert!(packed.splice(0..0, 0, &[b"bc", b""], 2));
        let pairs: Vec<_> = packed.pairs().map(|(_, a, b)| (a, b)).collect();
        assert_eq!(pairs, [(&b"bc"[..], &b""[..]), (b"a", b"1")]);
        let place = packed.pairs().next().unwrap().0;
        assert!(packed.splice(place, 2, &[], 2));
        assert_eq!(packed.len(), 2);
        let again = Packed::open(packed.into_body(), 2).unwrap();
        assert_eq!(
            again.items().map(|(_, item)| item).collect::<Vec<_>>(),
            [b"a", b"1"]
        );
        assert!(!Packed::default().splice(0..0, 0, &[&[0; MAX_ITEM + 1]], 1));
        let mut full = Packed::default();
        while full.splice(0..0, 0, &[b"x"], 1) {}
        assert_eq!(full.len(), MAX_ENTRIES);
        let mut full = Packed::default();
        while full.splice(0..0, 0, &[&[1; 500]], 1) {}
        assert_eq!(full.bytes(), 8 * 502);
        assert!(Packed::open(vec![0], 1).is_err());
        assert!(Packed::open(vec![0, 2, 1], 1).is_err());
        assert!(Packed::open(vec![0, 1, 1], 2).is_err());
    }

    #[test]
    fn elements_keys_have_a_longest_name() {
        assert_eq!(element(1, &[b"m"], b"x").unwrap(), b"\0\0\0\0\0\0\0\x01mx");
        let long = vec![0; MAX_KEY_BYTES - 9];
        assert!(element(1, &[b"m"], &long).is_ok());
        let error = element(1, &[b"mm"], &long).unwrap_err().to_string();
        assert!(error.ends_with("at most 65526 are possible"), "{error}");
    }
}
