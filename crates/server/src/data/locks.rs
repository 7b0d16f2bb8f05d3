//! Locks of keys: a fixed number of stripes.

use ahash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

const STRIPES: usize = 1024;
/// How often a lock is tried before a patience of [`Patience::Short`] ends.
const SPINS: usize = 200;
const YIELDS: usize = 10;

/// How long a command waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Some microseconds: other connections wait for its thread.
    Short,
    /// Until the lock is free.
    Any,
}

/// The stripes. A secret of this process spreads the keys over them, so that no client can aim at
/// one.
#[derive(Debug)]
pub struct Locks {
    stripes: Box<[Mutex<()>]>,
    secret: RandomState,
}

/// Held locks.
#[derive(Debug)]
pub enum Held<'l> {
    /// One stripe.
    One(#[allow(dead_code)] MutexGuard<'l, ()>),
    /// Several stripes.
    Many(#[allow(dead_code)] Vec<MutexGuard<'l, ()>>),
}

impl Locks {
    /// Returns stripes that are all free.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            secret: RandomState::new(),
        }
    }

    /// Returns `None` only if a patience of [`Patience::Short`] ends.
    fn lock(&self, stripe: usize, patience: Patience) -> Option<MutexGuard<'_, ()>> {
        // They guard no data of their own: what a panicking command wrote is not committed.
        let stripe = &self.stripes[stripe];
        if patience == Patience::Any {
            return Some(stripe.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for attempt in 0..SPINS + YIELDS {
            match stripe.try_lock() {
                Ok(held) => return Some(held),
                Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
                Err(TryLockError::WouldBlock) if attempt < SPINS => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Returns the stripe of a name, which is the same in all databases: a command that moves a key
    /// from one to another holds the locks of both.
    fn stripe(&self, (_, name): (usize, &[u8])) -> usize {
        self.secret.hash_one(name) as usize % STRIPES
    }

    /// Locks the stripes of these keys, in ascending order. Returns `None` only if a patience of
    /// [`Patience::Short`] ends.
    pub fn keys<'k>(
        &self,
        mut keys: impl Iterator<Item = (usize, &'k [u8])>,
        patience: Patience,
    ) -> Option<Held<'_>> {
        let (first, second) = (keys.next(), keys.next());
        match (first, second) {
            (Some(only), None) => Some(Held::One(self.lock(self.stripe(only), patience)?)),
            (first, second) => {
                let (mut wanted, mut most) = ([0u64; STRIPES / 64], 0);
                for key in first.into_iter().chain(second).chain(keys) {
                    let stripe = self.stripe(key);
                    wanted[stripe / 64] |= 1 << (stripe % 64);
                    most += 1;
                }
                let mut held = Vec::with_capacity(most.min(STRIPES));
                for (i, mut word) in wanted.into_iter().enumerate() {
                    while word != 0 {
                        held.push(self.lock(i * 64 + word.trailing_zeros() as usize, patience)?);
                        word &= word - 1;
                    }
                }
                Some(Held::Many(held))
            }
        }
    }

    /// Locks all stripes.
    pub fn all(&self) -> Held<'_> {
        let all = (0..STRIPES).filter_map(|stripe| self.lock(stripe, Patience::Any));
        Held::Many(all.collect())
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}
