//! One error for every operation, and its kinds.

use bristlecone_index::TreeError;
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::{CommitError, OpenError, SpaceError, VersionError};
use bristlecone_store::{
    ArchiveError, BackupError, CloseError, ConflictError, ReadError, StoreError, WriteError,
};
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// The result of every operation of this crate.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use bristlecone::{Database, Result};
///
/// fn orders_in(path: &std::path::Path) -> Result<usize> {
///     let db = Database::open(path)?;
///     Ok(db.keyspace("orders")?.iter().count())
/// }
///
/// assert_eq!(orders_in(&dir.path().join("orders.db"))?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen.
///
/// [`kind`](Self::kind) says what a caller can do about it; the message names the value, the place
/// and the next step. Unless a method says otherwise, nothing has changed when it returns an error.
///
/// # Examples
/// ```
/// use bristlecone::{Database, ErrorKind};
///
/// let error = Database::builder().create(false).open("no/such.db").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert!(error.to_string().contains("no/such.db"));
/// ```
#[derive(Debug)]
pub struct Error(Box<Cause>);

#[derive(Debug)]
pub(crate) enum Cause {
    Open(OpenError),
    Store(StoreError),
    Read(ReadError),
    Write(WriteError),
    Close(CloseError),
    Backup(BackupError),
    Archive(ArchiveError),
    Space(SpaceError),
    Damaged(String),
    NotADatabase(String),
    NotFound(String),
    Invalid(String),
    Io(String, io::Error),
    Other(Box<dyn StdError + Send + Sync>),
}

/// Kinds of errors, by the action that a caller can take.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use bristlecone::{Database, ErrorKind};
///
/// # std::fs::write(dir.path().join("orders.db"), "id,state")?;
/// let opened = Database::open(dir.path().join("orders.db"));
/// let advice = match opened.map_err(|error| error.kind()) {
///     Ok(_) => "go on",
///     Err(ErrorKind::Locked) => "wait for the other process",
///     Err(ErrorKind::NotADatabase) => "name another file",
///     Err(_) => "give up",
/// };
/// assert_eq!(advice, "name another file");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file, and it was not to be created; or there is no such keyspace.
    NotFound,
    /// There is such a file or keyspace already.
    AlreadyExists,
    /// Another process has the database open.
    Locked,
    /// The file is something else than a database, or a store of another format.
    NotADatabase,
    /// A newer release of this software made the file: install that, or a later one.
    NewerVersion,
    /// An older release made the file, and this one does not read it any more: `bristlecone
    /// upgrade` says what can be done.
    OlderVersion,
    /// The file contradicts itself, or a checksum does not match. Nothing was taken away.
    Damaged,
    /// There is no room left: on the disk, in the memory that the process may have, or in the
    /// file's address range.
    NoSpace,
    /// The change is visible, but could not be made durable.
    NotDurable,
    /// The database is open for reading only.
    ReadOnly,
    /// Another transaction was first: run this one again.
    Conflict,
    /// The keyspace was dropped or cleared, so that this handle leads nowhere.
    Dropped,
    /// The database is still in use elsewhere in this process.
    InUse,
    /// An argument cannot be: too long, not a number, another database's keyspace, an unknown name.
    InvalidInput,
    /// The operating system refused.
    Io,
    /// The caller's own error ([`Error::other`]).
    Other,
}

impl Error {
    /// Makes an error of the caller's own. It ends a [transaction](crate::Database::transaction)
    /// without committing it, and comes back from there unchanged.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("bank.db"))?;
    /// use bristlecone::{Error, ErrorKind};
    ///
    /// let error = db.transaction(|_| -> bristlecone::Result<()> { Err(Error::other("too little money")) });
    /// let error = error.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Other);
    /// assert_eq!(error.to_string(), "too little money");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn other(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Box::new(Cause::Other(error.into())))
    }

    /// Makes an error of one of the crates below.
    pub(crate) fn of<E>(error: E) -> Self
    where
        Cause: From<E>,
    {
        Self(Box::new(error.into()))
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self(Box::new(Cause::Invalid(what.into())))
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self(Box::new(Cause::Damaged(what.into())))
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self(Box::new(Cause::NotFound(what.into())))
    }

    pub(crate) fn not_a_database(what: impl Into<String>) -> Self {
        Self(Box::new(Cause::NotADatabase(what.into())))
    }

    pub(crate) fn not_durable(e: CommitError) -> Self {
        Self::of(WriteError::Commit(e))
    }

    pub(crate) fn io(doing: impl Into<String>, error: io::Error) -> Self {
        Self(Box::new(Cause::Io(doing.into(), error)))
    }

    /// Returns the kind of the error, by which a program decides what to do.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::ErrorKind;
    ///
    /// let orders = db.keyspace("orders")?;
    /// let error = orders.insert(vec![0; 65_537], "").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput, "such a key is too long");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Cause::Open(e) => kind_of_open(e),
            Cause::Store(e) => kind_of_store(e),
            Cause::Read(ReadError::OtherStore { .. }) => ErrorKind::InvalidInput,
            Cause::Read(ReadError::Memory { .. }) => ErrorKind::NoSpace,
            Cause::Read(_) | Cause::Damaged(_) => ErrorKind::Damaged,
            Cause::Write(e) => kind_of_write(e),
            Cause::Close(CloseError::InUse) => ErrorKind::InUse,
            Cause::Close(CloseError::Commit(e)) => kind_of_commit(e),
            Cause::Close(CloseError::Vacuum(e)) => kind_of_write(e),
            Cause::Close(CloseError::Archive(e)) => kind_of_archive(e),
            Cause::Close(_) => ErrorKind::Io,
            Cause::Backup(e) => kind_of_backup(e),
            Cause::Archive(e) => kind_of_archive(e),
            Cause::Space(e) => kind_of_space(e),
            Cause::NotADatabase(_) => ErrorKind::NotADatabase,
            Cause::NotFound(_) => ErrorKind::NotFound,
            Cause::Invalid(_) => ErrorKind::InvalidInput,
            Cause::Io(_, e) => kind_of_io(e),
            Cause::Other(_) => ErrorKind::Other,
        }
    }

    /// Returns which key of which keyspace another transaction has changed, if that is what the
    /// error is.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut tx = db.begin();
    /// tx.insert(&orders, "17", "packed")?;
    /// orders.insert("17", "shipped")?;
    /// let error = tx.commit().unwrap_err();
    /// let conflict = error.conflict().expect("the other one was first");
    /// assert_eq!((conflict.keyspace.as_str(), &*conflict.key), ("orders", &b"17"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn conflict(&self) -> Option<&ConflictError> {
        match &*self.0 {
            Cause::Write(WriteError::Conflict(e)) => Some(e),
            _ => None,
        }
    }

    /// Returns the caller's own error, if this was made by [`other`](Self::other), else this error
    /// as it is.
    ///
    /// # Errors
    /// This error.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("bank.db"))?;
    /// use bristlecone::Error;
    ///
    /// let nothing: bristlecone::Result<()> = db.transaction(|_| Err(Error::other("too little money")));
    /// let mine = nothing.unwrap_err().into_other().expect("it is no error of the database");
    /// assert_eq!(mine.to_string(), "too little money");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_other(self) -> std::result::Result<Box<dyn StdError + Send + Sync>, Self> {
        match *self.0 {
            Cause::Other(e) => Ok(e),
            cause => Err(Self(Box::new(cause))),
        }
    }
}

fn kind_of_io(e: &io::Error) -> ErrorKind {
    match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            ErrorKind::NoSpace
        }
        _ => ErrorKind::Io,
    }
}

fn kind_of_space(e: &SpaceError) -> ErrorKind {
    match e {
        SpaceError::ReadOnly => ErrorKind::ReadOnly,
        SpaceError::TooLarge { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::NoSpace,
    }
}

fn kind_of_commit(e: &CommitError) -> ErrorKind {
    match e {
        CommitError::NoSpace { .. } => ErrorKind::NoSpace,
        _ => ErrorKind::NotDurable,
    }
}

fn kind_of_version(e: &VersionError) -> ErrorKind {
    if e.is_newer() {
        ErrorKind::NewerVersion
    } else {
        ErrorKind::OlderVersion
    }
}

fn kind_of_open(e: &OpenError) -> ErrorKind {
    match e {
        OpenError::NotFound(_) | OpenError::NoFolder { .. } => ErrorKind::NotFound,
        OpenError::Exists(_) => ErrorKind::AlreadyExists,
        OpenError::Locked(_) => ErrorKind::Locked,
        OpenError::NotAFile(_) | OpenError::NotAPool { .. } => ErrorKind::NotADatabase,
        OpenError::Version { version, .. } => kind_of_version(version),
        OpenError::NoSpace(e) => kind_of_space(e),
        OpenError::Commit(e) => kind_of_commit(e),
        OpenError::Io { source, .. } => kind_of_io(source),
        OpenError::Unsupported { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_store(e: &StoreError) -> ErrorKind {
    match e {
        StoreError::BadName(_) | StoreError::NoDesign { .. } | StoreError::NodeBytes { .. } => {
            ErrorKind::InvalidInput
        }
        StoreError::OtherFormat { .. } => ErrorKind::NotADatabase,
        StoreError::Version(e) => kind_of_version(e),
        StoreError::Root(RootError::Busy(_)) => ErrorKind::InUse,
        StoreError::Root(RootError::ReadOnly) => ErrorKind::ReadOnly,
        StoreError::Root(RootError::Space(e)) => kind_of_space(e),
        StoreError::Index(e) => kind_of_tree(e),
        StoreError::Write(e) => kind_of_write(e),
        StoreError::Thread(_) => ErrorKind::Io,
        StoreError::Archive(e) => kind_of_archive(e),
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_tree(e: &TreeError) -> ErrorKind {
    match e {
        TreeError::Root(RootError::WrongKind { .. }) => ErrorKind::NotADatabase,
        TreeError::Root(RootError::Busy(_)) => ErrorKind::InUse,
        TreeError::Root(RootError::ReadOnly) => ErrorKind::ReadOnly,
        TreeError::Root(RootError::Space(e)) | TreeError::Space(e) => kind_of_space(e),
        TreeError::Version(e) => kind_of_version(e),
        TreeError::Memory(_) => ErrorKind::NoSpace,
        TreeError::Commit(e) => kind_of_commit(e),
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_write(e: &WriteError) -> ErrorKind {
    match e {
        WriteError::Conflict(_) => ErrorKind::Conflict,
        WriteError::Dropped { .. } => ErrorKind::Dropped,
        WriteError::Exists { .. } => ErrorKind::AlreadyExists,
        WriteError::Source(_) => ErrorKind::Io,
        WriteError::Space(e) => kind_of_space(e),
        WriteError::Commit(e) => kind_of_commit(e),
        WriteError::ReadOnly => ErrorKind::ReadOnly,
        WriteError::Damaged(_) => ErrorKind::Damaged,
        _ => ErrorKind::InvalidInput,
    }
}

fn kind_of_backup(e: &BackupError) -> ErrorKind {
    match e {
        BackupError::Io(e) => kind_of_io(e),
        BackupError::NotABackup => ErrorKind::NotADatabase,
        BackupError::Version(e) => kind_of_version(e),
        BackupError::Read(ReadError::OtherStore { .. }) => ErrorKind::InvalidInput,
        BackupError::Read(ReadError::Memory { .. }) => ErrorKind::NoSpace,
        BackupError::Store(e) => kind_of_store(e),
        BackupError::Write(e) => kind_of_write(e),
        _ => ErrorKind::Damaged,
    }
}

fn kind_of_archive(e: &ArchiveError) -> ErrorKind {
    match e {
        ArchiveError::Io { source, .. } => kind_of_io(source),
        ArchiveError::NotAnArchive { .. } | ArchiveError::OtherPool { .. } => {
            ErrorKind::NotADatabase
        }
        ArchiveError::InUse { .. } => ErrorKind::Locked,
        ArchiveError::Parted { .. } => ErrorKind::InvalidInput,
        ArchiveError::Version { version, .. } => kind_of_version(version),
        ArchiveError::Unreachable { .. } => ErrorKind::NotFound,
        ArchiveError::Commit(e) => kind_of_commit(e),
        ArchiveError::Store(e) => kind_of_store(e),
        ArchiveError::Write(e) => kind_of_write(e),
        _ => ErrorKind::Damaged,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Open(e) => write!(f, "{e}"),
            Cause::Store(e) => write!(f, "{e}"),
            Cause::Read(e) => write!(f, "{e}"),
            Cause::Write(e) => write!(f, "{e}"),
            Cause::Close(e) => write!(f, "{e}"),
            Cause::Backup(e) => write!(f, "{e}"),
            Cause::Archive(e) => write!(f, "{e}"),
            Cause::Space(e) => write!(f, "{e}"),
            Cause::Damaged(what) => write!(f, "the database is damaged: {what}"),
            Cause::NotADatabase(what) | Cause::NotFound(what) | Cause::Invalid(what) => {
                f.write_str(what)
            }
            Cause::Io(doing, e) => write!(f, "{doing}: {e}"),
            Cause::Other(e) => write!(f, "{e}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            Cause::Open(e) => e.source(),
            Cause::Store(e) => e.source(),
            Cause::Read(e) => e.source(),
            Cause::Write(e) => e.source(),
            Cause::Close(e) => e.source(),
            Cause::Backup(e) => e.source(),
            Cause::Archive(e) => e.source(),
            Cause::Space(e) => e.source(),
            Cause::Io(_, e) => Some(e),
            Cause::Other(e) => e.source(),
            Cause::Damaged(_) | Cause::NotADatabase(_) | Cause::NotFound(_) | Cause::Invalid(_) => {
                None
            }
        }
    }
}

/// Makes errors of the crates below this one's. An implementation of `From` would be public, and
/// with it those crates' types.
pub(crate) trait OrError<T> {
    fn or_error(self) -> Result<T>;
}

impl<T, E> OrError<T> for std::result::Result<T, E>
where
    Cause: From<E>,
{
    fn or_error(self) -> Result<T> {
        self.map_err(Error::of)
    }
}

macro_rules! causes {
    ($($variant:ident($error:ty)),* $(,)?) => {$(
        impl From<$error> for Cause {
            fn from(e: $error) -> Self {
                Self::$variant(e)
            }
        }
    )*};
}

causes!(
    Open(OpenError),
    Store(StoreError),
    Read(ReadError),
    Write(WriteError),
    Close(CloseError),
    Backup(BackupError),
    Archive(ArchiveError),
    Space(SpaceError),
);
