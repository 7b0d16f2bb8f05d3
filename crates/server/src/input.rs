//! The bytes that a connection has read, and the commands that are complete in them.

use crate::budget::Part;
use crate::client::Client;
use crate::parse::Arg;
use crate::resp::{Args, Parser, ProtocolError};
use crate::session::Session;

/// The initial size of a read in bytes, and the size to which it grows while there are as many
/// bytes.
pub(crate) const MIN_READ: usize = 2 << 10;
const MAX_READ: usize = 256 << 10;
/// Commands that are parsed before the first of them is executed.
const AHEAD: usize = 32;

/// The bytes that a connection has read and not yet executed.
#[derive(Debug)]
pub(crate) struct Input {
    pub bytes: Vec<u8>,
    /// The start of the first command that is not executed.
    pub start: usize,
    pub parser: Parser,
    /// The size of the next read.
    want: usize,
}

/// A complete command.
#[derive(Debug)]
pub(crate) struct Ahead<'b> {
    pub args: Args<'b>,
    /// The start of the next one.
    pub end: usize,
}

/// The bytes after the commands that were parsed ahead.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Nothing, or the beginning of a command, where the parser continues.
    Incomplete,
    /// An inline command of this many bytes. The parser has its arguments if it comes first.
    Inline(usize),
    /// Possibly further commands.
    More,
    /// Bytes that are not a command.
    Wrong(ProtocolError),
}

impl Input {
    /// Returns an input without bytes.
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            parser: Parser::default(),
            want: MIN_READ,
        }
    }

    /// Returns the bytes that are not executed.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Makes room for the next read.
    pub fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let missing = self.parser.needed().saturating_sub(self.bytes.len());
        // An announced length is trusted up to the amount that has already come.
        let trusted = missing.min(self.bytes.len()).max(self.want);
        let room = self.bytes.len() + trusted;
        // One byte of the next request must not keep the memory of a long one that is done.
        if self.bytes.capacity() > 4 * room {
            self.bytes.shrink_to(room);
        }
        self.bytes.reserve(trusted);
    }

    /// Counts its memory as the client's.
    pub fn note_held(&self, client: &Client) {
        client.hold(Part::Query, self.bytes.capacity() + self.parser.held());
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

/// Parses the complete commands at the start of `bytes`, up to [`AHEAD`] of them.
pub(crate) fn parse_ahead<'b>(
    parser: &mut Parser,
    bytes: &'b [u8],
    session: &Session,
) -> (Vec<Ahead<'b>>, Ended) {
    // The limits change once the client has authenticated.
    let most = if session.is_authenticated() { AHEAD } else { 1 };
    let (mut ahead, mut start) = (Vec::new(), 0);
    while ahead.len() < most {
        let rest = bytes.get(start..).unwrap_or_default();
        let length = match parser.parse(rest, session.limits()) {
            Ok(Some(length)) => length,
            Ok(None) => return (ahead, Ended::Incomplete),
            Err(e) => return (ahead, Ended::Wrong(e)),
        };
        let Some(args) = parser.array_args(rest) else {
            return (ahead, Ended::Inline(length));
        };
        parser.clear();
        start += length;
        if ahead.is_empty() {
            ahead.reserve(most.min(1 + rest.len() / length));
        }
        ahead.push(Ahead { args, end: start });
    }
    (ahead, Ended::More)
}

/// Returns the arguments of commands, in order.
pub(crate) fn arguments<'a, 'b>(ahead: &'a [Ahead<'b>]) -> Vec<&'a [Arg<'b>]> {
    ahead.iter().map(|one| &*one.args).collect()
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
        input.make_room();
        assert_eq!(input.bytes, b"x");
        let room = input.bytes.capacity();
        assert!((MIN_READ..=16 * MIN_READ).contains(&room), "{room}");
        // A buffer within the bounds keeps its size.
        input.bytes.reserve_exact(3 * MIN_READ);
        let before = input.bytes.capacity();
        input.make_room();
        assert_eq!(input.bytes.capacity(), before);
    }
}
