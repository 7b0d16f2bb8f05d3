//! `Counting`: any medium, with a count of flushed lines and fences.
//!
//! Used for persist-cost goldens and for the counted pass of `bench micro`. Timed runs use the
//! medium itself and pay nothing.

use super::{
    Durability, Evicted, Goes, LINE, Media, MediaOptions, MediaRecovery, MediumKind, Recorder,
    Sections,
};
use crate::error::{CommitError, OpenError, SpaceError};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Instructions that the code issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistCounts {
    /// Cache lines flushed.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
    /// Commits.
    pub commits: u64,
}

impl std::ops::Sub for PersistCounts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            lines: self.lines - other.lines,
            fences: self.fences - other.fences,
            commits: self.commits - other.commits,
        }
    }
}

/// A medium that counts the instructions issued to `M`; with `PERSISTENT` false, to show that code
/// issues none on a medium where nothing is durable.
#[derive(Debug)]
pub struct Counting<M, const PERSISTENT: bool = true> {
    inner: M,
    lines: AtomicU64,
    fences: AtomicU64,
    commits: AtomicU64,
}

impl<M: Media, const PERSISTENT: bool> Counting<M, PERSISTENT> {
    /// Returns the counts so far, of all threads.
    pub fn counts(&self) -> PersistCounts {
        // ORDERING: Relaxed; plain statistics.
        PersistCounts {
            lines: self.lines.load(Ordering::Relaxed),
            fences: self.fences.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn count_lines(&self, addr: *const u8, len: usize) {
        if len > 0 {
            let lines = (addr.addr() + len - 1) / LINE - addr.addr() / LINE + 1;
            // ORDERING: Relaxed; plain statistics.
            self.lines.fetch_add(lines as u64, Ordering::Relaxed);
        }
    }
}

// SAFETY: 1. to 6. each call goes to the medium inside, which meets them.
unsafe impl<M: Media, const PERSISTENT: bool> Media for Counting<M, PERSISTENT> {
    const PERSISTENT: bool = PERSISTENT;

    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        Ok(Self {
            inner: M::open(path, initial, options)?,
            lines: AtomicU64::new(0),
            fences: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        })
    }

    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }

    #[inline]
    #[track_caller]
    fn flush(&self, addr: *const u8, len: usize) {
        self.count_lines(addr, len);
        self.inner.flush(addr, len);
    }

    #[inline]
    #[track_caller]
    fn flush_fresh(&self, addr: *const u8, len: usize, since: u64) {
        self.count_lines(addr, len);
        self.inner.flush_fresh(addr, len, since);
    }

    #[inline]
    fn captured(&self) -> u64 {
        self.inner.captured()
    }

    #[inline]
    #[track_caller]
    fn fence(&self) {
        // ORDERING: Relaxed; plain statistics.
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.inner.fence();
    }

    #[inline]
    #[track_caller]
    fn store_fence(&self) {
        self.inner.store_fence();
    }

    #[track_caller]
    fn commit(&self) -> Result<(), CommitError> {
        if super::commits_are_deferred() {
            return Ok(());
        }
        // ORDERING: Relaxed; plain statistics.
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.inner.commit()
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.inner.base()
    }

    #[inline]
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        self.inner.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.inner.shrink(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.inner.punch(offset, len)
    }

    fn trim(&self) -> Result<(), SpaceError> {
        self.inner.trim()
    }

    fn back(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.inner.back(offset, len)
    }

    fn sparse(&self) -> bool {
        self.inner.sparse()
    }

    #[inline]
    fn sections(&self) -> Option<&Sections> {
        self.inner.sections()
    }

    fn evict(&self, ranges: &[Range<u64>], goes: &Goes<'_>) -> Result<Evicted, CommitError> {
        self.inner.evict(ranges, goes)
    }

    fn read_away(&self, offset: u64, into: &mut [u8]) -> bool {
        self.inner.read_away(offset, into)
    }

    fn bring_alone(&self, range: Range<u64>) {
        self.inner.bring_alone(range);
    }

    #[inline]
    fn touch_to_store(&self, offset: u64) {
        self.inner.touch_to_store(offset);
    }

    fn pad(&self, len: u64) -> Result<(), SpaceError> {
        self.inner.pad(len)
    }

    fn bound_ahead(&self, bytes: u64) {
        self.inner.bound_ahead(bytes);
    }

    fn ahead(&self) -> Option<u64> {
        self.inner.ahead()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn attach(&self, uuid: [u8; 16]) -> Result<(), OpenError> {
        self.inner.attach(uuid)
    }

    fn keeps_unflushed(&self) -> bool {
        self.inner.keeps_unflushed()
    }

    fn history_found(&self) -> bool {
        self.inner.history_found()
    }

    fn is_behind(&self) -> bool {
        self.inner.is_behind()
    }

    fn wait_for_room(&self) -> Result<(), CommitError> {
        self.inner.wait_for_room()
    }

    fn sync(&self) -> Result<(), CommitError> {
        self.inner.sync()
    }

    fn recovery(&self) -> MediaRecovery {
        self.inner.recovery()
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.inner.recorder()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }
}

#[cfg(feature = "explore")]
impl<M: Media, const PERSISTENT: bool> super::Instrument for Counting<M, PERSISTENT> {
    const TRACED: bool = M::TRACED;
    type Dram = M::Dram;

    fn trace_touch(&self, addr: *const u8, width: usize) {
        self.inner.trace_touch(addr, width);
    }

    fn interleave(&self) {
        self.inner.interleave();
    }

    fn tiny(&self) -> bool {
        self.inner.tiny()
    }

    fn planted(&self, fault: &str) -> bool {
        self.inner.planted(fault)
    }

    #[track_caller]
    fn trace_store(&self, addr: *const u8, width: usize, old: u128, new: u128) {
        self.inner.trace_store(addr, width, old, new);
    }

    #[track_caller]
    fn trace_store_bytes(&self, addr: *const u8, new: &[u8]) {
        self.inner.trace_store_bytes(addr, new);
    }

    #[track_caller]
    fn trace_load(&self, addr: *const u8, width: usize) {
        self.inner.trace_load(addr, width);
    }
}
