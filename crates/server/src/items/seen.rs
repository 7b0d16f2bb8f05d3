//! When items were used last, and whether they were read since they were stored: for the flags `l`
//! and `h` of `mg`, which need not survive a restart.
//!
//! A table of fixed size. An item that another one has displaced counts as used when the server
//! started, and as not read.

use ahash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};

const ENTRIES: usize = 1 << 17;
const READ: u64 = 1 << 32;
/// The bits of an entry: a part of the key's hash, [`READ`], and seconds.
const TAG: u64 = !0 << 33;

/// The table.
pub(super) struct Seen {
    entries: Box<[AtomicU64]>,
    secret: RandomState,
    started: u64,
}

/// The last use of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The time, in s since 1970.
    pub at: u64,
    /// It was read since it was stored.
    pub read: bool,
}

impl Seen {
    /// Returns an empty table; now is in ms since 1970.
    pub fn new(now: u64) -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect(),
            secret: RandomState::new(),
            started: now / 1000,
        }
    }

    fn entry(&self, key: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.secret.hash_one(key);
        (&self.entries[hash as usize % ENTRIES], hash & TAG)
    }

    fn note(&self, key: &[u8], now: u64, read: u64) {
        let (entry, tag) = self.entry(key);
        let to = tag | read | (now / 1000) & 0xffff_ffff;
        // ORDERING: Relaxed; an entry is one word, and publishes nothing else.
        if entry.load(Ordering::Relaxed) != to {
            // ORDERING: Relaxed; as above.
            entry.store(to, Ordering::Relaxed);
        }
    }

    /// Notes that an item was stored.
    pub fn stored(&self, key: &[u8], now: u64) {
        self.note(key, now, 0);
    }

    /// Notes that an item was read.
    pub fn read(&self, key: &[u8], now: u64) {
        self.note(key, now, READ);
    }

    /// Returns the last use of an item that is there.
    pub fn last(&self, key: &[u8]) -> Use {
        let (entry, tag) = self.entry(key);
        // ORDERING: Relaxed; as in `note`.
        let found = entry.load(Ordering::Relaxed);
        if found & TAG != tag {
            return Use {
                at: self.started,
                read: false,
            };
        }
        Use {
            at: found & 0xffff_ffff,
            read: found & READ != 0,
        }
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_remembered_by_key() {
        let seen = Seen::new(5000);
        let unknown = Use { at: 5, read: false };
        assert_eq!(seen.last(b"a"), unknown);
        seen.stored(b"a", 7000);
        assert_eq!(seen.last(b"a"), Use { at: 7, read: false });
        seen.read(b"a", 9999);
        assert_eq!(seen.last(b"a"), Use { at: 9, read: true });
        seen.stored(b"a", 10_000);
        assert_eq!(
            seen.last(b"a"),
            Use {
                at: 10,
                read: false
            }
        );
        assert_eq!(seen.last(b"b"), unknown);
    }
}
