//! Values as streams: ranges of one, and a stream that is one.

use crate::error::WriteError;
use crate::limits::MAX_VALUE_BYTES;
use std::io::Read;
use std::ops::{Bound, Range, RangeBounds};

/// Returns the positions of a range.
pub(crate) fn positions(range: impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

/// Returns what of a range a value of so many bytes has.
pub(crate) fn within(range: &Range<u64>, len: u64) -> Range<u64> {
    let end = range.end.min(len);
    range.start.min(end)..end
}

/// Returns those bytes of a value that a range has.
pub fn slice<'v>(value: &'v [u8], range: &Range<u64>) -> &'v [u8] {
    let here = within(range, value.len() as u64);
    // Both are at most the value's length.
    &value[here.start as usize..here.end as usize]
}

/// Reads all of a stream that is a value, for engines that take it whole.
///
/// # Errors
/// [`WriteError`]: it fails, or is too long.
pub fn whole(from: &mut dyn Read) -> Result<Vec<u8>, WriteError> {
    let mut value = Vec::new();
    let most = MAX_VALUE_BYTES as u64;
    let read = from.take(most + 1).read_to_end(&mut value);
    read.map_err(WriteError::Source)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_with_the_value() {
        let value: Vec<u8> = (0..10).collect();
        assert_eq!(slice(&value, &(2..5)), [2, 3, 4]);
        assert_eq!(slice(&value, &(8..50)), [8, 9]);
        assert_eq!(slice(&value, &(12..50)), []);
        assert_eq!(slice(&value, &Range { start: 7, end: 3 }), []);
        assert_eq!(slice(&[], &(0..u64::MAX)), []);
        assert_eq!(positions(..), 0..u64::MAX);
        assert_eq!(positions(..=u64::MAX), 0..u64::MAX);
        assert_eq!(positions(3..=4), 3..5);
        assert_eq!(positions(3..4), 3..4);
        assert_eq!(positions(3..), 3..u64::MAX);
        let behind = |at| (Bound::Excluded(at), Bound::Unbounded);
        assert_eq!(positions(behind(3)), 4..u64::MAX);
        assert_eq!(positions(behind(u64::MAX)), u64::MAX..u64::MAX);
    }

    #[test]
    fn a_stream_is_read_to_its_end() {
        assert_eq!(
            whole(&mut &b"of three parts"[..]).unwrap(),
            b"of three parts"
        );
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("no more"))
            }
        }
        let error = whole(&mut b"some".chain(Fails)).unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "no more");
    }

    /// Whoever takes it finds that it is too long.
    #[test]
    fn of_a_stream_that_is_too_long_one_byte_more_is_read() {
        let most = MAX_VALUE_BYTES as u64;
        let mut given = 0;
        struct Counted<'g>(&'g mut u64);
        impl Read for Counted<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                *self.0 += into.len() as u64;
                Ok(into.len())
            }
        }
        let value = whole(&mut Counted(&mut given)).unwrap();
        assert_eq!((value.len() as u64, given), (most + 1, most + 1));
    }
}
