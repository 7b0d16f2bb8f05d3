//! Group commit: one thread writes and syncs for all that wait.
//!
//! ```text
//! commit   synced far enough? -> done
//!          no one leads?      -> lead: take all chunks, seal, write, sync; tell the others
//!          else               -> wait to be told, look again
//! ```
//!
//! The leader holds [`Progress::leading`]; the `log` lock is held across writing. When done, the
//! leader first wakes one thread whose lines came too late, which leads next, and then those whose
//! lines are durable: their waking overlaps with the next write. A leader that finds no free
//! segment steps down and waits like the rest ([`Progress::full`]). The checkpointer, which may use
//! the reserved segments, leads in its place and frees some. Meanwhile commits wait, so that the
//! operations in flight bound what is captured.

use super::format::{FRAME_HEAD, Header};
use super::image::{Behind, Image};
use super::log::{Full, Log};
use super::recover::Unsure;
use super::stage::Stage;
use super::stats::{JournalStats, Stats, count};
use super::storage::{Storage, write_error};
use crate::error::CommitError;
use crate::media::{Durability, Sections};
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Chunks' worth of captured lines at which the background writer is woken, and at which commits
/// wait for it.
const WRITE_AT: u64 = 4;
const WAIT_AT: u64 = 32;
/// How often the background writer writes captured lines.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// Bounds of [`Durability::Interval`]; a day is added to an `Instant` without overflow.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// State shared by commits, the background writer and the checkpointer.
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
    /// The latest lack of space, and how often it occurred.
    pub stalled: Option<CommitError>,
    pub stalls: u64,
    /// Number of checkpoints that wait for leadership; they come first.
    pub urgent: u32,
    /// Commits that are parked.
    pub waiting: Vec<Waiting>,
}

/// A commit that is parked until the first `target` lines are durable.
#[derive(Debug)]
pub(super) struct Waiting {
    target: u64,
    thread: Thread,
}

/// Reason why a round of writing ended early.
pub(super) enum Stop {
    /// Only a checkpoint can continue.
    Full,
    Error(CommitError),
}

impl From<CommitError> for Stop {
    fn from(e: CommitError) -> Self {
        Self::Error(e)
    }
}

/// The journal's header; the holder of its lock may take a checkpoint or change the shape of a
/// file.
#[derive(Debug)]
pub(super) struct Keeper {
    /// The last header written, or (before attaching) read.
    pub header: Header,
    /// The slot that it is in; the next goes to the other.
    pub slot: usize,
    /// Replayed frames that are to be written once more before a session begins.
    pub unsure: VecDeque<Unsure>,
    /// When room was last made in it.
    pub last: Option<Instant>,
    /// Room for copied pages, where memory is bounded. One for all checkpoints: each thread's would
    /// stay with its heap.
    pub copy: Vec<u8>,
}

/// Everything that the medium and its two threads share.
#[derive(Debug)]
pub(super) struct Core {
    pub image: Image,
    pub pool: Arc<dyn Storage>,
    pub journal: Arc<dyn Storage>,
    /// The journal again, for threads that sync it beside the leader; set by attaching.
    pub aside: OnceLock<Arc<dyn Storage>>,
    /// The pool file again, for direct runs, which are synced beside checkpoints; set by attaching.
    pub pool_aside: OnceLock<Arc<dyn Storage>>,
    pub durability: Durability,
    pub journal_max: u64,
    pub stage: Stage,
    /// Approximate number of lines in a chunk.
    pub chunk_lines: u64,
    /// Locked after `log`.
    pub behind: Mutex<Behind>,
    /// Where threads say that they are storing.
    pub sections: Sections,
    /// Dirty pages beyond which commits wait for a checkpoint.
    pub dirty_most: AtomicU64,
    /// False if fences are not captured (read-only, or after a fatal error).
    pub recording: AtomicBool,
    /// Lock order: `keeper`, then leadership, then `log`, then `progress` or the stage's.
    pub keeper: Mutex<Keeper>,
    pub log: Mutex<Log>,
    pub progress: Mutex<Progress>,
    /// Threads that wait for leadership, or for the background writer, wait here.
    pub done: Condvar,
    /// The checkpointer waits here.
    pub work: Condvar,
    /// The background writer waits here.
    pub write: Condvar,
    /// Numbers of lines written and synced; they only rise.
    pub written: AtomicU64,
    pub synced: AtomicU64,
    /// True if something in `progress` keeps commits from returning at once.
    pub trouble: AtomicBool,
    pub stats: Stats,
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
        // ORDERING: Acquire; as in `Journal::flush`.
        if !self.recording.load(Ordering::Acquire) {
            // Their pages must not leave memory: what is in them is nowhere else.
            let mut behind = lock(&self.behind);
            self.stage
                .captured_lines(&mut |line, count| behind.dirty.mark_lines(line, count));
            self.stage.discard();
        } else if self.backlog() > WRITE_AT * self.chunk_lines {
            // The next chunk or the timeout makes up for a wake-up that is lost without the lock.
            self.write.notify_one();
        }
    }

    /// Returns the journal for threads that sync it beside the leader.
    pub fn aside(&self) -> &dyn Storage {
        &**self.aside.get().unwrap_or(&self.journal)
    }

    /// Returns the number of lines captured and not yet written.
    fn backlog(&self) -> u64 {
        // ORDERING: Relaxed; a bound, not a promise.
        self.stage
            .appended()
            .saturating_sub(self.written.load(Ordering::Relaxed))
    }

    /// See [`Media::commit`](crate::media::Media::commit).
    pub fn commit(&self) -> Result<(), CommitError> {
        self.commit_up_to(self.stage.fenced_by_this_thread())
    }

    /// See [`Media::commit_all`](crate::media::Media::commit_all).
    pub fn commit_all(&self) -> Result<(), CommitError> {
        self.commit_up_to(self.stage.appended())
    }

    fn commit_up_to(&self, target: u64) -> Result<(), CommitError> {
        if self.durability == Durability::Immediate {
            return if self.is_synced(target) {
                self.health()
            } else {
                self.commit_to(target)
            };
        }
        self.wait_for_room()
    }

    /// See [`Media::is_behind`](crate::media::Media::is_behind).
    pub fn is_behind(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `note_trouble`.
        self.trouble.load(Ordering::Acquire) || self.backlog() > WAIT_AT * self.chunk_lines
    }

    /// See [`Media::wait_for_room`](crate::media::Media::wait_for_room).
    pub fn wait_for_room(&self) -> Result<(), CommitError> {
        if !self.is_behind() {
            return Ok(());
        }
        let mut progress = lock(&self.progress);
        loop {
            if let Some(e) = progress.failed.as_ref().or(progress.stalled.as_ref()) {
                return Err(e.duplicate());
            }
            if !progress.full && self.backlog() <= WAIT_AT * self.chunk_lines {
                return Ok(());
            }
            self.write.notify_one();
            progress = wait(&self.done, progress);
        }
    }

    /// Returns the first fatal error, if there was one.
    pub fn health(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; pairs with the Release in `note_trouble`.
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

    /// Waits until the first `target` lines are durable, and leads if no other thread does.
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
            if progress.leading || progress.full || progress.urgent > 0 {
                // `wake` removes this from the list. Waking for another reason (any thread may
                // unpark another) leaves an entry, and waking through it does no harm.
                progress.waiting.push(Waiting {
                    target,
                    thread: std::thread::current(),
                });
                drop(progress);
                std::thread::park();
                if self.is_synced(target) {
                    return Ok(());
                }
                progress = lock(&self.progress);
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
            self.wake(progress);
            if self.is_synced(target) {
                return Ok(());
            }
            progress = lock(&self.progress);
        }
    }

    /// Wakes the threads whose lines are durable, and the one that leads next; all of them after an
    /// error.
    pub fn wake(&self, mut progress: MutexGuard<'_, Progress>) {
        let everyone = progress.failed.is_some() || progress.stalled.is_some();
        // ORDERING: Acquire; pairs with the Release in `publish`.
        let synced = self.synced.load(Ordering::Acquire);
        let mut leader = None;
        if !everyone && !progress.leading && !progress.full && progress.urgent == 0 {
            let late = progress.waiting.iter().position(|w| w.target > synced);
            leader = late.map(|at| progress.waiting.swap_remove(at));
        }
        let mut woken: Vec<Waiting> = progress
            .waiting
            .extract_if(.., |w| everyone || w.target <= synced)
            .collect();
        self.done.notify_all();
        drop(progress);
        for waiting in leader.into_iter().chain(woken.drain(..)) {
            waiting.thread.unpark();
        }
    }

    /// Waits for leadership, then writes everything captured so far (and the sealed frames of
    /// earlier failures) without syncing. The checkpointer passes its keeper and may use every
    /// segment.
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
                let urgent = u32::from(keeper.is_some());
                progress.urgent += urgent;
                progress = wait(&self.done, progress);
                progress.urgent -= urgent;
                continue;
            }
            progress.leading = true;
            drop(progress);
            let result = self.round(false, keeper.as_deref_mut());
            progress = lock(&self.progress);
            progress.leading = false;
            let ended = match result {
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
            self.wake(progress);
            if let Some(result) = ended {
                return result;
            }
            progress = lock(&self.progress);
        }
    }

    /// Makes everything written so far durable, while other threads continue to write.
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
                self.clear_stall(&mut progress);
                self.wake(progress);
                Ok(())
            }
            Err(source) => {
                let e = CommitError::Failed {
                    doing: "syncing the journal",
                    source,
                };
                progress = lock(&self.progress);
                self.record(&mut progress, Stop::Error(e.duplicate()));
                self.wake(progress);
                Err(e)
            }
        }
    }

    /// Executes one round as the leader: seals the captured lines, writes them, and syncs them if
    /// `sync`.
    fn round(&self, sync: bool, mut keeper: Option<&mut Keeper>) -> Result<(), Stop> {
        let mut log = lock(&self.log);
        let log = &mut *log;
        let mut chunks = Vec::new();
        {
            // Together: a line is in the stage, or its page is marked.
            let mut behind = lock(&self.behind);
            self.stage.take(&mut chunks);
            let direct = self.write_direct(&mut chunks, &behind, log.durable_lines);
            for chunk in &chunks {
                behind.dirty.mark_frame(&chunk.bytes[FRAME_HEAD..]);
            }
            direct?;
        }
        for chunk in chunks {
            log.seal(chunk, self.image.len());
        }
        // A single frame with nothing unsynced before it is written through, which is cheaper than
        // a sync.
        let through = sync && log.pending.len() == 1 && log.durable == log.at.seq;
        let mut result = Ok(());
        while let Some(frame) = log.pending.front() {
            let (seq, end, bytes) = (frame.seq, frame.chunk.end, frame.chunk.bytes.len());
            let (segment, offset) = match self.place(log, bytes, keeper.as_deref_mut()) {
                Ok(place) => place,
                Err(stop) => {
                    result = Err(stop);
                    break;
                }
            };
            let Some(frame) = log.pending.pop_front() else {
                break;
            };
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
                    Stop::Error(CommitError::Failed {
                        doing: "syncing the journal",
                        source,
                    })
                })?;
            }
            log.synced(log.at.seq, log.written_lines);
        }
        self.publish(log);
        if log.is_half_full() || self.is_dirty(2) {
            let mut progress = lock(&self.progress);
            if !progress.checkpoint_wanted {
                progress.checkpoint_wanted = true;
                self.work.notify_one();
            }
        }
        result
    }

    /// Returns a place for a frame. The checkpointer may use the reserved segments (then commits
    /// wait for its end) and adds one if even those are used up.
    fn place(
        &self,
        log: &mut Log,
        bytes: usize,
        keeper: Option<&mut Keeper>,
    ) -> Result<(u32, u32), Stop> {
        let waits = keeper.is_none() && self.is_dirty(1);
        if !waits && let Ok(place) = log.place(bytes, log.reserve()) {
            return Ok(place);
        }
        let Some(keeper) = keeper else {
            return Err(Stop::Full);
        };
        {
            let mut progress = lock(&self.progress);
            progress.full = true;
            self.note_trouble(&progress);
        }
        if log.free.is_empty() {
            self.add_segments(keeper, log, 1)?;
        }
        log.place(bytes, 0).map_err(|Full| Stop::Full)
    }

    /// Whether the pages ahead of the pool file are one `share`th of the most, or more.
    pub(super) fn is_dirty(&self, share: u64) -> bool {
        // ORDERING: Relaxed; a bound.
        lock(&self.behind).count() >= self.dirty_most.load(Ordering::Relaxed) / share
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
                self.note_trouble(progress);
                // ORDERING: Release, after `trouble`; pairs with the Acquire in `Journal::flush`: a
                // thread that no longer captures is told so by its commit.
                self.recording.store(false, Ordering::Release);
                self.work.notify_one();
                self.write.notify_one();
            }
            Stop::Error(e) => {
                progress.stalled = Some(e);
                progress.stalls += 1;
                self.write.notify_one();
            }
        }
        self.note_trouble(progress);
    }

    fn clear_stall(&self, progress: &mut Progress) {
        if progress.stalled.take().is_some() {
            self.note_trouble(progress);
        }
    }

    /// Sets or clears `trouble`, under the lock of the state that it summarises.
    pub fn note_trouble(&self, progress: &Progress) {
        let trouble = progress.failed.is_some() || progress.stalled.is_some() || progress.full;
        // ORDERING: Release; pairs with the Acquire in `commit` and `health`.
        self.trouble.store(trouble, Ordering::Release);
    }

    /// Body of the background writer thread: writes on time or when woken, and syncs if asked to.
    pub fn write_in_background(&self) {
        let (every, sync) = match self.durability {
            // Commits do the work. Only long runs of fences without a commit need this thread.
            Durability::Immediate => (LONGEST, false),
            Durability::Interval(every) => (every.clamp(SHORTEST, LONGEST), true),
            Durability::None => (WRITE_EVERY, false),
        };
        let mut due = Instant::now() + every;
        loop {
            let retry = Instant::now() + WRITE_EVERY;
            let mut progress = lock(&self.progress);
            while !progress.stop
                && progress.failed.is_none()
                && self.backlog() <= WRITE_AT * self.chunk_lines
            {
                let now = Instant::now();
                // Whoever does not commit hears of a lack of space until somebody has tried again.
                let until = match progress.stalled {
                    Some(_) => due.min(retry),
                    None => due,
                };
                if now >= until {
                    break;
                }
                progress = self
                    .write
                    .wait_timeout(progress, until - now)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            if progress.stop || progress.failed.is_some() {
                return;
            }
            drop(progress);
            // Errors are recorded, and the commits report them. A lack of space is retried.
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
            direct_bytes: get(&self.stats.direct_bytes),
            used_bytes: used,
            journal_bytes: total,
        }
    }
}

/// [`Condvar::wait`] that ignores poison.
pub(super) fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
