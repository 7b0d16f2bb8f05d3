//! The items by last use, under a budget of bytes.
//!
//! Every item's key is in memory, with its size: a lookup that bumps an item, and an eviction, take
//! one lock for a moment and read nothing. The entry of an item that has expired goes once it is
//! the least recently used one, that of one that was flushed when its record is deleted.

use ahash::RandomState;
use lru::LruCache;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that an item takes besides its key and its value.
const OVERHEAD: usize = 56;

#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: usize,
    cas: u64,
}

#[derive(Debug)]
struct Inner {
    items: LruCache<Box<[u8]>, Known, RandomState>,
    bytes: usize,
}

/// The items by last use.
#[derive(Debug)]
pub(super) struct Lru {
    inner: Mutex<Inner>,
    budget: usize,
}

impl Lru {
    /// Returns an empty list with this budget.
    pub fn new(budget: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                items: LruCache::unbounded_with_hasher(RandomState::new()),
                bytes: 0,
            }),
            budget,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of all items.
    pub fn bytes(&self) -> usize {
        self.inner().bytes
    }

    /// Notes items that were stored: key, length of the record, cas. Of two records of one item the
    /// one with the higher cas is there: they may come here in the other order.
    pub fn stored<'k>(&self, items: impl Iterator<Item = (&'k [u8], usize, u64)>) {
        let mut inner = self.inner();
        for (key, record, cas) in items {
            let bytes = OVERHEAD + key.len() + record;
            if let Some(known) = inner.items.get_mut(key) {
                if known.cas > cas {
                    continue;
                }
                let before = std::mem::replace(known, Known { bytes, cas }).bytes;
                inner.bytes -= before;
            } else {
                inner.items.put(key.into(), Known { bytes, cas });
            }
            inner.bytes += bytes;
        }
    }

    /// Notes items that were read.
    pub fn read<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut inner = self.inner();
        for key in keys {
            inner.items.promote(key);
        }
    }

    /// Notes that an item was deleted, which had this cas.
    pub fn deleted(&self, key: &[u8], cas: u64) {
        let mut inner = self.inner();
        if inner.items.peek(key).is_some_and(|known| known.cas <= cas)
            && let Some(known) = inner.items.pop(key)
        {
            inner.bytes -= known.bytes;
        }
    }

    /// Removes the least recently used item if all of them exceed the budget. Returns its key and
    /// its cas.
    pub fn pop_surplus(&self) -> Option<(Box<[u8]>, u64)> {
        let mut inner = self.inner();
        if inner.bytes <= self.budget {
            return None;
        }
        let (key, known) = inner.items.pop_lru()?;
        inner.bytes -= known.bytes;
        Some((key, known.cas))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(lru: &Lru, key: &[u8], cas: u64) {
        lru.stored(std::iter::once((key, 100, cas)));
    }

    #[test]
    fn who_was_not_used_for_longest_goes_first() {
        let lru = Lru::new(3 * (OVERHEAD + 101));
        for (cas, key) in [b"a", b"b", b"c"].into_iter().enumerate() {
            stored(&lru, key, cas as u64);
        }
        assert_eq!(lru.pop_surplus(), None);
        lru.read([&b"a"[..], b"unknown"].into_iter());
        stored(&lru, b"d", 3);
        let gone = lru.pop_surplus().unwrap();
        assert_eq!((&*gone.0, gone.1), (&b"b"[..], 1));
        assert_eq!(lru.pop_surplus(), None);
        // An older record of an item changes nothing, and neither does its deletion.
        stored(&lru, b"d", 2);
        lru.deleted(b"d", 2);
        assert_eq!(lru.bytes(), 3 * (OVERHEAD + 101));
        lru.deleted(b"d", 3);
        assert_eq!(lru.bytes(), 2 * (OVERHEAD + 101));
        stored(&lru, b"e", 9);
        stored(&lru, b"f", 10);
        assert_eq!(&*lru.pop_surplus().unwrap().0, b"c");
    }
}
