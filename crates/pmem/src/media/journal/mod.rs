//! `Journal`: persistent-memory algorithms on an ordinary disk (`docs/design.md`, "The journal").
//!
//! The image is in memory. `flush` notes lines, `fence` captures them into a buffer, in fence
//! order, and `commit` waits until the buffer is in the journal file and synced, together with
//! those of other threads. A checkpointer writes dirty pages to the pool file and advances the
//! journal's head.
//!
//! ```text
//! stores -> image (private mapping of the pool file)
//! flush  -> noted lines, per thread               stage.rs    no lock shared between threads
//! fence  -> captured lines: chunks                stage.rs    no I/O, no failure
//! commit -> frames in <pool>.journal, synced      commit.rs   group commit
//!           pages in <pool>, synced               checkpoint.rs
//! evict  -> clean pages leave memory              evict.rs
//! open   -> frames from the head, in sequence     recover.rs
//! ```
//!
//! # Layout of the journal file
//!
//! Little-endian; sums are CRC-32C. `format.rs` proves what can be proved at compile time.
//!
//! ```text
//! 0      header slot 0, one sector     | magic "BRSTLJNL" | version:4 sum:4 | uuid:16
//! 4096   header slot 1, the same       | generation:8 epoch:8 | head: seq:8 segment:4 offset:4
//!                                      | segment_bytes:4 segments:4 | required:8 | floor:8 | zeros
//! 8192   segment 0 | segment 1 | ...   zeros at first, then only overwritten
//!
//! segment | frame | frame | ...        each starts at a 512-byte sector
//! frame   | magic "JFRM" sum:4 | seq:8 | epoch:8 | durable:8 | pool_len:8 | payload:4 | zeros to 64
//!         | run | run | ... | zeros to the next sector
//! run     | line:48 count:16 | count x 64 bytes |          direct run | line:48 0:16 | count:64 |
//! ```
//!
//! # Invariants
//! 1. A frame is accepted only as the successor of the frame before it (`recover.rs`); the accepted
//!    frames are a prefix of what was captured.
//! 2. Of two captures of one line, the one later in the journal is the later state (`stage.rs`).
//! 3. A store that a capture or a page copy holds was made after fences that are all earlier in
//!    the journal (than the capture), or below E (of the copy). After a failure nothing is
//!    captured, so a copy made then is not written.
//! 4. The pool file is written only by checkpoints, with copies whose E is durable, and with long
//!    runs of fresh blocks (`direct.rs`), when what had freed these is durable.
//! 5. Both header slots lead into frames that are still there: a segment is reused only when
//!    both have a head behind it.
//! 6. A commit is acknowledged only when every frame up to its lines is synced; after a failed sync
//!    no commit is.
//!
//! # Crash states
//!
//! Claim: recovery builds an image that persistent memory could have been left with, at a moment
//! when every acknowledged commit's fences had been passed. Let D be the end of the frames that
//! survive. Persistent memory may hold, for each line, any state that the line had from its last
//! completed write-back on, and nothing that was stored after a fence whose lines are older than
//! that fence left them.
//!
//! 1. *Cut between checkpoints.* The pool file is the last checkpoint's, but for direct runs
//!    (`direct.rs`); frames from its C to D are
//!    applied in order. Each line is its last capture before D (invariant 2) or, if there is none
//!    since C, what the checkpoint copied. No line holds a store made after a fence that is not
//!    before D: captures by invariant 3; copies because D is at or behind every E that was waited
//!    for.
//! 2. *Cut while pages are written.* Every sector of the pool file is the old checkpoint's or the
//!    new copy's, and a line lies in one sector. Lines captured since the old C are all in the
//!    frames that are kept, and are applied. Other lines were stored and not fenced: old and new
//!    are both legal, the new one because the journal reaches E before the first page goes out.
//! 3. *Cut after the pages are synced, before the head moves.* As 2, with every sector new.
//!    Applying an older capture over a newer copy takes a line back to its last state that was
//!    fenced before D.
//! 4. *Cut while the head moves.* A header is one sector: the slot holds the old one or the new
//!    one, and both lead to frames that are still there (invariant 5).
//! 5. *Cut during recovery.* Frames are applied to private memory; nothing is written until
//!    attaching, which is a new epoch's header (the chain is the same), then an ordinary
//!    checkpoint.
//! 6. *Cut while a frame is written.* Its sum is wrong, and the chain ends before it. Frames behind
//!    it that the disk kept are cut off too, and the next session's epoch keeps them from ever
//!    being accepted again.
//! 7. *Cut while the file grows.* A frame records the pool's length, and recovery extends the file
//!    before applying it. Bytes that no frame holds are zero.
//! 8. *Cut while the pool is created.* Until its first checkpoint the pool file may have no
//!    superblock. Recovery then assumes that a journal that still begins with frame 1 holds it.
//!
//! # Concurrency
//!
//! Any number of threads. Lock order: the keeper (one checkpoint, shrink or punch at a time), then
//! leadership of the group commit, then the log, then the pages behind, then progress or the stage.
//! `flush` and `fence` take only the stage's locks, which no thread holds across I/O. Waiters wait
//! for a leader or for the checkpointer. The checkpointer waits for leaders, and a leader that is
//! out of segments steps down first, so no two wait for each other. A checkpoint may use the
//! reserved segments, and adds some if even those are used up. When the disk refuses, commits
//! return [`CommitError::NoSpace`] instead of waiting.

mod checkpoint;
mod commit;
mod direct;
mod evict;
pub mod fault;
mod format;
mod image;
mod log;
mod open;
mod recover;
mod stage;
mod stats;
mod storage;

#[doc(hidden)]
pub use evict::compare_when_evicting;
pub use format::FORMAT;
pub use stats::JournalStats;
pub use storage::{FileStorage, Site, Storage};

use super::issued;
use super::mapping::{Mapping, PAGE, Sharing};
use super::{
    Access, Durability, Evicted, Goes, LINE, Media, MediaOptions, MediaRecovery, MediumKind,
    Recorder, Sections, commits_are_deferred,
};
use crate::error::{CommitError, OpenError, SpaceError};
use crate::sync::lock;
use commit::{Core, Keeper, Stop};
use image::Image;
use recover::Source;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// An ordinary file behind a write-ahead journal; see the module's head.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
    path: PathBuf,
    read_only: bool,
    had_journal: bool,
    recovery: MediaRecovery,
    /// True if the session's epoch is in the journal's header, so that frames may be written.
    begun: AtomicBool,
    attached: AtomicBool,
    recorder: Recorder,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Returns the path of the journal of the pool at `pool`.
#[must_use]
pub fn journal_path(pool: &Path) -> PathBuf {
    let mut name = pool.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

impl Journal {
    /// Returns true if a journal of this pool was found at opening. A pool that was last written
    /// through this medium and not closed is incomplete without it.
    #[must_use]
    pub fn had_journal(&self) -> bool {
        self.had_journal
    }

    /// Returns statistics since the journal was opened.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        self.core.stats()
    }

    /// Starts the checkpointer and the background writer.
    fn start_threads(&self) -> Result<(), OpenError> {
        let spawn = |name: &str, life: fn(&Core)| {
            let core = Arc::clone(&self.core);
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || life(&core))
                .map_err(|e| OpenError::io(&self.path, "start a thread", e))
        };
        let mut threads = lock(&self.threads);
        threads.push(spawn("journal-checkpoint", Core::checkpoint_in_background)?);
        threads.push(spawn("journal-write", Core::write_in_background)?);
        Ok(())
    }

    /// Returns the lines of bytes that are flushed, the first one and that after the last, unless
    /// they are not the pool's.
    #[inline]
    fn lines_to_note(&self, addr: *const u8, len: usize) -> Option<(u64, u64)> {
        let core = &*self.core;
        // ORDERING: Acquire; pairs with the Release in `Core::record`: lines that are no longer
        // noted are no longer acknowledged.
        if len == 0 || !core.recording.load(Ordering::Acquire) {
            return None;
        }
        let start = addr.addr().wrapping_sub(core.image.base().addr());
        let end = (start.saturating_add(len) as u64).min(core.image.len());
        if start as u64 >= end {
            return None;
        }
        let pool = (core.image.base().cast_const(), core.image.len());
        self.recorder.note(pool, addr, len);
        let (first, end) = (start as u64 / LINE as u64, end.div_ceil(LINE as u64));
        issued::lines(end - first);
        Some((first, end))
    }

    fn stop_threads(&self) {
        {
            let mut progress = lock(&self.core.progress);
            progress.stop = true;
            self.core.work.notify_all();
            self.core.write.notify_all();
            self.core.done.notify_all();
        }
        for thread in lock(&self.threads).drain(..) {
            // A panic there has been printed; closing continues.
            let _ = thread.join();
        }
    }

    /// Returns true if a commit must wait for the journal. Before [`attach`](Media::attach) nothing
    /// is promised, since attaching makes everything durable that was fenced until then.
    fn commits_wait(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release at the end of `attach`.
        self.attached.load(Ordering::Acquire) && !commits_are_deferred()
    }

    /// Locks the keeper, with everything fenced so far in the pool file, for changing the file's
    /// shape.
    fn settled(&self) -> Result<MutexGuard<'_, Keeper>, SpaceError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly);
        }
        let mut keeper = lock(&self.core.keeper);
        // ORDERING: Acquire; pairs with the Release at the end of `attach`.
        if !self.attached.load(Ordering::Acquire) {
            if !self.had_journal {
                // There are no frames: lines fenced until now wait for `attach`.
                return Ok(keeper);
            }
            self.begin(&mut keeper).map_err(|e| match e {
                OpenError::Io { doing, source, .. } => SpaceError::Io { doing, source },
                OpenError::NoSpace(e) => e,
                other => SpaceError::io(
                    "preparing the journal",
                    std::io::Error::other(other.to_string()),
                ),
            })?;
        }
        self.core.checkpoint_all(&mut keeper).map_err(|e| match e {
            CommitError::Failed { doing, source } | CommitError::NoSpace { doing, source } => {
                SpaceError::Io { doing, source }
            }
        })?;
        Ok(keeper)
    }

    /// Syncs a change of the pool file's shape. A failure is as fatal as a checkpoint's.
    #[track_caller]
    fn sync_shape(&self) -> Result<(), SpaceError> {
        self.core.pool.sync().map_err(|source| {
            let doing = "syncing the pool file";
            let copy = SpaceError::Io {
                doing,
                source: crate::error::copy_io(&source),
            };
            let failed = Stop::Error(CommitError::Failed { doing, source });
            let mut progress = lock(&self.core.progress);
            self.core.record(&mut progress, failed);
            // Nobody waits for a journal that writes no more.
            self.core.wake(progress);
            copy
        })
    }
}

#[cfg(feature = "explore")]
impl crate::media::Instrument for Journal {
    type Dram = crate::media::Untraced;
}

// SAFETY: 1, 2, 6. the image is a private mapping of the pool file, or anonymous memory, reserved
// up front (`mapping.rs`); 3. the pool file is locked, and the image is private; recovery fills it
// before `open` returns; 4. invariants 1 to 3 in the module's head; 5. the hole is durable before
// the image reads as zero; stores go to the image, and need no space.
unsafe impl Media for Journal {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let read_only = options.access.reads_only();
        let create = options.access == Access::Create;
        let journal_name = journal_path(path);
        let journal = FileStorage::at(&journal_name, read_only)?;
        if create {
            // A file that is no journal is refused here, before the pool's file is made.
            Source {
                storage: &journal,
                path: &journal_name,
            }
            .header()?;
        }
        let (fd, len) = Mapping::open_file(path, options.access, initial)?;
        let undo = |e| {
            if create {
                // The new empty file is useless; the first error is reported.
                let _ = std::fs::remove_file(path);
            }
            e
        };
        let file = fd
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| OpenError::io(path, "duplicate the descriptor", e))
            .and_then(|copy| {
                let mapping =
                    Mapping::map(path, Some((fd, len)), Sharing::Private, options.reserve)?;
                if mapping.fixed() {
                    return Err(OpenError::Unsupported {
                        path: path.to_path_buf(),
                        what: "a device cannot be journalled; open it with --medium dax".into(),
                    });
                }
                Ok((mapping, FileStorage::of(path, copy)))
            });
        let (mapping, pool) = file.map_err(undo)?;
        Self::start(
            Image::new(mapping),
            Arc::new(pool),
            Arc::new(journal),
            path,
            options,
        )
        .map_err(undo)
    }

    fn kind(&self) -> MediumKind {
        MediumKind::Journal
    }

    #[inline]
    fn flush(&self, addr: *const u8, len: usize) {
        if let Some((first, end)) = self.lines_to_note(addr, len) {
            self.core.stage.note(first, end);
        }
    }

    fn flush_fresh(&self, addr: *const u8, len: usize, since: u64) {
        if let Some((first, end)) = self.lines_to_note(addr, len) {
            self.core.stage.note_fresh(first, end, since);
        }
    }

    fn captured(&self) -> u64 {
        self.core.stage.appended()
    }

    #[inline]
    fn fence(&self) {
        issued::fence();
        self.core.fence();
        self.recorder.fence(self.core.image.base());
    }

    fn commit(&self) -> Result<(), CommitError> {
        if self.commits_wait() {
            self.core.commit()?;
        }
        Ok(())
    }

    fn commit_all(&self) -> Result<(), CommitError> {
        if self.commits_wait() {
            self.core.commit_all()?;
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release at the end of `attach`: before it nothing is
        // written.
        self.attached.load(Ordering::Acquire) && self.core.is_behind()
    }

    fn wait_for_room(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; as in `is_behind`.
        if self.attached.load(Ordering::Acquire) {
            self.core.wait_for_room()?;
        }
        Ok(())
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.core.image.base()
    }

    #[inline]
    fn len(&self) -> u64 {
        self.core.image.len()
    }

    fn capacity(&self) -> u64 {
        self.core.image.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly);
        }
        let from = self.core.image.len();
        if len <= from {
            return Ok(());
        }
        if len > self.core.image.capacity() {
            return Err(SpaceError::Capacity {
                wanted: len,
                capacity: self.core.image.capacity(),
            });
        }
        let space = |e| SpaceError::io("reserving space for the file", e);
        self.core.pool.allocate(from, len).map_err(space)?;
        self.core.image.extend(len)
    }

    /// The journal is emptied first, so that none of its frames leads past the new end.
    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        let _keeper = self.settled()?;
        let from = self.core.image.retract(len)?;
        if from <= len {
            return Ok(());
        }
        let result = self
            .core
            .pool
            .truncate(len)
            .map_err(|e| SpaceError::io("shortening the file", e))
            // PERSIST: the shorter file, so that bytes that grow there again are zero after a crash
            // too.
            .and_then(|()| self.sync_shape())
            // Cutting a file drops its private pages; anonymous memory is cleared here.
            .and_then(|()| {
                self.core
                    .image
                    .discard(len.next_multiple_of(PAGE), from - len)
            });
        if result.is_err() {
            // The old length, if the file still has it.
            let there = self.core.pool.size().unwrap_or(len).clamp(len, from);
            self.core.image.extend(there)?;
        }
        result
    }

    /// The journal is emptied first, so that none of its frames fills the hole again.
    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        let _keeper = self.settled()?;
        self.core
            .pool
            .punch(offset, len)
            .map_err(|e| SpaceError::io("punching a hole", e))?;
        // PERSIST: the hole, before anything relies on the zeros.
        self.sync_shape()?;
        self.core.image.discard(offset, len)
    }

    /// Empties the journal and cuts it back to its first segments, unless others commit meanwhile.
    fn trim(&self) -> Result<(), SpaceError> {
        let mut keeper = self.settled()?;
        let trimmed = self.core.trim(&mut keeper);
        trimmed.map_err(|e| SpaceError::io("shortening the journal", std::io::Error::other(e)))
    }

    #[inline]
    fn sections(&self) -> Option<&Sections> {
        Some(&self.core.sections)
    }

    fn evict(&self, ranges: &[Range<u64>], goes: &Goes<'_>) -> Result<Evicted, CommitError> {
        // ORDERING: Acquire; pairs with the Release at the end of `attach`.
        if self.read_only || !self.attached.load(Ordering::Acquire) {
            return Ok(Evicted::default());
        }
        self.core.evict(ranges, goes)
    }

    fn read_away(&self, offset: u64, into: &mut [u8]) -> bool {
        // A read-only pool replays the journal into memory only, so its file is older.
        !self.read_only
            && (self.core.pool.read_full(offset, into)).is_ok_and(|read| read == into.len())
    }

    fn bring_alone(&self, range: Range<u64>) {
        self.core.image.bring_alone(range);
    }

    #[inline]
    fn touch_to_store(&self, offset: u64) {
        // ORDERING: Relaxed; a bound.
        if self.core.dirty_most.load(Ordering::Relaxed) != u64::MAX {
            self.core.image.touch_to_store(offset);
        }
    }

    fn pad(&self, len: u64) -> Result<(), SpaceError> {
        match self.read_only {
            true => self.core.image.extend_anonymous(len),
            false => Err(SpaceError::ReadOnly),
        }
    }

    fn bound_ahead(&self, bytes: u64) {
        // ORDERING: Relaxed; a bound, which leaders read when they next write.
        let most = (bytes / PAGE).max(2);
        if self.core.dirty_most.swap(most, Ordering::Relaxed) == u64::MAX {
            self.core.image.use_small_pages();
        }
    }

    fn ahead(&self) -> Option<u64> {
        let dirty = self.core.try_behind()?.count();
        Some((dirty + self.core.captured_pages().len() as u64) * PAGE)
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn attach(&self, uuid: [u8; 16]) -> Result<(), OpenError> {
        // ORDERING: Acquire; pairs with the Release below.
        if self.read_only || self.attached.load(Ordering::Acquire) {
            return Ok(());
        }
        {
            let mut keeper = lock(&self.core.keeper);
            if !self.had_journal || keeper.header.uuid != uuid {
                if self.had_journal && self.recovery.batches_replayed > 0 {
                    return Err(OpenError::Corrupt {
                        path: journal_path(&self.path),
                        what: "the pool's UUID is not the one that its journal was replayed for"
                            .into(),
                    });
                }
                self.create_journal(&mut keeper, uuid)?;
            }
            self.begin(&mut keeper)?;
            // PERSIST: the medium that uses the pool file, in the file itself.
            self.core.checkpoint_all(&mut keeper)?;
        }
        self.start_threads()?;
        // ORDERING: Release; pairs with the Acquire in `commit` and `drop`.
        self.attached.store(true, Ordering::Release);
        Ok(())
    }

    fn history_found(&self) -> bool {
        self.had_journal
    }

    fn sync(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; pairs with the Release at the end of `attach`.
        if self.read_only || !self.attached.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut keeper = lock(&self.core.keeper);
        self.core.checkpoint_all(&mut keeper)
    }

    fn recovery(&self) -> MediaRecovery {
        self.recovery.clone()
    }

    fn recorder(&self) -> Option<&Recorder> {
        Some(&self.recorder)
    }

    fn durability(&self) -> Durability {
        self.core.durability
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
        // ORDERING: Acquire; pairs with the Release at the end of `attach`.
        if self.attached.load(Ordering::Acquire) {
            let mut keeper = lock(&self.core.keeper);
            // A caller that must know whether closing worked calls `sync` first. If it did not, the
            // journal stays and is replayed.
            let _ = self.core.close(&mut keeper);
        }
    }
}
