//! Why a measurement could not be made.

use bristlecone_designs::designs::UnknownDesign;
use bristlecone_peers::PeerError;
use bristlecone_pmem::OpenError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a measurement could not be made. Files that it had made are removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum LabError {
    /// A parameter is out of range or cannot be read.
    Parameter {
        /// Which one.
        name: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        may_be: String,
    },
    /// There is no such design, or not in that leaf size.
    Design(UnknownDesign),
    /// The operating system refused.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// The pool for the measurement could not be made or reopened.
    Open(OpenError),
    /// The index refused an operation.
    Index {
        /// What was being done.
        doing: &'static str,
        /// What it answered.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A peer refused an operation.
    Peer(PeerError),
    /// This build lacks what was asked for.
    NeedsFeature {
        /// What was asked for.
        what: String,
        /// The Cargo feature that brings it.
        feature: &'static str,
    },
    /// A contender gave wrong answers, so that its speed means nothing.
    WrongAnswer {
        /// Who.
        contender: String,
        /// In which phase.
        phase: &'static str,
        /// How many operations did what they should.
        right: u64,
        /// Of how many.
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

    /// An [`Index`](Self::Index) error for what `source` says.
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
