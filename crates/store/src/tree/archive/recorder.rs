//! The recorder: changes that have been made and not written yet, in bounded memory.

use super::LEDGER;
use crate::archive::ArchiveOptions;
use crate::archive::format::Change;
use crate::wall::WallClock;
use bristlecone_index::clustered::Observed;
use bristlecone_pmem::sync::{lock, worker};
use crossbeam_utils::CachePadded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// Least and most bytes of the recorder.
const QUEUE: std::ops::RangeInclusive<usize> = 64 << 10..=512 << 20;

/// Changes that have been made and not written yet. The module above has the rules.
#[derive(Debug)]
pub(in crate::tree) struct Recorder {
    takes: AtomicBool,
    lost: AtomicBool,
    most: usize,
    /// Bytes of changes that were taken and not [given back](Self::release).
    queued: AtomicUsize,
    /// Encoded changes.
    shards: [CachePadded<Mutex<Vec<u8>>>; SHARDS],
    wall: WallClock,
}

impl Recorder {
    pub fn new(options: Option<&ArchiveOptions>, wall: WallClock) -> Self {
        let most = options.map_or(0, |options| options.queue_bytes);
        Self {
            takes: AtomicBool::new(options.is_some()),
            lost: AtomicBool::new(false),
            most: most.clamp(*QUEUE.start(), *QUEUE.end()),
            queued: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| CachePadded::default()),
            wall,
        }
    }

    /// Takes a change that is being made, unless nobody wants it.
    #[inline]
    pub fn note(&self, change: &Observed<'_>) {
        // ORDERING: SeqCst; pairs with the store of `begin`, and the stamp's, which was taken
        // before (`archive`, 1).
        if self.takes.load(Ordering::SeqCst) {
            self.take_in(change);
        }
    }

    #[cold]
    fn take_in(&self, change: &Observed<'_>) {
        // ORDERING: SeqCst; as in `note`.
        if change.key == LEDGER || self.lost.load(Ordering::SeqCst) {
            return;
        }
        let value = change.is.map(|is| is.bytes);
        let is_whole = change.is.is_none_or(|is| is.bytes.len() == is.len);
        let noted = Change {
            stamp: change.stamp,
            wall: self.wall.now(),
            key: change.key,
            value,
        };
        let bytes = noted.bytes();
        // ORDERING: Relaxed; a count.
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if !is_whole || queued > self.most {
            return self.lose();
        }
        let shard = &mut *lock(&self.shards[worker() % SHARDS]);
        if shard.try_reserve(bytes).is_err() {
            return self.lose();
        }
        noted.encode(shard);
    }

    fn lose(&self) {
        // ORDERING: SeqCst; before the change is shown (`archive`, 2).
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Whether a change was lost since [`begin`](Self::begin).
    pub(super) fn has_lost(&self) -> bool {
        // ORDERING: SeqCst; pairs with that of `lose`, whose change is below the durable time that
        // the caller has asked for before.
        self.lost.load(Ordering::SeqCst)
    }

    /// Forgets all changes, and takes those that come.
    pub(super) fn begin(&self) {
        for shard in &self.shards {
            *lock(shard) = Vec::new();
        }
        // ORDERING: Relaxed; a count, which is a little high while changes are being lost.
        self.queued.store(0, Ordering::Relaxed);
        // ORDERING: SeqCst (both); pair with those of `note` and `take_in` (`archive`, 1).
        self.lost.store(false, Ordering::SeqCst);
        self.takes.store(true, Ordering::SeqCst);
    }

    /// Moves the changes with stamps in `from..below` to the end of `out`, by their stamps, those
    /// of one commit with one time. Returns how many commits they are of.
    pub(super) fn drain(&self, (from, below): (u64, u64), out: &mut Vec<u8>) -> u64 {
        let mut taken = Vec::with_capacity(SHARDS);
        for shard in &self.shards {
            taken.push(std::mem::take(&mut *lock(shard)));
        }
        let mut due = Vec::new();
        for (shard, bytes) in self.shards.iter().zip(&taken) {
            let (mut rest, mut early, mut passed) = (bytes.as_slice(), Vec::new(), 0);
            while let Some(change) = Change::decode(&mut rest) {
                if change.stamp >= below {
                    change.encode(&mut early);
                } else if change.stamp >= from {
                    due.push(change);
                } else {
                    passed += change.bytes();
                }
            }
            self.release(passed);
            if !early.is_empty() {
                lock(shard).append(&mut early);
            }
        }
        due.sort_by_key(|change| change.stamp);
        let (mut commits, mut stamp, mut wall) = (0, None, 0);
        for mut change in due {
            if stamp != Some(change.stamp) {
                (stamp, wall) = (Some(change.stamp), change.wall);
                commits += 1;
            }
            change.wall = wall;
            change.encode(out);
        }
        commits
    }

    /// Changes of so many bytes are gone.
    pub(super) fn release(&self, bytes: usize) {
        // ORDERING: Relaxed; a count.
        let _ = self
            .queued
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
                Some(queued.saturating_sub(bytes))
            });
    }

    pub(super) fn queued(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.queued.load(Ordering::Relaxed) as u64
    }
}
