//! Locks of keys: a fixed number of stripes.

use ahash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 256;

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

    fn lock(&self, stripe: usize) -> MutexGuard<'_, ()> {
        // They guard no data of their own: what a panicking command wrote is not committed.
        self.stripes[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stripe of a name, which is the same in all databases: a command that moves a key
    /// from one to another holds the locks of both.
    fn stripe(&self, (_, name): (usize, &[u8])) -> usize {
        self.secret.hash_one(name) as usize % STRIPES
    }

    /// Locks the stripes of these keys, in ascending order.
    pub fn keys<'k>(&self, mut keys: impl Iterator<Item = (usize, &'k [u8])>) -> Held<'_> {
        let (first, second) = (keys.next(), keys.next());
        match (first, second) {
            (Some(only), None) => Held::One(self.lock(self.stripe(only))),
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
                        held.push(self.lock(i * 64 + word.trailing_zeros() as usize));
                        word &= word - 1;
                    }
                }
                Held::Many(held)
            }
        }
    }

    /// Locks all stripes.
    pub fn all(&self) -> Held<'_> {
        Held::Many((0..STRIPES).map(|stripe| self.lock(stripe)).collect())
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}
