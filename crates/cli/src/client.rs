//! A client of a server that speaks RESP2: requests in one direction, replies as they come.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a reply may take. No server is that slow: what waits for it is not to wait for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server answers.
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

/// Appends a request to a buffer.
pub fn encode(request: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to a vector does not fail.
    let _ = write!(request, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(request, "${}\r\n", word.len());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

/// A connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::with_capacity(64 << 10, stream),
        })
    }

    /// Sends encoded requests.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(requests)
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
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let number = || -> io::Result<i64> {
            let digits = str::from_utf8(rest).map_err(io::Error::other)?;
            digits.parse().map_err(io::Error::other)
        };
        match kind {
            b'+' => Ok(Reply::Status(rest.to_vec())),
            b'-' => Ok(Reply::Error(rest.to_vec())),
            b':' => Ok(Reply::Integer(number()?)),
            b'$' => {
                let Ok(length) = usize::try_from(number()?) else {
                    return Ok(Reply::Null);
                };
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Bulk(bytes))
            }
            b'*' => match number()? {
                length @ 0.. => (0..length)
                    .map(|_| self.reply())
                    .collect::<Result<_, _>>()
                    .map(Reply::Array),
                _ => Ok(Reply::Null),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
