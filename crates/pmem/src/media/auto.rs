//! `Auto`: the medium that fits the path.
//!
//! A pool stays on the medium that its superblock names. A new one is put on [`Dax`] where the file
//! system accepts `MAP_SYNC` (or the path is a devdax device), on [`Mapped`] on tmpfs, and on
//! [`Journal`] everywhere else. Memory without a file, which counts the instructions issued to it,
//! is used where [`MediumKind::Dram`] is asked for.

use super::counting::{Counting, PersistCounts};
use super::journal::{JournalStats, journal_path};
use super::mapping::is_tmpfs;
use super::{
    Access, Dax, Dram, Durability, Evicted, Goes, Journal, Mapped, Media, MediaOptions,
    MediaRecovery, MediumKind, Recorder, Sections,
};
use crate::error::{CommitError, OpenError, SpaceError};
use crate::format::superblock::Superblock;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A medium chosen at opening. See the module's head.
#[derive(Debug)]
pub struct Auto {
    /// [`Media::base`], which is asked for most: no choice is made for it.
    base: AtomicPtr<u8>,
    chosen: Chosen,
}

#[derive(Debug)]
enum Chosen {
    Dax(Dax),
    Mapped(Mapped),
    Journal(Journal),
    Dram(Counting<Dram>),
}

/// Calls the same method of the chosen medium.
macro_rules! each {
    ($self:ident, $pm:ident => $call:expr) => {
        match &$self.chosen {
            Chosen::Dax($pm) => $call,
            Chosen::Mapped($pm) => $call,
            Chosen::Journal($pm) => $call,
            Chosen::Dram($pm) => $call,
        }
    };
}

macro_rules! from {
    ($($medium:ident: $type:ty),*) => {$(
        impl From<$type> for Auto {
            fn from(medium: $type) -> Self {
                Self {
                    base: AtomicPtr::new(medium.base()),
                    chosen: Chosen::$medium(medium),
                }
            }
        }
    )*};
}

from!(Dax: Dax, Mapped: Mapped, Journal: Journal, Dram: Counting<Dram>);

impl Auto {
    /// Opens `path` on the given medium.
    ///
    /// # Errors
    /// As [`Media::open`]; [`OpenError::Unsupported`] for [`MediumKind::Sim`].
    pub fn open_on(
        kind: MediumKind,
        path: &Path,
        initial: u64,
        options: &MediaOptions,
    ) -> Result<Self, OpenError> {
        match kind {
            MediumKind::Dax => Dax::open(path, initial, options).map(Self::from),
            MediumKind::Mapped => Mapped::open(path, initial, options).map(Self::from),
            MediumKind::Journal => Journal::open(path, initial, options).map(Self::from),
            MediumKind::Dram => Counting::<Dram>::open(path, initial, options).map(Self::from),
            MediumKind::Sim => Err(OpenError::Unsupported {
                path: path.to_path_buf(),
                what: format!(
                    "the {} medium keeps nothing, so no path can be opened on it",
                    kind.name()
                ),
            }),
        }
    }

    /// Returns the instructions that were issued so far, by all threads, or `None` if the medium is
    /// not
    /// [`MediumKind::Dram`]: no other counts them.
    #[must_use]
    pub fn counts(&self) -> Option<PersistCounts> {
        match &self.chosen {
            Chosen::Dram(memory) => Some(memory.counts()),
            _ => None,
        }
    }

    /// Returns what the journal has written since it was opened, or `None` if the medium has none.
    #[must_use]
    pub fn journal_stats(&self) -> Option<JournalStats> {
        match &self.chosen {
            Chosen::Journal(journal) => Some(journal.stats()),
            _ => None,
        }
    }

    /// Returns the medium for a pool that does not say its own: that of its other files.
    fn by_files(path: &Path) -> MediumKind {
        if journal_path(path).exists() {
            MediumKind::Journal
        } else {
            MediumKind::Mapped
        }
    }

    /// Returns the medium for a path without a pool.
    fn for_new(path: &Path) -> MediumKind {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if std::fs::File::open(parent).is_ok_and(is_tmpfs) {
            MediumKind::Mapped
        } else {
            MediumKind::Journal
        }
    }
}

#[cfg(feature = "explore")]
impl super::Instrument for Auto {
    type Dram = super::Untraced;
}

// SAFETY: 1. to 6. each call goes to the medium that was chosen at opening, which meets them.
unsafe impl Media for Auto {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        if let Some(kind) = options.medium {
            return Self::open_on(kind, path, initial, options);
        }
        if options.access != Access::Create
            && let Some(kind) = Superblock::peek(path).and_then(|superblock| superblock.medium)
        {
            match Self::open_on(kind, path, initial, options) {
                // A copy of a persistent-memory pool on another file system.
                Err(OpenError::Unsupported { .. }) if kind == MediumKind::Dax => {}
                opened => return opened,
            }
        }
        if options.access == Access::Salvage {
            // Private memory is no trace of what the pool was on.
            return Self::open_on(Self::by_files(path), path, initial, options);
        }
        match Self::open_on(MediumKind::Dax, path, initial, options) {
            Err(OpenError::Unsupported { .. }) => {
                Self::open_on(Self::for_new(path), path, initial, options)
            }
            opened => opened,
        }
    }

    fn kind(&self) -> MediumKind {
        each!(self, pm => pm.kind())
    }

    #[inline]
    #[track_caller]
    fn flush(&self, addr: *const u8, len: usize) {
        each!(self, pm => pm.flush(addr, len));
    }

    #[inline]
    #[track_caller]
    fn flush_fresh(&self, addr: *const u8, len: usize, since: u64) {
        each!(self, pm => pm.flush_fresh(addr, len, since));
    }

    #[inline]
    fn captured(&self) -> u64 {
        each!(self, pm => pm.captured())
    }

    #[inline]
    #[track_caller]
    fn fence(&self) {
        each!(self, pm => pm.fence());
    }

    #[inline]
    #[track_caller]
    fn commit(&self) -> Result<(), CommitError> {
        each!(self, pm => pm.commit())
    }

    #[inline]
    #[track_caller]
    fn commit_all(&self) -> Result<(), CommitError> {
        each!(self, pm => pm.commit_all())
    }

    #[inline]
    fn is_behind(&self) -> bool {
        each!(self, pm => pm.is_behind())
    }

    #[inline]
    fn wait_for_room(&self) -> Result<(), CommitError> {
        each!(self, pm => pm.wait_for_room())
    }

    #[inline(always)]
    fn base(&self) -> *mut u8 {
        // ORDERING: Relaxed; it is written before anyone can share it, and never again.
        self.base.load(Ordering::Relaxed)
    }

    #[inline]
    fn len(&self) -> u64 {
        each!(self, pm => pm.len())
    }

    fn capacity(&self) -> u64 {
        each!(self, pm => pm.capacity())
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        each!(self, pm => pm.grow(len))
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        each!(self, pm => pm.shrink(len))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        each!(self, pm => pm.punch(offset, len))
    }

    fn trim(&self) -> Result<(), SpaceError> {
        each!(self, pm => pm.trim())
    }

    fn back(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        each!(self, pm => pm.back(offset, len))
    }

    fn sparse(&self) -> bool {
        each!(self, pm => pm.sparse())
    }

    #[inline]
    fn sections(&self) -> Option<&Sections> {
        each!(self, pm => pm.sections())
    }

    fn evict(&self, ranges: &[Range<u64>], goes: &Goes<'_>) -> Result<Evicted, CommitError> {
        each!(self, pm => pm.evict(ranges, goes))
    }

    fn read_away(&self, offset: u64, into: &mut [u8]) -> bool {
        each!(self, pm => pm.read_away(offset, into))
    }

    fn bring_alone(&self, range: Range<u64>) {
        each!(self, pm => pm.bring_alone(range));
    }

    #[inline]
    fn touch_to_store(&self, offset: u64) {
        each!(self, pm => pm.touch_to_store(offset));
    }

    fn pad(&self, len: u64) -> Result<(), SpaceError> {
        each!(self, pm => pm.pad(len))
    }

    fn bound_ahead(&self, bytes: u64) {
        each!(self, pm => pm.bound_ahead(bytes));
    }

    fn ahead(&self) -> Option<u64> {
        each!(self, pm => pm.ahead())
    }

    fn read_only(&self) -> bool {
        each!(self, pm => pm.read_only())
    }

    fn attach(&self, uuid: [u8; 16]) -> Result<(), OpenError> {
        each!(self, pm => pm.attach(uuid))
    }

    fn keeps_unflushed(&self) -> bool {
        each!(self, pm => pm.keeps_unflushed())
    }

    fn history_found(&self) -> bool {
        each!(self, pm => pm.history_found())
    }

    fn sync(&self) -> Result<(), CommitError> {
        each!(self, pm => pm.sync())
    }

    fn recovery(&self) -> MediaRecovery {
        each!(self, pm => pm.recovery())
    }

    fn durability(&self) -> Durability {
        each!(self, pm => pm.durability())
    }

    fn recorder(&self) -> Option<&Recorder> {
        each!(self, pm => pm.recorder())
    }
}
