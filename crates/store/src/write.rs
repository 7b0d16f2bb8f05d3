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

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::SpaceError;

    #[test]
    fn the_longest_keys_and_values_are_taken_and_no_longer_ones() {
        let long = vec![0; MAX_VALUE_BYTES + 1];
        check_key(&[]).unwrap();
        check_key(&long[..MAX_KEY_BYTES]).unwrap();
        let e = check_key(&long[..MAX_KEY_BYTES + 1]).unwrap_err();
        assert_eq!(e.to_string(), "the key has 65537 bytes; the most is 65536");
        check_value(&[]).unwrap();
        check_value(&long[..MAX_VALUE_BYTES]).unwrap();
        let e = check_value(&long).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the value has 536870913 bytes; the most is 536870912"
        );
    }

    #[test]
    fn only_a_lack_of_space_is_tried_again_and_once() {
        let tried = |answers: Vec<Result<u8, WriteError>>| {
            let (mut reclaimed, mut answers) = (0, answers.into_iter());
            let done = retry_for_space(|| reclaimed += 1, || answers.next().unwrap());
            (done.ok(), reclaimed, answers.count())
        };
        let none = || Err(WriteError::Space(SpaceError::ReadOnly));
        assert_eq!(tried(vec![Ok(1), Ok(2)]), (Some(1), 0, 1));
        assert_eq!(tried(vec![none(), Ok(2), Ok(3)]), (Some(2), 1, 1));
        assert_eq!(tried(vec![none(), none(), Ok(3)]), (None, 1, 1));
        assert_eq!(tried(vec![Err(WriteError::ReadOnly), Ok(2)]), (None, 0, 1));
    }
}
