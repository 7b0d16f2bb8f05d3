//! Errors, one enum per kind of operation.

mod archive;
mod backup;
mod salvage;

pub use archive::ArchiveError;
pub use backup::BackupError;
pub use salvage::SalvageError;

use crate::key::{CATALOGUE, split};
use crate::limits::{MAX_KEYSPACE_NAME_BYTES, MAX_NAME_BYTES};
use bristlecone_index::{InsertError, RemoveError, TreeError, UpdateError};
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::{CommitError, SpaceError, VersionError};
use std::fmt;
use std::io;

/// The pool holds something that the store cannot have written. Says what, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage(pub(crate) String);

impl Damage {
    /// Damage of which this is known.
    #[doc(hidden)]
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Returns what is wrong, without saying that it is damage of the store.
    #[doc(hidden)]
    #[must_use]
    pub fn into_what(self) -> String {
        self.0
    }

    /// Returns the damage of the page that an index key belongs to, with the key's name and advice.
    pub(crate) fn of_page(index_key: &[u8], what: &Self) -> Self {
        let (number, key) = split(index_key).unwrap_or((CATALOGUE, index_key));
        let whose = match number {
            CATALOGUE => "the name of keyspace".to_owned(),
            number => format!("of keyspace number {number}, key"),
        };
        Self(format!(
            "{whose} \"{}\": {}; the page is kept as it is, and nothing in it can be read or changed: \
             `bristlecone export --skip-damaged` saves what can be read of all, or take the key from \
             a backup",
            key.escape_ascii(),
            what.0
        ))
    }

    /// Returns the damage of the record that an index key leads to, with the key's name and advice.
    #[doc(hidden)]
    #[must_use]
    pub fn of_key(index_key: &[u8], what: &Self) -> Self {
        let (number, key) = split(index_key).unwrap_or((CATALOGUE, index_key));
        if number == CATALOGUE {
            return Self(format!(
                "the name of keyspace \"{}\": {}; without it the keyspace's keys cannot be told from dropped ones: nothing was \
                 taken away, restore the store from a backup",
                key.escape_ascii(),
                what.0
            ));
        }
        Self(format!(
            "key \"{}\" of keyspace number {number}: {}; it is kept as it is: put or delete the key to have another value, or \
             take it from a backup",
            key.escape_ascii(),
            what.0
        ))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store is damaged: {}", self.0)
    }
}

/// Damage of one place: a value or a page of the tree; a record of NV-Store, or a slot of its
/// commit table. It holds something that the store cannot have written. It is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedRecord {
    /// The index key that leads to it: the keyspace's number (32 bits, big-endian), then the key.
    /// For a page, where in the order of keys it begins. `None` for a slot of a commit table, and
    /// for the first page.
    pub index_key: Option<Vec<u8>>,
    /// Its offset in bytes from the start of the pool. 0 for a value or a page of a tree, where
    /// `what` says where it is.
    pub offset: u64,
    /// [`Damage`]
    pub what: String,
}

impl DamagedRecord {
    /// Damage at this place of the pool.
    #[doc(hidden)]
    pub fn at(index_key: Option<Vec<u8>>, offset: u64, what: impl Into<String>) -> Self {
        Self {
            index_key,
            offset,
            what: what.into(),
        }
    }

    /// Damage in a tree, of this index key, or of the page that begins there.
    pub(crate) fn in_tree(index_key: Option<&[u8]>, what: impl Into<String>) -> Self {
        Self {
            index_key: index_key.map(<[u8]>::to_vec),
            offset: 0,
            what: what.into(),
        }
    }

    /// Returns the keyspace's number and the key, unless the index key is too short.
    #[must_use]
    pub fn key(&self) -> Option<(u32, &[u8])> {
        split(self.index_key.as_ref()?)
    }
}

impl fmt::Display for DamagedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key(), &self.index_key) {
            (Some((number, key)), _) => {
                let key = key.escape_ascii();
                write!(f, "key \"{key}\" of keyspace number {number}")?;
            }
            (None, Some(key)) if !key.is_empty() => {
                write!(f, "index entry \"{}\"", key.escape_ascii())?;
            }
            (None, None) if self.offset != 0 => write!(f, "commit table")?,
            // The first page of a tree, which is before all keys.
            _ => return write!(f, "{}", self.what),
        }
        if self.offset != 0 {
            write!(f, ", at {:#x}", self.offset)?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Damage {}

/// A handle of a keyspace was used with another store than its own. Holds the keyspace's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherStore(pub String);

/// Returns the message that the errors of reads and of writes share.
fn other_store(keyspace: &str) -> String {
    format!(
        "the handle of keyspace {keyspace:?} is another store's, or is from before this one was \
         opened: get it from this store with `keyspace` or `find_keyspace`"
    )
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The key's record, value or page is damaged. It is kept, and keys elsewhere can be read.
    Damaged(Damage),
    /// There is no memory for what has to be read.
    Memory {
        /// The error of the allocation.
        what: String,
    },
    /// The handle of the keyspace is another store's, or is from before this one was opened.
    OtherStore {
        /// Name of the keyspace.
        keyspace: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(e) => write!(f, "{e}"),
            Self::Memory { what } => write!(f, "no memory to read with: {what}"),
            Self::OtherStore { keyspace } => write!(f, "{}", other_store(keyspace)),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<OtherStore> for ReadError {
    fn from(e: OtherStore) -> Self {
        Self::OtherStore { keyspace: e.0 }
    }
}

impl From<Damage> for ReadError {
    fn from(e: Damage) -> Self {
        Self::Damaged(e)
    }
}

/// Another transaction changed what this one read or writes, and committed first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConflictError {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The key.
    pub key: Vec<u8>,
    /// Whether this transaction only read the key (serialisable transactions); otherwise it wrote
    /// it.
    pub read: bool,
}

impl ConflictError {
    /// A conflict over that key, which the transaction has only read, or has written.
    #[doc(hidden)]
    #[must_use]
    pub fn over(keyspace: String, key: &[u8], read: bool) -> Self {
        Self {
            keyspace,
            key: key.to_vec(),
            read,
        }
    }
}

/// Bytes of a key that messages show.
const SHOWN: usize = 40;

impl fmt::Display for ConflictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.key[..self.key.len().min(SHOWN)];
        let more = if self.key.len() > SHOWN { "..." } else { "" };
        let how = if self.read { "read" } else { "wrote" };
        write!(
            f,
            "conflict: since this transaction began, another one changed key \"{}{more}\" of keyspace {:?}, which this \
             one {how}; begin again",
            shown.escape_ascii(),
            self.keyspace
        )
    }
}

impl std::error::Error for ConflictError {}

/// Why a write failed. Nothing has changed unless the variant says otherwise.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The key is too long.
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest allowed.
        most: usize,
    },
    /// The value is too long.
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest allowed.
        most: usize,
    },
    /// Another transaction committed first.
    Conflict(ConflictError),
    /// The value to be incremented is not a decimal number of 64 bits.
    NotANumber {
        /// Name of the keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The sum would not fit into 64 bits.
    Overflow {
        /// The current number.
        number: i64,
        /// The number to be added.
        by: i64,
    },
    /// The keyspace was dropped or cleared. After clearing, a new handle is needed.
    Dropped {
        /// Name of the keyspace.
        keyspace: String,
    },
    /// Another keyspace has the name that this one was to get.
    Exists {
        /// The name.
        keyspace: String,
    },
    /// The keyspace's handle was given by another store, or before this one was opened.
    OtherStore {
        /// Name of the keyspace.
        keyspace: String,
    },
    /// The name is empty or too long.
    BadName {
        /// The name.
        name: String,
    },
    /// The stream that was to give the value failed.
    Source(io::Error),
    /// There is no space.
    Space(SpaceError),
    /// The change is not durable, and readers at the durable timestamp do not see it.
    ///
    /// [`CommitError::Failed`]: the change may or may not be there after a restart. The store
    /// refuses all further writes with this error until it is opened again. Readers go on with what
    /// was durable before.
    ///
    /// [`CommitError::NoSpace`]: the change becomes durable and visible with the next one that
    /// does, once there is space again. A restart before that may or may not keep it.
    Commit(CommitError),
    /// The pool is open for reading only.
    ReadOnly,
    /// The pool is damaged.
    Damaged(Damage),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyTooLong { len, most } => {
                write!(f, "the key has {len} bytes; the most is {most}")
            }
            Self::ValueTooLong { len, most } => {
                write!(f, "the value has {len} bytes; the most is {most}")
            }
            Self::Conflict(e) => write!(f, "{e}"),
            Self::NotANumber { keyspace, key } => write!(
                f,
                "the value of \"{}\" in keyspace {keyspace:?} is no decimal number of 64 bits",
                key.escape_ascii()
            ),
            Self::Overflow { number, by } => {
                write!(f, "{number} + {by} does not fit into 64 bits")
            }
            Self::Dropped { keyspace } => write!(f, "keyspace {keyspace:?} was dropped"),
            Self::Exists { keyspace } => {
                write!(
                    f,
                    "there is a keyspace {keyspace:?} already; drop it first, or take another name"
                )
            }
            Self::OtherStore { keyspace } => write!(f, "{}", other_store(keyspace)),
            Self::BadName { name } => write!(
                f,
                "keyspace name {name:?}: must have 1 to {} bytes",
                MAX_KEYSPACE_NAME_BYTES
            ),
            Self::Source(e) => write!(f, "reading the value failed: {e}"),
            Self::Space(e) => write!(f, "{e}"),
            Self::Commit(e) => write!(f, "{e}"),
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
            Self::Damaged(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Conflict(e) => Some(e),
            Self::Source(e) => Some(e),
            Self::Space(e) => Some(e),
            Self::Commit(e) => Some(e),
            Self::Damaged(e) => Some(e),
            _ => None,
        }
    }
}

impl From<Damage> for WriteError {
    fn from(e: Damage) -> Self {
        Self::Damaged(e)
    }
}

impl From<ReadError> for WriteError {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::Damaged(e) => Self::Damaged(e),
            ReadError::Memory { what } => Self::Space(SpaceError::io(
                "memory to read with",
                io::Error::other(what),
            )),
            ReadError::OtherStore { keyspace } => Self::OtherStore { keyspace },
        }
    }
}

impl From<OtherStore> for WriteError {
    fn from(e: OtherStore) -> Self {
        Self::OtherStore { keyspace: e.0 }
    }
}

impl From<ConflictError> for WriteError {
    fn from(e: ConflictError) -> Self {
        Self::Conflict(e)
    }
}

impl From<CommitError> for WriteError {
    fn from(e: CommitError) -> Self {
        Self::Commit(e)
    }
}

impl From<SpaceError> for WriteError {
    fn from(e: SpaceError) -> Self {
        match e {
            SpaceError::ReadOnly => Self::ReadOnly,
            e => Self::Space(e),
        }
    }
}

fn unexpected(e: &dyn fmt::Display) -> WriteError {
    WriteError::Damaged(Damage::new(format!("the index answered: {e}")))
}

impl From<InsertError> for WriteError {
    fn from(e: InsertError) -> Self {
        match e {
            InsertError::Space(e) => Self::Space(e),
            InsertError::Commit(e) => Self::Commit(e),
            InsertError::ReadOnly => Self::ReadOnly,
            InsertError::KeyTooLong { len, most } => Self::KeyTooLong { len, most },
            e => unexpected(&e),
        }
    }
}

impl From<UpdateError> for WriteError {
    fn from(e: UpdateError) -> Self {
        match e {
            UpdateError::Space(e) => Self::Space(e),
            UpdateError::Commit(e) => Self::Commit(e),
            UpdateError::ReadOnly => Self::ReadOnly,
            e => unexpected(&e),
        }
    }
}

impl From<RemoveError> for WriteError {
    fn from(e: RemoveError) -> Self {
        match e {
            RemoveError::Space(e) => Self::Space(e),
            RemoveError::Commit(e) => Self::Commit(e),
            RemoveError::ReadOnly => Self::ReadOnly,
            e => unexpected(&e),
        }
    }
}

/// Why a store could not be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The name is empty or too long, or belongs to something other than a store.
    BadName(String),
    /// The store's root could not be made or opened.
    Root(RootError),
    /// The index could not be made or opened.
    Index(TreeError),
    /// The store has a known format, which is none of those that it was opened for. Nothing was
    /// changed.
    OtherFormat {
        /// Name of the store.
        store: String,
        /// Name of its format.
        format: &'static str,
        /// Version of its format.
        version: u64,
        /// Why it is not opened, and what to do.
        advice: &'static str,
    },
    /// The design of the store's index is none of those that it was opened for. Only stores of
    /// NV-Store have an index of another design.
    NoDesign {
        /// The design.
        design: String,
        /// The designs that it was opened with.
        there: Vec<&'static str>,
    },
    /// The index's design has no such leaf size.
    NodeBytes {
        /// The design.
        design: &'static str,
        /// The leaf size that was asked for.
        asked: u32,
        /// The leaf sizes that it has.
        there: &'static [u32],
    },
    /// The store's format has a version that this build does not read.
    Version(VersionError),
    /// A restore into this store was interrupted, so it has only a part of the backup. Remove it
    /// and restore again.
    Unfinished(String),
    /// The store is damaged.
    Damaged(Damage),
    /// A change that opening has to make failed.
    Write(Box<WriteError>),
    /// The system refused the vacuum's thread.
    Thread(io::Error),
    /// The archive could not be opened.
    Archive(Box<ArchiveError>),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName(name) => write!(
                f,
                "store name {name:?}: must have 1 to {} bytes",
                MAX_NAME_BYTES
            ),
            Self::Root(e) => write!(f, "{e}"),
            // It says itself what is of another version.
            Self::Index(TreeError::Version(e)) => write!(f, "{e}"),
            Self::Index(e) => write!(f, "the store's index: {e}"),
            Self::OtherFormat {
                store,
                format,
                version,
                advice,
            } => write!(
                f,
                "store {store:?} has the format of {format} (version {version}), which {advice}"
            ),
            Self::NoDesign { design, there } => write!(
                f,
                "the store's index is a {design:?}, and it was opened for {}: open it with the program that made it",
                there.join(", ")
            ),
            Self::NodeBytes {
                design,
                asked,
                there,
            } => write!(
                f,
                "{design} has no leaves of {asked} bytes; it has {}",
                there
                    .iter()
                    .map(u32::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            Self::Version(e) => write!(f, "{e}"),
            Self::Unfinished(name) => write!(
                f,
                "store {name:?} has part of a backup only, whose restoring was cut short: remove it and restore again"
            ),
            Self::Damaged(e) => write!(f, "{e}"),
            Self::Write(e) => write!(f, "{e}"),
            Self::Thread(e) => write!(f, "no thread to vacuum with: {e}"),
            Self::Archive(e) => write!(f, "{e}"),
        }
    }
}

impl StoreError {
    /// Returns the version of a format that this build does not read, if that is the reason.
    #[must_use]
    pub fn version(&self) -> Option<&VersionError> {
        match self {
            Self::Version(e) | Self::Index(TreeError::Version(e)) => Some(e),
            _ => None,
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Root(e) => Some(e),
            Self::Index(e) => Some(e),
            Self::Version(e) => Some(e),
            Self::Damaged(e) => Some(e),
            Self::Write(e) => Some(e),
            Self::Thread(e) => Some(e),
            Self::Archive(e) => Some(e),
            _ => None,
        }
    }
}

impl From<RootError> for StoreError {
    fn from(e: RootError) -> Self {
        Self::Root(e)
    }
}

impl From<TreeError> for StoreError {
    fn from(e: TreeError) -> Self {
        Self::Index(e)
    }
}

impl From<Damage> for StoreError {
    fn from(e: Damage) -> Self {
        Self::Damaged(e)
    }
}

impl From<WriteError> for StoreError {
    fn from(e: WriteError) -> Self {
        match e {
            WriteError::Damaged(e) => Self::Damaged(e),
            e => Self::Write(Box::new(e)),
        }
    }
}

impl From<CommitError> for StoreError {
    fn from(e: CommitError) -> Self {
        WriteError::from(e).into()
    }
}

impl From<SpaceError> for StoreError {
    fn from(e: SpaceError) -> Self {
        WriteError::from(e).into()
    }
}

/// Why a store was not closed. It stays open.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseError {
    /// Another handle, a snapshot, a transaction or a cursor still exists. The store closes when
    /// the last of them is dropped.
    InUse,
    /// Some applied changes could not be made durable. After [`CommitError::NoSpace`], they can be
    /// once there is space.
    Commit(CommitError),
    /// The vacuum's thread failed when it last ran, or has found damage. Nothing but space is lost
    /// by that. The error is reported once: another call closes the store unless the thread has
    /// failed again.
    Vacuum(WriteError),
    /// The last commits could not be written to the archive. They are durable in the store, and the
    /// next session archives them.
    Archive(ArchiveError),
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => write!(
                f,
                "the store is in use: a clone of it, a snapshot, a transaction or a cursor is still there"
            ),
            Self::Commit(e) => write!(f, "{e}"),
            Self::Vacuum(e) => write!(f, "the store's vacuum failed: {e}"),
            Self::Archive(e) => write!(f, "the archive lacks the last commits: {e}"),
        }
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InUse => None,
            Self::Commit(e) => Some(e),
            Self::Vacuum(e) => Some(e),
            Self::Archive(e) => Some(e),
        }
    }
}

#[cfg(test)]
mod tests;
