//! The protocols that clients speak: requests, and where replies end.

use crate::resp::encode;
use std::io::{self, Write};

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Redis's.
    Redis,
    /// Memcached's classic text.
    Memcached,
}

impl Protocol {
    /// Appends a request for a key's value.
    pub(super) fn get(self, requests: &mut Vec<u8>, key: &[u8]) {
        match self {
            Self::Redis => encode(requests, &[b"GET", key]),
            Self::Memcached => {
                requests.extend_from_slice(b"get ");
                requests.extend_from_slice(key);
                requests.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends a request that gives a key a value.
    pub(super) fn set(self, requests: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        match self {
            Self::Redis => encode(requests, &[b"SET", key, value]),
            Self::Memcached => {
                requests.extend_from_slice(b"set ");
                requests.extend_from_slice(key);
                // Writing to a vector does not fail.
                let _ = write!(requests, " 0 0 {}\r\n", value.len());
                requests.extend_from_slice(value);
                requests.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Returns the bytes of the first reply, if it has come: to those two requests only, for their
    /// replies are counted and not looked at.
    ///
    /// # Errors
    /// What the server answers otherwise.
    pub(super) fn reply_length(self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line = &bytes[..end];
        let length = match (self, line) {
            (Self::Redis, [b'+', ..] | b"$-1\r") => Some(end + 1),
            (Self::Redis, [b'$', digits @ .., b'\r']) => {
                number(digits).map(|length| end + 1 + length + 2)
            }
            (Self::Memcached, b"STORED\r" | b"END\r") => Some(end + 1),
            (Self::Memcached, [b'V', b'A', b'L', b'U', b'E', b' ', words @ .., b'\r']) => {
                let length = words.split(|byte| *byte == b' ').nth(2).and_then(number);
                length.map(|length| end + 1 + length + b"\r\nEND\r\n".len())
            }
            _ => None,
        };
        let refused = || io::Error::other(String::from_utf8_lossy(line).into_owned());
        let length = length.ok_or_else(refused)?;
        Ok((length <= bytes.len()).then_some(length))
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_either_protocol() {
        let both = |protocol: Protocol| {
            let mut requests = Vec::new();
            protocol.get(&mut requests, b"k");
            protocol.set(&mut requests, b"key", b"abc");
            String::from_utf8(requests).unwrap()
        };
        assert_eq!(
            both(Protocol::Redis),
            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\nabc\r\n"
        );
        assert_eq!(
            both(Protocol::Memcached),
            "get k\r\nset key 0 0 3\r\nabc\r\n"
        );
    }

    #[test]
    fn replies_are_counted_when_they_are_whole() {
        for (protocol, bytes, length) in [
            (Protocol::Redis, &b"+OK\r\n+OK\r\n"[..], Some(5)),
            (Protocol::Redis, b"$-1\r\n", Some(5)),
            (Protocol::Redis, b"$3\r\nabc\r\n$", Some(9)),
            (Protocol::Redis, b"$3\r\nabc\r", None),
            (Protocol::Redis, b"$3", None),
            (Protocol::Redis, b"", None),
            (Protocol::Memcached, b"STORED\r\nEND\r\n", Some(8)),
            (Protocol::Memcached, b"END\r\n", Some(5)),
            (
                Protocol::Memcached,
                b"VALUE k 0 3\r\nabc\r\nEND\r\nV",
                Some(23),
            ),
            (Protocol::Memcached, b"VALUE k 0 3\r\nabc\r\nEND\r", None),
            (Protocol::Memcached, b"VALUE k 0 3", None),
        ] {
            assert_eq!(protocol.reply_length(bytes).unwrap(), length, "{bytes:?}");
        }
        for (protocol, bytes) in [
            (Protocol::Redis, &b"-ERR no\r\n"[..]),
            (Protocol::Redis, b"$-2\r\n"),
            (Protocol::Memcached, b"SERVER_ERROR no\r\n"),
            (Protocol::Memcached, b"VALUE k 0 x\r\n"),
        ] {
            let told = protocol.reply_length(bytes).unwrap_err().to_string();
            assert_eq!(
                told.as_bytes(),
                bytes.strip_suffix(b"\n").unwrap(),
                "{told}"
            );
        }
    }
}
