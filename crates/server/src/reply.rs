//! Replies, encoded in RESP2 or RESP3 as they are made.

use crate::budget::{Account, Part, Scratch};

/// Which protocol a connection speaks; `HELLO` changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// Bytes of replies that are kept for a connection: what comes when there are more is dropped, and the connection has to end.
pub const MAX_REPLY_BYTES: usize = 1 << 30;

/// Where replies go: the end of a connection's output.
///
/// It takes what makes it longer than [`MAX_REPLY_BYTES`], and nothing after that. So it can be told from the bytes that some
/// are missing, also if they were put into another output before.
///
/// One that is [for a client](Self::for_client) takes nothing, and gives away what it has, once that client is evicted.
#[derive(Debug)]
pub struct Out<'b> {
    buffer: &'b mut Vec<u8>,
    protocol: Protocol,
    most: usize,
    /// Who holds the buffer, and what for.
    holder: Option<(&'b Account, Part)>,
}

/// The least room that a client's buffer is given.
const MIN_CAPACITY: usize = 64;

impl<'b> Out<'b> {
    /// Replies to be put at the end of `buffer`.
    pub fn new(buffer: &'b mut Vec<u8>, protocol: Protocol) -> Self {
        Self {
            buffer,
            protocol,
            most: MAX_REPLY_BYTES,
            holder: None,
        }
    }

    /// As [`new`](Self::new); the buffer's room counts as what the client holds, from before it is taken.
    pub fn for_client(buffer: &'b mut Vec<u8>, protocol: Protocol, account: &'b Account) -> Self {
        Self {
            holder: Some((account, Part::Output)),
            ..Self::new(buffer, protocol)
        }
    }

    /// Replies to be gathered in another buffer before they are put here, held by the same client. What it held last counts until
    /// the command has ended.
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

    /// Begins to count memory for intermediate results of the command whose replies go here.
    #[must_use]
    pub fn scratch(&self) -> Scratch<'b> {
        Scratch::new(self.holder.map(|(account, _)| account))
    }

    /// Returns true if it has more than it may have: replies are missing.
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

    /// Makes room for so many bytes more, if the holder may have it.
    #[cold]
    fn make_room(&mut self, more: usize) -> bool {
        let Some((account, part)) = self.holder else {
            return true;
        };
        let len = self.buffer.len();
        // By half as much again, so that not every reply moves all of them.
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

    /// Returns the protocol that is spoken.
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

    /// A header with a number.
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

    /// A status, as `OK`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `OK`.
    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// An error: its code and what is wrong. Ends of lines in it become spaces.
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

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// A string of bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.put(bytes);
        self.put(b"\r\n");
    }

    /// A string of bytes, or that there is none.
    pub fn maybe_bulk(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// From here on another protocol is spoken.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// That there is no such thing, where a string of bytes would be.
    pub fn null(&mut self) {
        let null: &[u8] = if self.resp3() { b"_\r\n" } else { b"$-1\r\n" };
        self.put(null);
    }

    /// That there is no such thing, where an array would be.
    pub fn null_array(&mut self) {
        let null: &[u8] = if self.resp3() { b"_\r\n" } else { b"*-1\r\n" };
        self.put(null);
    }

    /// An array, whose elements follow.
    pub fn array(&mut self, elements: usize) {
        self.number(b'*', elements as i64);
    }

    /// A map, whose keys and values follow: an array of both in RESP2.
    pub fn map(&mut self, pairs: usize) {
        if self.resp3() {
            self.number(b'%', pairs as i64);
        } else {
            self.array(2 * pairs);
        }
    }

    /// A set, whose elements follow: an array in RESP2.
    pub fn set(&mut self, elements: usize) {
        self.number(if self.resp3() { b'~' } else { b'*' }, elements as i64);
    }

    /// A message that nobody asked for, whose elements follow: an array in RESP2.
    pub fn push(&mut self, elements: usize) {
        self.number(if self.resp3() { b'>' } else { b'*' }, elements as i64);
    }

    /// A truth value: 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        if self.resp3() {
            self.line(b'#', if value { b"t" } else { b"f" });
        } else {
            self.integer(i64::from(value));
        }
    }

    /// A floating-point number, given as text: a string of bytes in RESP2.
    pub fn double_text(&mut self, text: &str) {
        if self.resp3() {
            self.line(b',', text.as_bytes());
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Text for people: a string of bytes in RESP2.
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

    /// Replies that were encoded before.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.put(encoded);
    }

    /// Returns where the output ends now, for [`truncate`](Self::truncate).
    #[must_use]
    pub fn mark(&self) -> usize {
        self.buffer.len()
    }

    /// Returns true if what came after `mark` begins with that byte.
    #[must_use]
    pub fn starts_with(&self, mark: usize, byte: u8) -> bool {
        self.buffer.get(mark) == Some(&byte)
    }

    /// Takes back everything since `mark`: a command that fails has answered nothing before.
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
