//! `Dram`: anonymous memory; flush and fence compile to nothing. The volatile mode.

use super::mapping::{Mapping, Sharing};
use super::{Media, MediaOptions, MediumKind, Untraced};
use crate::error::{CommitError, OpenError, SpaceError};
use std::path::Path;

/// Anonymous memory; nothing survives.
#[derive(Debug)]
pub struct Dram {
    mapping: Mapping,
}

impl Media for Dram {
    const PERSISTENT: bool = false;
    type Dram = Untraced;

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
