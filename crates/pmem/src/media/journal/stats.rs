//! Statistics of the journal.

use std::sync::atomic::{AtomicU64, Ordering};

/// Statistics since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Frames written.
    pub frames: u64,
    /// Bytes of those frames.
    pub frame_bytes: u64,
    /// Syncs and synced writes issued, of the journal and the pool file.
    pub syncs: u64,
    /// Checkpoints finished.
    pub checkpoints: u64,
    /// Pages that checkpoints wrote.
    pub pages: u64,
    /// Bytes of long runs that went to the pool file and not into the journal.
    pub direct_bytes: u64,
    /// Bytes of the journal that are in use now.
    pub used_bytes: u64,
    /// Bytes of the journal's segments.
    pub journal_bytes: u64,
}

/// Counters behind [`JournalStats`].
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub frames: AtomicU64,
    pub frame_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub checkpoints: AtomicU64,
    pub pages: AtomicU64,
    pub direct_bytes: AtomicU64,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; plain statistics.
    counter.fetch_add(by, Ordering::Relaxed);
}
