//! Errors of building and beginning an operation.

use std::fmt;

/// Reason why a word cannot be part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordError {
    /// The word is already part of it.
    Duplicate(u64),
    /// The descriptor has no room for more than this many words.
    TooMany(usize),
    /// The value uses the bits of [`FLAGS`](super::FLAGS).
    Flagged(u64),
    /// The address is not in the pool, or is in its header or in the descriptors themselves.
    Foreign(usize),
    /// The word is not part of the operation.
    Absent(usize),
    /// The word's new value was not reserved, or was set already.
    NotReserved(u64),
    /// The policies would recycle the block at this offset although the word keeps it, or twice.
    Recycled(u64),
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate(at) => {
                write!(f, "the word at {at:#x} is part of the operation already")
            }
            Self::TooMany(most) => write!(f, "a descriptor of this pool has room for {most} words"),
            Self::Flagged(value) => write!(f, "the value {value:#x} uses bits 61 to 63"),
            Self::Foreign(addr) => {
                write!(f, "{addr:#x} is the address of no word that can be swapped")
            }
            Self::Absent(addr) => write!(
                f,
                "the word at address {addr:#x} is not part of the operation"
            ),
            Self::Recycled(block) => write!(
                f,
                "the block at {block:#x} would be recycled though the word keeps it, or twice"
            ),
            Self::NotReserved(at) => write!(f, "the new value of the word at {at:#x} is not open"),
        }
    }
}

impl std::error::Error for WordError {}

/// Reason why an operation was not begun. Its descriptor was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecuteError {
    /// It has no words.
    Empty,
    /// The new value of the word at this offset was reserved and never set.
    Unfilled(u64),
}

impl fmt::Display for ExecuteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("an operation without words"),
            Self::Unfilled(at) => write!(f, "the word at {at:#x} was given no new value"),
        }
    }
}

impl std::error::Error for ExecuteError {}

/// No descriptor came back, however often the epoch was asked to move on: there are too few for the
/// pinned threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Number of descriptors.
    pub descriptors: usize,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} descriptors are in use, or may still be looked at by a pinned thread",
            self.descriptors
        )
    }
}

impl std::error::Error for Exhausted {}
