//! Errors of figures.

use super::{On, names_of};
use crate::LabError;
use crate::model::ModelError;
use bristlecone_pmem::OpenError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Errors of figures.
#[derive(Debug)]
#[non_exhaustive]
pub enum FigureError {
    /// No figure has this name.
    Unknown {
        /// The name.
        name: String,
        /// Similar names.
        near: Vec<&'static str>,
    },
    /// The figure does not run there.
    Elsewhere {
        /// The figure.
        name: &'static str,
        /// The requested place.
        on: On,
        /// The places where it runs.
        can: &'static [On],
    },
    /// A measurement failed.
    Lab(LabError),
    /// The device model failed.
    Model(ModelError),
    /// The subject of the figure did not occur, or is not at its expected place.
    NotFound {
        /// The figure.
        name: &'static str,
        /// The missing subject.
        what: String,
    },
    /// A file could not be written.
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        what: String,
    },
}

impl FigureError {
    pub(crate) fn write(path: &Path, what: impl fmt::Display) -> Self {
        Self::Write {
            path: path.to_path_buf(),
            what: what.to_string(),
        }
    }
}

impl fmt::Display for FigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, near } => {
                write!(f, "no figure is called {name:?}")?;
                if !near.is_empty() {
                    write!(f, "; near to it: {}", near.join(", "))?;
                }
                write!(f, "; `bristlecone-lab figure --list` names them all")
            }
            Self::Elsewhere { name, on, can } => write!(
                f,
                "{name} cannot be had on {on}; it can be had on: {}",
                names_of(can)
            ),
            Self::Lab(e) => write!(f, "{e}"),
            Self::Model(e) => write!(f, "{e}"),
            Self::NotFound { name, what } => write!(f, "{name}: {what}"),
            Self::Write { path, what } => {
                write!(f, "{}: writing failed: {what}", path.display())
            }
        }
    }
}

impl std::error::Error for FigureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lab(e) => Some(e),
            Self::Model(e) => Some(e),
            _ => None,
        }
    }
}

impl From<LabError> for FigureError {
    fn from(e: LabError) -> Self {
        Self::Lab(e)
    }
}

impl From<ModelError> for FigureError {
    fn from(e: ModelError) -> Self {
        Self::Model(e)
    }
}

impl From<OpenError> for FigureError {
    fn from(e: OpenError) -> Self {
        Self::Lab(e.into())
    }
}
