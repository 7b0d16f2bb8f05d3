//! Replies, encoded in RESP2 or RESP3 as they are written.

use crate::budget::{Account, Part, Scratch};

/// The version of Redis whose commands and replies the server has.
pub const REDIS_VERSION: &str = "7.0.15";

/// The protocol of a connection, which `HELLO` changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// The most bytes of replies that are kept for a connection. Replies beyond it are discarded, and
/// the connection has to end.
pub const MAX_REPLY_BYTES: usize = 1 << 30;

/// The place for replies: the end of a connection's output.
///
/// It accepts the bytes that make it longer than [`MAX_REPLY_BYTES`], and none after them. The
/// length therefore tells that replies are missing, even after they were copied into another
/// output.
///
/// An output [for a client](Self::for_client) discards everything once that client is evicted.
#[derive(Debug)]
pub struct Out<'b> {
    buffer: &'b mut Vec<u8>,
    protocol: Protocol,
    most: usize,
    /// The account of the client that holds the buffer, and the part that counts it.
    holder: Option<(&'b Account, Part)>,
}

/// The least capacity that a client's buffer is given.
const MIN_CAPACITY: usize = 64;

impl<'b> Out<'b> {
    /// Returns an output that appends replies to `buffer`.
    pub fn new(buffer: &'b mut Vec<u8>, protocol: Protocol) -> Self {
        Self {
            buffer,
            protocol,
            most: MAX_REPLY_BYTES,
            holder: None,
        }
    }

    /// Returns an output like [`new`](Self::new) whose capacity counts as memory of the client,
    /// before it is allocated.
    pub fn for_client(buffer: &'b mut Vec<u8>, protocol: Protocol, account: &'b Account) -> Self {
        Self {
            holder: Some((account, Part::Output)),
            ..Self::new(buffer, protocol)
        }
    }

    /// Returns an output that gathers replies in another buffer, held by the same client, before
    /// they are appended here. That memory counts until the command has ended.
    pub fn beside<'o>(&self, buffer: &'o mut Vec<u8>) -> Out<'o>
    where
        'b: 'o,
    {
        let within = |part| match part {
            Part::Output => Part::Gathered,
            _ => Part::GatheredWithin,
        };
        Out {
            holder: self.holder.map(|(account, part)| (account, within(part))),
            ..Out::new(buffer, self.protocol)
        }
    }

    /// Returns a counter for the intermediate results, or the changes, of the command whose replies
    /// go here.
    #[must_use]
    pub fn scratch(&self, part: Part) -> Scratch<'b> {
        Scratch::new(self.holder.map(|(account, _)| account), part)
    }

    /// Returns true if it is longer than it may be: replies are missing.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.buffer.len() > self.most
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.overflowed() {
            return;
        }
        let room = self.buffer.capacity() - self.buffer.len();
        if room < bytes.len() && !self.make_room(bytes.len()) {
            return;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Makes room for `more` further bytes. Returns false if the client is evicted.
    #[cold]
    fn make_room(&mut self, more: usize) -> bool {
        let Some((account, part)) = self.holder else {
            return true;
        };
        let len = self.buffer.len();
        // The capacity grows by half, so that not every reply moves all of them.
        let room = (len + more).max(len + len / 2).max(MIN_CAPACITY);
        if !account.is_evicted() {
            account.hold(part, room);
        }
        if account.is_evicted() {
            *self.buffer = Vec::new();
            account.hold(part, 0);
            return false;
        }
        self.buffer.reserve_exact(room - len);
        true
    }

    /// Returns the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.put(&[kind]);
        self.put(text);
        self.put(b"\r\n");
    }

    /// Writes a header with a number.
    fn number(&mut self, kind: u8, number: i64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.put(&[kind]);
        if number < 0 {
            self.put(b"-");
        }
        self.put(&digits[at..]);
        self.put(b"\r\n");
    }

    /// Writes a status, such as `OK`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes the status `OK`.
    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// Writes an error: its code and its text. Line ends in it become spaces.
    pub fn error(&mut self, text: &str) {
        let text: Vec<u8> = text
            .bytes()
            .map(|byte| {
                if matches!(byte, b'\r' | b'\n') {
                    b' '
                } else {
                    byte
                }
            })
            .collect();
        self.line(b'-', &text);
    }

    /// Writes an integer.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Writes a string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.put(bytes);
        self.put(b"\r\n");
    }

    /// Writes a string, or null.
    pub fn maybe_bulk(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Changes the protocol of the replies that follow.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Writes null in the place of a string.
    pub fn null(&mut self) {
        let null: &[u8] = if self.resp3() { b"_\r\n" } else { b"$-1\r\n" };
        self.put(null);
    }

    /// Writes null in the place of an array.
    pub fn null_array(&mut self) {
        let null: &[u8] = if self.resp3() { b"_\r\n" } else { b"*-1\r\n" };
        self.put(null);
    }

    /// Writes the header of an array, whose elements follow.
    pub fn array(&mut self, elements: usize) {
        self.number(b'*', elements as i64);
    }

    /// Writes the header of a map, whose keys and values follow: an array of both in RESP2.
    pub fn map(&mut self, pairs: usize) {
        if self.resp3() {
            self.number(b'%', pairs as i64);
        } else {
            self.array(2 * pairs);
        }
    }

    /// Writes the header of a set, whose elements follow: an array in RESP2.
    pub fn set(&mut self, elements: usize) {
        self.number(if self.resp3() { b'~' } else { b'*' }, elements as i64);
    }

    /// Writes the header of a pushed message, whose elements follow: an array in RESP2.
    pub fn push(&mut self, elements: usize) {
        self.number(if self.resp3() { b'>' } else { b'*' }, elements as i64);
    }

    /// Writes a boolean: 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        if self.resp3() {
            self.line(b'#', if value { b"t" } else { b"f" });
        } else {
            self.integer(i64::from(value));
        }
    }

    /// Writes a floating-point number, given as text: a string in RESP2.
    pub fn double_text(&mut self, text: &str) {
        if self.resp3() {
            self.line(b',', text.as_bytes());
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Writes text for people: a string in RESP2.
    pub fn verbatim(&mut self, text: &str) {
        if self.resp3() {
            self.number(b'=', text.len() as i64 + 4);
            self.put(b"txt:");
            self.put(text.as_bytes());
            self.put(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Appends encoded replies.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.put(encoded);
    }

    /// Returns the current end of the output, for [`truncate`](Self::truncate).
    #[must_use]
    pub fn mark(&self) -> usize {
        self.buffer.len()
    }

    /// Returns true if the output after `mark` begins with that byte.
    #[must_use]
    pub fn starts_with(&self, mark: usize, byte: u8) -> bool {
        self.buffer.get(mark) == Some(&byte)
    }

    /// Removes everything after `mark`.
    pub fn truncate(&mut self, mark: usize) {
        self.buffer.truncate(mark);
    }
}

#[cfg(test)]
#[allow(clippy::redundant_closure_for_method_calls)]
mod tests {
    use super::*;

    fn encoded(protocol: Protocol, reply: impl FnOnce(&mut Out<'_>)) -> String {
        let mut buffer = Vec::new();
        reply(&mut Out::new(&mut buffer, protocol));
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn what_is_too_much_is_dropped_and_seen_also_in_another_output() {
        let mut buffer = Vec::new();
        let mut out = Out {
            most: 30,
            ..Out::new(&mut buffer, Protocol::Resp2)
        };
        out.array(3);
        out.bulk(b"0123456789");
        assert!(!out.overflowed());
        for _ in 0..1000 {
            out.bulk(b"0123456789");
        }
        assert!(out.overflowed());
        assert!(buffer.len() < 50);
        let mut outer = Vec::new();
        let mut out = Out {
            most: 30,
            ..Out::new(&mut outer, Protocol::Resp2)
        };
        out.raw(&buffer);
        assert!(out.overflowed());
        out.truncate(0);
        out.status("OK");
        assert!(!out.overflowed() && outer == b"+OK\r\n");
    }

    #[test]
    fn replies_are_as_each_protocol_has_them() {
        let both = |reply: fn(&mut Out<'_>), two: &str, three: &str| {
            assert_eq!(encoded(Protocol::Resp2, reply), two);
            assert_eq!(encoded(Protocol::Resp3, reply), three);
        };
        both(|out| out.status("OK"), "+OK\r\n", "+OK\r\n");
        both(
            |out| out.error("ERR a\r\nb"),
            "-ERR a  b\r\n",
            "-ERR a  b\r\n",
        );
        both(
            |out| out.integer(i64::MIN),
            ":-9223372036854775808\r\n",
            ":-9223372036854775808\r\n",
        );
        both(|out| out.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n");
        both(|out| out.null(), "$-1\r\n", "_\r\n");
        both(|out| out.null_array(), "*-1\r\n", "_\r\n");
        both(|out| out.map(2), "*4\r\n", "%2\r\n");
        both(|out| out.set(2), "*2\r\n", "~2\r\n");
        both(|out| out.push(3), "*3\r\n", ">3\r\n");
        both(|out| out.boolean(true), ":1\r\n", "#t\r\n");
        both(|out| out.double_text("1.5"), "$3\r\n1.5\r\n", ",1.5\r\n");
        both(|out| out.verbatim("x"), "$1\r\nx\r\n", "=5\r\ntxt:x\r\n");
    }
}
