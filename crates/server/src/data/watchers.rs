//! Listeners to changes of keys: clients that watch them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called when a key has changed, by the thread that changed it, before its lock is released. It is
/// short, and calls nothing in this module.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

/// The database and the name of a key.
type Name = (usize, Vec<u8>);

/// All listeners, by key.
#[derive(Default)]
pub struct Watchers {
    /// The number of listeners, which writers check first.
    listeners: AtomicUsize,
    by_key: Mutex<HashMap<Name, Vec<Listener>>>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watchers({:?})", self.listeners)
    }
}

impl Watchers {
    fn by_key(&self) -> MutexGuard<'_, HashMap<Name, Vec<Listener>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if there are listeners. The lock of a key orders this with
    /// [`listen`](Self::listen).
    #[must_use]
    pub fn any(&self) -> bool {
        // ORDERING: SeqCst; pairs with the SeqCst of `listen`: a thread that listens and then reads
        // the key misses no later change.
        self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Calls `listener` after each change of the key from now on.
    pub fn listen(&self, db: usize, key: &[u8], listener: Listener) {
        // ORDERING: SeqCst; pairs with that of `any`.
        self.listeners.fetch_add(1, Ordering::SeqCst);
        self.by_key()
            .entry((db, key.to_vec()))
            .or_default()
            .push(listener);
    }

    /// Removes a listener.
    pub fn leave(&self, db: usize, key: &[u8], listener: &Listener) {
        let mut by_key = self.by_key();
        let name = (db, key.to_vec());
        let Some(listeners) = by_key.get_mut(&name) else {
            return;
        };
        let Some(at) = listeners.iter().position(|at| Arc::ptr_eq(at, listener)) else {
            return;
        };
        listeners.swap_remove(at);
        if listeners.is_empty() {
            by_key.remove(&name);
        }
        // ORDERING: SeqCst; pairs with that of `any`.
        self.listeners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the keys of a database that have listeners.
    #[must_use]
    pub fn keys_of(&self, db: usize) -> Vec<Vec<u8>> {
        let by_key = self.by_key();
        let here = by_key.keys().filter(|(of, _)| *of == db);
        here.map(|(_, key)| key.clone()).collect()
    }

    /// Calls the listeners of a key.
    pub fn touch(&self, db: usize, key: &[u8]) {
        if let Some(listeners) = self.by_key().get(&(db, key.to_vec())) {
            listeners.iter().for_each(|listener| listener());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_s_listeners_are_told_until_they_leave() {
        let watchers = Watchers::default();
        let told = Arc::new(AtomicUsize::new(0));
        let listener: Listener = {
            let told = Arc::clone(&told);
            Arc::new(move || {
                told.fetch_add(1, Ordering::SeqCst);
            })
        };
        assert!(!watchers.any());
        watchers.listen(1, b"a", Arc::clone(&listener));
        assert!(watchers.any());
        watchers.touch(1, b"a");
        watchers.touch(0, b"a");
        watchers.touch(1, b"b");
        assert_eq!(told.load(Ordering::SeqCst), 1);
        watchers.leave(1, b"b", &listener);
        watchers.leave(1, b"a", &listener);
        watchers.leave(1, b"a", &listener);
        watchers.touch(1, b"a");
        assert!(!watchers.any() && told.load(Ordering::SeqCst) == 1);
    }
}
