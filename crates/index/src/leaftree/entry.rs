//! Types that the tree and its designs exchange: pairs, found entries, locked leaves, outcomes.

use crate::version_lock::Locked;

/// A pair as words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair<A = u64, B = u64> {
    /// The key's word.
    pub key: A,
    /// The value's word.
    pub value: B,
    /// Low byte of the key's hash.
    pub fingerprint: u8,
}

/// A locked leaf.
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
    /// The pair is inserted and durable, and nothing is locked.
    Done,
    /// The key is present, and the leaf is still locked.
    There(Found<A, B>, Locked<'t>),
    /// Another thread was in the way. Nothing has changed, and nothing is locked.
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

/// The place of a key.
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
    /// The entry was removed, durably.
    Done {
        /// The entry that was removed.
        found: Found<A, B>,
        /// The leaf that held the entry, or the leaf that replaced it.
        leaf: u32,
        /// Number of entries left in that leaf.
        left: usize,
    },
    /// The key is absent.
    NotThere,
    /// Another thread was in the way. Nothing has changed.
    Again,
}
