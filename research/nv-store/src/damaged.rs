//! Index entries that opening found to lead to damaged records.

use bristlecone_pmem::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys whose entries lead to records that opening found damaged. Such a record may belong to
/// another key, so nothing is freed on account of the entry.
#[derive(Debug, Default)]
pub(crate) struct DamagedEntries {
    /// Whether there are any. Mostly there are none.
    any: AtomicBool,
    by_key: Mutex<HashMap<Vec<u8>, u64>>,
}

impl DamagedEntries {
    pub fn new(entries: impl IntoIterator<Item = (Vec<u8>, u64)>) -> Self {
        let by_key: HashMap<_, _> = entries.into_iter().collect();
        Self {
            any: AtomicBool::new(!by_key.is_empty()),
            by_key: Mutex::new(by_key),
        }
    }

    /// Returns whether the entry of a key is one of them. A key that leads elsewhere by now has
    /// been replaced and is forgotten.
    #[inline]
    pub fn contains(&self, key: &[u8], entry: u64) -> bool {
        // ORDERING: Relaxed; it is set before the store is shared, and never again.
        self.any.load(Ordering::Relaxed) && self.find(key, entry)
    }

    #[cold]
    fn find(&self, key: &[u8], entry: u64) -> bool {
        let mut by_key = lock(&self.by_key);
        let found = by_key.get(key).map(|damaged| *damaged == entry);
        if found == Some(false) {
            by_key.remove(key);
        }
        found == Some(true)
    }
}
