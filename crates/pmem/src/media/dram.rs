//! `Dram`: anonymous memory; flush and fence compile to nothing. The volatile mode.

use super::mapping::{Mapping, Sharing};
use super::{Media, MediaOptions, MediumKind};
use crate::error::{CommitError, OpenError, SpaceError};
use std::path::Path;

/// Anonymous memory; nothing survives.
#[derive(Debug)]
pub struct Dram {
    mapping: Mapping,
}

#[cfg(feature = "explore")]
impl super::Instrument for Dram {
    type Dram = super::Untraced;
}

// SAFETY: 1, 2, 6. as of the mapping (see its head): anonymous memory, reserved up front, aligned
// to a huge page, zero where it is new; 3. nothing else knows of it; 4. nothing of it survives, so
// there is no order to keep; 5. punched memory reads as zero, and needs no space of a file.
unsafe impl Media for Dram {
    const PERSISTENT: bool = false;
    /// `path` is only a name for messages; nothing is opened there.
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let mapping = Mapping::map(path, None, Sharing::Anonymous, options.reserve)?;
        mapping.grow(initial)?;
        Ok(Self { mapping })
    }

    fn kind(&self) -> MediumKind {
        MediumKind::Dram
    }

    #[inline(always)]
    fn flush(&self, _addr: *const u8, _len: usize) {}

    #[inline(always)]
    fn fence(&self) {}

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
        self.mapping.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.mapping.shrink(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.mapping.punch(offset, len)
    }

    fn read_only(&self) -> bool {
        false
    }

    fn sync(&self) -> Result<(), CommitError> {
        Ok(())
    }
}
