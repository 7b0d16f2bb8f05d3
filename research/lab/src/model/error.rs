//! Errors of the device model.

use crate::LabError;
use std::fmt;
use std::path::PathBuf;

/// An error of loading a device, or of a run on it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// No device of this name is shipped, and the name is no path.
    UnknownDevice {
        /// The name.
        name: String,
    },
    /// A device's or workload's file could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Such a file is not TOML, lacks a field, or has an unknown one.
    Syntax {
        /// The file, or the name of the shipped device.
        file: String,
        /// The mistake, with its line.
        message: String,
    },
    /// A field of such a file is out of range.
    Field {
        /// The file, or the name of the shipped device.
        file: String,
        /// The field, as `section.field`.
        field: &'static str,
        /// Its value.
        value: String,
        /// The values that are allowed.
        may_be: String,
    },
    /// A parameter of the run is out of range, or an operation was refused or gave a wrong answer.
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
                write!(f, "the file {} cannot be read: {source}", path.display())
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
