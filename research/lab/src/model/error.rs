//! Why a figure could not be computed.

use crate::LabError;
use std::fmt;
use std::path::PathBuf;

/// Why a device could not be loaded, or a run on it not be done.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// No device of this name is shipped, and it is no path either.
    UnknownDevice {
        /// What was asked for.
        name: String,
    },
    /// A device file could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A device file is not TOML, or lacks a field, or has one that there is not.
    Syntax {
        /// The file, or the name of the shipped device.
        file: String,
        /// What is wrong, with the line it is in.
        message: String,
    },
    /// A field of a device file has a value that makes no sense.
    Field {
        /// The file, or the name of the shipped device.
        file: String,
        /// Which field, as `section.field`.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        may_be: String,
    },
    /// A parameter of the run makes no sense, an operation was refused, or one was answered wrongly.
    Lab(LabError),
}

impl ModelError {
    pub(crate) fn parameter(
        name: &'static str,
        value: impl fmt::Display,
        may_be: impl Into<String>,
    ) -> Self {
        Self::Lab(LabError::parameter(name, value, may_be))
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDevice { name } => write!(
                f,
                "there is no device {name:?}: name one of {}, or give the path of a device file \
                 (a path has a `/` or ends in `.toml`)",
                super::Device::shipped().join(", ")
            ),
            Self::Read { path, source } => {
                write!(
                    f,
                    "the device file {} cannot be read: {source}",
                    path.display()
                )
            }
            Self::Syntax { file, message } => write!(f, "{file}: {message}"),
            Self::Field {
                file,
                field,
                value,
                may_be,
            } => write!(f, "{file}: {field} cannot be {value}: it may be {may_be}"),
            Self::Lab(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Lab(e) => Some(e),
            _ => None,
        }
    }
}

impl From<LabError> for ModelError {
    fn from(e: LabError) -> Self {
        Self::Lab(e)
    }
}
