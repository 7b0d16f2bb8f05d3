//! Entries that are read together, as iterators read ahead.

use std::ops::ControlFlow;

/// Where an entry begins among the [bytes](Entries::into_parts), and the lengths of its key and its
/// value, which follows the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first byte of the key.
    pub at: usize,
    /// Bytes of the key.
    pub key: u32,
    /// Bytes of the value.
    pub value: u32,
}

/// Keys with their values, copied one after another: at most so many, and so many bytes, but one
/// entry at least.
#[derive(Debug)]
pub struct Entries {
    bytes: Vec<u8>,
    places: Vec<Place>,
    most: usize,
    most_bytes: usize,
    is_full: bool,
}

impl Entries {
    /// None yet; with room for `most` keys and values of 8 bytes, and for `padding` bytes behind
    /// the last.
    #[must_use]
    pub fn new(most: usize, most_bytes: usize, padding: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(most * 16 + padding),
            places: Vec::with_capacity(most),
            most,
            most_bytes,
            is_full: most == 0,
        }
    }

    /// Adds an entry. Breaks if it is the last one.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        // Neither has 4 GiB.
        self.places.push(Place {
            at: self.bytes.len(),
            key: key.len() as u32,
            value: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.is_full = self.places.len() >= self.most || self.bytes.len() >= self.most_bytes;
        if self.is_full {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Returns whether [`push`](Self::push) has said that there is no room for more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the bytes of all entries, and where each of them is.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Vec<Place>) {
        (self.bytes, self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_until_there_are_enough() {
        let mut entries = Entries::new(3, 100, 4);
        assert_eq!(entries.push(b"a", b"one"), ControlFlow::Continue(()));
        assert_eq!(entries.push(b"", b""), ControlFlow::Continue(()));
        assert!(!entries.is_full());
        assert_eq!(entries.push(b"bc", b"x"), ControlFlow::Break(()));
        assert!(entries.is_full());
        let (bytes, places) = entries.into_parts();
        assert_eq!(bytes, b"aonebcx");
        let place = |at, key, value| Place { at, key, value };
        assert_eq!(places, [place(0, 1, 3), place(4, 0, 0), place(4, 2, 1)]);
        // One that is too long for all is there all the same.
        let mut entries = Entries::new(3, 2, 0);
        assert_eq!(entries.push(b"key", b"value"), ControlFlow::Break(()));
        assert_eq!(entries.into_parts().0, b"keyvalue");
    }
}
