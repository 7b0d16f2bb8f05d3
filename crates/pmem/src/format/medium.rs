//! The medium of a pool: a byte of the superblock.

/// The medium of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediumKind {
    /// A file on an fsdax mount mapped with `MAP_SYNC`, or a devdax device.
    Dax,
    /// Any other shared file mapping: tmpfs, a RAM disk, the page cache.
    Mapped,
    /// An ordinary file behind a write-ahead journal.
    Journal,
    /// Anonymous memory.
    Dram,
    /// A simulated persistent memory.
    Sim,
}

impl MediumKind {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dax => "dax",
            Self::Mapped => "mapped",
            Self::Journal => "journal",
            Self::Dram => "dram",
            Self::Sim => "sim",
        }
    }

    /// Returns which failures data on this medium survives, in words for a person.
    #[must_use]
    pub fn survives(self) -> &'static str {
        match self {
            Self::Dax | Self::Journal => "power failure",
            Self::Mapped => {
                "process crash (power failure only where the memory itself is non-volatile)"
            }
            Self::Dram => "nothing",
            Self::Sim => "what the explorer decides",
        }
    }

    /// Returns the byte that stands for this medium in the superblock (0 is "none").
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Dax => 1,
            Self::Mapped => 2,
            Self::Journal => 3,
            Self::Dram => 4,
            Self::Sim => 5,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Dax),
            2 => Some(Self::Mapped),
            3 => Some(Self::Journal),
            4 => Some(Self::Dram),
            5 => Some(Self::Sim),
            _ => None,
        }
    }
}
