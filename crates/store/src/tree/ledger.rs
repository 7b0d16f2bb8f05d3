//! How the counts of keys outlive the process.
//!
//! A store that is closed in order leaves what its keyspaces have under the empty name in the
//! catalogue, with the time stamp that the next session begins at. Whoever opens the store and
//! begins at a later one, finds them out of date, since others have changed something. Then a scan
//! at the time of the opening says what there was; changes since then have been counted.
//!
//! ```text
//! next session 64 | number 32 keys 64 bytes 64 expiring 64 | ...       little-endian
//! ```

use super::counts::{Count, weight};
use super::long;
use super::value::glimpsed;
use super::{ALL, Core};
use crate::error::WriteError;
use crate::key::{CATALOGUE, IndexKey};
use bristlecone_index::clustered::{self, When};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const ENTRY: usize = 4 + 3 * 8;
/// Keys that are counted before looking whether the store is being closed.
const LOOKS: u64 = 1024;
/// Attempts to write the ledger, of which each may need a new session's time stamp.
const ATTEMPTS: usize = 3;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The time whose keys have not been counted, while there is one.
    uncounted: Mutex<Option<u64>>,
    is_uncounted: AtomicBool,
    /// The store has a thread, which counts them.
    has_thread: AtomicBool,
}

fn parse(bytes: &[u8]) -> Option<(u64, BTreeMap<u32, Count>)> {
    let (session, mut rest) = bytes.split_first_chunk::<8>()?;
    let mut counts = BTreeMap::new();
    while let Some((entry, after)) = rest.split_first_chunk::<ENTRY>() {
        let number = u32::from_le_bytes(*entry.first_chunk()?);
        let [keys, bytes, expiring] = [4, 12, 20].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&entry[at..at + 8]);
            u64::from_le_bytes(word)
        });
        let count = Count {
            keys,
            bytes,
            expiring,
        };
        counts.insert(number, count);
        rest = after;
    }
    let session = u64::from_le_bytes(*session);
    rest.is_empty().then_some((session, counts))
}

fn encoded(session: u64, counts: &BTreeMap<u32, Count>) -> Vec<u8> {
    let mut bytes = session.to_le_bytes().to_vec();
    for (number, count) in counts {
        bytes.extend(number.to_le_bytes());
        for word in [count.keys, count.bytes, count.expiring] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// Counts an entry with its keyspace's.
pub(super) fn count_in<M: Media>(
    counts: &mut BTreeMap<u32, Count>,
    key: &[u8],
    current: &clustered::Current<'_, M>,
) {
    if let Some((number, key_bytes)) = long::owner::<M>(key) {
        let count = Count::of(key_bytes, weight(glimpsed(current.glimpse())));
        counts.entry(number).or_default().add(count);
    }
}

impl<M: Media> Core<M> {
    /// Takes the counts that the last session left, or notes that the keys have to be counted.
    pub(super) fn load_counts(&self) {
        let key = IndexKey::new(CATALOGUE, b"");
        let saved = self.tree.get(When::Now, &key, parse);
        // Counts that cannot be read are as if they had not been saved; a check reports them.
        match saved.ok().flatten().flatten() {
            Some((session, counts)) if session == self.tree.first_stamp() => {
                for (number, count) in counts {
                    self.counts.add(number, count);
                }
            }
            _ if self.tree.is_empty().unwrap_or(false) => {}
            _ => {
                *lock(&self.ledger.uncounted) = Some(self.tree.begin(false));
                // ORDERING: Release; pairs with the Acquire of `settle_counts`.
                self.ledger.is_uncounted.store(true, Ordering::Release);
            }
        }
    }

    /// A thread of the store counts the keys.
    pub(super) fn thread_counts(&self) {
        // ORDERING: Relaxed; nobody else has the store yet.
        self.ledger.has_thread.store(true, Ordering::Relaxed);
    }

    /// Counts the keys before the first change, if no thread does: while they are not counted, the
    /// old values of all that changes are kept.
    #[inline]
    pub(super) fn settle_counts(&self) {
        // ORDERING: Acquire; pairs with the Releases of `load_counts` and `count_keys`. Relaxed;
        // as in `thread_counts`.
        if self.ledger.is_uncounted.load(Ordering::Acquire)
            && !self.ledger.has_thread.load(Ordering::Relaxed)
        {
            self.count_keys();
        }
    }

    /// Counts the keys that there were when the store was opened, unless they are known, or the
    /// store is being closed. Keys of pages that cannot be read do not count.
    #[cold]
    pub(super) fn count_keys(&self) {
        let mut uncounted = lock(&self.ledger.uncounted);
        let Some(time) = *uncounted else {
            return;
        };
        let mut counts: BTreeMap<u32, Count> = BTreeMap::new();
        let (mut looks, mut stopped) = (0_u64, false);
        let visit = |key: &[u8], current: &clustered::Current<'_, M>| {
            count_in(&mut counts, key, current);
            looks += 1;
            stopped = looks % LOOKS == 0 && self.control.is_stopped();
            Ok(if stopped {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        };
        // Nothing in it fails.
        let _ = self.tree.salvage_at(time, ALL, visit, |_, _| {});
        self.tree.end(time);
        *uncounted = None;
        if stopped {
            // They stay uncounted, so they are not left for the next session.
            return;
        }
        for (number, count) in counts {
            self.counts.add(number, count);
        }
        // ORDERING: Release; pairs with the Acquire of `settle_counts`.
        self.ledger.is_uncounted.store(false, Ordering::Release);
    }

    /// Returns whether all keys have been counted.
    pub(super) fn are_counted(&self) -> bool {
        // ORDERING: Acquire; as in `settle_counts`.
        !self.ledger.is_uncounted.load(Ordering::Acquire)
    }

    /// Leaves the counts for the next session. Nobody changes anything any more.
    pub(super) fn save_counts(&self) -> Result<(), WriteError> {
        let unchanged = self.tree.applied() == self.tree.first_stamp();
        if !self.are_counted() || unchanged || self.counts.all().is_empty() {
            return Ok(());
        }
        let key = IndexKey::new(CATALOGUE, b"");
        for _ in 0..ATTEMPTS {
            let session = self.tree.next_session();
            let put = self.tree.put(&key, &encoded(session, &self.counts.all()));
            let stamp = put.map_err(|e| super::write_error(Some(&key), e))?;
            if self.tree.next_session() == session {
                return Ok(self.tree.make_durable(stamp)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_comes_back() {
        let count = |keys| Count {
            keys,
            bytes: keys * 10,
            expiring: 1,
        };
        let counts = BTreeMap::from([(1, count(7)), (u32::MAX, count(1 << 60))]);
        let bytes = encoded(99, &counts);
        assert_eq!(parse(&bytes), Some((99, counts)));
        assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(parse(b"short"), None);
    }
}
