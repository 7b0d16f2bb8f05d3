//! Types that the tree and its designs exchange: pairs, found entries, locked leaves, outcomes.

use crate::version_lock::Locked;

/// How an insert treats a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfPresent {
    /// Report [`InsertError::KeyExists`](crate::InsertError::KeyExists).
    Refuse,
    /// Put the new value in its place.
    Replace,
}

/// A pair as a leaf holds it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair<A = u64, B = u64> {
    /// The key's word.
    pub key: A,
    /// The value's word.
    pub value: B,
    /// Low byte of the key's hash.
    pub fingerprint: u8,
}

/// A leaf that is locked.
#[derive(Debug)]
pub struct At<'t, L> {
    /// Its handle.
    pub handle: u32,
    /// The leaf.
    pub leaf: &'t L,
    /// Its lock.
    pub locked: Locked<'t>,
}

/// The outcome of an attempt to insert.
#[derive(Debug)]
pub enum Attempt<'t, A = u64, B = u64> {
    /// The pair is there, durably, and nothing is locked.
    Done,
    /// The key is there already, and the leaf still locked.
    There(Found<A, B>, Locked<'t>),
    /// Another thread was in the way: nothing has changed, nothing is locked.
    Again,
}

/// An entry that a split moves to the new leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved<A = u64, B = u64> {
    /// The key's word.
    pub key: A,
    /// The value's word.
    pub value: B,
    /// Its slot in the old leaf.
    pub slot: usize,
}

/// Where a key was found.
#[derive(Clone, Copy, Debug)]
pub struct Found<A = u64, B = u64> {
    /// The slot.
    pub slot: usize,
    /// The key's word.
    pub key: A,
    /// The value's word.
    pub value: B,
}

/// The outcome of an attempt to remove. Nothing is locked.
#[derive(Clone, Copy, Debug)]
pub enum Removal<A = u64, B = u64> {
    /// The entry is gone, durably.
    Done {
        /// The entry that was removed.
        found: Found<A, B>,
        /// The leaf that it was in, or that took that one's place.
        leaf: u32,
        /// Entries left in that leaf.
        left: usize,
    },
    /// The key is not there.
    NotThere,
    /// Another thread was in the way: nothing has changed.
    Again,
}
