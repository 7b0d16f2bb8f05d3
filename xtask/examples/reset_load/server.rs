//! The target that is another process: a server, by Redis' protocol.

use super::plan::{self, Content, Step};
use super::{Client, Target};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long the server has to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server's address.
pub struct Served(String);

/// A reply.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Text(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

/// A connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn send(&mut self, commands: &[Vec<&[u8]>]) -> Result<(), String> {
        let mut out = Vec::new();
        for command in commands {
            out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for part in command {
                out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
                out.extend_from_slice(part);
                out.extend_from_slice(b"\r\n");
            }
        }
        let sent = self.0.get_mut().write_all(&out);
        sent.map_err(|e| format!("sending to the server: {e}"))
    }

    fn receive(&mut self) -> Result<Reply, String> {
        let failed = |e: std::io::Error| format!("the server's reply: {e}");
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(failed)?;
        let line = line.trim_end();
        let number = |text: &str| {
            let number = text.parse::<i64>();
            number.map_err(|_| format!("the server's reply {line:?} has no number"))
        };
        match line.split_at_checked(1) {
            Some(("+", text)) => Ok(Reply::Text(text.to_owned())),
            Some((":", text)) => Ok(Reply::Number(number(text)?)),
            Some(("$", "-1")) => Ok(Reply::Bulk(None)),
            Some(("$", text)) => {
                let mut bytes = vec![0; number(text)? as usize + 2];
                self.0.read_exact(&mut bytes).map_err(failed)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Reply::Bulk(Some(bytes)))
            }
            Some(("*", text)) => {
                let replies = (0..number(text)?).map(|_| self.receive());
                Ok(Reply::Array(replies.collect::<Result<_, _>>()?))
            }
            _ => Err(format!("the server replies {line:?}")),
        }
    }

    fn call(&mut self, command: &[&[u8]]) -> Result<Reply, String> {
        self.send(&[command.to_vec()])?;
        self.receive()
    }
}

impl Served {
    /// Waits until a server answers there.
    pub fn new(address: &str) -> Result<Self, String> {
        let served = Self(address.to_owned());
        let start = Instant::now();
        loop {
            match served.connect().and_then(|mut c| c.call(&[b"PING"])) {
                Ok(_) => return Ok(served),
                Err(e) if start.elapsed() > PATIENCE => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn connect(&self) -> Result<Connection, String> {
        let stream = TcpStream::connect(&self.0).map_err(|e| format!("{}: {e}", self.0))?;
        stream
            .set_nodelay(true)
            .map_err(|e| format!("{}: {e}", self.0))?;
        Ok(Connection(BufReader::new(stream)))
    }
}

impl Target for Served {
    fn medium(&self) -> Result<String, String> {
        let Reply::Bulk(Some(info)) = self.connect()?.call(&[b"INFO", b"server"])? else {
            return Err("INFO replies something else".to_owned());
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let mut lines = info.lines();
        let medium = lines.find_map(|line| line.strip_prefix("medium:"));
        medium
            .map(str::to_owned)
            .ok_or(format!("INFO names no medium: {info}"))
    }

    fn check(&self) -> Result<Content, String> {
        let mut connection = self.connect()?;
        let Reply::Array(keys) = connection.call(&[b"KEYS", b"*"])? else {
            return Err("KEYS replies something else".to_owned());
        };
        let mut content = Content::new();
        for key in keys {
            let Reply::Bulk(Some(key)) = key else {
                return Err("KEYS names no key".to_owned());
            };
            match connection.call(&[b"GET", &key])? {
                Reply::Bulk(Some(value)) => content.insert(key, value),
                other => return Err(format!("GET {}: {other:?}", key.escape_ascii())),
            };
        }
        Ok(content)
    }

    fn client(&self) -> Result<Box<dyn Client>, String> {
        Ok(Box::new(self.connect()?))
    }
}

impl Client for Connection {
    fn commit(&mut self, thread: u16, step: &Step) -> Result<(), String> {
        let counter = plan::counter(thread);
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        if step.counts {
            commands.push(vec![b"INCR", &counter]);
            commands.push(vec![b"INCR", plan::SHARED]);
        }
        for (key, value) in &step.changes {
            commands.push(match value {
                Some(value) => vec![b"SET", key, value],
                None => vec![b"DEL", key],
            });
        }
        let executed = commands.len();
        if executed > 1 {
            commands.insert(0, vec![b"MULTI"]);
            commands.push(vec![b"EXEC"]);
        }
        self.send(&commands)?;
        let mut last = self.receive()?;
        for _ in 1..commands.len() {
            last = self.receive()?;
        }
        match last {
            Reply::Array(replies) if replies.len() == executed => Ok(()),
            Reply::Text(text) if text == "OK" && executed == 1 => Ok(()),
            other => Err(format!("the server replies {other:?}")),
        }
    }
}
