//! The contract of every durable ordered index.
//!
//! # Contract
//!
//! 1. A call that returns `Ok` has made its change durable at the level that the pool was opened
//!    with (the medium's `commit` included).
//! 2. After a crash, every completed operation is there, each operation in flight is wholly there
//!    or wholly absent, and nothing else has changed.
//! 3. An error leaves the index as it was, except [`InsertError::Commit`] and its like: the change
//!    is then visible, and its durability is unknown.
//! 4. A scan sees, leaf by leaf, a snapshot of each leaf; keys come in strict order; a key that is
//!    present for the whole scan is seen exactly once. Changes made while it runs may be missed.
//! 5. All operations may be called from any number of threads.

use crate::inner::Located;
use crate::repr::{Stored, StoredKey};
use bristlecone_pmem::cell;
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::{CommitError, Media, Pool, SpaceError, VersionError};
use std::borrow::Borrow;
use std::fmt;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// Behaviour of an insert for a key that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfPresent {
    /// Report [`InsertError::KeyExists`].
    Refuse,
    /// Replace the value.
    Replace,
}

/// Reason why an insert or upsert failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum InsertError {
    /// The key is present. Nothing changed.
    KeyExists,
    /// The key is longer than the design allows. Nothing changed.
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// The value is longer than the design allows. Nothing changed.
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// There is no room. Nothing changed.
    Space(SpaceError),
    /// The change is visible; its durability is unknown.
    Commit(CommitError),
    /// The pool is open for reading only.
    ReadOnly,
}

/// Reason why an update failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// The key is absent. Nothing changed.
    NotFound,
    /// The value is longer than the design allows. Nothing changed.
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// There is no room. Nothing changed.
    Space(SpaceError),
    /// The change is visible; its durability is unknown.
    Commit(CommitError),
    /// The pool is open for reading only.
    ReadOnly,
}

/// Reason why a removal failed. An absent key is no failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum RemoveError {
    /// A resource that the removal needs is not available, or the index is damaged. Nothing was
    /// removed.
    Space(SpaceError),
    /// The change is visible; its durability is unknown.
    Commit(CommitError),
    /// The pool is open for reading only.
    ReadOnly,
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyExists => write!(f, "the key exists"),
            Self::KeyTooLong { len, most } => {
                write!(f, "the key has {len} bytes; the most is {most}")
            }
            Self::ValueTooLong { len, most } => {
                write!(f, "the value has {len} bytes; the most is {most}")
            }
            Self::Space(e) => write!(f, "{e}"),
            Self::Commit(e) => write!(f, "{e}"),
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
        }
    }
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => write!(f, "no such key"),
            Self::ValueTooLong { len, most } => {
                write!(f, "the value has {len} bytes; the most is {most}")
            }
            Self::Space(e) => write!(f, "{e}"),
            Self::Commit(e) => write!(f, "{e}"),
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
        }
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Space(e) => write!(f, "{e}"),
            Self::Commit(e) => write!(f, "{e}"),
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
        }
    }
}

macro_rules! error_sources {
    ($($name:ident { $($variant:ident),* }),*) => {$(
        impl std::error::Error for $name {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                match self {
                    $(Self::$variant(e) => Some(e),)*
                    _ => None,
                }
            }
        }
        impl From<CommitError> for $name {
            fn from(e: CommitError) -> Self {
                Self::Commit(e)
            }
        }
    )*};
}

error_sources!(
    InsertError { Space, Commit },
    UpdateError { Space, Commit },
    RemoveError { Space, Commit }
);

impl From<SpaceError> for InsertError {
    fn from(e: SpaceError) -> Self {
        match e {
            SpaceError::ReadOnly => Self::ReadOnly,
            e => Self::Space(e),
        }
    }
}

impl From<SpaceError> for RemoveError {
    fn from(e: SpaceError) -> Self {
        match e {
            SpaceError::ReadOnly => Self::ReadOnly,
            e => Self::Space(e),
        }
    }
}

impl From<SpaceError> for UpdateError {
    fn from(e: SpaceError) -> Self {
        match e {
            SpaceError::ReadOnly => Self::ReadOnly,
            e => Self::Space(e),
        }
    }
}

/// Fill of leaves after bulk loading, in percent of their slots (1 to 100).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill(u8);

impl Fill {
    /// Every slot taken.
    pub const FULL: Self = Self(100);
    /// The papers' usual 70 %.
    pub const USUAL: Self = Self(70);

    /// Returns `percent` of the slots, or `None` unless it is from 1 to 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 {
            Some(Self(percent))
        } else {
            None
        }
    }

    /// Returns how many of `slots` to fill, at least one.
    #[must_use]
    pub const fn of(self, slots: usize) -> usize {
        let n = slots * self.0 as usize / 100;
        if n == 0 { 1 } else { n }
    }
}

/// Shape and size of an index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexStats {
    /// Number of keys.
    pub entries: u64,
    /// Levels from the root to the leaves, leaves included.
    pub depth: u32,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of inner nodes.
    pub inner_nodes: u64,
    /// Share of leaf slots in use, 0 to 1.
    pub leaf_fill: f64,
    /// Bytes in the pool, allocator overhead included.
    pub pm_bytes: u64,
    /// Bytes in DRAM: inner nodes and the allocator's volatile state.
    pub dram_bytes: u64,
}

/// Statistics of a `verify`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of keys.
    pub entries: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of variable-size records whose checksum was compared.
    pub records: u64,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant, where, and what was found.
    pub what: String,
    /// True if the content is whole and only space is lost, or owned twice.
    pub leak: bool,
}

impl Violation {
    /// Makes a violation for a structure that contradicts itself.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            leak: false,
        }
    }

    /// Makes a violation for a block that is reachable and free, owned twice, or in use and
    /// unreachable.
    pub fn leak(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            leak: true,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Violation {}

/// Statistics of an opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// True if the index was closed cleanly and its volatile part was read back instead of rebuilt.
    pub clean: bool,
    /// Number of leaves walked.
    pub leaves_scanned: u64,
    /// Number of keys found.
    pub entries: u64,
    /// Number of repairs (changes that were cut short, empty leaves unlinked).
    pub repaired: u64,
    /// Number of threads used.
    pub threads: usize,
    /// Time it took.
    pub elapsed: Duration,
}

/// Reason why a tree could not be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum TreeError {
    /// The root is not available.
    Root(RootError),
    /// The tree is of a version that this build does not read.
    Version(VersionError),
    /// The tree contradicts itself.
    Corrupt(String),
    /// There is no room.
    Space(SpaceError),
    /// The system granted no memory for the inner nodes.
    Memory(std::io::Error),
    /// The disk refused to make the opening durable.
    Commit(CommitError),
    /// The design has no nodes of that size.
    NodeBytes {
        /// The kind or size asked for.
        asked: u32,
        /// The sizes that the design has.
        there: &'static [u32],
    },
    /// The tree was made to be volatile, so it did not survive its process.
    Volatile,
    /// Keys or values have 16 bytes, which the design stores at once and this processor cannot.
    NoAtomic16,
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(e) => write!(f, "{e}"),
            Self::Version(e) => write!(f, "{e}"),
            Self::Corrupt(what) => write!(f, "corrupt: {what}"),
            Self::Space(e) => write!(f, "{e}"),
            Self::Memory(e) => write!(f, "no memory for the inner nodes: {e}"),
            Self::Commit(e) => write!(f, "{e}"),
            Self::NodeBytes { asked, there } => {
                write!(f, "no nodes of {asked} bytes; there are {there:?}")
            }
            Self::Volatile => write!(
                f,
                "the index was made without durability, for measuring; nothing of it is left: make it again"
            ),
            Self::NoAtomic16 => {
                write!(f, "keys or values of 16 bytes: {}", cell::NoAtomic16)
            }
        }
    }
}

impl std::error::Error for TreeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Root(e) => Some(e),
            Self::Version(e) => Some(e),
            Self::Corrupt(_) | Self::NodeBytes { .. } | Self::Volatile | Self::NoAtomic16 => None,
            Self::Space(e) => Some(e),
            Self::Memory(e) => Some(e),
            Self::Commit(e) => Some(e),
        }
    }
}

impl From<RootError> for TreeError {
    fn from(e: RootError) -> Self {
        Self::Root(e)
    }
}

impl From<SpaceError> for TreeError {
    fn from(e: SpaceError) -> Self {
        Self::Space(e)
    }
}

impl From<CommitError> for TreeError {
    fn from(e: CommitError) -> Self {
        Self::Commit(e)
    }
}

/// The order in which a scan visits keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending.
    Up,
    /// Descending.
    Down,
}

/// The leaf at which a search ended. A later change of the same key need not search again. A hint
/// that is out of date, or of another index, is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint {
    /// The number of the tree; 0 for none.
    pub(crate) tree: u64,
    pub(crate) at: Located,
    /// The hash of the key.
    pub(crate) hash: u32,
}

/// A durable ordered index from `K` to `V`. See the module's head for what its calls promise.
///
/// `K` and `V` are the borrowed forms (`u64`, `u128`, `[u8]`); what is returned is owned (`u64`,
/// `u128`, `Vec<u8>`).
pub trait OrderedIndex<K, V>: Send + Sync
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    /// Adds `key`.
    ///
    /// # Errors
    /// [`InsertError::KeyExists`] if the key is present; others as the enum says.
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError>;

    /// Adds `key` or replaces its value. Returns true if the key was present.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), without `KeyExists`.
    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError>;

    /// Replaces the value of `key`.
    ///
    /// # Errors
    /// [`UpdateError::NotFound`] if the key is absent; others as the enum says.
    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError>;

    /// Removes `key`. Returns true if it was present.
    ///
    /// # Errors
    /// [`RemoveError`] as the enum says.
    fn remove(&self, key: &K) -> Result<bool, RemoveError>;

    /// Calls `f` with the value of `key`, if there is one, without copying it out. A byte string
    /// that fails its checksum reads as absent, and [`reading`](crate::damage::reading) tells of
    /// it; so for every read.
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R>;

    /// Returns the value of `key`.
    fn get(&self, key: &K) -> Option<V::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Visits the keys of `range` in ascending order until `visit` breaks.
    fn scan<R: RangeBounds<K>>(&self, range: R, visit: impl FnMut(&K, &V) -> ControlFlow<()>);

    /// As [`scan`](Self::scan). `ahead` gets likely next values early, so that what they lead to
    /// can be prefetched. Designs that cannot predict values do not call it.
    fn scan_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let _ = ahead;
        self.scan(range, visit);
    }

    /// Looks up a batch. `out` is cleared and gets one answer per key, in order. The batch's cache
    /// misses overlap.
    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.extend(keys.iter().map(|k| self.get(k.borrow())));
    }

    /// As [`multi_get`](Self::multi_get), with a hint for each key. `ahead` gets likely values
    /// early, so that the caller can prefetch what they lead to.
    fn multi_get_hinted<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        ahead: impl FnMut(&V),
        out: &mut Vec<(Option<V::Owned>, Hint)>,
    ) {
        let _ = ahead;
        let found = |key: &Q| (self.get(key.borrow()), Hint::default());
        out.clear();
        out.extend(keys.iter().map(found));
    }

    /// As [`update`](Self::update), but leaves the new value to the caller to persist: it flushes
    /// the word at the returned offset, fences and commits. Several updates can share the fence and
    /// the commit, and no update's lock waits for the lines of the one before. Until then the
    /// caller must not let any thread act on the new value or change that key again. Returns `None`
    /// if the value is durable already: a design may do without this.
    ///
    /// `hint` is the key's from [`multi_get_hinted`](Self::multi_get_hinted).
    ///
    /// # Errors
    /// As [`update`](Self::update).
    fn update_unflushed(
        &self,
        hint: &Hint,
        key: &K,
        value: &V,
    ) -> Result<Option<u64>, UpdateError> {
        let _ = hint;
        self.update(key, value).map(|()| None)
    }

    /// Inserts a batch. `out` is cleared and gets one result per pair, in order. Each insert is
    /// atomic by itself; the batch is not. Fences and commits are shared.
    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.extend(
            pairs
                .iter()
                .map(|(k, v)| self.insert(k.borrow(), v.borrow())),
        );
    }

    /// Returns shape and size. Walks the index; other threads may go on.
    fn stats(&self) -> IndexStats;

    /// Checks every invariant that the design states. No thread may write meanwhile.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    fn verify(&self) -> Result<VerifyReport, Violation>;
}

/// An index that can be scanned downwards.
pub trait ReverseScan<K, V>: OrderedIndex<K, V>
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    /// Visits the keys of `range` in descending order until `visit` breaks.
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    );

    /// As [`scan_reverse`](Self::scan_reverse), with `ahead` as of
    /// [`scan_ahead`](OrderedIndex::scan_ahead).
    fn scan_reverse_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let _ = ahead;
        self.scan_reverse(range, visit);
    }
}

/// An index that can be filled from sorted input.
pub trait BulkLoad<K, V>: OrderedIndex<K, V>
where
    K: ToOwned + Ord + ?Sized,
    V: ToOwned + ?Sized,
{
    /// Fills an empty index from strictly ascending pairs, with leaves `fill` full. Durable when it
    /// returns; a crash before that leaves the index empty.
    ///
    /// # Errors
    /// [`InsertError::KeyExists`] if the index is not empty or the input is not strictly ascending;
    /// the index is empty (or as it was) then.
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError>;
}

/// An index that lives in a pool, under a named root.
pub trait DurableIndex<K, V, M>: ReverseScan<K, V> + BulkLoad<K, V> + Sized
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Options. None of them is stored in the pool.
    type Options: Clone + Default + fmt::Debug + Send + Sync + 'static;

    /// True if a clean close leaves a snapshot that the next opening reads instead of recovering
    /// ([`RecoveryReport::clean`]); false where that would save nothing.
    const SNAPSHOT: bool = true;

    /// Makes an empty index as root `name`. Once this has returned, the index survives a crash.
    ///
    /// # Errors
    /// [`TreeError`]; no root is left behind.
    fn create(pool: &Arc<Pool<M>>, name: &str, options: &Self::Options) -> Result<Self, TreeError>;

    /// Opens the index at root `name`: reads its volatile part if it was closed cleanly, and
    /// recovers it otherwise.
    ///
    /// # Errors
    /// [`TreeError`]; the pool is as it was.
    fn open(pool: &Arc<Pool<M>>, name: &str, options: &Self::Options) -> Result<Self, TreeError>;

    /// Returns statistics of the opening.
    fn recovery(&self) -> &RecoveryReport;

    /// Returns the pool.
    fn pool(&self) -> &Arc<Pool<M>>;

    /// Moves what is live together, so that [`Pool::compact`] gives back more. Designs that move
    /// nothing do nothing. Others may go on reading and writing.
    ///
    /// # Errors
    /// [`SpaceError`]; the index is whole, and part of it was moved.
    fn compact(&self) -> Result<(), SpaceError> {
        Ok(())
    }

    /// Closes the index and saves its volatile part, so that the next opening need not recover it.
    /// Dropping the index does the same and ignores an error.
    ///
    /// # Errors
    /// [`CommitError`] when the disk refuses; the next opening then recovers.
    fn close(self) -> Result<(), CommitError>;
}
