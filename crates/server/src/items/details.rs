//! Statistics by the prefix of keys, up to the first colon: `stats detail`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most prefixes that are counted: clients choose them.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// The operations that `stats detail` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A retrieval; true if the item was there.
    Get(bool),
    /// A store.
    Set,
    /// A deletion.
    Delete,
}

/// The statistics. Nothing is counted until they are turned on.
#[derive(Debug, Default)]
pub struct Details {
    on: AtomicBool,
    by_prefix: Mutex<BTreeMap<Vec<u8>, Counts>>,
}

impl Details {
    fn by_prefix(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Counts>> {
        self.by_prefix
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns counting on or off.
    pub fn turn(&self, on: bool) {
        // ORDERING: Relaxed; a flag that leads to nothing else.
        self.on.store(on, Ordering::Relaxed);
    }

    /// Returns true if they are turned on.
    pub fn is_on(&self) -> bool {
        // ORDERING: Relaxed; as in `turn`.
        self.on.load(Ordering::Relaxed)
    }

    /// Counts a use of a key.
    pub(crate) fn note(&self, key: &[u8], which: Use) {
        if !self.is_on() {
            return;
        }
        let Some(end) = memchr::memchr(b':', key) else {
            return;
        };
        let prefix = &key[..end];
        let mut all = self.by_prefix();
        if !all.contains_key(prefix) {
            if all.len() >= MOST {
                return;
            }
            all.insert(prefix.to_vec(), Counts::default());
        }
        if let Some(counts) = all.get_mut(prefix) {
            match which {
                Use::Get(hit) => {
                    counts.gets += 1;
                    counts.hits += u64::from(hit);
                }
                Use::Set => counts.sets += 1,
                Use::Delete => counts.deletes += 1,
            }
        }
    }

    /// Forgets all counts.
    pub fn reset(&self) {
        self.by_prefix().clear();
    }

    /// Returns a line for each prefix, and the last line.
    pub(crate) fn dump(&self) -> Vec<u8> {
        let mut dump = Vec::new();
        for (prefix, counts) in &*self.by_prefix() {
            let Counts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            dump.extend_from_slice(b"PREFIX ");
            dump.extend_from_slice(prefix);
            let mut line = String::new();
            // Writing to a string does not fail.
            let _ = write!(line, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
            dump.extend_from_slice(line.as_bytes());
        }
        dump.extend_from_slice(b"END\r\n");
        dump
    }
}
