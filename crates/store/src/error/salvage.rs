//! The error of saving what is whole in a damaged store.

use super::{StoreError, WriteError};
use std::fmt;

/// Why saving what is whole did not come to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum SalvageError {
    /// The damaged store: so much is damaged that nothing can be read.
    From(StoreError),
    /// The store that is written refused.
    Into(WriteError),
}

impl From<StoreError> for SalvageError {
    fn from(e: StoreError) -> Self {
        Self::From(e)
    }
}

impl From<WriteError> for SalvageError {
    fn from(e: WriteError) -> Self {
        Self::Into(e)
    }
}

impl fmt::Display for SalvageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From(e) => write!(f, "{e}"),
            Self::Into(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for SalvageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::From(e) => Some(e),
            Self::Into(e) => Some(e),
        }
    }
}
