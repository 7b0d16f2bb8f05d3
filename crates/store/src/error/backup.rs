//! The errors of backups and of restoring one.

use super::{ReadError, StoreError, WriteError};
use bristlecone_pmem::VersionError;
use std::fmt;
use std::io;

/// Why a backup or a restore did not come to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The stream refused.
    Io(io::Error),
    /// The stream is no backup of a store.
    NotABackup,
    /// The backup has a format version that this build does not read.
    Version(VersionError),
    /// The backup is damaged, or ends too early. What, and after how many bytes.
    Damaged {
        /// A description of the damage.
        what: String,
        /// Bytes before it.
        at: u64,
    },
    /// The store could not be read.
    Read(ReadError),
    /// The store could not be made.
    Store(StoreError),
    /// The store could not be filled.
    Write(WriteError),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) => write!(f, "{e}"),
            Self::NotABackup => write!(
                f,
                "not a backup of a store, as a server's SAVE and BGSAVE write (a copy of a pool is opened as it is)"
            ),
            Self::Version(e) => write!(f, "{e}"),
            Self::Damaged { what, at } => {
                write!(f, "the backup is damaged, {at} bytes in: {what}")
            }
            Self::Read(e) => write!(f, "{e}"),
            Self::Store(e) => write!(f, "{e}"),
            Self::Write(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            Self::Version(e) => Some(e),
            Self::Read(e) => Some(e),
            Self::Store(e) => Some(e),
            Self::Write(e) => Some(e),
            _ => None,
        }
    }
}

impl From<VersionError> for BackupError {
    fn from(e: VersionError) -> Self {
        Self::Version(e)
    }
}

impl From<io::Error> for BackupError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<ReadError> for BackupError {
    fn from(e: ReadError) -> Self {
        Self::Read(e)
    }
}

impl From<StoreError> for BackupError {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<WriteError> for BackupError {
    fn from(e: WriteError) -> Self {
        Self::Write(e)
    }
}
