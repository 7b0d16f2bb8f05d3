//! A client of a server that speaks RESP2: requests in one direction, replies as they come.

use crate::tls::{Stream, encrypted};
use bristlecone_command::failure::{Failure, Outcome};
pub use bristlecone_command::resp::encode;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// How deep arrays may lie in each other.
const MAX_DEPTH: usize = 8;
/// How long a reply may take. No server is that slow: what waits for it is not to wait for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(Vec<u8>),
    /// `-ERR ...`
    Error(Vec<u8>),
    /// `:1`
    Integer(i64),
    /// `$3`
    Bulk(Vec<u8>),
    /// A null bulk string or array.
    Null,
    /// `*2`
    Array(Vec<Self>),
}

impl Reply {
    /// `+OK`
    pub fn ok() -> Self {
        Self::Status(b"OK".to_vec())
    }
}

/// A connection.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

impl Client {
    /// Connects.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self::over(Box::new(open(address)?)))
    }

    /// Connects with TLS to a server whose certificate rests on one of those in `certificates`.
    ///
    /// # Errors
    /// The message says what.
    pub fn connect_securely(address: &str, certificates: &Path) -> Outcome<Self> {
        let tcp = open(address).map_err(|e| Failure::new(format!("{address}: {e}")))?;
        Ok(Self::over(Box::new(encrypted(tcp, address, certificates)?)))
    }

    fn over(stream: Box<dyn Stream>) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
        }
    }

    /// Sends encoded requests.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(requests)?;
        stream.flush()
    }

    /// Sends one request and waits for its reply.
    pub fn call(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        let mut request = Vec::new();
        encode(&mut request, words);
        self.send(&request)?;
        self.reply()
    }

    /// The next reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        reply(&mut self.stream, 0)
    }
}

fn open(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The next reply, which lies so deep in others. Whoever answers is not trusted.
pub fn reply(from: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line
        .strip_suffix(b"\r\n")
        .ok_or_else(|| invalid("a line without an end"))?;
    let (kind, text) = line.split_first().ok_or_else(|| invalid("an empty line"))?;
    let number = || -> io::Result<i64> {
        let digits = str::from_utf8(text).ok();
        (digits.and_then(|digits| digits.parse().ok()))
            .ok_or_else(|| invalid("a length that is no number"))
    };
    match kind {
        b'+' => Ok(Reply::Status(text.to_vec())),
        b'-' => Ok(Reply::Error(text.to_vec())),
        b':' => Ok(Reply::Integer(number()?)),
        b'$' => match u64::try_from(number()?) {
            Err(_) => Ok(Reply::Null),
            Ok(length) => {
                let mut bytes = Vec::new();
                from.take(length).read_to_end(&mut bytes)?;
                let mut end = [0; 2];
                from.read_exact(&mut end)?;
                Ok(Reply::Bulk(bytes))
            }
        },
        b'*' if depth < MAX_DEPTH => match u64::try_from(number()?) {
            Err(_) => Ok(Reply::Null),
            Ok(count) => {
                // Nothing is made room for that has not come.
                let mut elements = Vec::new();
                for _ in 0..count {
                    elements.push(reply(from, depth + 1)?);
                }
                Ok(Reply::Array(elements))
            }
        },
        _ => Err(invalid("a reply that begins with neither + - : $ nor *")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_and_nonsense_is_refused() {
        let read = |text: &str| reply(&mut text.as_bytes(), 0);
        let nested = read("*3\r\n$2\r\nab\r\n:-7\r\n*2\r\n+OK\r\n$-1\r\n").unwrap();
        let inner = vec![Reply::ok(), Reply::Null];
        let expected = [
            Reply::Bulk(b"ab".to_vec()),
            Reply::Integer(-7),
            Reply::Array(inner),
        ];
        assert_eq!(nested, Reply::Array(expected.into()));
        assert_eq!(read("-ERR x\r\n").unwrap(), Reply::Error(b"ERR x".to_vec()));
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        let nonsense = [
            "",
            "\r\n",
            "HTTP/1.1 400\r\n",
            "$x\r\n",
            "$5\r\nab",
            "*99999999\r\n",
            ":1\n",
            &deep,
        ];
        for text in nonsense {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
