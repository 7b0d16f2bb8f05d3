//! What goes wrong, as RocksDB tells it: an error of input or output, or corruption.

use bristlecone_index::{InsertError, TreeError};
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::{CommitError, OpenError, SpaceError};
use std::fmt;
use std::path::Path;

/// The kind of a fault, as the C interface numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum FaultKind {
    /// The system refused, or there is no room: `Status::IOError`.
    Io = 1,
    /// The pool contradicts itself: `Status::Corruption`.
    Corruption = 2,
    /// The caller asked for what cannot be: `Status::InvalidArgument`.
    Invalid = 3,
    /// The disk has no room for the journal now, and may have some later: `Status::NoSpace`.
    NoSpace = 4,
}

/// A fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// Where and what.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Fault {
    /// Makes a fault of a kind.
    pub fn new(kind: FaultKind, what: impl fmt::Display) -> Self {
        let what = what.to_string();
        Self { kind, what }
    }

    /// Makes a fault for a pool that contradicts itself.
    pub fn corrupt(pool: &Path, what: impl fmt::Display) -> Self {
        let what = format!("pool {}: {what}", pool.display());
        Self {
            kind: FaultKind::Corruption,
            what,
        }
    }
}

impl From<OpenError> for Fault {
    fn from(e: OpenError) -> Self {
        let kind = match e {
            OpenError::NotAPool { .. }
            | OpenError::Truncated { .. }
            | OpenError::Corrupt { .. } => FaultKind::Corruption,
            _ => FaultKind::Io,
        };
        Self::new(kind, e)
    }
}

impl From<TreeError> for Fault {
    fn from(e: TreeError) -> Self {
        let kind = match e {
            TreeError::Corrupt(_) => FaultKind::Corruption,
            _ => FaultKind::Io,
        };
        Self::new(kind, e)
    }
}

macro_rules! io {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(e: $error) -> Self {
                Self::new(FaultKind::Io, e)
            }
        }
    )*};
}

io!(RootError, SpaceError, InsertError);

impl From<CommitError> for Fault {
    fn from(e: CommitError) -> Self {
        let kind = match e {
            CommitError::NoSpace { .. } => FaultKind::NoSpace,
            _ => FaultKind::Io,
        };
        Self::new(kind, e)
    }
}
