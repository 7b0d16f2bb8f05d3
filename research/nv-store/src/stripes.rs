//! Lock stripes: a writer of a key holds the stripe of the key's hash.
//!
//! A stripe also has the counts of its keys, and a queue of their superseded versions in the order
//! of timestamps. Both change under the lock that a write holds anyway.
//!
//! Locks are taken in this order: the catalogue's, stripes in ascending order, a slot of the commit
//! table, the index's own.

use crate::record::Meta;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use bristlecone_pmem::sync::lock;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

/// Stripes of a store.
const STRIPES: usize = 1024;
/// Stripes on a simulated medium: few, so that threads meet.
const FEW: usize = 4;

const _: () = assert!(STRIPES.is_power_of_two() && FEW.is_power_of_two());

/// An entry of the vacuum's queue: a version that superseded another one, or a tombstone.
#[derive(Debug)]
pub(crate) struct Obsolete {
    /// Timestamp of the version's commit.
    pub ts: u64,
    /// Its record.
    pub off: u64,
    /// The superseded record; 0 for none.
    pub before: u64,
    /// Bytes of the superseded record if it is stamped and in one block; else 0.
    pub plain_bytes: u64,
    /// The index key, if the version is a tombstone, which is freed too.
    pub tombstone: Option<Box<[u8]>>,
}

/// Counts of a stripe's keys and records. They wrap, since recovery counts everything in one
/// stripe; the sums of all stripes do not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Reachable records.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the newest versions, tombstones excepted.
    pub live_bytes: u64,
    /// Of these versions, those with an expiry.
    pub expiring: u64,
    /// Records that were vacuumed.
    pub vacuumed: u64,
    pub vacuumed_bytes: u64,
    /// Keys of each keyspace, by number.
    pub keys: SmallVec<[(u32, u64); 1]>,
}

impl Counts {
    fn keys_of(&mut self, keyspace: u32) -> &mut u64 {
        let at = self.keys.iter().position(|(id, _)| *id == keyspace);
        let at = at.unwrap_or_else(|| {
            self.keys.push((keyspace, 0));
            self.keys.len() - 1
        });
        &mut self.keys[at].1
    }

    /// Counts a version that replaced the newest one of a key.
    pub fn replaced(&mut self, keyspace: u32, before: &Meta, meta: &Meta) {
        if before.is_tombstone() || meta.is_tombstone() {
            self.was_newest(keyspace, before);
            self.is_newest(keyspace, meta);
            return;
        }
        let expiring = |meta: &Meta| u64::from(meta.expiry() != 0);
        let bytes = self.live_bytes.wrapping_sub(before.bytes());
        self.live_bytes = bytes.wrapping_add(meta.bytes());
        let others = self.expiring.wrapping_sub(expiring(before));
        self.expiring = others.wrapping_add(expiring(meta));
    }

    /// Counts a version that became the newest of its key.
    pub fn is_newest(&mut self, keyspace: u32, meta: &Meta) {
        if !meta.is_tombstone() {
            self.live_bytes = self.live_bytes.wrapping_add(meta.bytes());
            self.expiring = self.expiring.wrapping_add(u64::from(meta.expiry() != 0));
            let keys = self.keys_of(keyspace);
            *keys = keys.wrapping_add(1);
        }
    }

    /// Uncounts a version that is no longer the newest of its key.
    pub fn was_newest(&mut self, keyspace: u32, meta: &Meta) {
        if !meta.is_tombstone() {
            self.live_bytes = self.live_bytes.wrapping_sub(meta.bytes());
            self.expiring = self.expiring.wrapping_sub(u64::from(meta.expiry() != 0));
            let keys = self.keys_of(keyspace);
            *keys = keys.wrapping_sub(1);
        }
    }

    /// Counts a record that became reachable.
    pub fn made(&mut self, meta: &Meta) {
        self.versions = self.versions.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(meta.bytes());
    }

    /// Uncounts a record that was vacuumed.
    pub fn gone(&mut self, bytes: u64) {
        self.versions = self.versions.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(bytes);
        self.vacuumed += 1;
        self.vacuumed_bytes += bytes;
    }

    /// Adds the counts of another stripe.
    pub fn add(&mut self, other: &Self) {
        self.versions = self.versions.wrapping_add(other.versions);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
        self.expiring = self.expiring.wrapping_add(other.expiring);
        self.vacuumed = self.vacuumed.wrapping_add(other.vacuumed);
        self.vacuumed_bytes = self.vacuumed_bytes.wrapping_add(other.vacuumed_bytes);
        for (keyspace, keys) in &other.keys {
            let sum = self.keys_of(*keyspace);
            *sum = sum.wrapping_add(*keys);
        }
    }
}

/// The data that a stripe's lock protects.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    /// The vacuum's queue, by timestamp, ascending.
    pub obsolete: VecDeque<Obsolete>,
    pub counts: Counts,
}

#[derive(Debug)]
pub(crate) struct Stripes(Box<[CachePadded<Mutex<Stripe>>]>);

/// A locked stripe.
pub(crate) type LockedStripe<'a> = MutexGuard<'a, Stripe>;

impl Stripes {
    pub fn new<M: Media>(pm: &M) -> Self {
        let stripes = if pm.tiny() { FEW } else { STRIPES };
        Self((0..stripes).map(|_| CachePadded::default()).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the stripe of an index key.
    pub fn of(&self, key: &[u8]) -> usize {
        self.of_sum(crc32c::crc32c(key))
    }

    /// Returns the stripe of an index key with that CRC-32C.
    pub fn of_sum(&self, sum: u32) -> usize {
        sum as usize & (self.0.len() - 1)
    }

    /// Prefetches a stripe that is about to be locked.
    pub fn prefetch(&self, stripe: usize) {
        let place: *const Mutex<Stripe> = &*self.0[stripe];
        cpu::prefetch(place.cast(), size_of::<Mutex<Stripe>>());
    }

    pub fn lock(&self, stripe: usize) -> LockedStripe<'_> {
        lock(&self.0[stripe])
    }

    /// Returns the sums of the counts of all stripes.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for stripe in &self.0 {
            all.add(&lock(stripe).counts);
        }
        all
    }
}

/// Several locked stripes, each once.
pub(crate) struct LockedStripes<'a>(Vec<(usize, LockedStripe<'a>)>);

impl<'a> LockedStripes<'a> {
    /// Locks them in ascending order.
    pub fn lock(stripes: &'a Stripes, keys: impl Iterator<Item = usize>) -> Self {
        let mut wanted = [0u64; STRIPES / 64];
        let mut most = 0;
        for stripe in keys {
            wanted[stripe / 64] |= 1 << (stripe % 64);
            most += 1;
        }
        let mut held = Vec::with_capacity(most.min(STRIPES));
        for (i, mut word) in wanted.into_iter().enumerate() {
            while word != 0 {
                let stripe = i * 64 + word.trailing_zeros() as usize;
                held.push((stripe, stripes.lock(stripe)));
                word &= word - 1;
            }
        }
        Self(held)
    }

    /// Prefetches both ends of each queue: where the next superseded version goes, and the record
    /// that is freed next.
    pub fn prefetch_queues<M: Media>(&self, pm: &M) {
        for (_, stripe) in &self.0 {
            if let Some(first) = stripe.obsolete.front() {
                cpu::prefetch(pm.base().wrapping_add(first.off as usize), LINE);
            }
            let last = stripe.obsolete.back().map(std::ptr::from_ref);
            let first = || stripe.obsolete.as_slices().0.as_ptr();
            let next = last.map_or_else(first, |last| last.wrapping_add(1));
            cpu::prefetch(next.cast(), size_of::<Obsolete>());
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stripe> {
        self.0.iter_mut().map(|(_, stripe)| &mut **stripe)
    }

    /// Returns a locked stripe.
    ///
    /// # Panics
    /// If the stripe is not locked, which is a bug of the caller.
    pub fn get(&mut self, stripe: usize) -> &mut Stripe {
        match self.0.binary_search_by_key(&stripe, |(i, _)| *i) {
            Ok(at) => &mut self.0[at].1,
            Err(_) => unreachable!("stripe {stripe} was locked"),
        }
    }
}
