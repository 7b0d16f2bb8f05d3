//! Requests to a commit: changes to keys, and steps of a batch.

use crate::engine::KeyWrite;
use crate::error::WriteError;
use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// A step of [`Store::execute_batch`](crate::Store::execute_batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'v> {
    /// Reads the key.
    Get,
    /// Puts this value.
    Put(&'v [u8]),
}

impl<'v> Step<'v> {
    /// Returns the value that it puts.
    #[doc(hidden)]
    #[must_use]
    pub fn value(self) -> Option<&'v [u8]> {
        match self {
            Self::Get => None,
            Self::Put(value) => Some(value),
        }
    }
}

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put { value: Vec<u8>, expiry: u64 },
    Delete,
}

impl Write {
    /// Returns it as the change of an index key.
    pub fn of<'w>(&'w self, key: &'w [u8]) -> KeyWrite<'w> {
        let (value, expiry) = match self {
            Self::Put { value, expiry } => (Some(&**value), *expiry),
            Self::Delete => (None, 0),
        };
        KeyWrite { key, value, expiry }
    }
}

/// Runs `op`; if there was no space, `reclaim`, and `op` once more.
///
/// # Errors
/// Those of `op`.
pub fn retry_for_space<T>(
    reclaim: impl FnOnce(),
    mut op: impl FnMut() -> Result<T, WriteError>,
) -> Result<T, WriteError> {
    match op() {
        Err(WriteError::Space(_)) => {
            reclaim();
            op()
        }
        done => done,
    }
}

/// Checks the length of a key.
///
/// # Errors
/// [`WriteError::KeyTooLong`]
pub fn check_key(key: &[u8]) -> Result<(), WriteError> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    Err(WriteError::KeyTooLong {
        len: key.len(),
        most: MAX_KEY_BYTES,
    })
}

/// Checks the length of a value.
///
/// # Errors
/// [`WriteError::ValueTooLong`]
pub fn check_value(value: &[u8]) -> Result<(), WriteError> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(WriteError::ValueTooLong {
        len: value.len(),
        most: MAX_VALUE_BYTES,
    })
}
