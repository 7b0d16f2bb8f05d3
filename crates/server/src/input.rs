//! The bytes that a connection has read.

use crate::budget::Part;
use crate::client::Client;

/// The initial size of a read in bytes, and the size to which it grows while there are as many
/// bytes.
pub(crate) const MIN_READ: usize = 2 << 10;
const MAX_READ: usize = 256 << 10;

/// The bytes that a connection has read and not yet executed.
#[derive(Debug)]
pub(crate) struct Input {
    pub bytes: Vec<u8>,
    /// The start of the first command that is not executed.
    pub start: usize,
    /// The size of the next read.
    want: usize,
}

impl Input {
    /// Returns an input without bytes.
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            want: MIN_READ,
        }
    }

    /// Returns the bytes that are not executed.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Makes room for the next read. `needed`: the length of the first command that is not
    /// executed, as far as it was announced.
    pub fn make_room(&mut self, needed: usize) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let missing = needed.saturating_sub(self.bytes.len());
        // An announced length is trusted up to the amount that has already come.
        let trusted = missing.min(self.bytes.len()).max(self.want);
        let room = self.bytes.len() + trusted;
        // One byte of the next request must not keep the memory of a long one that is done.
        if self.bytes.capacity() > 4 * room {
            self.bytes.shrink_to(room);
        }
        self.bytes.reserve(trusted);
    }

    /// Counts its memory as the client's, with that of the parser.
    pub fn note_held(&self, client: &Client, parser: usize) {
        client.hold(Part::Query, self.bytes.capacity() + parser);
    }

    /// Adapts the size of the next read to the last one.
    pub fn note_read(&mut self, read: usize) {
        if self.bytes.len() == self.bytes.capacity() {
            self.want = (2 * self.want).min(MAX_READ);
        } else if read < self.want / 8 {
            self.want = (self.want / 2).max(MIN_READ);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_long_request_is_given_back_though_a_byte_is_left() {
        let mut input = Input {
            bytes: vec![b'x'; 64 << 20],
            start: (64 << 20) - 1,
            ..Input::new()
        };
        input.make_room(0);
        assert_eq!(input.bytes, b"x");
        let room = input.bytes.capacity();
        assert!((MIN_READ..=16 * MIN_READ).contains(&room), "{room}");
        // A buffer within the bounds keeps its size.
        input.bytes.reserve_exact(3 * MIN_READ);
        let before = input.bytes.capacity();
        input.make_room(0);
        assert_eq!(input.bytes.capacity(), before);
    }
}
