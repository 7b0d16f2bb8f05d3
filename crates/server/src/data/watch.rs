//! The keys that a connection watches, and whether one of them has changed since: `WATCH`.

use super::Data;
use super::tx::Tx;
use super::watchers::{Listener, Watchers};
use crate::error::CommandError;
use bristlecone_store::KEY_MOST;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most keys that a connection watches.
const MAX_WATCHED: usize = 100_000;
/// Most bytes of keys that a connection watches.
pub(crate) const MAX_WATCHED_BYTES: usize = 64 << 20;

/// What a connection watches, until it is cleared or dropped.
#[derive(Default)]
pub struct Watch {
    /// Database and key, and whether it was there.
    pub(crate) keys: HashMap<(usize, Vec<u8>), bool>,
    /// Bytes of these keys.
    pub(crate) bytes: usize,
    /// Who tells, and what is told.
    listening: Option<(Arc<Watchers>, Listener)>,
    touched: Arc<AtomicBool>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("keys", &self.keys.len())
            .field("touched", &self.touched)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Ends watching.
    pub fn clear(&mut self) {
        if let Some((touched, listener)) = self.listening.take() {
            for (db, key) in std::mem::take(&mut self.keys).into_keys() {
                touched.leave(db, &key, &listener);
            }
        }
        self.bytes = 0;
        // A new one: who was about to tell the old one is not heard.
        self.touched = Arc::default();
    }

    /// Returns how many keys are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns bytes of memory that it takes, about.
    #[must_use]
    pub fn held(&self) -> usize {
        // In the map and with who listens, each time with what that needs besides.
        2 * (self.bytes + self.keys.len() * 64)
    }

    /// Returns true if no key is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn is_touched(&self) -> bool {
        // ORDERING: Acquire; with the Release of who tells. The key's lock orders them as well.
        self.touched.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Data {
    /// Watches a key from now on, too.
    ///
    /// # Errors
    /// [`CommandError::Read`]; too much is watched.
    pub fn watch(&self, watch: &mut Watch, db: usize, key: &[u8]) -> Result<(), CommandError> {
        if key.len() > KEY_MOST {
            // It is never there.
            return Ok(());
        }
        let name = (db, key.to_vec());
        if watch.keys.contains_key(&name) {
            return Ok(());
        }
        if watch.len() >= MAX_WATCHED || watch.bytes + key.len() > MAX_WATCHED_BYTES {
            return Err(CommandError::reply(format!(
                "ERR a connection watches at most {MAX_WATCHED} keys, of {MAX_WATCHED_BYTES} bytes in all"
            )));
        }
        // Who changes the key has either done so, or will find the listener.
        let _held = self.locks.keys(std::iter::once((db, key)));
        let existed = self.is_there(db, key)?;
        let (touched, listener) = watch.listening.get_or_insert_with(|| {
            let told = Arc::clone(&watch.touched);
            // ORDERING: Release; see `is_touched`.
            let listener = move || told.store(true, Ordering::Release);
            (Arc::clone(&self.watchers), Arc::new(listener))
        });
        touched.listen(db, key, Arc::clone(listener));
        watch.keys.insert(name, existed);
        watch.bytes += key.len();
        Ok(())
    }

    /// Returns the key's lock is held.
    pub(crate) fn is_there(&self, db: usize, key: &[u8]) -> Result<bool, CommandError> {
        let mut tx = Tx::new(self, &self.deferring, db);
        Ok(tx.load_head(key)?.is_some())
    }
}
