//! Locks of keys: a fixed number of stripes.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 256;

/// The stripes. Keys are spread over them with a secret of this process, so that no client can aim at one.
#[derive(Debug)]
pub struct Locks {
    stripes: Box<[Mutex<()>]>,
    secret: RandomState,
}

/// Locks that are held.
#[derive(Debug)]
pub enum Held<'l> {
    /// One stripe.
    One(#[allow(dead_code)] MutexGuard<'l, ()>),
    /// Several.
    Many(#[allow(dead_code)] Vec<MutexGuard<'l, ()>>),
}

impl Locks {
    /// Stripes that nobody holds.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            secret: RandomState::new(),
        }
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, ()> {
        // They guard no data of their own: what a panic leaves is not committed.
        self.stripes[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for a name in all databases: who moves a key from one to another has the locks of both.
    fn stripe(&self, (_, name): (usize, &[u8])) -> usize {
        self.secret.hash_one(name) as usize % STRIPES
    }

    /// Locks the stripes of these keys, which are database and name, in ascending order.
    pub fn keys<'k>(&self, mut keys: impl Iterator<Item = (usize, &'k [u8])>) -> Held<'_> {
        let (first, second) = (keys.next(), keys.next());
        match (first, second) {
            (Some(only), None) => Held::One(self.lock(self.stripe(only))),
            (first, second) => {
                let all = first.into_iter().chain(second).chain(keys);
                let mut stripes: Vec<usize> = all.map(|key| self.stripe(key)).collect();
                stripes.sort_unstable();
                stripes.dedup();
                Held::Many(
                    stripes
                        .into_iter()
                        .map(|stripe| self.lock(stripe))
                        .collect(),
                )
            }
        }
    }

    /// Locks all of them.
    pub fn all(&self) -> Held<'_> {
        Held::Many((0..STRIPES).map(|stripe| self.lock(stripe)).collect())
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}
