//! Threads that insert and remove keys, and leaves with them, while all of them search.
//!
//! A small tree stands in for the real ones: a leaf is a set of key numbers in a few atomic words
//! under a version lock. It is split when it has too many and removed when it has none. Each thread
//! owns every T-th key and knows which of them are present, so each of its lookups has one right
//! answer whatever the others do.

use super::*;
use crate::sync::AtomicU64;
use crate::version_lock::{Locked, VersionLocks};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Keys are numbered `0 .. KEYS`.
pub(super) const KEYS: usize = 1024;
const WORDS: usize = KEYS / 64;

/// Returns the separator for a key number.
pub(super) trait Numbered: Separator {
    fn key(n: usize) -> Self::Owned;
}

impl Numbered for u64 {
    fn key(n: usize) -> u64 {
        n as u64 * 1000
    }
}

impl Numbered for [u8] {
    fn key(n: usize) -> Vec<u8> {
        // Groups of keys share longer prefixes than the rest.
        format!("customer/{:04}/a longer common part/{:02}", n / 32, n % 32).into_bytes()
    }
}

/// A set of key numbers.
type Set = [u64; WORDS];

fn members(set: &Set) -> impl Iterator<Item = usize> {
    (0..KEYS).filter(|n| set[n / 64] & (1 << (n % 64)) != 0)
}

pub(super) struct MiniTree<S: Separator + ?Sized, const CAP: usize> {
    pub(super) index: InnerIndex<S, CAP>,
    locks: VersionLocks,
    leaves: Vec<[AtomicU64; WORDS]>,
    free: Mutex<Vec<u32>>,
    /// A leaf with more keys is split.
    room: usize,
    pub(super) splits: AtomicUsize,
    pub(super) removals: AtomicUsize,
}

impl<S: Numbered + ?Sized, const CAP: usize> MiniTree<S, CAP> {
    pub(super) fn new(leaves: u32, room: usize) -> Self {
        Self {
            index: InnerIndex::new(0, u64::MAX).expect("memory"),
            locks: VersionLocks::new(),
            leaves: (0..leaves)
                .map(|_| [const { AtomicU64::new(0) }; WORDS])
                .collect(),
            free: Mutex::new((1..leaves).rev().collect()),
            room,
            splits: AtomicUsize::new(0),
            removals: AtomicUsize::new(0),
        }
    }

    fn load(&self, leaf: u32) -> Set {
        std::array::from_fn(|i| self.leaves[leaf as usize][i].load(Ordering::Relaxed))
    }

    fn store(&self, leaf: u32, set: &Set) {
        for (word, value) in self.leaves[leaf as usize].iter().zip(set) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    fn take_leaf(&self) -> Option<u32> {
        self.free.lock().expect("unpoisoned").pop()
    }

    fn give_leaf(&self, leaf: u32) {
        self.free.lock().expect("unpoisoned").push(leaf);
    }

    /// Finishes a lookup as a tree does. Returns `None` to start again.
    fn try_contains(&self, n: usize, located: &Located) -> Option<bool> {
        let version = self.locks.try_read(located.leaf)?;
        if !self.index.validate(located) {
            return None;
        }
        let found =
            self.leaves[located.leaf as usize][n / 64].load(Ordering::Relaxed) >> (n % 64) & 1;
        self.locks
            .validate(located.leaf, version)
            .then_some(found == 1)
    }

    pub(super) fn contains(&self, n: usize) -> bool {
        let key = S::key(n);
        let guard = &pin();
        InnerIndex::<S, CAP>::retry(|| self.try_contains(n, &self.index.find(key.borrow(), guard)))
    }

    pub(super) fn contains_batch(&self, numbers: &[usize]) -> Vec<bool> {
        let keys: Vec<S::Owned> = numbers.iter().map(|&n| S::key(n)).collect();
        let mut located = vec![Located::default(); keys.len()];
        self.index.find_batch(&keys, &mut located, &pin());
        let one = |(&n, located)| {
            self.try_contains(n, located)
                .unwrap_or_else(|| self.contains(n))
        };
        numbers.iter().zip(&located).map(one).collect()
    }

    /// Returns the leaf of a key, locked.
    fn lock(&self, key: &S, guard: &Guard) -> (u32, Locked<'_>) {
        InnerIndex::<S, CAP>::retry(|| {
            let located = self.index.find(key, guard);
            let version = self.locks.read(located.leaf);
            let routed = self.index.validate(&located);
            let held = routed.then(|| self.locks.try_lock_at(located.leaf, version))??;
            Some((located.leaf, held))
        })
    }

    pub(super) fn insert(&self, n: usize) {
        let guard = &pin();
        let (leaf, held) = self.lock(S::key(n).borrow(), guard);
        let mut set = self.load(leaf);
        set[n / 64] |= 1 << (n % 64);
        let count = members(&set).count();
        if count > self.room
            && let Some(right) = self.take_leaf()
        {
            let middle = members(&set).nth(count / 2).expect("more than one");
            let mut upper = [0; WORDS];
            for n in members(&set).filter(|&n| n >= middle) {
                upper[n / 64] |= 1 << (n % 64);
            }
            self.store(right, &upper);
            for (word, upper) in set.iter_mut().zip(upper) {
                *word &= !upper;
            }
            self.store(leaf, &set);
            self.index.insert(S::key(middle).borrow(), right, guard);
            self.splits.fetch_add(1, Ordering::Relaxed);
        } else {
            self.store(leaf, &set);
        }
        held.unlock();
    }

    pub(super) fn remove(&self, n: usize) {
        let key = S::key(n);
        let guard = &pin();
        let (leaf, held) = self.lock(key.borrow(), guard);
        let mut set = self.load(leaf);
        set[n / 64] &= !(1 << (n % 64));
        self.store(leaf, &set);
        held.unlock();
        if set == [0; WORDS] {
            self.reclaim(key.borrow(), guard);
        }
    }

    /// Removes the leaf of `key` if it is empty, under its and its left neighbour's lock.
    fn reclaim(&self, key: &S, guard: &Guard) {
        let both = self.index.find_with_left(key, guard);
        let leaf = both.located.leaf;
        let left = both.left.map_or(leaf, |left| left.leaf);
        let held = self.locks.lock_two(left, leaf);
        let valid = self.index.validate(&both.located)
            && both.left.is_none_or(|left| self.index.validate(&left));
        if !valid || self.load(leaf) != [0; WORDS] || !self.index.remove(leaf, key, guard) {
            return held.unlock_unchanged();
        }
        held.unlock();
        self.give_leaf(leaf);
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// Walks up by ranges; calls `f` for each key that was seen.
    pub(super) fn scan(&self, mut f: impl FnMut(usize)) {
        let guard = &pin();
        let mut from: Option<S::Owned> = None;
        loop {
            let (seen, high) = InnerIndex::<S, CAP>::retry(|| {
                let ranged = match &from {
                    None => self.index.find_first(guard),
                    Some(from) => self.index.find_range(from.borrow(), guard),
                };
                self.read_range(ranged).map(|(seen, _, high)| (seen, high))
            });
            let from_here = |n: &usize| from.as_ref().is_none_or(|from| S::key(*n) >= *from);
            members(&seen).filter(from_here).for_each(&mut f);
            let Some(high) = high else { return };
            from = Some(high);
        }
    }

    /// Walks down by ranges; calls `f` for each key that was seen.
    pub(super) fn scan_reverse(&self, mut f: impl FnMut(usize)) {
        let guard = &pin();
        let mut below: Option<S::Owned> = None;
        loop {
            let (seen, low) = InnerIndex::<S, CAP>::retry(|| {
                let ranged = match &below {
                    None => self.index.find_last(guard),
                    Some(below) => self.index.find_below(below.borrow(), guard),
                };
                self.read_range(ranged).map(|(seen, low, _)| (seen, low))
            });
            let below_here = |n: &usize| below.as_ref().is_none_or(|below| S::key(*n) < *below);
            let seen: Vec<usize> = members(&seen).filter(below_here).collect();
            seen.into_iter().rev().for_each(&mut f);
            let Some(low) = low else { return };
            below = Some(low);
        }
    }

    /// Returns the keys of a leaf that are in the range that led to it, and that range.
    #[allow(clippy::type_complexity, reason = "a set and two ends")]
    fn read_range(&self, ranged: Ranged<S>) -> Option<(Set, Option<S::Owned>, Option<S::Owned>)> {
        let leaf = ranged.located.leaf;
        let version = self.locks.try_read(leaf)?;
        if !self.index.validate(&ranged.located) {
            return None;
        }
        let mut set = self.load(leaf);
        if !self.locks.validate(leaf, version) {
            return None;
        }
        let (low, high) = (ranged.low, ranged.high);
        for n in members(&set.clone()) {
            let key = S::key(n);
            let inside = low.as_ref().is_none_or(|low| key >= *low)
                && high.as_ref().is_none_or(|high| key < *high);
            if !inside {
                set[n / 64] &= !(1 << (n % 64));
            }
        }
        Some((set, low, high))
    }

    /// Checks at rest that the index is sound and every leaf's keys are in its range.
    pub(super) fn check(&self) {
        self.index.verify().expect("sound");
        let mut leaves = Vec::new();
        self.index
            .for_each_leaf(|low, leaf| leaves.push((low.map(ToOwned::to_owned), leaf)));
        for (i, (low, leaf)) in leaves.iter().enumerate() {
            for n in members(&self.load(*leaf)) {
                assert!(
                    low.as_ref().is_none_or(|low| *low <= S::key(n)),
                    "key {n} is too low"
                );
                let high = leaves.get(i + 1).and_then(|(low, _)| low.as_ref());
                assert!(
                    high.is_none_or(|high| S::key(n) < *high),
                    "key {n} is too high"
                );
            }
        }
        let mut handles: Vec<u32> = leaves.iter().map(|(_, leaf)| *leaf).collect();
        handles.extend(self.free.lock().expect("unpoisoned").iter());
        handles.sort_unstable();
        let all: Vec<u32> = (0..self.leaves.len() as u32).collect();
        assert_eq!(handles, all, "every leaf is in the index or free, once");
    }
}

/// One thread's part: keys `t`, `t + threads`, ...
fn work<S: Numbered + ?Sized, const CAP: usize>(
    tree: &MiniTree<S, CAP>,
    t: usize,
    threads: usize,
    until: Instant,
) {
    let mut rng = SmallRng::seed_from_u64(t as u64 + 1);
    let mut mine = vec![false; KEYS];
    let own = |rng: &mut SmallRng| rng.random_range(0..KEYS / threads) * threads + t;
    // Each thread fills and empties its keys in turn, so that the tree grows tall and collapses.
    let mut growing = true;
    while Instant::now() < until {
        for _ in 0..400 {
            let n = own(&mut rng);
            if rng.random_range(0..10) < if growing { 9 } else { 1 } {
                tree.insert(n);
                mine[n] = true;
            } else {
                tree.remove(n);
                mine[n] = false;
            }
            let n = own(&mut rng);
            assert_eq!(tree.contains(n), mine[n], "key {n}");
        }
        growing = rng.next_u32() % 2 == 0;
        if !growing {
            for n in (t..KEYS).step_by(threads) {
                tree.remove(n);
                mine[n] = false;
            }
        }
        let numbers: Vec<usize> = (0..50).map(|_| own(&mut rng)).collect();
        let found = tree.contains_batch(&numbers);
        assert!(
            numbers
                .iter()
                .zip(found)
                .all(|(&n, found)| found == mine[n]),
            "in a batch"
        );
        // Scans visit each of this thread's keys that is present, once and in order.
        let ours: Vec<usize> = (t..KEYS).step_by(threads).filter(|&n| mine[n]).collect();
        let mut seen = Vec::new();
        tree.scan(|n| seen.push(n));
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        seen.retain(|n| n % threads == t);
        assert_eq!(seen, ours, "scan");
        seen.clear();
        tree.scan_reverse(|n| seen.push(n));
        assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
        seen.retain(|n| n % threads == t);
        seen.reverse();
        assert_eq!(seen, ours, "reverse scan");
    }
}

fn run<S: Numbered + ?Sized, const CAP: usize>(threads: usize) {
    // Fewer leaves than keys, so that some inserts find none free.
    let tree = MiniTree::<S, CAP>::new(600, 2);
    let until = Instant::now() + Duration::from_millis(600);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let tree = &tree;
            scope.spawn(move || work(tree, t, threads, until));
        }
    });
    tree.check();
    let (splits, removals) = (tree.splits.into_inner(), tree.removals.into_inner());
    assert!(
        splits > 500 && removals > 500,
        "{splits} splits, {removals} removals: not a stress"
    );
}

#[test]
fn threads_on_a_deep_tree_of_integers() {
    run::<u64, 3>(4);
}

#[test]
fn threads_on_full_nodes_of_integers() {
    run::<u64, NODE_SEPARATORS>(2);
}

#[test]
fn threads_on_a_deep_tree_of_strings() {
    run::<[u8], 3>(4);
}

#[test]
fn threads_on_full_nodes_of_strings() {
    run::<[u8], NODE_SEPARATORS>(3);
}
