//! Group commit: one thread writes and syncs for all that wait.
//!
//! ```text
//! commit   synced far enough? -> done
//!          no one leads?      -> lead: take all chunks, seal, write, sync; tell the others
//!          else               -> wait to be told, look again
//! ```
//!
//! Whoever leads holds [`Progress::leading`]; the `log` lock is held across writing. A leader that
//! finds no free segment steps down and waits like the rest ([`Progress::full`]): the checkpointer,
//! which may use the reserved segments, leads in its place and frees some.

use super::checkpoint::Keeper;
use super::image::Image;
use super::log::Log;
use super::stage::Stage;
use super::storage::{Storage, write_error};
use super::{JournalStats, lock};
use crate::error::CommitError;
use crate::media::Durability;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lines captured and not yet written at which the background writer is woken.
const WRITE_AT: u64 = (1 << 20) / 72;
/// The same at which commits wait for it.
const BACKLOG: u64 = (8 << 20) / 72;
/// How often the background writer writes what there is.
const WRITE_EVERY: Duration = Duration::from_millis(100);

/// What commits, the background writer and the checkpointer tell each other.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// A thread is writing frames.
    pub leading: bool,
    /// No segment is free for ordinary writes; a checkpoint is wanted and under way.
    pub full: bool,
    pub checkpoint_wanted: bool,
    pub stop: bool,
    /// The first fatal error.
    pub failed: Option<CommitError>,
    /// The latest lack of space, and how many there were.
    pub stalled: Option<CommitError>,
    pub stalls: u64,
}

/// Why a round of writing ended early.
pub(super) enum Stop {
    /// Only a checkpoint can go on.
    Full,
    Error(CommitError),
}

impl From<CommitError> for Stop {
    fn from(e: CommitError) -> Self {
        Self::Error(e)
    }
}

/// Everything that the medium and its two threads share.
#[derive(Debug)]
pub(super) struct Core {
    pub image: Image,
    pub pool: Arc<dyn Storage>,
    pub journal: Arc<dyn Storage>,
    /// The journal again, for those who sync it beside the leader; set by attaching.
    pub aside: OnceLock<Arc<dyn Storage>>,
    pub durability: Durability,
    pub journal_max: u64,
    pub stage: Stage,
    /// False: fences are not captured (read-only, or after a fatal error).
    pub recording: AtomicBool,
    /// Lock order: `keeper`, then leadership, then `log`, then `progress` or the stage's.
    pub keeper: Mutex<Keeper>,
    pub log: Mutex<Log>,
    pub progress: Mutex<Progress>,
    /// Commits and would-be leaders wait here.
    pub done: Condvar,
    /// The checkpointer waits here.
    pub work: Condvar,
    /// The background writer waits here.
    pub write: Condvar,
    /// Lines written and lines synced; only ever rise.
    pub written: AtomicU64,
    pub synced: AtomicU64,
    /// Something in `progress` keeps commits from returning at once.
    pub trouble: AtomicBool,
    pub stats: Stats,
}

/// Counters behind [`JournalStats`].
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub frames: AtomicU64,
    pub frame_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub checkpoints: AtomicU64,
    pub pages: AtomicU64,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; plain statistics.
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Core {
    /// See [`Media::fence`](crate::media::Media::fence).
    #[inline]
    pub fn fence(&self) {
        if self.stage.fence(&self.image) {
            self.chunk_filled();
        }
    }

    #[cold]
    fn chunk_filled(&self) {
        // ORDERING: Relaxed; a flag that is never raised again, read for memory's sake only.
        if !self.recording.load(Ordering::Relaxed) {
            self.stage.discard();
        } else if self.backlog() > WRITE_AT {
            // A wake-up lost to the missing lock is made up for by the next chunk or the timeout.
            self.write.notify_one();
        }
    }

    /// The journal, for those who sync it beside the leader.
    pub fn aside(&self) -> &dyn Storage {
        &**self.aside.get().unwrap_or(&self.journal)
    }

    /// Lines captured and not yet written.
    fn backlog(&self) -> u64 {
        // ORDERING: Relaxed; a bound, not a promise.
        self.stage.appended().saturating_sub(self.written.load(Ordering::Relaxed))
    }

    /// See [`Media::commit`](crate::media::Media::commit).
    pub fn commit(&self) -> Result<(), CommitError> {
        if self.durability == Durability::Immediate {
            let target = self.stage.fenced_by_this_thread();
            return if self.is_synced(target) { self.health() } else { self.commit_to(target) };
        }
        // ORDERING: Acquire; pairs with the Release in `record`.
        if !self.trouble.load(Ordering::Acquire) && self.backlog() <= BACKLOG {
            return Ok(());
        }
        let mut progress = lock(&self.progress);
        loop {
            if let Some(e) = progress.failed.as_ref().or(progress.stalled.as_ref()) {
                return Err(e.duplicate());
            }
            if self.backlog() <= BACKLOG {
                return Ok(());
            }
            self.write.notify_one();
            progress = wait(&self.done, progress);
        }
    }

    /// The first fatal error, if there was one.
    pub fn health(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; pairs with the Release in `record`.
        if !self.trouble.load(Ordering::Acquire) {
            return Ok(());
        }
        match &lock(&self.progress).failed {
            Some(e) => Err(e.duplicate()),
            None => Ok(()),
        }
    }

    fn is_synced(&self, target: u64) -> bool {
        // ORDERING: Acquire; pairs with the Release in `publish`.
        self.synced.load(Ordering::Acquire) >= target
    }

    /// Waits until the first `target` lines are durable, leading where no one does.
    fn commit_to(&self, target: u64) -> Result<(), CommitError> {
        let mut progress = lock(&self.progress);
        let stalls = progress.stalls;
        loop {
            if let Some(e) = &progress.failed {
                return Err(e.duplicate());
            }
            if self.is_synced(target) {
                return Ok(());
            }
            if let (true, Some(e)) = (progress.stalls != stalls, &progress.stalled) {
                return Err(e.duplicate());
            }
            if progress.leading || progress.full {
                progress = wait(&self.done, progress);
                continue;
            }
            progress.leading = true;
            drop(progress);
            let result = self.round(true, None);
            progress = lock(&self.progress);
            progress.leading = false;
            match result {
                Ok(()) => self.clear_stall(&mut progress),
                Err(stop) => self.record(&mut progress, stop),
            }
            self.done.notify_all();
        }
    }

    /// Waits for leadership, then writes everything captured so far (and the sealed frames of
    /// earlier failures) without syncing. The checkpointer passes its keeper and may use every segment.
    pub fn write_out(&self, mut keeper: Option<&mut Keeper>) -> Result<(), CommitError> {
        let mut progress = lock(&self.progress);
        let stalls = progress.stalls;
        loop {
            if let Some(e) = &progress.failed {
                return Err(e.duplicate());
            }
            if let (true, Some(e)) = (progress.stalls != stalls, &progress.stalled) {
                return Err(e.duplicate());
            }
            if progress.leading || (progress.full && keeper.is_none()) {
                if progress.stop && keeper.is_none() {
                    return Ok(());
                }
                progress = wait(&self.done, progress);
                continue;
            }
            progress.leading = true;
            drop(progress);
            let result = self.round(false, keeper.as_deref_mut());
            progress = lock(&self.progress);
            progress.leading = false;
            let again = match result {
                Ok(()) => {
                    self.clear_stall(&mut progress);
                    Some(Ok(()))
                }
                Err(Stop::Error(e)) => {
                    let copy = e.duplicate();
                    self.record(&mut progress, Stop::Error(e));
                    Some(Err(copy))
                }
                Err(Stop::Full) => {
                    self.record(&mut progress, Stop::Full);
                    None
                }
            };
            self.done.notify_all();
            if let Some(result) = again {
                return result;
            }
        }
    }

    /// Makes everything written so far durable, while others go on writing.
    pub fn sync_written(&self) -> Result<(), CommitError> {
        let (seq, lines) = {
            let log = lock(&self.log);
            if log.durable == log.at.seq {
                return Ok(());
            }
            (log.at.seq, log.written_lines)
        };
        count(&self.stats.syncs, 1);
        let result = self.aside().sync();
        let mut progress;
        match result {
            Ok(()) => {
                let mut log = lock(&self.log);
                log.synced(seq, lines);
                self.publish(&log);
                drop(log);
                progress = lock(&self.progress);
                // Waiters look at `synced` under this lock.
                self.clear_stall(&mut progress);
                self.done.notify_all();
                Ok(())
            }
            Err(source) => {
                let e = CommitError::Failed { doing: "syncing the journal", source };
                progress = lock(&self.progress);
                self.record(&mut progress, Stop::Error(e.duplicate()));
                self.done.notify_all();
                Err(e)
            }
        }
    }

    /// One round by the leader: seal what was captured, write it, sync it if `sync`.
    fn round(&self, sync: bool, mut keeper: Option<&mut Keeper>) -> Result<(), Stop> {
        let mut log = lock(&self.log);
        let log = &mut *log;
        let mut chunks = Vec::new();
        self.stage.take(&mut chunks);
        for chunk in chunks {
            log.seal(chunk, self.image.len());
        }
        // One frame, and nothing unsynced before it: written through, which is cheaper than a sync.
        let through = sync && log.pending.len() == 1 && log.durable == log.at.seq;
        let mut result = Ok(());
        while let Some(frame) = log.pending.front() {
            let (seq, end, bytes) = (frame.seq, frame.chunk.end, frame.chunk.bytes.len());
            let reserve = if keeper.is_some() { 0 } else { log.reserve() };
            let (segment, offset) = match (log.place(bytes, reserve), keeper.as_deref_mut()) {
                (Ok(place), _) => place,
                (Err(_), Some(keeper)) => {
                    result = self.add_segments(keeper, log, 1).map_err(Stop::Error);
                    if result.is_err() {
                        break;
                    }
                    continue;
                }
                (Err(_), None) => {
                    result = Err(Stop::Full);
                    break;
                }
            };
            // Marked before writing: a page is never in the journal and in no one's list.
            let Some(frame) = log.pending.pop_front() else { break };
            log.mark_dirty(&frame.chunk.bytes);
            let at = super::format::DATA_AT
                + u64::from(segment) * u64::from(log.segment_bytes)
                + u64::from(offset);
            // PERSIST: the frame; durable here only if written through, else by the sync below.
            let written = if through {
                count(&self.stats.syncs, 1);
                self.journal.write_durable(at, &frame.chunk.bytes)
            } else {
                self.journal.write_all(at, &frame.chunk.bytes)
            };
            if let Err(e) = written {
                log.pending.push_front(frame);
                result = Err(Stop::Error(write_error("writing the journal", e)));
                break;
            }
            count(&self.stats.frames, 1);
            count(&self.stats.frame_bytes, bytes as u64);
            log.advance(bytes, seq, end);
            self.stage.reuse(frame.chunk.bytes);
        }
        if result.is_ok() && sync {
            if !through && log.durable < log.at.seq {
                count(&self.stats.syncs, 1);
                // PERSIST: every frame written so far, before any of its commits is acknowledged.
                self.journal.sync().map_err(|source| {
                    Stop::Error(CommitError::Failed { doing: "syncing the journal", source })
                })?;
            }
            log.synced(log.at.seq, log.written_lines);
        }
        self.publish(log);
        let (used, total) = log.fill();
        if used * 2 > total {
            let mut progress = lock(&self.progress);
            if !progress.checkpoint_wanted {
                progress.checkpoint_wanted = true;
                self.work.notify_one();
            }
        }
        result
    }

    fn publish(&self, log: &Log) {
        // ORDERING: Release; pairs with the Acquire in `is_synced`. `written` is only a bound.
        self.written.fetch_max(log.written_lines, Ordering::Release);
        self.synced.fetch_max(log.durable_lines, Ordering::Release);
    }

    /// Notes why a round ended, for everyone.
    pub fn record(&self, progress: &mut Progress, stop: Stop) {
        match stop {
            Stop::Full => {
                progress.full = true;
                progress.checkpoint_wanted = true;
                self.work.notify_one();
            }
            Stop::Error(e @ CommitError::Failed { .. }) => {
                if progress.failed.is_none() {
                    progress.failed = Some(e);
                }
                // ORDERING: Release; pairs with the Acquire in `commit` and `health`.
                self.trouble.store(true, Ordering::Release);
                self.recording.store(false, Ordering::Release);
                self.work.notify_one();
                self.write.notify_one();
            }
            Stop::Error(e) => {
                progress.stalled = Some(e);
                progress.stalls += 1;
                // ORDERING: as above.
                self.trouble.store(true, Ordering::Release);
            }
        }
    }

    fn clear_stall(&self, progress: &mut Progress) {
        if progress.stalled.take().is_some() && progress.failed.is_none() {
            // ORDERING: Release; under the lock that guards what it stands for.
            self.trouble.store(false, Ordering::Release);
        }
    }

    /// The background writer's life: writes on time or when woken, and syncs where asked to.
    pub fn write_in_background(&self) {
        let (every, sync) = match self.durability {
            // Commits do the work; only long runs of fences without a commit need this thread.
            Durability::Immediate => (Duration::from_secs(3600), false),
            Durability::Interval(every) => (every.max(Duration::from_millis(1)), true),
            Durability::None => (WRITE_EVERY, false),
        };
        let mut due = Instant::now() + every;
        loop {
            let mut progress = lock(&self.progress);
            while !progress.stop && progress.failed.is_none() && self.backlog() <= WRITE_AT {
                let now = Instant::now();
                if now >= due {
                    break;
                }
                progress = self
                    .write
                    .wait_timeout(progress, due - now)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            if progress.stop || progress.failed.is_some() {
                return;
            }
            drop(progress);
            // Errors are recorded, and reported by the commits; a lack of space is tried again.
            let mut result = self.write_out(None);
            let now = Instant::now();
            if now >= due {
                due = now + every;
                if sync && result.is_ok() {
                    result = self.sync_written();
                }
            }
            if result.is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    pub fn stats(&self) -> JournalStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (used, total) = lock(&self.log).fill();
        JournalStats {
            frames: get(&self.stats.frames),
            frame_bytes: get(&self.stats.frame_bytes),
            syncs: get(&self.stats.syncs),
            checkpoints: get(&self.stats.checkpoints),
            pages: get(&self.stats.pages),
            used_bytes: used,
            journal_bytes: total,
        }
    }
}

/// [`Condvar::wait`] that does not mind a panic elsewhere.
pub(super) fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
