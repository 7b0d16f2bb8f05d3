//! Optimistic version locks: one word that writers lock and readers only look at.
//!
//! ```text
//! bit 63 .. 2   counter, one up at each unlock
//! bit 1         obsolete: what the word protects has been taken out of the structure
//! bit 0         locked
//! ```
//!
//! Two users: inner nodes carry a word each, and leaves, which lie in persistent
//! memory and must not be dirtied by readers, share a volatile table ([`VersionLocks`]).
//!
//! # Protocol
//!
//! | reader | writer |
//! | --- | --- |
//! | `v = read()`: load, Acquire, waits while locked | `try_lock_at(v)`: CAS, Acquire, then `fence(Release)` |
//! | loads of the data, atomic, Relaxed | stores of the data, atomic, Relaxed |
//! | `validate(v)`: `fence(Acquire)`, then a Relaxed load | `unlock()`: store, Release |
//!
//! # Why it is right
//!
//! 1. *A reader that validates has seen no store of a later writer.* Had one of its loads returned
//!    such a store, the writer's Release fence (before the store) would synchronize with the
//!    reader's Acquire fence (after the load), so the locking CAS would happen before the
//!    validating load, which would then see the lock bit or something newer, and fail.
//! 2. *A reader that got `v` sees every store of the writers up to `v`.* The load of `v` is an
//!    Acquire that pairs with the Release store of the unlock that wrote it.
//! 3. *A writer sees what the writers before it wrote.* The locking CAS is an Acquire that pairs
//!    with their unlock.
//! 4. The counter is 62 bits wide and never goes back, so an old version never becomes valid again.
//!
//! Data that is not read through atomics (raw persistent bytes) is outside the language's memory
//! model; such a reader must use atomic cells.

use crate::sync::{AtomicU64, wait};
use crossbeam_utils::Backoff;
use std::sync::atomic::{Ordering, fence};

/// Bit 0: a writer holds the lock.
const LOCKED: u64 = 1;
/// Bit 1: removed from the structure for good.
const OBSOLETE: u64 = 2;
/// One step of the counter.
const STEP: u64 = 4;

/// A version lock in one word. All zero is a valid, unlocked word.
#[repr(transparent)]
#[derive(Debug)]
pub struct VersionWord(AtomicU64);

impl Default for VersionWord {
    fn default() -> Self {
        Self::new()
    }
}

impl VersionWord {
    /// Returns an unlocked word.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the version, or `None` while a writer holds the lock.
    #[inline(always)]
    pub fn try_read(&self) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release store in `unlock` and its like.
        let version = self.0.load(Ordering::Acquire);
        (version & LOCKED == 0).then_some(version)
    }

    /// Returns the version. Waits while a writer holds the lock.
    #[inline(always)]
    pub fn read(&self) -> u64 {
        match self.try_read() {
            Some(version) => version,
            None => self.read_slow(),
        }
    }

    #[cold]
    fn read_slow(&self) -> u64 {
        let backoff = Backoff::new();
        loop {
            wait(&backoff);
            if let Some(version) = self.try_read() {
                return version;
            }
        }
    }

    /// Returns true if nothing has changed since `version` was read. Loads before it stay before
    /// it.
    #[inline(always)]
    pub fn validate(&self, version: u64) -> bool {
        // ORDERING: Acquire; pairs with the Release fence in `try_lock_at` through any data store
        // that the caller's loads may have seen.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// Takes the lock if the version still is `version`, which was read unlocked.
    #[inline]
    pub fn try_lock_at(&self, version: u64) -> bool {
        debug_assert_eq!(version & LOCKED, 0, "a version comes from `read`");
        // ORDERING: Acquire; pairs with the Release store of the previous holder's unlock.
        let locked = self
            .0
            .compare_exchange(
                version,
                version | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .is_ok();
        // ORDERING: Release; pairs with the Acquire fence in `validate`: a reader that sees a store
        // made after this sees the lock bit too.
        fence(Ordering::Release);
        locked
    }

    /// Takes the lock, waiting for it. Returns the version at which it was taken.
    #[inline]
    pub fn lock(&self) -> u64 {
        let backoff = Backoff::new();
        loop {
            let version = self.read();
            if self.try_lock_at(version) {
                return version;
            }
            wait(&backoff);
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.try_read()
            .is_some_and(|version| self.try_lock_at(version))
    }

    /// Returns true if `version` says that what the word protects is out of the structure.
    #[inline(always)]
    pub fn is_obsolete(version: u64) -> bool {
        version & OBSOLETE != 0
    }

    /// Releases the lock, one version up.
    #[inline]
    pub fn unlock(&self) {
        self.release((self.held() & !LOCKED) + STEP);
    }

    /// Releases the lock at the version at which it was taken: nothing was stored meanwhile.
    #[inline]
    pub fn unlock_unchanged(&self) {
        self.release(self.held() & !LOCKED);
    }

    /// Releases the lock and marks what it protects as out of the structure.
    pub fn unlock_obsolete(&self) {
        self.release(((self.held() & !LOCKED) + STEP) | OBSOLETE);
    }

    /// Makes an obsolete word usable again, one version up. Only the caller can reach it.
    pub fn revive(&self) {
        // ORDERING: Relaxed; only the caller can reach the word. A thread that is led to it later
        // gets there through the unlock of the node that leads there.
        let version = self.0.load(Ordering::Relaxed);
        self.release((version & !(LOCKED | OBSOLETE)) + STEP);
        // ORDERING: Release fence; pairs with the Acquire fence of `validate`: a reader that sees a
        // later store also sees that the versions it read before have ended.
        fence(Ordering::Release);
    }

    /// Returns true if the lock is held or the word is obsolete. For checks at rest.
    pub fn is_busy_or_obsolete(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (LOCKED | OBSOLETE) != 0
    }

    #[inline]
    fn held(&self) -> u64 {
        // ORDERING: Relaxed; only the holder changes a locked word.
        let version = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(version & LOCKED, LOCKED, "only the holder unlocks");
        version
    }

    #[inline]
    fn release(&self, version: u64) {
        // ORDERING: Release; pairs with the Acquire load in `try_read` and CAS in `try_lock_at`.
        self.0.store(version, Ordering::Release);
    }
}

/// Number of locks in the table: 128 KiB, which stays in a second-level cache.
const SLOTS: usize = 1 << 14;
/// Number of locks in a cache line.
const PER_LINE: usize = 8;

#[repr(C, align(64))]
struct Line([VersionWord; PER_LINE]);

const _: () = assert!(size_of::<Line>() == 64 && SLOTS.is_power_of_two());

/// A volatile table of version locks for leaves, indexed by a hash of the leaf's handle.
///
/// Two leaves may share a slot. For readers that only costs a needless retry. Writers use
/// [`lock_two`](Self::lock_two) and [`same_slot`](Self::same_slot) for it: a thread that holds one
/// leaf's lock must not wait for another leaf's with the same slot.
///
/// On a durable leaf the order is: lock, store, flush, fence, *then* unlock. An unlock before the
/// fence would let another thread act on what a crash still undoes.
pub struct VersionLocks {
    lines: Box<[Line]>,
}

impl std::fmt::Debug for VersionLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionLocks")
            .field("slots", &SLOTS)
            .finish()
    }
}

impl Default for VersionLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl VersionLocks {
    /// Bytes of a table in DRAM.
    pub const BYTES: u64 = (SLOTS * 8) as u64;

    /// Returns a table with every lock free.
    #[must_use]
    pub fn new() -> Self {
        // Pages of it that no leaf's lock is on are never touched.
        let lines = Box::new_zeroed_slice(SLOTS / PER_LINE);
        Self {
            // SAFETY: all zero is a valid, unlocked word.
            lines: unsafe { lines.assume_init() },
        }
    }

    /// Returns the slot of a leaf: multiplicative hashing, so that neighbouring leaves lie on
    /// different lines.
    #[inline(always)]
    fn slot(leaf: u32) -> usize {
        // 2^32 divided by the golden ratio.
        (leaf.wrapping_mul(0x9E37_79B9) >> (32 - SLOTS.trailing_zeros())) as usize
    }

    /// Returns the place of a leaf's lock, in bytes from the start of the table.
    #[inline(always)]
    pub fn place(leaf: u32) -> u64 {
        Self::slot(leaf) as u64 * 8
    }

    #[inline(always)]
    fn word(&self, leaf: u32) -> &VersionWord {
        let slot = Self::slot(leaf);
        &self.lines[slot / PER_LINE].0[slot % PER_LINE]
    }

    /// Prefetches the leaf's lock.
    #[inline(always)]
    pub fn prefetch(&self, leaf: u32) {
        let word: *const VersionWord = self.word(leaf);
        bristlecone_pmem::media::cpu::prefetch(word.cast(), 1);
    }

    /// Returns the leaf's version. Waits while a writer holds its lock.
    #[inline]
    #[must_use]
    pub fn read(&self, leaf: u32) -> u64 {
        self.word(leaf).read()
    }

    /// Returns the leaf's version, or `None` while a writer holds its lock.
    #[inline]
    #[must_use]
    pub fn try_read(&self, leaf: u32) -> Option<u64> {
        self.word(leaf).try_read()
    }

    /// Returns true if the leaf has not been locked since `version` was read (or only by holders
    /// that changed nothing). Call it after the last load of the leaf's data and before trusting
    /// any.
    #[inline]
    #[must_use]
    pub fn validate(&self, leaf: u32, version: u64) -> bool {
        self.word(leaf).validate(version)
    }

    /// Takes the leaf's lock if its version is still `version`. Does not wait.
    #[inline]
    #[must_use]
    pub fn try_lock_at(&self, leaf: u32, version: u64) -> Option<Locked<'_>> {
        let word = self.word(leaf);
        // Not `then_some`: it would make a `Locked` even without the lock, and dropping that would
        // unlock for the thread that has it.
        word.try_lock_at(version).then(|| Locked { word })
    }

    /// Takes the leaf's lock if it is free. Does not wait.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, leaf: u32) -> Option<Locked<'_>> {
        let word = self.word(leaf);
        word.try_lock().then(|| Locked { word })
    }

    /// Takes the leaf's lock, waiting for it. The caller holds no other lock of this table.
    #[inline]
    pub fn lock(&self, leaf: u32) -> Locked<'_> {
        let word = self.word(leaf);
        word.lock();
        Locked { word }
    }

    /// Takes both leaves' locks, waiting for them, in the order of their slots so that two callers
    /// cannot wait for each other. One lock covers both if they share a slot. The caller holds no
    /// other lock of this table.
    pub fn lock_two(&self, a: u32, b: u32) -> LockedTwo<'_> {
        if Self::same_slot(a, b) {
            return LockedTwo {
                first: self.lock(a),
                second: None,
            };
        }
        let (low, high) = if Self::slot(a) < Self::slot(b) {
            (a, b)
        } else {
            (b, a)
        };
        let first = self.lock(low);
        LockedTwo {
            first,
            second: Some(self.lock(high)),
        }
    }

    /// Takes the locks of all these leaves if their versions are still the given ones. Does not
    /// wait. Leaves that share a lock take it once, if both were read at the same version.
    pub fn try_lock_all(
        &self,
        leaves: impl Iterator<Item = (u32, u64)> + Clone,
    ) -> Option<LockedAll<'_>> {
        let mut held = LockedAll(Vec::new());
        for (i, (leaf, version)) in leaves.clone().enumerate() {
            let shared =
                (leaves.clone().take(i)).find(|(earlier, _)| Self::same_slot(*earlier, leaf));
            let locked = match shared {
                Some((_, earlier)) if earlier == version => continue,
                Some(_) => None,
                None => self.try_lock_at(leaf, version),
            };
            match locked {
                Some(locked) => held.0.push(locked),
                None => {
                    held.unlock_unchanged();
                    return None;
                }
            }
        }
        Some(held)
    }

    /// Returns true if the two leaves share a lock.
    #[inline]
    #[must_use]
    pub fn same_slot(a: u32, b: u32) -> bool {
        Self::slot(a) == Self::slot(b)
    }
}

/// A held lock. Dropping it unlocks, one version up.
#[must_use = "dropping it unlocks"]
pub struct Locked<'t> {
    word: &'t VersionWord,
}

impl std::fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locked")
            .field("word", &std::ptr::from_ref(self.word))
            .finish()
    }
}

impl Locked<'_> {
    /// Unlocks, one version up: readers of the old version will fail to validate. After the fence
    /// that makes the leaf's stores durable.
    #[inline]
    pub fn unlock(self) {
        drop(self);
    }

    /// Unlocks at the version the lock was taken at: the holder stored nothing, so readers need
    /// not retry.
    #[inline]
    pub fn unlock_unchanged(self) {
        self.word.unlock_unchanged();
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.unlock();
    }
}

/// The held locks of two leaves (one lock if they share a slot). Dropping it unlocks both.
#[must_use = "dropping it unlocks"]
#[derive(Debug)]
pub struct LockedTwo<'t> {
    first: Locked<'t>,
    second: Option<Locked<'t>>,
}

impl LockedTwo<'_> {
    /// Unlocks both, one version up. After the fence that makes the leaves' stores durable.
    pub fn unlock(self) {
        drop(self);
    }

    /// Unlocks both at the versions they were taken at: the holder stored nothing.
    pub fn unlock_unchanged(self) {
        self.first.unlock_unchanged();
        if let Some(second) = self.second {
            second.unlock_unchanged();
        }
    }
}

/// The held locks of several leaves. Dropping it unlocks all.
#[must_use = "dropping it unlocks"]
#[derive(Debug)]
pub struct LockedAll<'t>(Vec<Locked<'t>>);

impl LockedAll<'_> {
    /// Unlocks all, one version up. After the fence that makes the leaves' stores durable.
    pub fn unlock(self) {
        drop(self);
    }

    /// Unlocks all at the versions they were taken at: the holder stored nothing.
    pub fn unlock_unchanged(self) {
        for locked in self.0 {
            locked.unlock_unchanged();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64 as Cell, explore};
    use std::sync::Arc;

    /// Returns two different leaves that share a slot.
    fn colliding() -> (u32, u32) {
        let other = (2..)
            .find(|&leaf| VersionLocks::same_slot(1, leaf))
            .expect("slots are few");
        (1, other)
    }

    #[test]
    fn versions_change_with_every_unlock_and_only_then() {
        let locks = VersionLocks::new();
        let before = locks.read(7);
        assert!(locks.validate(7, before));
        let held = locks.try_lock_at(7, before).expect("free");
        assert_eq!(locks.try_read(7), None);
        assert!(
            !locks.validate(7, before),
            "a held lock validates for no one"
        );
        assert!(locks.try_lock_at(7, before).is_none());
        held.unlock_unchanged();
        assert!(locks.validate(7, before), "nothing was changed");
        locks.lock(7).unlock();
        assert!(!locks.validate(7, before));
        assert!(
            locks.try_lock_at(7, before).is_none(),
            "the version is an old one"
        );
        assert!(locks.validate(8, locks.read(8)));
    }

    #[test]
    fn two_leaves_of_one_slot_share_a_lock() {
        let locks = VersionLocks::new();
        let (a, b) = colliding();
        let versions = (locks.read(a), locks.read(b));
        let both = locks.lock_two(a, b);
        assert!(both.second.is_none());
        both.unlock_unchanged();
        assert!(locks.validate(a, versions.0) && locks.validate(b, versions.1));
        locks.lock_two(b, a).unlock();
        assert!(!locks.validate(a, versions.0) && !locks.validate(b, versions.1));
        assert!(!VersionLocks::same_slot(1, 2), "neighbours are spread");
        let both = locks.lock_two(1, 2);
        assert!(locks.try_read(1).is_none() && locks.try_read(2).is_none());
        drop(both);
        assert!(locks.try_read(1).is_some() && locks.try_read(2).is_some());
    }

    #[test]
    fn an_obsolete_word_never_validates_again_after_reuse() {
        let word = VersionWord::new();
        let before = word.read();
        assert!(word.try_lock_at(before));
        word.unlock_obsolete();
        assert!(word.is_busy_or_obsolete());
        let obsolete = word.read();
        word.revive();
        assert!(!word.is_busy_or_obsolete());
        assert!(!word.validate(before) && !word.validate(obsolete));
        assert!(word.read() > obsolete);
    }

    /// Readers of two words see them equal whenever they validate; writers lose no update.
    #[test]
    fn schedules_of_readers_and_writers() {
        explore(2000, || {
            let locks = Arc::new(VersionLocks::new());
            let data = Arc::new([Cell::new(0), Cell::new(0)]);
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (locks, data) = (Arc::clone(&locks), Arc::clone(&data));
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            let held = locks.lock(5);
                            let n = data[0].load(Ordering::Relaxed);
                            data[0].store(n + 1, Ordering::Relaxed);
                            data[1].store(n + 1, Ordering::Relaxed);
                            held.unlock();
                        }
                    })
                })
                .collect();
            let mut seen = 0;
            for _ in 0..3 {
                let version = locks.read(5);
                let pair = [0, 1].map(|i| data[i].load(Ordering::Relaxed));
                if locks.validate(5, version) {
                    assert_eq!(pair[0], pair[1], "a torn read was validated");
                    assert!(pair[0] >= seen, "time went backwards");
                    seen = pair[0];
                }
                // A reader may become a writer if nothing has happened.
                if let Some(held) = locks.try_lock_at(5, version) {
                    assert_eq!(
                        data[0].load(Ordering::Relaxed),
                        data[1].load(Ordering::Relaxed)
                    );
                    held.unlock_unchanged();
                }
            }
            for writer in writers {
                writer.join().expect("no panic");
            }
            assert_eq!(data[0].load(Ordering::Relaxed), 4, "an update was lost");
        });
    }

    /// `lock_two` in opposite orders, with and without a shared slot, neither deadlocks nor lets
    /// two holders in.
    #[test]
    fn schedules_of_two_locks_at_once() {
        let (a, b) = colliding();
        let pairs = [(1, 2), (2, 1), (a, b), (2, b)];
        explore(1000, move || {
            let locks = Arc::new(VersionLocks::new());
            let inside = Arc::new([Cell::new(0), Cell::new(0)]);
            let threads: Vec<_> = pairs
                .into_iter()
                .map(|(x, y)| {
                    let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                    shuttle::thread::spawn(move || {
                        let held = locks.lock_two(x, y);
                        // Every pair has the slot of leaf 1 or that of leaf 2 in it.
                        for (i, leaf) in [1, 2].into_iter().enumerate() {
                            if VersionLocks::same_slot(x, leaf) || VersionLocks::same_slot(y, leaf)
                            {
                                let n = inside[i].load(Ordering::Relaxed);
                                inside[i].store(n + 1, Ordering::Relaxed);
                            }
                        }
                        held.unlock();
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert_eq!(inside[0].load(Ordering::Relaxed), 4);
            assert_eq!(inside[1].load(Ordering::Relaxed), 3);
        });
    }
}
