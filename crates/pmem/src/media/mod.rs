//! Media: places where a pool can live, and durability there (`docs/design.md`, "Media").
//!
//! Every layer above is generic over [`Media`], resolved statically, so that on the native path a
//! flush or a fence is one inlined instruction. Papers write "flush, fence, 8-byte atomic write";
//! code here reads the same:
//!
//! ```text
//! pm.flush_of(&leaf.lines[2]);      // clwb        write back, not yet ordered
//! pm.fence();                       // sfence      earlier flushes are durable before later stores
//! pm.persist(&word);                // clwb + sfence
//! ```
//!
//! | medium | a line is durable when | survives |
//! | --- | --- | --- |
//! | [`Dax`] | written back and fenced | power failure |
//! | [`Mapped`] | the same instructions are issued, so measured cost is real | process crash |
//! | [`Journal`] | the fence's lines are in the journal and it is synced | power failure |
//! | [`Dram`] | never | nothing |
//! | `Sim` (feature `explore`) | the chosen persistency model decides | the crash-state explorer decides |
//!
//! # Concurrency
//!
//! A medium is shared by all threads of a process. `flush` and `fence` order the stores of the
//! calling thread only, as the processor's instructions do.

mod auto;
pub(crate) mod capture;
mod counting;
pub mod cpu;
mod dram;
mod dram_trace;
mod instrument;
mod issued;
pub mod journal;
mod mapped;
mod mapping;
mod recorder;
mod sections;
#[cfg(feature = "explore")]
pub mod sim;

pub use crate::format::{LINE, MediumKind};
pub use auto::Auto;
pub use counting::{Counting, PersistCounts};
pub use dram::Dram;
pub use dram_trace::{DramAccess, DramRegion, DramTouch, DramTrace, Untraced};
#[cfg(feature = "explore")]
pub use dram_trace::{DramObserver, Traced};
pub use instrument::Instrument;
pub use issued::{Issued, issued};
pub use journal::Journal;
pub use mapped::{Dax, Mapped};
pub use mapping::Mapping;
pub(crate) use mapping::sync_parent;
pub use recorder::Recorder;
pub use sections::{Section, Sections};
#[cfg(feature = "explore")]
pub use sim::Sim;

use crate::error::{CommitError, OpenError, SpaceError};
use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

thread_local! {
    static DEFERRED: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work` without this thread's [`Media::commit`]s. Its caller commits once for all its
/// changes, afterwards, and sends no reply before that. Fences in it keep their order.
pub fn deferring_commits<R>(work: impl FnOnce() -> R) -> R {
    struct Restored;
    impl Drop for Restored {
        fn drop(&mut self) {
            DEFERRED.set(DEFERRED.get() - 1);
        }
    }
    DEFERRED.set(DEFERRED.get() + 1);
    let _restored = Restored;
    work()
}

/// Returns true if this thread is in [`deferring_commits`].
pub(crate) fn commits_are_deferred() -> bool {
    DEFERRED.get() > 0
}

/// When a commit on [`Journal`] counts as durable. Other media ignore it: there, a fence is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A commit returns once its lines are synced; concurrent commits share one sync.
    #[default]
    Immediate,
    /// A commit returns at once; the journal is synced this often, so a power failure loses at
    /// most that much time, never consistency.
    Interval(Duration),
    /// A commit returns at once; the journal is written in the background and synced only by
    /// checkpoints. A power failure loses recent commits, never consistency.
    None,
}

/// How a medium is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Make a new file; one that exists is an error.
    Create,
    /// Open for reading and writing, alone.
    ReadWrite,
    /// Open for reading. Repairs that recovery makes stay in this process's memory.
    ReadOnly,
    /// As [`ReadOnly`](Self::ReadOnly), past what is wrong with the medium's own files, which
    /// [`MediaRecovery::problems`] tells ([`Pool::salvage`](crate::Pool::salvage)).
    Salvage,
}

impl Access {
    /// Whether nothing is written.
    #[must_use]
    pub fn reads_only(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Salvage)
    }
}

/// Options of every medium's `open`.
#[derive(Clone, Debug)]
pub struct MediaOptions {
    /// Create, open, or open read-only.
    pub access: Access,
    /// Bytes of address space to reserve, so that the pool can grow without moving. Halved until
    /// the system grants it.
    pub reserve: u64,
    /// The medium to use; `None` lets [`Auto`] choose. Other media ignore it.
    pub medium: Option<MediumKind>,
    /// When commits are durable ([`Journal`] only).
    pub durability: Durability,
    /// Maximum number of bytes of the journal file ([`Journal`] only).
    pub journal_max: u64,
}

impl Default for MediaOptions {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            reserve: 1 << 40,
            medium: None,
            durability: Durability::Immediate,
            journal_max: 256 << 20,
        }
    }
}

/// Repairs that a medium made when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaRecovery {
    /// Journal batches applied to the image.
    pub batches_replayed: u64,
    /// Cache lines that those batches held.
    pub lines_replayed: u64,
    /// Journal bytes read.
    pub bytes_read: u64,
    /// True if bytes after the last whole batch were discarded (a torn, never acknowledged write).
    pub torn_tail: bool,
    /// Time it took.
    pub elapsed: Duration,
    /// Version of the format of the journal that was found, if there was one of this pool.
    pub journal_format: Option<u32>,
    /// Faults in the medium's own files that [`Access::Salvage`] passed over.
    pub problems: Vec<String>,
}

/// What [`Media::evict`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Bytes of the pages that were dropped, whether they were in memory or not.
    pub bytes: u64,
    /// Bytes of the pages that were not, because a checkpoint has to come first.
    pub dirty: u64,
    /// True if nothing was tried, because a checkpoint was running or a thread was storing.
    pub busy: bool,
}

/// Whether the page at an offset is to be [dropped](Media::evict).
pub type Goes<'g> = dyn Fn(u64) -> bool + 'g;

/// A place where a pool can live, and durability there.
///
/// `flush`, `fence` and `store_fence` are `#[track_caller]`: a traced medium ([`Instrument`])
/// attributes each to its call site and can switch the site off.
///
/// # Safety
/// Safe code above makes references from [`base`](Self::base) and [`len`](Self::len) without
/// further checks, and trusts after a crash what it had made durable. An implementor guarantees,
/// from `open` until it is dropped:
///
/// 1. *Place.* `base` always returns the same address. It is aligned to 64 KiB, a chunk, so that an
///    offset is aligned in memory as it is in the pool.
/// 2. *Length.* `base..base + len` is memory that may be read and written, initialised to some
///    bytes, on read-only media too. `grow` extends it in place: `len` rises once the new bytes are
///    there and zero. Only `shrink` takes bytes away, and only those from its new length on. `len`
///    never exceeds `capacity`, which is constant.
/// 3. *Exclusiveness.* The memory is this value's alone: no other process or value writes to it,
///    and the medium does so itself only in `open`, `grow` (the new bytes), `shrink` (those taken
///    away) and `punch` (its range). Reading it at any time is allowed, by atomic accesses of at
///    most 8 bytes.
/// 4. *Order.* When `fence` returns, each line that the calling thread flushed before is durable,
///    with a content at least as new as at that flush, before any store that the thread makes later
///    is. `store_fence` orders the thread's stores to one line likewise. Eight aligned bytes are
///    never torn. On a medium that is made durable by commits, "durable" is part of the state that
///    a crash leaves: a prefix of the fences.
/// 5. *Holes.* After `punch` the range reads as zero; after `back` a store to it cannot fail for
///    want of space.
/// 6. *Threads.* All of this holds while any number of threads call any methods; `grow`, `shrink`,
///    `punch` and `back` are called by one thread at a time.
///
/// The caller of `shrink` and `punch` guarantees that nothing accesses what they take away.
pub unsafe trait Media: Instrument + Send + Sync + Sized + 'static {
    /// False on volatile media, where state is left out that only tells durable from volatile
    /// content (dirty bits, say).
    const PERSISTENT: bool = true;

    /// Opens `path` as `options.access` says. The content is not read: a new file has one zeroed
    /// extent of at least `initial` bytes.
    ///
    /// # Errors
    /// Any [`OpenError`] of the file system's, or [`OpenError::Locked`] if another process has it.
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError>;

    /// Returns the kind of this medium.
    fn kind(&self) -> MediumKind;

    /// Writes back every line of `addr..addr + len`; not ordered until the next
    /// [`fence`](Self::fence).
    #[track_caller]
    fn flush(&self, addr: *const u8, len: usize);

    /// As [`flush`](Self::flush), of a block that nothing durable leads to. `since`: what the
    /// medium had [captured](Self::captured) when the block was last freed, or later. A journal
    /// keeps long runs of such blocks out of its frames.
    ///
    /// The block is not given up before this thread's next fence.
    #[inline]
    #[track_caller]
    fn flush_fresh(&self, addr: *const u8, len: usize, since: u64) {
        let _ = since;
        self.flush(addr, len);
    }

    /// Returns a number that rises with what is fenced: all that was fenced by now is durable when
    /// the medium has made so much durable. 0 where nobody asks.
    #[inline]
    fn captured(&self) -> u64 {
        0
    }

    /// Makes this thread's earlier flushes durable before its later stores.
    #[track_caller]
    fn fence(&self);

    /// Orders two stores on a processor without total store order. On x86-64 it costs nothing but
    /// still stops the compiler from reordering.
    #[track_caller]
    fn store_fence(&self) {
        cpu::store_fence();
    }

    /// Returns when everything that this thread has fenced is as durable as the medium's
    /// [`Durability`] promises.
    ///
    /// # Errors
    /// [`CommitError`] when the disk refused: the change is visible in this process and may or may
    /// not be there after a restart. After a failed sync every later commit fails too.
    #[track_caller]
    fn commit(&self) -> Result<(), CommitError> {
        Ok(())
    }

    /// As [`commit`](Self::commit), for everything that any thread has fenced before.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn commit_all(&self) -> Result<(), CommitError> {
        self.commit()
    }

    /// Returns true if more is captured and not written than the medium holds for long: whoever
    /// goes on storing should [wait](Self::wait_for_room) first.
    fn is_behind(&self) -> bool {
        false
    }

    /// Waits while the medium [is behind](Self::is_behind), for threads that store and do not
    /// commit: what it has yet to write is bounded so. Nothing is durable for it.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    fn wait_for_room(&self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Returns the first byte of the pool, which never moves while the medium is open.
    fn base(&self) -> *mut u8;

    /// Returns the bytes that may be accessed from [`base`](Self::base).
    fn len(&self) -> u64;

    /// Returns true if no bytes are mapped (never, for an opened medium).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that [`grow`](Self::grow) may reach.
    fn capacity(&self) -> u64;

    /// Extends the pool in place to `len` bytes; new bytes are zero and backed by real space.
    ///
    /// # Errors
    /// [`SpaceError`]. Nothing has changed then.
    fn grow(&self, len: u64) -> Result<(), SpaceError>;

    /// Frees everything from byte `len` on. The caller makes sure that nothing uses it and that no
    /// durable word leads there.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses. Nothing has changed then.
    fn shrink(&self, len: u64) -> Result<(), SpaceError>;

    /// Frees the space of `offset..offset + len` (page-aligned), which then reads as zero.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses. Nothing has changed then.
    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError>;

    /// Gives back the space that the medium keeps beside the pool, as far as it needs none now.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses. The pool is as it was.
    fn trim(&self) -> Result<(), SpaceError> {
        Ok(())
    }

    /// Allocates real space again behind `offset..offset + len` (page-aligned), which was punched,
    /// so that a store there cannot fail for want of it.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no space. Nothing has changed then.
    fn back(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        let _ = (offset, len);
        Ok(())
    }

    /// Returns true if some part of the pool may have no space behind it, so that free chunks have
    /// to be [backed](Self::back) before they are used.
    fn sparse(&self) -> bool {
        false
    }

    /// Returns where threads say that they are storing, on a medium that can
    /// [give memory back](Self::evict) in between; `None` on others.
    fn sections(&self) -> Option<&Sections> {
        None
    }

    /// Drops from memory what `ranges` have of the pages of 4 KiB that the pool file has as they
    /// are, if `goes` returns true for their offsets: just before that, and while nobody stores, so
    /// it must not wait. They are read from the file when they are next touched. Elsewhere than on
    /// [`Journal`] there is nothing to drop.
    ///
    /// The caller makes sure that all stores to the ranges, from opening on, are made and fenced in
    /// a [`Section`].
    ///
    /// # Errors
    /// [`CommitError`] if an earlier commit failed, or the kernel refuses.
    fn evict(&self, ranges: &[Range<u64>], goes: &Goes<'_>) -> Result<Evicted, CommitError> {
        let _ = (ranges, goes);
        Ok(Evicted::default())
    }

    /// Reads bytes of the pool straight from its file, on a medium that can
    /// [give memory back](Self::evict). They are older than memory where it has stores that no
    /// checkpoint has written yet; the caller has to check for that. Returns false if not all of
    /// them could be read.
    fn read_away(&self, offset: u64, into: &mut [u8]) -> bool {
        let _ = (offset, into);
        false
    }

    /// Brings the pages of a range to memory by themselves, on a medium that can
    /// [give memory back](Self::evict), if the system can. A read would make the system map the
    /// pages around them as well.
    fn bring_alone(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Brings the page of a word that is about to be read, and then written, to memory by itself,
    /// on a medium that can [give memory back](Self::evict). A read alone would make the system map
    /// the pages around it as well.
    fn touch_to_store(&self, offset: u64) {
        let _ = offset;
    }

    /// Lengthens what is in memory to `len` bytes, the last of which read as zeros, for a pool that
    /// is [salvaged](Access::Salvage) and whose file was cut short.
    ///
    /// # Errors
    /// [`SpaceError`]: it is not opened so, or there is not so much address space.
    fn pad(&self, len: u64) -> Result<(), SpaceError> {
        let _ = len;
        Err(SpaceError::ReadOnly)
    }

    /// Prepares for [giving memory back](Self::evict): at most so many bytes of pages, about, are
    /// ahead of the pool file. At half of that a checkpoint begins, and beyond it commits wait for
    /// one. It may be called again, to change the bound.
    fn bound_ahead(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Returns how many bytes of pages are ahead of the pool file, about: until a checkpoint has
    /// written them they cannot be [dropped](Self::evict). `None` while they are being written.
    fn ahead(&self) -> Option<u64> {
        Some(0)
    }

    /// Returns true if stores must not reach the file.
    fn read_only(&self) -> bool;

    /// Tells the medium that the superblock has been read and, for a writer, marked in use. The
    /// pool calls it once; from here on `uuid` names the pool.
    ///
    /// # Errors
    /// [`OpenError`] when the medium's own files belong to another pool or the mark cannot be made
    /// durable.
    fn attach(&self, uuid: [u8; 16]) -> Result<(), OpenError> {
        let _ = uuid;
        Ok(())
    }

    /// Returns false if the medium keeps a history beside the pool file and found none. A pool that
    /// was last written through this medium and not closed is then incomplete.
    fn history_found(&self) -> bool {
        true
    }

    /// Returns true if what a killed process had stored and not flushed is seen by the next one,
    /// and may be lost after that. An opening then writes back what is in use before it relies on
    /// it.
    fn keeps_unflushed(&self) -> bool {
        false
    }

    /// Makes the whole content durable in the pool file itself, whatever the durability level.
    ///
    /// # Errors
    /// [`CommitError`] as [`commit`](Self::commit).
    fn sync(&self) -> Result<(), CommitError>;

    /// Returns the repairs that opening made.
    fn recovery(&self) -> MediaRecovery {
        MediaRecovery::default()
    }

    /// Returns the durability level in force.
    fn durability(&self) -> Durability {
        Durability::Immediate
    }

    /// Returns the recorder of lines that are fenced while the pool is copied, or `None` where
    /// nothing is kept.
    fn recorder(&self) -> Option<&Recorder> {
        None
    }

    /// Flushes every line of `value`.
    #[inline]
    #[track_caller]
    fn flush_of<T: ?Sized>(&self, value: &T) {
        self.flush(std::ptr::from_ref(value).cast(), size_of_val(value));
    }

    /// Flushes every line of `value` and fences: "persist" in the papers.
    #[inline]
    #[track_caller]
    fn persist<T: ?Sized>(&self, value: &T) {
        self.flush_of(value);
        self.fence();
    }
}
