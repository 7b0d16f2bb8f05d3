//! The errors of archives and of restoring from one.

use super::{ReadError, StoreError, WriteError};
use bristlecone_pmem::{CommitError, VersionError};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why something could not be written to an archive, or read from one.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The system refused.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The directory has no file of an archive, or is none.
    NotAnArchive {
        /// The directory.
        dir: PathBuf,
    },
    /// Another process writes to the archive.
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The archive is of another pool.
    OtherPool {
        /// The directory.
        dir: PathBuf,
    },
    /// The archive and the pool do not follow from each other: the pool was put back to an earlier
    /// state, or the last files of the archive are gone.
    Parted {
        /// The directory.
        dir: PathBuf,
    },
    /// A file has a format version that this build does not read.
    Version {
        /// The file.
        path: PathBuf,
        /// The versions.
        version: VersionError,
    },
    /// A file is damaged: after how many bytes, and what is wrong.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Bytes before it.
        at: u64,
        /// A description.
        what: String,
    },
    /// Nothing leads to the moment that was asked for.
    Unreachable {
        /// What was asked for, and why it cannot be had.
        what: String,
        /// The last time stamp before it that can be restored, if there is one.
        reached: Option<u64>,
    },
    /// The medium of the store has failed.
    Commit(CommitError),
    /// The store could not be read.
    Read(ReadError),
    /// The new store could not be made or opened.
    Store(Box<StoreError>),
    /// The new store could not be filled.
    Write(WriteError),
}

impl ArchiveError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotAnArchive { dir } => {
                write!(f, "{} is no archive: it has no file of one", dir.display())
            }
            Self::InUse { dir } => write!(
                f,
                "the archive {} is being written by another process: give each database a directory of its own",
                dir.display()
            ),
            Self::OtherPool { dir } => write!(
                f,
                "the archive {} is of another pool: give this one a directory of its own",
                dir.display()
            ),
            Self::Parted { dir } => write!(
                f,
                "the archive {} does not lead to what the pool has: the pool was put back to an earlier state, or files of the archive \
                 are missing. Give it another directory, in which a new archive begins",
                dir.display()
            ),
            Self::Version { path, version } => write!(f, "{}: {version}", path.display()),
            Self::Damaged { path, at, what } => {
                write!(f, "{} is damaged, {at} bytes in: {what}", path.display())
            }
            Self::Unreachable { what, reached } => {
                write!(f, "{what}")?;
                match reached {
                    Some(ts) => write!(
                        f,
                        "; what leads there is whole up to time stamp {ts}: ask for that, or an earlier one"
                    ),
                    None => Ok(()),
                }
            }
            Self::Commit(e) => write!(f, "{e}"),
            Self::Read(e) => write!(f, "{e}"),
            Self::Store(e) => write!(f, "{e}"),
            Self::Write(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for ArchiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Version { version, .. } => Some(version),
            Self::Commit(e) => Some(e),
            Self::Read(e) => Some(e),
            Self::Store(e) => Some(e),
            Self::Write(e) => Some(e),
            _ => None,
        }
    }
}

impl From<CommitError> for ArchiveError {
    fn from(e: CommitError) -> Self {
        Self::Commit(e)
    }
}

impl From<ReadError> for ArchiveError {
    fn from(e: ReadError) -> Self {
        Self::Read(e)
    }
}

impl From<StoreError> for ArchiveError {
    fn from(e: StoreError) -> Self {
        Self::Store(Box::new(e))
    }
}

impl From<WriteError> for ArchiveError {
    fn from(e: WriteError) -> Self {
        Self::Write(e)
    }
}
