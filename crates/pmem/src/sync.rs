//! Locking without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and does not mind a panic elsewhere: what these locks guard is whole between statements, so no
/// panic leaves it half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
