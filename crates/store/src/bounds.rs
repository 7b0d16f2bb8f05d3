//! Ranges of index keys: those of a keyspace, or a part of it.

use crate::key::IndexKey;
use bristlecone_index::engine::Range;
use std::fmt;
use std::ops::Bound;

/// Bounds of a range of index keys of one keyspace.
pub struct Bounds {
    start: Bound<IndexKey>,
    end: Bound<IndexKey>,
}

impl Bounds {
    /// The keys of a keyspace between two bounds.
    pub fn new(keyspace: u32, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Self {
        let with = |key: &[u8]| IndexKey::new(keyspace, key);
        Self {
            start: match start {
                Bound::Unbounded => Bound::Included(with(b"")),
                bound => bound.map(with),
            },
            end: match end {
                // No keyspace has the largest number, so this does not overflow.
                Bound::Unbounded => Bound::Excluded(IndexKey::new(keyspace + 1, b"")),
                bound => bound.map(with),
            },
        }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(keyspace: u32, prefix: &[u8]) -> Self {
        let start = [&keyspace.to_be_bytes(), prefix].concat();
        // The smallest key above all of them: trailing bytes of 255 dropped, the byte before them
        // raised by one.
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        Self {
            start: Bound::Included(IndexKey::Long(start)),
            end: Bound::Excluded(IndexKey::Long(end)),
        }
    }

    /// Returns the range.
    pub fn range(&self) -> Range<'_> {
        (
            self.start.as_ref().map(|key| &**key),
            self.end.as_ref().map(|key| &**key),
        )
    }
}

impl fmt::Debug for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = self.range();
        f.debug_tuple("Bounds").field(&start).field(&end).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeBounds;

    #[test]
    fn a_prefix_has_exactly_the_keys_that_begin_with_it() {
        let contains =
            |bounds: &Bounds, key: &[u8]| RangeBounds::<[u8]>::contains(&bounds.range(), key);
        let bounds = Bounds::prefix(1, &[5, 255]);
        assert!(contains(&bounds, &[0, 0, 0, 1, 5, 255]));
        assert!(contains(&bounds, &[0, 0, 0, 1, 5, 255, 255, 255]));
        assert!(!contains(&bounds, &[0, 0, 0, 1, 6]));
        assert!(!contains(&bounds, &[0, 0, 0, 1, 5, 254]));
        let all = Bounds::prefix(255, b"");
        assert!(contains(&all, &[0, 0, 0, 255, 255]));
        assert!(!contains(&all, &[0, 0, 1, 0]));
        let whole = Bounds::new(7, Bound::Unbounded, Bound::Unbounded);
        assert!(contains(&whole, &[0, 0, 0, 7]) && !contains(&whole, &[0, 0, 0, 8]));
    }
}
