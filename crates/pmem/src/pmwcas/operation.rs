//! The words of an operation under construction, in volatile memory.

use super::encoding::{Entry, FLAGS, MAX_WORDS, Policy};
use super::error::WordError;
use std::cell::UnsafeCell;

/// A word of an operation under construction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    pub(super) entry: Entry,
    pub(super) policy: Policy,
    /// True if its new value was not set yet.
    pub(super) open: bool,
}

/// The words of operations under construction, by descriptor. They are kept beside the pool's
/// descriptors, so that a [`Descriptor`] is small and cheap to move.
pub(super) struct Scratch(Box<[UnsafeCell<[Word; MAX_WORDS]>]>);

// SAFETY: 1. a descriptor's words are reached only through the one `Descriptor` that has its
// number; 2. the lists pass numbers on, with Release and Acquire.
unsafe impl Sync for Scratch {}

impl Scratch {
    pub(super) fn of(descriptors: usize) -> Self {
        Self((0..descriptors).map(|_| UnsafeCell::default()).collect())
    }

    /// Returns the words of a descriptor's operation, which belong to its owner.
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
        // Its new value is checked when it is set.
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
