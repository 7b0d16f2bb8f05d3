//! Locks of keys.
//!
//! A lock is that of a hash of 64 bits, so that keys share one as good as never: a command that
//! holds the locks of many keys for long holds up no other key. The hashes that are locked are
//! in shards, by their first bits. A command takes all that it needs of one shard together, and the
//! shards in ascending order. Whoever locks all keys closes the shards in that order, and waits for
//! the locks in each: their holders need nothing more of that shard, or of one before it.

use ahash::RandomState;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const SHARD_BITS: u32 = 8;
/// How often a lock is tried before a patience of [`Patience::Short`] ends.
const SPINS: usize = 200;
const YIELDS: usize = 10;
/// Room for locks that a shard keeps.
const KEPT: usize = 256;

/// How long a command waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Some microseconds: other connections wait for its thread.
    Short,
    /// Until the lock is free.
    Any,
}

/// The locks. A secret of this process goes into the hashes, so that no client finds keys that
/// share one.
#[derive(Debug)]
pub struct Locks {
    shards: Box<[Shard]>,
    secret: RandomState,
}

#[derive(Debug)]
struct Shard {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    /// In no order: there are hardly ever more than a few.
    held: Vec<u64>,
    /// All keys are locked, or about to be.
    closed: bool,
    /// The number of threads that wait for `freed`.
    waiting: usize,
}

/// Held locks.
#[derive(Debug)]
pub struct Held<'l> {
    locks: &'l Locks,
    which: Which,
}

#[derive(Debug)]
enum Which {
    One(u64),
    /// In ascending order.
    Many(Vec<u64>),
    All,
}

fn shard_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARD_BITS)) as usize
}

impl Shard {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that changes it can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.waiting += 1;
        let mut state = (self.freed.wait(state)).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// Takes locks together; they are in ascending order. Returns false only if a patience of
    /// [`Patience::Short`] ends.
    fn take(&self, hashes: &[u64], patience: Patience) -> bool {
        let mut attempts = 0;
        let mut state = self.state();
        loop {
            let is_wanted = |held: &u64| hashes.binary_search(held).is_ok();
            if !state.closed && !state.held.iter().any(is_wanted) {
                state.held.extend_from_slice(hashes);
                return true;
            }
            if patience == Patience::Any {
                state = self.wait(state);
                continue;
            }
            drop(state);
            if attempts < SPINS {
                std::hint::spin_loop();
            } else if attempts < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                return false;
            }
            attempts += 1;
            state = self.state();
        }
    }

    fn release(&self, hashes: &[u64]) {
        let mut state = self.state();
        state
            .held
            .retain(|held| hashes.binary_search(held).is_err());
        if state.held.is_empty() && state.held.capacity() > KEPT {
            state.held.shrink_to(KEPT);
        }
        self.wake(state);
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.freed.notify_all();
        }
    }

    /// Waits until nobody holds a lock. Nobody takes one until it is opened.
    fn close(&self) {
        let mut state = self.state();
        while state.closed {
            state = self.wait(state);
        }
        state.closed = true;
        while !state.held.is_empty() {
            state = self.wait(state);
        }
    }

    fn open(&self) {
        let mut state = self.state();
        state.closed = false;
        self.wake(state);
    }
}

impl Locks {
    /// Returns locks that are all free.
    #[must_use]
    pub fn new() -> Self {
        let secret = RandomState::new();
        let shard = |_| Shard {
            state: Mutex::new(State {
                held: Vec::new(),
                closed: false,
                waiting: 0,
            }),
            freed: Condvar::new(),
        };
        Self {
            shards: (0..1 << SHARD_BITS).map(shard).collect(),
            secret,
        }
    }

    /// Returns the hash of a name, which is the same in all databases: a command that moves a key
    /// from one to another holds the locks of both.
    fn hash(&self, (_, name): (usize, &[u8])) -> u64 {
        self.secret.hash_one(name)
    }

    /// Locks these keys. Returns `None` only if a patience of [`Patience::Short`] ends.
    pub fn keys<'k>(
        &self,
        mut keys: impl Iterator<Item = (usize, &'k [u8])>,
        patience: Patience,
    ) -> Option<Held<'_>> {
        let held = |which| Held { locks: self, which };
        let (first, second) = (keys.next(), keys.next());
        if let (Some(only), None) = (first, second) {
            let hash = self.hash(only);
            let taken = self.shards[shard_of(hash)].take(&[hash], patience);
            return taken.then(|| held(Which::One(hash)));
        }
        let keys = first.into_iter().chain(second).chain(keys);
        let mut hashes: Vec<u64> = keys.map(|key| self.hash(key)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let mut taken = 0;
        for some in hashes.chunk_by(|a, b| shard_of(*a) == shard_of(*b)) {
            if !self.shards[shard_of(some[0])].take(some, patience) {
                hashes.truncate(taken);
                drop(held(Which::Many(hashes)));
                return None;
            }
            taken += some.len();
        }
        Some(held(Which::Many(hashes)))
    }

    /// Locks all keys.
    pub fn all(&self) -> Held<'_> {
        self.shards.iter().for_each(Shard::close);
        Held {
            locks: self,
            which: Which::All,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let shards = &self.locks.shards;
        match &self.which {
            Which::One(hash) => shards[shard_of(*hash)].release(&[*hash]),
            Which::Many(hashes) => {
                for some in hashes.chunk_by(|a, b| shard_of(*a) == shard_of(*b)) {
                    shards[shard_of(some[0])].release(some);
                }
            }
            Which::All => shards.iter().for_each(Shard::open),
        }
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn names(numbers: std::ops::Range<u32>) -> Vec<[u8; 4]> {
        numbers.map(u32::to_be_bytes).collect()
    }

    fn of(names: &[[u8; 4]]) -> impl Iterator<Item = (usize, &[u8])> {
        names.iter().map(|name| (0, name.as_slice()))
    }

    #[test]
    fn many_locked_keys_lock_no_other() {
        let locks = Locks::new();
        let (held, others) = (names(0..5000), names(5000..9000));
        let all_of_them = locks.keys(of(&held), Patience::Any).unwrap();
        for other in &others {
            let one = std::slice::from_ref(other);
            assert!(locks.keys(of(one), Patience::Short).is_some());
        }
        assert!(locks.keys(of(&others), Patience::Short).is_some());
        assert!(locks.keys(of(&held[7..8]), Patience::Short).is_none());
        // Those that were taken before the one that is held are free again.
        let mixed = [&others[..], &held[4999..]].concat();
        assert!(locks.keys(of(&mixed), Patience::Short).is_none());
        assert!(locks.keys(of(&others), Patience::Short).is_some());
        drop(all_of_them);
        assert!(locks.keys(of(&held), Patience::Short).is_some());
        // A key that is given twice, and none.
        assert!(locks.keys(of(&[[1; 4], [1; 4]]), Patience::Short).is_some());
        assert!(locks.keys(of(&[]), Patience::Short).is_some());
        let all = locks.all();
        assert!(locks.keys(of(&held[..1]), Patience::Short).is_none());
        drop(all);
        assert!(locks.keys(of(&held[..1]), Patience::Short).is_some());
    }

    #[test]
    fn who_holds_a_lock_is_alone_and_all_get_theirs() {
        let (locks, counters) = (Locks::new(), [const { AtomicU64::new(0) }; 40]);
        let add = |at: usize| {
            let before = counters[at].load(Ordering::Relaxed);
            std::hint::black_box(before);
            counters[at].store(before + 1, Ordering::Relaxed);
        };
        let all_names = names(0..40);
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (locks, add, all_names) = (&locks, &add, &all_names);
                scope.spawn(move || {
                    for turn in 0..3000usize {
                        let at = (turn * 7 + thread * 11) % 40;
                        let several = [at, (at + 13) % 40, (at * 3 + 1) % 40];
                        match turn % 10 {
                            0 => {
                                let _held = locks.all();
                                (0..40).for_each(add);
                            }
                            1..5 => {
                                let some = several.map(|at| all_names[at]);
                                let _held = locks.keys(of(&some), Patience::Any).unwrap();
                                several.into_iter().for_each(add);
                            }
                            _ => {
                                let one = &all_names[at..=at];
                                let _held = locks.keys(of(one), Patience::Any).unwrap();
                                add(at);
                            }
                        }
                    }
                });
            }
        });
        let total: u64 = counters.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 4 * (300 * 40 + 1200 * 3 + 1500));
    }
}
