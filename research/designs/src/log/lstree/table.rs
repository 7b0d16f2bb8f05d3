//! The mapping table leads from a leaf's number (LNID) to the places of its records. It is in DRAM,
//! and recovery rebuilds it.
//!
//! ```text
//! entry | sequence number | live keys:16 pairs in the base:16 deltas:16 | records in the logs | base | delta 0 | ... |
//! place | tag of the key (11) | log (5) | offset (48) |      deltas from the oldest to the newest
//! ```
//!
//! The paper keeps the head of the chain here and caches the places of the newest few deltas behind
//! it. Here the table has all places, a chain is at most as long as the entry has room for (an
//! option), and no record leads to another record. Therefore collection can move record by record,
//! which needs no more room than the segment itself, and a full pool can always be collected.
//!
//! # Invariants
//! 1. An entry is changed under its leaf's lock, except its number of records.
//! 2. The number of records in the logs that name a leaf is counted. A removed leaf keeps an empty
//!    base until that is the only one, since the base says that the others no longer count.
//!
//! Accesses to an entry are reported as if the table were one piece (`DramTrace`).
//!
//! # Concurrency
//! Words are atomics, read under the leaf's version like the leaf's own words.

use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::SpaceError;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, cpu};
use bristlecone_pmem::sync::lock;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Number of entries in a block of the table.
const BLOCK: usize = 256;
/// Number of blocks below a branch, and of branches.
const FAN: usize = 1024;
/// LNIDs are below this.
pub(super) const LNIDS: u32 = (BLOCK * FAN * FAN) as u32;
/// Words of an entry before its deltas.
const FIXED: usize = 4;

const SEQUENCE: usize = 0;
const COUNTS: usize = 1;
const RECORDS: usize = 2;
const BASE: usize = 3;

const OFFSET_BITS: u32 = 48;
const LOG_BITS: u32 = 5;

/// Place of a record; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    pub(super) const NONE: Self = Self(0);

    /// Returns the place of the record at `off` of log `log`, whose key has the hash `hash`.
    pub(super) fn new(off: u64, log: usize, hash: u32) -> Self {
        Self(
            off | (log as u64) << OFFSET_BITS
                | u64::from(Self::tag_of(hash)) << (OFFSET_BITS + LOG_BITS),
        )
    }

    fn tag_of(hash: u32) -> u32 {
        hash & ((1 << (64 - OFFSET_BITS - LOG_BITS)) - 1)
    }

    /// Returns the place of the same record after a move.
    pub(super) fn moved(self, off: u64, log: usize) -> Self {
        Self(
            self.0 >> (OFFSET_BITS + LOG_BITS) << (OFFSET_BITS + LOG_BITS)
                | Self::new(off, log, 0).0,
        )
    }

    #[inline(always)]
    pub(super) fn off(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }

    pub(super) fn log(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize & ((1 << LOG_BITS) - 1)
    }

    /// Returns false if the record is of another key.
    #[inline(always)]
    pub(super) fn may_be(self, hash: u32) -> bool {
        (self.0 >> (OFFSET_BITS + LOG_BITS)) as u32 == Self::tag_of(hash)
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Numbers of keys and records of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Number of live keys.
    pub(super) live: usize,
    /// Number of pairs in the base.
    pub(super) pairs: usize,
    /// Number of deltas after it.
    pub(super) deltas: usize,
}

/// One leaf's entry.
#[derive(Debug)]
pub(super) struct Entry<'t, D> {
    words: &'t [AtomicU64],
    lnid: u32,
    trace: PhantomData<fn() -> D>,
}

impl<D> Clone for Entry<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Entry<'_, D> {}

// ORDERING (all here): Relaxed; the leaf's version orders them, see `crate::version_lock`.
impl<D: DramTrace> Entry<'_, D> {
    #[inline(always)]
    fn report(&self, access: DramAccess, word: usize, words: usize) {
        let at = u64::from(self.lnid) * self.words.len() as u64 + word as u64;
        D::touch(DramRegion::Mapping, access, at * 8, words as u64 * 8);
    }

    #[inline(always)]
    fn get(&self, word: usize) -> u64 {
        self.report(DramAccess::Load, word, 1);
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, word: usize, value: u64) {
        self.report(DramAccess::Store, word, 1);
        self.words[word].store(value, Ordering::Relaxed);
    }

    /// Returns the number of deltas that there is room for.
    pub(super) fn room(&self) -> usize {
        self.words.len() - FIXED
    }

    pub(super) fn sequence(&self) -> u64 {
        self.get(SEQUENCE)
    }

    pub(super) fn set_sequence(&self, sequence: u64) {
        self.set(SEQUENCE, sequence);
    }

    #[inline(always)]
    pub(super) fn counts(&self) -> Counts {
        let counts = self.get(COUNTS);
        Counts {
            live: (counts & 0xFFFF) as usize,
            pairs: (counts >> 16 & 0xFFFF) as usize,
            // A reader that meets a change stays inside the entry all the same.
            deltas: (counts >> 32 & 0xFFFF) as usize,
        }
    }

    pub(super) fn set_counts(&self, counts: Counts) {
        let Counts {
            live,
            pairs,
            deltas,
        } = counts;
        debug_assert!(deltas <= self.room());
        self.set(
            COUNTS,
            live as u64 | (pairs as u64) << 16 | (deltas as u64) << 32,
        );
    }

    #[inline(always)]
    pub(super) fn base(&self) -> Place {
        Place(self.get(BASE))
    }

    #[inline(always)]
    pub(super) fn delta(&self, i: usize) -> Place {
        Place(self.get(FIXED + i))
    }

    /// Adds the newest delta, after which the leaf has `live` keys.
    pub(super) fn push(&self, place: Place, live: usize) {
        let counts = self.counts();
        self.set(FIXED + counts.deltas, place.0);
        self.set_counts(Counts {
            live,
            deltas: counts.deltas + 1,
            ..counts
        });
    }

    /// Sets the leaf to this base of `pairs` pairs.
    pub(super) fn set_base(&self, place: Place, pairs: usize) {
        self.set(BASE, place.0);
        self.set_counts(Counts {
            live: pairs,
            pairs,
            deltas: 0,
        });
    }

    /// Returns all places, the base's first.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let counts = self.counts();
        let deltas = counts.deltas.min(self.room());
        std::iter::once(self.base())
            .filter(|base| !base.is_none())
            .chain((0..deltas).map(|i| self.delta(i)))
    }

    /// Replaces a record's old place by its new one. Returns false if the old place is not there.
    pub(super) fn replace(&self, old: Place, new: Place) -> bool {
        let deltas = self.counts().deltas;
        let word = (BASE..FIXED + deltas).find(|word| Place(self.get(*word)) == old);
        if let Some(word) = word {
            self.set(word, new.0);
        }
        word.is_some()
    }

    /// Returns the place of the record at `off`, if it is one of the leaf's.
    pub(super) fn place_of(&self, off: u64) -> Option<Place> {
        self.places().find(|place| place.off() == off)
    }

    /// Returns the number of records in the logs that name the leaf.
    pub(super) fn records(&self) -> u64 {
        self.get(RECORDS)
    }

    pub(super) fn add_records(&self, more: u64) {
        self.report(DramAccess::Locked, RECORDS, 1);
        self.words[RECORDS].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn forget_records(&self, fewer: u64) {
        self.report(DramAccess::Locked, RECORDS, 1);
        let before = self.words[RECORDS].fetch_sub(fewer, Ordering::Relaxed);
        debug_assert!(before >= fewer, "{fewer} of {before} records");
    }

    /// Prefetches the entry.
    pub(super) fn prefetch(&self) {
        cpu::prefetch(self.words.as_ptr().cast(), size_of_val(self.words));
        self.report(DramAccess::Prefetch, 0, self.words.len());
    }
}

type Block = OnceLock<Box<[AtomicU64]>>;

#[derive(Debug, Default)]
struct Numbers {
    /// LNIDs from here on have never been used.
    next: u32,
    free: Vec<u32>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<D> {
    branches: Box<[OnceLock<Box<[Block]>>]>,
    /// Number of words of an entry.
    stride: usize,
    numbers: Mutex<Numbers>,
    blocks: AtomicU32,
    trace: PhantomData<fn() -> D>,
}

fn none<T>(n: usize) -> Box<[OnceLock<T>]> {
    (0..n).map(|_| OnceLock::new()).collect()
}

impl<D: DramTrace> Table<D> {
    /// Returns an empty table, whose entries have room for `deltas` deltas.
    pub(super) fn new(deltas: usize) -> Self {
        Self {
            branches: none(FAN),
            stride: FIXED + deltas,
            numbers: Mutex::default(),
            blocks: AtomicU32::new(0),
            trace: PhantomData,
        }
    }

    /// Returns the entry of a leaf, which is made if there is none. The LNID is below [`LNIDS`].
    #[inline]
    pub(super) fn entry(&self, lnid: u32) -> Entry<'_, D> {
        let at = lnid as usize;
        let (branch, block, within) = (at / BLOCK / FAN, at / BLOCK % FAN, at % BLOCK);
        let blocks = self.branches[branch].get_or_init(|| none(FAN));
        let words = blocks[block].get_or_init(|| {
            // ORDERING: Relaxed; a statistic.
            self.blocks.fetch_add(1, Ordering::Relaxed);
            (0..BLOCK * self.stride)
                .map(|_| AtomicU64::new(0))
                .collect()
        });
        Entry {
            words: &words[within * self.stride..][..self.stride],
            lnid,
            trace: PhantomData,
        }
    }

    /// Returns an LNID for a leaf that nothing leads to, and its lock, unless it shares the lock of
    /// `held`, which the caller holds.
    ///
    /// # Errors
    /// [`SpaceError`] when no number is left.
    pub(super) fn take<'l>(
        &self,
        locks: &'l VersionLocks,
        held: Option<u32>,
    ) -> Result<(u32, Option<Locked<'l>>), SpaceError> {
        let mut numbers = lock(&self.numbers);
        let mut passed = Vec::new();
        let taken = loop {
            let lnid = match numbers.free.pop() {
                Some(lnid) => lnid,
                None if numbers.next < LNIDS => {
                    numbers.next += 1;
                    numbers.next - 1
                }
                None => {
                    break Err(SpaceError::Capacity {
                        wanted: u64::from(LNIDS) + 1,
                        capacity: u64::from(LNIDS),
                    });
                }
            };
            if held.is_some_and(|held| VersionLocks::same_slot(held, lnid)) {
                break Ok((lnid, None));
            }
            // The lock is not waited for: its holder may be waiting for the caller's.
            let locked = locks
                .try_read(lnid)
                .and_then(|version| locks.try_lock_at(lnid, version));
            match locked {
                Some(locked) => break Ok((lnid, Some(locked))),
                None => passed.push(lnid),
            }
        };
        numbers.free.append(&mut passed);
        taken
    }

    /// Frees the LNID of a leaf that nothing leads to any more.
    pub(super) fn release(&self, lnid: u32) {
        lock(&self.numbers).free.push(lnid);
    }

    /// Sets the LNIDs that are not in use: `free`, and all from `next` on.
    pub(super) fn set_numbers(&self, next: u32, free: Vec<u32>) {
        *lock(&self.numbers) = Numbers { next, free };
    }

    /// Returns a bound below which all LNIDs lie that were ever used.
    pub(super) fn used(&self) -> u32 {
        lock(&self.numbers).next
    }

    /// Returns the free LNIDs.
    pub(super) fn free(&self) -> Vec<u32> {
        lock(&self.numbers).free.clone()
    }

    /// Returns the bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; a statistic.
        let blocks = u64::from(self.blocks.load(Ordering::Relaxed));
        blocks * (BLOCK * self.stride * 8) as u64 + (FAN * size_of::<Block>()) as u64
    }
}
