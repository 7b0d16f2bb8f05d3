//! The index of a store: (keyspace, key) to the offset of the newest version's record, in any [engine](Engine).
//!
//! ```text
//! index key | keyspace (32, big-endian) | key ...
//! ```
//!
//! Of which kind it is, the pool's root table says, at the index's root.

use crate::error::StoreError;
use bristlecone_index::engine::{Engine, EngineInfo, EngineKind};
use bristlecone_pmem::pool::RootKind;
use bristlecone_pmem::{Media, Pool};
use std::sync::Arc;

/// Longest key in bytes.
pub const KEY_MOST: usize = 64 << 10;
/// Bytes of a keyspace's number before a key.
pub(crate) const PREFIX: usize = 4;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Longest index key that is built without allocating.
const SHORT: usize = 124;

const _: () = assert!(PREFIX + KEY_MOST <= bristlecone_index::MAX_KEY);

/// An index key.
pub(crate) enum IndexKey {
    Short([u8; PREFIX + SHORT], usize),
    Long(Vec<u8>),
}

impl IndexKey {
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

/// Index keys of one keyspace, in one piece of memory; each begins at a word, so that it is summed fast.
pub(crate) struct IndexKeys {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl IndexKeys {
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

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (self.places.iter()).map(|(start, end)| &self.bytes[*start..*end])
    }
}

/// The keyspace and the key of an index key, if it is one.
pub(crate) fn split(index_key: &[u8]) -> Option<(u32, &[u8])> {
    let (prefix, key) = index_key.split_first_chunk::<PREFIX>()?;
    Some((u32::from_be_bytes(*prefix), key))
}

/// An index, the name of its design, and its leaf size.
pub(crate) type Opened = (Box<dyn Engine>, String, u32);

/// The leaf size to make an index of that kind with.
///
/// # Errors
/// [`StoreError::NodeBytes`]
pub(crate) fn node_bytes(info: EngineInfo, asked: Option<u32>) -> Result<u32, StoreError> {
    let asked = asked.unwrap_or(info.default_node_bytes);
    if info.node_bytes.contains(&asked) {
        return Ok(asked);
    }
    Err(StoreError::NodeBytes {
        design: info.name,
        asked,
        there: info.node_bytes,
    })
}

/// Opens the index at root `root`, if it is of one of these kinds.
pub(crate) fn open<M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
    kinds: &[&dyn EngineKind<M>],
    recovery_threads: usize,
) -> Result<Opened, StoreError> {
    use bristlecone_pmem::pool::RootError;
    let there = pool.roots().into_iter().find(|info| info.name == root);
    let RootKind {
        design, node_bytes, ..
    } = there
        .ok_or_else(|| RootError::NotFound(root.to_owned()))?
        .kind;
    let Some(kind) = kinds.iter().find(|kind| kind.info().name == design) else {
        return Err(StoreError::NoDesign {
            design,
            there: kinds.iter().map(|kind| kind.info().name).collect(),
        });
    };
    let index = kind.open(pool, root, node_bytes, recovery_threads)?;
    Ok((index, design, node_bytes))
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
