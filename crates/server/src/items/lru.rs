//! The items by last use, under a budget of bytes.
//!
//! Every item's key is in memory, with its size: a lookup that bumps an item takes one lock for a
//! moment and reads nothing. The items are in parts by their keys' hashes, each under a lock of its
//! own: when a part's table grows, it is that part alone that others wait for. An eviction looks at
//! the oldest item of every part. The entry of an item that has expired goes once it is the least
//! recently used one, that of one that was flushed when its record is deleted.

use ahash::RandomState;
use lru::LruCache;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that an item takes besides its key and its value.
const OVERHEAD: usize = 56;
/// The number of parts.
const PARTS: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: usize,
    cas: u64,
    /// The time of its last use, in uses of all items.
    used: u64,
}

type Part = LruCache<Box<[u8]>, Known, RandomState>;

/// The items by last use.
#[derive(Debug)]
pub(super) struct Lru {
    parts: Box<[Mutex<Part>]>,
    part_of: RandomState,
    /// The bytes of all items. Those of one are counted under its part's lock.
    bytes: AtomicUsize,
    /// The number of uses.
    uses: AtomicU64,
    budget: usize,
}

fn locked(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lru {
    /// Returns an empty list with this budget.
    pub fn new(budget: usize) -> Self {
        let part = || Mutex::new(LruCache::unbounded_with_hasher(RandomState::new()));
        Self {
            parts: std::iter::repeat_with(part).take(PARTS).collect(),
            part_of: RandomState::new(),
            bytes: AtomicUsize::new(0),
            uses: AtomicU64::new(0),
            budget,
        }
    }

    /// Returns the part that a key is in.
    fn part(&self, key: &[u8]) -> MutexGuard<'_, Part> {
        let part = self.part_of.hash_one(key) as usize % PARTS;
        locked(&self.parts[part])
    }

    /// Returns the time of a use.
    fn use_now(&self) -> u64 {
        // ORDERING: Relaxed; two uses at the same time may be in either order.
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the bytes of all items.
    pub fn bytes(&self) -> usize {
        // ORDERING: Relaxed; a number by itself.
        self.bytes.load(Ordering::Relaxed)
    }

    fn count(&self, more: usize, less: usize) {
        // ORDERING: Relaxed, both; as in `bytes`. What is taken away was added under the same lock.
        self.bytes.fetch_add(more, Ordering::Relaxed);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
    }

    /// Notes items that were stored: key, length of the record, cas. Two stores of one item may
    /// come here in the other order, so the one with the higher cas counts. That is the one that is
    /// there, unless it passed a batch, which takes its numbers before it is committed: then the
    /// length is a wrong one until the item is stored again.
    pub fn stored<'k>(&self, items: impl Iterator<Item = (&'k [u8], usize, u64)>) {
        for (key, record, cas) in items {
            let bytes = OVERHEAD + key.len() + record;
            let used = self.use_now();
            let now = Known { bytes, cas, used };
            let mut part = self.part(key);
            let before = match part.get_mut(key) {
                Some(known) if known.cas > cas => {
                    known.used = used;
                    continue;
                }
                Some(known) => std::mem::replace(known, now).bytes,
                None => {
                    part.put(key.into(), now);
                    0
                }
            };
            self.count(bytes, before);
        }
    }

    /// Notes items that were read.
    pub fn read<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        for key in keys {
            if let Some(known) = self.part(key).get_mut(key) {
                known.used = self.use_now();
            }
        }
    }

    /// Notes that an item was deleted, which had this cas.
    pub fn deleted(&self, key: &[u8], cas: u64) {
        let mut part = self.part(key);
        if part.peek(key).is_some_and(|known| known.cas <= cas)
            && let Some(known) = part.pop(key)
        {
            self.count(0, known.bytes);
        }
    }

    /// Removes the least recently used item if all of them exceed the budget. Returns its key and
    /// its cas.
    pub fn pop_surplus(&self) -> Option<(Box<[u8]>, u64)> {
        while self.bytes() > self.budget {
            let used = |part: &Mutex<Part>| Some(locked(part).peek_lru()?.1.used);
            let parts = self.parts.iter();
            let oldest = parts
                .filter_map(|part| Some((used(part)?, part)))
                .min_by_key(|(used, _)| *used)?;
            // If it was used meanwhile, the next one of its part is nearly as old.
            let mut part = locked(oldest.1);
            if let Some((key, known)) = part.pop_lru() {
                self.count(0, known.bytes);
                return Some((key, known.cas));
            }
        }
        None
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

    #[test]
    fn the_oldest_goes_first_whichever_part_it_is_in() {
        let lru = Lru::new(0);
        let key = |n: u64| format!("key{n}").into_bytes();
        for n in 0..1000 {
            stored(&lru, &key(n), n);
        }
        // Every third one is used again, from the last to the first.
        for n in (0..1000).rev().filter(|n| n % 3 == 0) {
            lru.read(std::iter::once(&key(n)[..]));
        }
        let order: Vec<u64> = std::iter::from_fn(|| Some(lru.pop_surplus()?.1)).collect();
        let unused = (0..1000).filter(|n| n % 3 != 0);
        let used = (0..1000).rev().filter(|n| n % 3 == 0);
        assert_eq!(order, unused.chain(used).collect::<Vec<_>>());
        assert_eq!(lru.bytes(), 0);
    }
}
