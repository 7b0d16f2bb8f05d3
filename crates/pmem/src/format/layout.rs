//! Byte-level layout of a pool file.
//!
//! ```text
//! region 0 (64 MiB)                                     region 1 ...
//! | chunk 0 | chunk 1 | chunk 2 | ... | chunk 1023 |    | chunk 1024 (header) | ...
//!
//! chunk 0 (64 KiB)
//! 0x0000 | superblock, copy A (512 bytes, rest unused)
//! 0x1000 | superblock, copy B
//! 0x2000 | chunk table of this region: 1024 words
//! 0x4000 | root table: 48 slots of 1 KiB            (region 0 only)
//! ```
//!
//! The first chunk of every region holds that region's chunk table at the same place, so a pool
//! grows by appending chunks and never moves anything.

/// Bytes in a chunk: the unit in which space is assigned to a root.
pub const CHUNK: u64 = 64 << 10;
/// Chunks in a region.
pub const REGION_CHUNKS: u64 = 1024;
/// Bytes in a region.
pub const REGION: u64 = CHUNK * REGION_CHUNKS;
/// The longest run of chunks: a region less its header chunk.
pub const MAX_RUN: u32 = REGION_CHUNKS as u32 - 1;
/// Place of the second superblock copy.
pub const SUPERBLOCK_B: u64 = 0x1000;
/// Place of the chunk table inside a region.
pub const CHUNK_TABLE: u64 = 0x2000;
/// Place of the root table.
pub const ROOT_TABLE: u64 = 0x4000;
/// Bytes of a root slot.
pub const ROOT_SLOT: u64 = 1024;
/// Number of root slots.
pub const ROOTS: usize = 48;
/// Bytes of a new pool.
pub const INITIAL: u64 = 2 << 20;

const _: () = assert!(CHUNK_TABLE + REGION_CHUNKS * 8 == ROOT_TABLE);
const _: () = assert!(ROOT_TABLE + ROOT_SLOT * ROOTS as u64 == CHUNK);
const _: () = assert!(INITIAL.is_multiple_of(CHUNK) && INITIAL >= 2 * CHUNK);

/// Use of a chunk: one 8-byte word in the chunk table, changed by NAW only.
///
/// ```text
/// bit  0      8       16      24      32              64
///      | kind | owner | class | check | run (chunks)  |
/// ```
///
/// `check` is a fold of the other bytes, so that a flipped bit is noticed. A free chunk is 0, and
/// so is every chunk of a run but its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkUse {
    /// Not assigned.
    Free,
    /// Holds the chunk table of its region.
    Header,
    /// Cut into blocks of one size class.
    Blocks {
        /// Root slot that it belongs to.
        owner: u8,
        /// Index into the size classes.
        class: u8,
    },
    /// Cut into blocks of one size class after a head that says which are active
    /// (`heap/activated.rs`).
    Activated {
        /// Root slot that it belongs to.
        owner: u8,
        /// Index into the size classes.
        class: u8,
    },
    /// First of a run of chunks that hold one large block.
    Run {
        /// Root slot that it belongs to.
        owner: u8,
        /// Length of the run.
        chunks: u32,
    },
}

impl ChunkUse {
    fn fold(word: u64) -> u64 {
        let bytes = (word & !(0xFF << 24)).to_le_bytes();
        bytes
            .iter()
            .fold(0xA5u8, |acc, b| acc.rotate_left(3) ^ b)
            .into()
    }

    /// Returns the word that stands for this use.
    #[must_use]
    pub fn encode(self) -> u64 {
        let word = match self {
            Self::Free => return 0,
            Self::Header => 1,
            Self::Blocks { owner, class } => 2 | u64::from(owner) << 8 | u64::from(class) << 16,
            Self::Activated { owner, class } => 4 | u64::from(owner) << 8 | u64::from(class) << 16,
            Self::Run { owner, chunks } => 3 | u64::from(owner) << 8 | u64::from(chunks) << 32,
        };
        word | Self::fold(word) << 24
    }

    /// Returns the use that a word stands for, or `None` if there is none.
    #[must_use]
    pub fn decode(word: u64) -> Option<Self> {
        if word == 0 {
            return Some(Self::Free);
        }
        if (word >> 24) & 0xFF != Self::fold(word) {
            return None;
        }
        let owner = (word >> 8) as u8;
        let class = (word >> 16) as u8;
        let chunks = (word >> 32) as u32;
        if usize::from(owner) >= ROOTS {
            return None;
        }
        match word & 0xFF {
            1 if owner == 0 && class == 0 && chunks == 0 => Some(Self::Header),
            2 if chunks == 0 => Some(Self::Blocks { owner, class }),
            4 if chunks == 0 => Some(Self::Activated { owner, class }),
            3 if class == 0 && chunks > 0 => Some(Self::Run { owner, chunks }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_uses_round_trip_and_notice_flips() {
        let uses = [
            ChunkUse::Free,
            ChunkUse::Header,
            ChunkUse::Blocks {
                owner: 47,
                class: 20,
            },
            ChunkUse::Activated { owner: 2, class: 3 },
            ChunkUse::Run {
                owner: 3,
                chunks: 70_000,
            },
        ];
        for used in uses {
            let word = used.encode();
            assert_eq!(ChunkUse::decode(word), Some(used));
            for bit in 0..64 {
                assert_ne!(ChunkUse::decode(word ^ 1 << bit), Some(used), "bit {bit}");
            }
        }
    }
}
