//! The keys that a connection watches, and whether one of them has changed since: `WATCH`.

use super::Data;
use super::tx::Tx;
use super::watchers::{Listener, Watchers};
use crate::error::CommandError;
use crate::execute::Haste;
use bristlecone_store::MAX_KEY_BYTES;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most keys that a connection may watch.
const MAX_WATCHED: usize = 100_000;
/// The most bytes of keys that a connection may watch.
pub(crate) const MAX_WATCHED_BYTES: usize = 64 << 20;

/// The keys that a connection watches, until it is cleared or dropped.
#[derive(Default)]
pub struct Watch {
    /// Database and name of each key, and whether it existed.
    pub(crate) keys: HashMap<(usize, Vec<u8>), bool>,
    /// The total length of the keys.
    pub(crate) bytes: usize,
    /// The list of watchers, and this connection's listener in it.
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
        // A new flag: a notification that is under way still sets the old one.
        self.touched = Arc::default();
    }

    /// Returns the number of watched keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the approximate memory in bytes that it takes.
    #[must_use]
    pub fn held(&self) -> usize {
        // Each key is here and in the list of watchers, with some overhead.
        2 * (self.bytes + self.keys.len() * 64)
    }

    /// Returns true if no key is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn is_touched(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of the listener in `watch`. The key's lock
        // orders them as well.
        self.touched.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Data {
    /// Watches a key, too, from now on.
    ///
    /// # Errors
    /// [`CommandError::Read`]; [`CommandError::Reply`]: too much is watched.
    pub fn watch(&self, watch: &mut Watch, db: usize, key: &[u8]) -> Result<(), CommandError> {
        self.watch_within(Haste::None, watch, (db, key))
    }

    /// Watches a key like [`watch`](Self::watch).
    ///
    /// # Errors
    /// As of [`watch`](Self::watch); [`CommandError::Long`]: it takes longer than `haste` allows.
    pub fn watch_within(
        &self,
        haste: Haste,
        watch: &mut Watch,
        (db, key): (usize, &[u8]),
    ) -> Result<(), CommandError> {
        if key.len() > MAX_KEY_BYTES {
            // Such a key never exists.
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
        // Under the key's lock, every writer has either changed the key already or will find the
        // listener.
        let locked = (self.locks).keys(std::iter::once((db, key)), haste.patience());
        let _held = locked.ok_or(CommandError::Long)?;
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

    /// Returns true if a key exists. Its lock is held.
    pub(crate) fn is_there(&self, db: usize, key: &[u8]) -> Result<bool, CommandError> {
        let mut tx = Tx::new(self, &self.deferring, db);
        Ok(tx.load_head(key)?.is_some())
    }
}
