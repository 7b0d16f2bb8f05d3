//! Errors of the persistence layer, one enum per kind of operation.

use crate::version::VersionError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Reason why a pool could not be opened or created. Nothing was changed unless the variant says
/// so.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The operating system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// The step that failed ("open", "map", "lock", ...).
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist.
    NotFound(PathBuf),
    /// The folder that the file is to be in does not exist.
    NoFolder {
        /// The file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The file to create exists already.
    Exists(PathBuf),
    /// The path is a directory or another thing that cannot hold a pool.
    NotAFile(PathBuf),
    /// Another process (or another handle in this one) has the pool open.
    Locked(PathBuf),
    /// The file does not begin with a pool's magic number.
    NotAPool {
        /// The file.
        path: PathBuf,
        /// The bytes found instead, in words.
        found: String,
    },
    /// The pool or its journal has a format version that this build does not read.
    Version {
        /// The file.
        path: PathBuf,
        /// The versions.
        version: VersionError,
    },
    /// The pool was written on a machine of the other byte order.
    OtherEndianness(PathBuf),
    /// The file is shorter than its superblock records.
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that the superblock records.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The content contradicts itself.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where and what.
        what: String,
    },
    /// The pool was last written through another medium and not closed. Opening it through this one
    /// would lose data that only the other has.
    WrongMedium {
        /// The file.
        path: PathBuf,
        /// The medium it was last written through.
        written: &'static str,
        /// The medium asked for.
        asked: &'static str,
    },
    /// The medium is not available on this path.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// There is no room for the pool's first bytes.
    NoSpace(SpaceError),
    /// The disk refused to make the opening durable.
    Commit(CommitError),
}

impl OpenError {
    /// Returns an [`OpenError`] for the operating system's error while `doing` something.
    pub fn io(path: &std::path::Path, doing: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
                    let folder = folder.to_path_buf();
                    Self::NoFolder { path, folder }
                }
                _ => Self::NotFound(path),
            },
            io::ErrorKind::AlreadyExists => Self::Exists(path),
            io::ErrorKind::IsADirectory => Self::NotAFile(path),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace(SpaceError::Io { doing, source })
            }
            _ => Self::Io {
                path,
                doing,
                source,
            },
        }
    }
}

/// How an opening treats damage.
#[derive(Debug)]
pub(crate) enum Wrong<'p> {
    /// It fails.
    Refused,
    /// It goes on, and notes damage here.
    Noted(&'p mut Vec<String>),
}

impl Wrong<'_> {
    /// Something is wrong.
    ///
    /// # Errors
    /// The opening fails: this error.
    pub fn found(&mut self, error: OpenError) -> Result<(), OpenError> {
        use OpenError::{Corrupt, NotAPool, Truncated};
        match self {
            Self::Noted(problems)
                if matches!(error, Corrupt { .. } | NotAPool { .. } | Truncated { .. }) =>
            {
                problems.push(error.to_string());
                Ok(())
            }
            _ => Err(error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "{}: {doing} failed: {source}", path.display())
            }
            Self::NotFound(path) => write!(
                f,
                "{}: no such file; `bristlecone create` makes a pool",
                path.display()
            ),
            Self::NoFolder { path, folder } => write!(
                f,
                "{}: there is no folder {}; make it first, or name another",
                path.display(),
                folder.display()
            ),
            Self::Exists(path) => write!(f, "{}: there already; it was left alone", path.display()),
            Self::NotAFile(path) => {
                write!(f, "{}: neither a file nor a devdax device", path.display())
            }
            Self::Locked(path) => write!(
                f,
                "{}: in use by another process (a pool has one writer, or any number of readers); close that one first",
                path.display()
            ),
            Self::NotAPool { path, found } => {
                write!(f, "{}: not a Bristlecone pool: {found}", path.display())
            }
            Self::Version { path, version } => write!(f, "{}: {version}", path.display()),
            Self::OtherEndianness(path) => write!(
                f,
                "{}: written on a machine of the other byte order; export it there and import here",
                path.display()
            ),
            Self::Truncated {
                path,
                expected,
                found,
            } => write!(
                f,
                "{}: truncated: the superblock says {expected} bytes, the file has {found}",
                path.display()
            ),
            Self::Corrupt { path, what } => write!(f, "{}: corrupt: {what}", path.display()),
            Self::WrongMedium {
                path,
                written,
                asked,
            } => write!(
                f,
                "{}: last written through the {written} medium and not closed cleanly; open it with --medium {written} first, not {asked}",
                path.display()
            ),
            Self::Unsupported { path, what } => write!(f, "{}: {what}", path.display()),
            Self::NoSpace(e) => write!(f, "{e}"),
            Self::Commit(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::NoSpace(e) => Some(e),
            Self::Commit(e) => Some(e),
            Self::Version { version, .. } => Some(version),
            _ => None,
        }
    }
}

impl From<CommitError> for OpenError {
    fn from(e: CommitError) -> Self {
        Self::Commit(e)
    }
}

impl From<SpaceError> for OpenError {
    fn from(e: SpaceError) -> Self {
        Self::NoSpace(e)
    }
}

/// Reason why the pool could not grow or shrink. The pool is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// The reserved address range or the device ends here.
    Capacity {
        /// Bytes asked for.
        wanted: u64,
        /// Maximum number of bytes.
        capacity: u64,
    },
    /// The operating system refused (no space, quota, ...).
    Io {
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The pool is open for reading only.
    ReadOnly,
    /// One block was asked for that is larger than the maximum.
    TooLarge {
        /// Bytes asked for.
        wanted: u64,
        /// Maximum size of one block.
        most: u64,
    },
}

impl SpaceError {
    /// Returns a [`SpaceError`] for the operating system's error while `doing` something.
    pub fn io(doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            doing,
            source: source.into(),
        }
    }

    /// Returns a copy of this error, for reporting it twice (an `io::Error` cannot be cloned).
    #[must_use]
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Capacity { wanted, capacity } => Self::Capacity {
                wanted: *wanted,
                capacity: *capacity,
            },
            Self::Io { doing, source } => Self::Io {
                doing,
                source: copy_io(source),
            },
            Self::ReadOnly => Self::ReadOnly,
            Self::TooLarge { wanted, most } => Self::TooLarge {
                wanted: *wanted,
                most: *most,
            },
        }
    }
}

pub(crate) fn copy_io(e: &io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(e.kind(), e.to_string()),
    }
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { wanted, capacity } => write!(
                f,
                "out of space: {wanted} bytes wanted where {capacity} can be addressed"
            ),
            Self::Io { doing, source } => {
                write!(f, "out of space: {doing}: {source}")?;
                if source.kind() == io::ErrorKind::OutOfMemory {
                    write!(f, "; allow the process more memory (ulimit -d, -v)")?;
                }
                Ok(())
            }
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
            Self::TooLarge { wanted, most } => {
                write!(
                    f,
                    "a block of {wanted} bytes was asked for; the most is {most}"
                )
            }
        }
    }
}

impl std::error::Error for SpaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Reason why a change could not be made durable. It is visible in this process, and may or may not
/// be there after a restart.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommitError {
    /// Writing or syncing failed and the pool accepts no further commits, since after a failed sync
    /// the content of the disk is unknown. Reopening recovers everything that had been
    /// acknowledged.
    Failed {
        /// The step that failed.
        doing: &'static str,
        /// The system's error, at the first failure.
        source: io::Error,
    },
    /// There is no space now. A later commit succeeds once there is.
    NoSpace {
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl CommitError {
    /// Returns a copy of this error, for every waiter of a group commit.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Failed { doing, source } => Self::Failed {
                doing,
                source: copy_io(source),
            },
            Self::NoSpace { doing, source } => Self::NoSpace {
                doing,
                source: copy_io(source),
            },
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { doing, source } => write!(
                f,
                "not durable: {doing} failed: {source}; the pool takes no more writes until it is reopened"
            ),
            Self::NoSpace { doing, source } => write!(
                f,
                "not durable: {doing}: {source}; free some space and try again"
            ),
        }
    }
}

impl std::error::Error for CommitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed { source, .. } | Self::NoSpace { source, .. } => Some(source),
        }
    }
}
