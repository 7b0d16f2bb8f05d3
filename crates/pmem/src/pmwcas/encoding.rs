//! Encoding of words, statuses and entries (layouts: the module's head).

use std::fmt;

/// Maximum number of words of an operation.
pub const MAX_WORDS: usize = 8;
/// Maximum number of threads that a pool of descriptors is divided among; more threads share.
pub const MAX_THREADS: usize = 1024;
/// Maximum number of descriptors of a thread.
pub const MAX_PER_THREAD: usize = 64;
/// The bits of a word that values cannot use.
pub const FLAGS: u64 = DIRTY | MULTI | CONDITIONAL;

pub(super) const DIRTY: u64 = 1 << 63;
pub(super) const MULTI: u64 = 1 << 62;
pub(super) const CONDITIONAL: u64 = 1 << 61;
/// Bits of the generation, by itself.
pub(super) const GENERATION: u64 = (1 << 36) - 1;
const ATTEMPT: u64 = (1 << 22) - 1;
/// In an attempt's number, the bit of those that an operation's own thread makes, and counts by
/// itself.
pub(super) const OWN_ATTEMPT: u32 = 1 << 21;
const _: () = assert!(OWN_ATTEMPT as u64 == ATTEMPT / 2 + 1);
const SHORT_GENERATION: u64 = (1 << 20) - 1;
/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free = 0,
    Undecided = 1,
    Succeeded = 2,
    Failed = 3,
}

/// A status word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub(super) u64);

impl Status {
    pub(super) fn new(state: State, generation: u64, count: usize, policies: u64) -> Self {
        Self(state as u64 | (count as u64) << 3 | policies << 8 | (generation & GENERATION) << 24)
    }

    /// Returns the state, or `None` for a value that no descriptor holds.
    pub(super) fn state(self) -> Option<State> {
        match self.0 & 7 {
            0 => Some(State::Free),
            1 => Some(State::Undecided),
            2 => Some(State::Succeeded),
            3 => Some(State::Failed),
            _ => None,
        }
    }

    pub(super) fn is(self, state: State) -> bool {
        self.0 & 7 == state as u64
    }

    pub(super) fn with(self, state: State) -> Self {
        Self(self.0 & !(7 | DIRTY) | state as u64)
    }

    pub(super) fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Returns the number of words of the operation, at most as many as a descriptor can have.
    pub(super) fn count(self) -> usize {
        ((self.0 >> 3) & 15).min(MAX_WORDS as u64) as usize
    }

    pub(super) fn policies(self) -> u64 {
        self.0 >> 8 & 0xFFFF
    }

    pub(super) fn policy(self, entry: usize) -> Policy {
        match self.policies() >> (2 * entry) & 3 {
            1 => Policy::FreeOne,
            2 => Policy::FreeOldOnSuccess,
            3 => Policy::FreeNewOnFailure,
            _ => Policy::None,
        }
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> 24 & GENERATION
    }

    /// Returns true for an operation that the pointer in its only word decides.
    pub(super) fn single(self) -> bool {
        self.count() == 1 && self.policies() == 0
    }

    /// Returns true if the bits that no status uses are 0.
    pub(super) fn plausible(self) -> bool {
        self.0 >> 60 & 7 == 0 && self.state().is_some() && self.0 >> 3 & 15 == self.count() as u64
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x} ({:?}, {} words)",
            self.0,
            self.state(),
            self.count()
        )
    }
}

/// Returns the pointer to a descriptor in one use of it.
pub(super) fn pointer(number: usize, generation: u64) -> u64 {
    MULTI | generation << 16 | number as u64
}

/// Returns the number of the descriptor that a pointer leads to.
pub(super) fn pointed(pointer: u64) -> usize {
    (pointer & 0xFFFF) as usize
}

/// Returns the conditional pointer of one attempt to install a pointer.
pub(super) fn conditional(number: usize, generation: u64, entry: usize, attempt: u32) -> u64 {
    CONDITIONAL
        | (generation & SHORT_GENERATION) << 41
        | (u64::from(attempt) & ATTEMPT) << 19
        | (number as u64) << 3
        | entry as u64
}

/// Returns descriptor and entry that a conditional pointer leads to.
pub(super) fn condition(word: u64) -> (usize, usize) {
    ((word >> 3 & 0xFFFF) as usize, (word & 7) as usize)
}

/// Returns true if `word` is a conditional pointer to that entry, of any attempt.
pub(super) fn is_attempt(word: u64, number: usize, generation: u64, entry: usize) -> bool {
    word & !(ATTEMPT << 19) == conditional(number, generation, entry, 0)
}

/// One word of an operation, as a descriptor in the pool holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: u64,
    pub(super) old: u64,
    pub(super) new: u64,
}

/// The fate of the blocks that a word's old and new values lead to. A value of 0 leads nowhere.
/// The two policies that would free a new block also [activate](crate::heap::Recycle::activate) it;
/// with the others it is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Nothing: the values are no pointers, or the owner manages the blocks.
    #[default]
    None = 0,
    /// The old one is recycled if the operation succeeds, the new one if it fails.
    FreeOne = 1,
    /// The old one is recycled if the operation succeeds.
    FreeOldOnSuccess = 2,
    /// The new one is recycled if the operation fails.
    FreeNewOnFailure = 3,
}

impl Policy {
    /// Returns true if it recycles the old block of an operation that succeeded.
    pub(super) fn frees_old(self) -> bool {
        matches!(self, Self::FreeOne | Self::FreeOldOnSuccess)
    }

    /// Returns true if it recycles the new block of one that failed.
    pub(super) fn frees_new(self) -> bool {
        matches!(self, Self::FreeOne | Self::FreeNewOnFailure)
    }
}
