//! Bounds of ranges of keys.

use bristlecone_store::MAX_KEY_BYTES;
use std::ops::Bound;

/// Bounds of a range of keys.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Returns bounds of at most the maximum length that enclose the same keys. A longer bound lies
/// right after its own prefix.
pub(crate) fn cut((start, end): Range<'_>) -> Range<'_> {
    let start = match start {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            Bound::Excluded(&key[..MAX_KEY_BYTES])
        }
        start => start,
    };
    let end = match end {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            Bound::Included(&key[..MAX_KEY_BYTES])
        }
        end => end,
    };
    (start, end)
}
