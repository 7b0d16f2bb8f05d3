//! Errors of measurements.

use bristlecone_designs::designs::UnknownDesign;
use bristlecone_peers::PeerError;
use bristlecone_pmem::OpenError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of a measurement. The files of the measurement are removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum LabError {
    /// A parameter is out of range or cannot be read.
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are allowed.
        may_be: String,
    },
    /// The design does not exist, or not in that leaf size.
    Design(UnknownDesign),
    /// The operating system returned an error.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The action that failed.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The pool for the measurement could not be made or reopened.
    Open(OpenError),
    /// The index refused an operation.
    Index {
        /// The action that failed.
        doing: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A peer refused an operation.
    Peer(PeerError),
    /// This build lacks a requested part.
    NeedsFeature {
        /// The requested part.
        what: String,
        /// The Cargo feature that includes it.
        feature: &'static str,
    },
    /// A contender gave wrong answers, which makes its speed meaningless.
    WrongAnswer {
        /// The contender.
        contender: String,
        /// The phase.
        phase: &'static str,
        /// Number of operations with the right answer.
        right: u64,
        /// Number of all operations.
        of: u64,
    },
}

impl LabError {
    pub(crate) fn io(path: &Path, doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.to_path_buf(),
            doing,
            source: source.into(),
        }
    }

    pub(crate) fn parameter(
        name: &'static str,
        value: impl fmt::Display,
        may_be: impl Into<String>,
    ) -> Self {
        Self::Parameter {
            name,
            value: value.to_string(),
            may_be: may_be.into(),
        }
    }

    /// Returns an [`Index`](Self::Index) error with a cause.
    pub fn index(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Index {
            doing,
            source: source.into(),
        }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter {
                name,
                value,
                may_be,
            } => {
                write!(f, "{name} cannot be {value:?}: it may be {may_be}")
            }
            Self::Design(e) => write!(f, "{e}"),
            Self::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "{}: {doing} failed: {source}", path.display())
            }
            Self::Open(e) => write!(f, "{e}"),
            Self::Index { doing, source } => write!(f, "{doing} failed: {source}"),
            Self::Peer(e) => write!(f, "{e}"),
            Self::NeedsFeature { what, feature } => write!(
                f,
                "{what} is not in this build; build with `--features {feature}` to have it"
            ),
            Self::WrongAnswer {
                contender,
                phase,
                right,
                of,
            } => write!(
                f,
                "{contender} answered {right} of {of} operations rightly in phase {phase}; its speed was not reported"
            ),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Design(e) => Some(e),
            Self::Open(e) => Some(e),
            Self::Index { source, .. } => Some(&**source),
            Self::Peer(e) => Some(e),
            _ => None,
        }
    }
}

impl From<OpenError> for LabError {
    fn from(e: OpenError) -> Self {
        Self::Open(e)
    }
}

impl From<UnknownDesign> for LabError {
    fn from(e: UnknownDesign) -> Self {
        Self::Design(e)
    }
}

impl From<PeerError> for LabError {
    fn from(e: PeerError) -> Self {
        Self::Peer(e)
    }
}
