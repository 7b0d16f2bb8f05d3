//! `Dax` and `Mapped`: a shared mapping that the processor's own instructions flush and fence.
//!
//! They differ in one thing: `Dax` requires `MAP_SYNC` (or a devdax device), which makes a fenced
//! line durable across a power failure. `Mapped` issues the same instructions, so measurements on
//! it show what persistent memory of the same speed would cost.

use super::cpu::{self, FlushKind};
use super::issued::{self, lines_of};
use super::mapping::{Mapping, Sharing};
use super::{Access, Media, MediaOptions, MediumKind, Recorder};
use crate::error::{CommitError, OpenError, SpaceError};
use std::path::Path;

/// A shared file mapping without power-fail durability of its own; see the module's head.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    flush: FlushKind,
    read_only: bool,
    recorder: Recorder,
}

/// A file on an fsdax mount or a devdax device; see the module's head.
#[derive(Debug)]
pub struct Dax(Mapped);

impl Mapped {
    fn open_as(
        path: &Path,
        initial: u64,
        options: &MediaOptions,
        sharing: Sharing,
    ) -> Result<Self, OpenError> {
        let flush = cpu::detect().ok_or_else(|| OpenError::Unsupported {
            path: path.to_path_buf(),
            what: "this processor has no cache flush that we know; use the journal medium".into(),
        })?;
        let flush = if cpu::caches_are_persistent() {
            FlushKind::None
        } else {
            flush
        };
        let read_only = options.access.reads_only();
        let file = Mapping::open_file(path, options.access, initial)?;
        let regular = std::fs::metadata(path).is_ok_and(|m| m.is_file());
        if read_only && !regular {
            return Err(OpenError::Unsupported {
                path: path.to_path_buf(),
                what: "a device cannot be opened for reading only (it grants no private mapping); open it for writing".into(),
            });
        }
        let sharing = if read_only { Sharing::Private } else { sharing };
        let mapping =
            Mapping::map(path, Some(file), sharing, options.reserve).inspect_err(|_| {
                if options.access == Access::Create && regular {
                    // The new empty file is useless; the first error is reported.
                    let _ = std::fs::remove_file(path);
                }
            })?;
        Ok(Self {
            mapping,
            flush,
            read_only,
            recorder: Recorder::default(),
        })
    }
}

#[cfg(feature = "explore")]
impl super::Instrument for Mapped {
    type Dram = super::Untraced;
}

// SAFETY: 1, 2, 6. as of the mapping (see its head); 3. the file is locked, for this writer alone
// or for readers, whose mappings are private; 4. the processor's write-back and fence instructions,
// chosen for it at opening (`cpu.rs`). Whether the memory behind the mapping keeps what was written
// back is the user's choice of a path; 5. as of the mapping.
unsafe impl Media for Mapped {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        Self::open_as(path, initial, options, Sharing::Shared)
    }

    fn kind(&self) -> MediumKind {
        MediumKind::Mapped
    }

    #[inline(always)]
    fn flush(&self, addr: *const u8, len: usize) {
        let pool = (self.mapping.base().cast_const(), self.mapping.len());
        self.recorder.note(pool, addr, len);
        issued::lines(lines_of(addr, len));
        cpu::flush(self.flush, addr, len);
    }

    #[inline(always)]
    fn fence(&self) {
        issued::fence();
        cpu::persist_fence();
        self.recorder.fence(self.mapping.base());
    }

    #[inline(always)]
    fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    #[inline(always)]
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn capacity(&self) -> u64 {
        self.mapping.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly);
        }
        self.mapping.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly);
        }
        self.mapping.shrink(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly);
        }
        self.mapping.punch(offset, len)
    }

    fn back(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.mapping.refill(offset, len)
    }

    fn pad(&self, len: u64) -> Result<(), SpaceError> {
        match self.read_only {
            true => self.mapping.extend_anonymous(len),
            false => Err(SpaceError::ReadOnly),
        }
    }

    fn sparse(&self) -> bool {
        self.mapping.sparse()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn sync(&self) -> Result<(), CommitError> {
        if self.read_only {
            return Ok(());
        }
        match self.mapping.file() {
            // A device has no page cache: the fence was enough.
            Some(_) if self.mapping.fixed() => Ok(()),
            // PERSIST: the page cache's copy, for a mapping whose memory is not itself persistent.
            Some(fd) => rustix::fs::fdatasync(fd).map_err(|e| CommitError::Failed {
                doing: "sync",
                source: e.into(),
            }),
            None => Ok(()),
        }
    }

    fn recorder(&self) -> Option<&Recorder> {
        Some(&self.recorder)
    }
}

#[cfg(feature = "explore")]
impl super::Instrument for Dax {
    type Dram = super::Untraced;
}

// SAFETY: 1, 2, 3, 5, 6. as of `Mapped`, which it wraps; 4. `MAP_SYNC`, or a device, makes lines
// durable that are written back and fenced.
unsafe impl Media for Dax {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        Mapped::open_as(path, initial, options, Sharing::Sync).map(Self)
    }

    fn kind(&self) -> MediumKind {
        MediumKind::Dax
    }

    #[inline(always)]
    fn flush(&self, addr: *const u8, len: usize) {
        self.0.flush(addr, len);
    }

    #[inline(always)]
    fn fence(&self) {
        self.0.fence();
    }

    #[inline(always)]
    fn base(&self) -> *mut u8 {
        self.0.base()
    }

    #[inline(always)]
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        self.0.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.0.shrink(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.0.punch(offset, len)
    }

    fn back(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.0.back(offset, len)
    }

    fn sparse(&self) -> bool {
        self.0.sparse()
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    /// The processor's caches do, unless they keep their content in a power failure too.
    fn keeps_unflushed(&self) -> bool {
        self.0.flush != FlushKind::None
    }

    fn sync(&self) -> Result<(), CommitError> {
        self.0.sync()
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.0.recorder()
    }
}
