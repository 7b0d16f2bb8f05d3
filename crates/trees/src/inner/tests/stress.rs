//! Threads that split and remove leaves while others search.
//!
//! A small tree stands in for the real one: a leaf is its range, in atomic words, under a version
//! lock. Whoever finds a leaf, reads it and validates must see a range that holds the key.

use super::*;
use crate::version_lock::VersionLocks;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LEAVES: usize = 512;
/// Keys are 0 .. KEYS; as bytes they come behind a prefix.
const KEYS: u64 = 20_000;

/// How a key number is written as a separator.
trait Numbered: Separator {
    fn key(n: u64) -> Self::Owned;
}

impl Numbered for u64 {
    fn key(n: u64) -> u64 {
        n
    }
}

impl Numbered for [u8] {
    fn key(n: u64) -> Vec<u8> {
        format!("customer/{n:012}/order").into_bytes()
    }
}

/// A leaf's range, `low .. high`; an empty range for a leaf that is not in use.
struct Leaf {
    low: AtomicU64,
    high: AtomicU64,
}

struct Tree<S: Separator + ?Sized, const CAP: usize> {
    index: InnerIndex<S, CAP>,
    locks: VersionLocks,
    leaves: Vec<Leaf>,
    free: Mutex<Vec<u32>>,
    splits: AtomicUsize,
    removals: AtomicUsize,
    validated: AtomicUsize,
}

impl<S: Numbered + ?Sized, const CAP: usize> Tree<S, CAP> {
    fn new() -> Self {
        let leaves: Vec<Leaf> =
            (0..LEAVES).map(|_| Leaf { low: AtomicU64::new(0), high: AtomicU64::new(0) }).collect();
        leaves[0].high.store(KEYS, Ordering::Relaxed);
        Self {
            index: InnerIndex::new(0).expect("memory"),
            locks: VersionLocks::new(),
            leaves,
            free: Mutex::new((1..LEAVES as u32).collect()),
            splits: AtomicUsize::new(0),
            removals: AtomicUsize::new(0),
            validated: AtomicUsize::new(0),
        }
    }

    fn leaf(&self, leaf: u32) -> (u64, u64) {
        let leaf = &self.leaves[leaf as usize];
        (leaf.low.load(Ordering::Relaxed), leaf.high.load(Ordering::Relaxed))
    }

    /// What a tree's lookup does.
    fn look_up(&self, n: u64, located: Located) {
        let Some(version) = self.locks.try_read(located.leaf) else { return };
        if !self.index.validate(&located) {
            return;
        }
        let (low, high) = self.leaf(located.leaf);
        if self.locks.validate(located.leaf, version) {
            assert!(low <= n && n < high, "key {n} was led to a leaf of {low} .. {high}");
            self.validated.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn check_range(&self, n: u64) {
        let guard = &pin();
        let ranged = self.index.find_range(S::key(n).borrow(), guard);
        let Some(version) = self.locks.try_read(ranged.located.leaf) else { return };
        if !self.index.validate(&ranged.located) {
            return;
        }
        let (low, high) = self.leaf(ranged.located.leaf);
        if self.locks.validate(ranged.located.leaf, version) {
            // The leaf's range may have grown since, never shrunk.
            assert!(ranged.low.is_none_or(|end| S::key(low) <= end));
            assert!(ranged.high.is_none_or(|end| end <= S::key(high)));
            assert!(low <= n && n < high);
        }
    }

    fn split(&self, n: u64) {
        let guard = &pin();
        let key = S::key(n);
        let located = self.index.find(key.borrow(), guard);
        let version = self.locks.read(located.leaf);
        if !self.index.validate(&located) {
            return;
        }
        let Some(held) = self.locks.try_lock_at(located.leaf, version) else { return };
        let (low, high) = self.leaf(located.leaf);
        assert!(low <= n && n < high, "locked the leaf of {low} .. {high} for key {n}");
        let fresh = if n == low { None } else { self.free.lock().expect("unpoisoned").pop() };
        let Some(fresh) = fresh else { return held.unlock_unchanged() };
        let right = &self.leaves[fresh as usize];
        right.low.store(n, Ordering::Relaxed);
        right.high.store(high, Ordering::Relaxed);
        self.leaves[located.leaf as usize].high.store(n, Ordering::Relaxed);
        self.index.insert(key.borrow(), fresh, guard);
        held.unlock();
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the leaf of `n` into its left neighbour; needs both locks, as a list would.
    fn remove(&self, n: u64) {
        let guard = &pin();
        let key = S::key(n);
        let both = self.index.find_with_left(key.borrow(), guard);
        let Some(left) = both.left else { return };
        let held = self.locks.lock_two(left.leaf, both.located.leaf);
        if !self.index.validate(&left) || !self.index.validate(&both.located) {
            return held.unlock_unchanged();
        }
        let (low, high) = self.leaf(both.located.leaf);
        let (left_low, left_high) = self.leaf(left.leaf);
        assert!(low <= n && n < high);
        assert_eq!(left_high, low, "{left_low} .. {left_high} is not the left neighbour of {low}");
        // The stand-in's ranges follow the index: only its left heirs are taken here, which is when
        // the leaf is not the first child of all that goes with it.
        assert!(self.index.remove(both.located.leaf, key.borrow(), guard));
        let heir = self.index.find(key.borrow(), guard).leaf;
        if heir == left.leaf {
            self.leaves[left.leaf as usize].high.store(high, Ordering::Relaxed);
            self.retire(both.located.leaf, guard);
        } else {
            // The right neighbour has it: give it back as a split of the left one would.
            self.index.insert(S::key(low).borrow(), both.located.leaf, guard);
        }
        held.unlock();
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    fn retire(&self, leaf: u32, _guard: &Guard) {
        self.leaves[leaf as usize].low.store(0, Ordering::Relaxed);
        self.leaves[leaf as usize].high.store(0, Ordering::Relaxed);
        self.free.lock().expect("unpoisoned").push(leaf);
    }
}
