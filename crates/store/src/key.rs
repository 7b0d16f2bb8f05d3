//! Index keys: the number of a keyspace, then the user's key.
//!
//! ```text
//! index key | keyspace (32 bits, big-endian) | key ...
//! ```
//!
//! Big-endian numbers keep the keys of a keyspace together and in order.

use crate::limits::MAX_KEY_BYTES;

/// Number of the catalogue, the keyspace that has the names of all others.
pub const CATALOGUE: u32 = 0;
/// Keyspaces have numbers below this one; those from here on are the engines' own.
pub const FIRST_RESERVED: u32 = u32::MAX - 2;
/// Bytes of the keyspace's number.
pub const PREFIX: usize = 4;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Longest key whose index key is built without allocating.
const SHORT: usize = 124;

const _: () = assert!(PREFIX + MAX_KEY_BYTES <= bristlecone_index::MAX_KEY);

/// An index key.
pub enum IndexKey {
    /// The bytes, and how many there are.
    Short([u8; PREFIX + SHORT], usize),
    /// One that was allocated.
    Long(Vec<u8>),
}

impl IndexKey {
    /// The index key of a key.
    pub fn new(keyspace: u32, key: &[u8]) -> Self {
        let prefix = keyspace.to_be_bytes();
        if key.len() <= SHORT {
            let mut bytes = [0; PREFIX + SHORT];
            bytes[..PREFIX].copy_from_slice(&prefix);
            bytes[PREFIX..PREFIX + key.len()].copy_from_slice(key);
            Self::Short(bytes, PREFIX + key.len())
        } else {
            Self::Long([&prefix, key].concat())
        }
    }
}

impl std::ops::Deref for IndexKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..*len],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Index keys of one keyspace in one allocation. Each begins at a word boundary, where checksums
/// are fastest.
pub struct IndexKeys {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl IndexKeys {
    /// The index keys of these keys.
    pub fn new<'k>(keyspace: u32, keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone) -> Self {
        let room = keys.clone().map(|key| PREFIX + key.len() + WORD).sum();
        let (mut bytes, mut places) = (Vec::with_capacity(room), Vec::with_capacity(keys.len()));
        let prefix = keyspace.to_be_bytes();
        for key in keys {
            let start = bytes.len();
            bytes.extend_from_slice(&prefix);
            bytes.extend_from_slice(key);
            places.push((start, bytes.len()));
            bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        }
        Self { bytes, places }
    }

    /// Returns them, in the order in which the keys were given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (self.places.iter()).map(|(start, end)| &self.bytes[*start..*end])
    }
}

/// Returns the keyspace's number and the key, or `None` if the index key is too short.
pub fn split(index_key: &[u8]) -> Option<(u32, &[u8])> {
    let (prefix, key) = index_key.split_first_chunk::<PREFIX>()?;
    Some((u32::from_be_bytes(*prefix), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_keys_keep_the_order_of_keyspace_and_key() {
        let long = vec![7; SHORT + 1];
        let keys: [(u32, &[u8]); 6] = [
            (0, b"z"),
            (1, b""),
            (1, b"a"),
            (1, b"ab"),
            (1, &long[..SHORT]),
            (256, &long),
        ];
        for (keyspace, key) in keys {
            assert_eq!(split(&IndexKey::new(keyspace, key)), Some((keyspace, key)));
        }
        let together = IndexKeys::new(1, keys.iter().map(|(_, key)| *key));
        for (together, (_, key)) in together.iter().zip(keys) {
            assert_eq!(*together, *IndexKey::new(1, key));
        }
        let a = IndexKey::new(255, b"zzz");
        let b = IndexKey::new(256, b"");
        assert!(*a < *b);
        assert_eq!(split(b"abc"), None);
    }
}
