//! The words of an operation that is being put together, in volatile memory.

use super::encoding::{Entry, FLAGS, MAX_WORDS, Policy};
use super::error::WordError;
use std::cell::UnsafeCell;

/// A word of an operation that is being put together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    pub(super) entry: Entry,
    pub(super) policy: Policy,
    /// Its new value was not given yet.
    pub(super) open: bool,
}

/// The words of operations that are being put together, by descriptor: kept beside the pool's
/// descriptors, so that a [`Descriptor`] is small and cheap to hand on.
pub(super) struct Scratch(Box<[UnsafeCell<[Word; MAX_WORDS]>]>);

// SAFETY: 1. a descriptor's words are reached through the one `Descriptor` that has its number
// alone; 2. numbers are handed on by the lists, with Release and Acquire.
unsafe impl Sync for Scratch {}

impl Scratch {
    pub(super) fn of(descriptors: usize) -> Self {
        Self((0..descriptors).map(|_| UnsafeCell::default()).collect())
    }

    /// The words of a descriptor's operation: its owner's alone.
    pub(super) fn words(&self, number: usize) -> *mut [Word; MAX_WORDS] {
        self.0[number].get()
    }
}

/// Checks that no block would be recycled that its word keeps, and none by two words.
#[inline]
pub(super) fn check_recycled(others: &[Word], word: &Word) -> Result<(), WordError> {
    if word.policy == Policy::None {
        return Ok(());
    }
    let Entry { old, new, .. } = word.entry;
    if word.open {
        // Its new value is checked when it is given.
    } else if old == new && old != 0 {
        return Err(WordError::Recycled(old));
    }
    for other in others {
        let both = |frees: fn(Policy) -> bool| frees(word.policy) && frees(other.policy);
        if old != 0 && old == other.entry.old && both(Policy::frees_old) {
            return Err(WordError::Recycled(old));
        }
        let given = !word.open && !other.open && new != 0;
        if given && new == other.entry.new && both(Policy::frees_new) {
            return Err(WordError::Recycled(new));
        }
    }
    Ok(())
}

pub(super) fn plain(value: u64) -> Result<u64, WordError> {
    if value & FLAGS == 0 {
        Ok(value)
    } else {
        Err(WordError::Flagged(value))
    }
}
