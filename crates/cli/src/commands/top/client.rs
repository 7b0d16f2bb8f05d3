//! A connection to a server: commands out, replies in.

use crate::args::Top;
use crate::client::{Reply, encode, reply};
use crate::tls::{Stream, encrypted};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::text::{escape, program, shell_word};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long the server has for each step.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest reply in bytes. Whoever answers there is not trusted.
const MAX_REPLY: u64 = 16 << 20;

/// A connection.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
    address: String,
}

impl Client {
    /// Connects, and logs in if there is a password.
    pub fn connect(args: &Top) -> Outcome<Self> {
        let address = if args.address.contains(':') {
            args.address.clone()
        } else {
            format!("{}:6379", args.address)
        };
        let tcp = open(&address)?;
        let stream: Box<dyn Stream> = match &args.tls_ca {
            None => Box::new(tcp),
            Some(file) => Box::new(encrypted(tcp, &address, file)?),
        };
        let mut client = Self {
            stream: BufReader::new(stream),
            address,
        };
        client.log_in(args)?;
        Ok(client)
    }

    fn log_in(&mut self, args: &Top) -> Outcome {
        let set =
            |flag: &Option<String>, variable| flag.clone().or_else(|| std::env::var(variable).ok());
        let user = set(&args.user, "BRISTLECONE_USER");
        let password = set(&args.password, "BRISTLECONE_PASSWORD");
        let words = match (&user, &password) {
            (None, None) => return Ok(()),
            (None, Some(password)) => vec!["AUTH", password],
            (Some(user), password) => vec!["AUTH", user, password.as_deref().unwrap_or("")],
        };
        self.call(&[&words])?;
        Ok(())
    }

    /// The replies to commands, which are sent together.
    pub fn call(&mut self, commands: &[&[&str]]) -> Outcome<Vec<Reply>> {
        let replies = self.try_call(commands).map_err(|e| {
            let address = &self.address;
            match e.kind() {
                io::ErrorKind::InvalidData => {
                    Failure::new(format!("{address}: that is no server of ours: {e}"))
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::new(format!(
                    "{address}: no answer within {} s",
                    PATIENCE.as_secs()
                )),
                _ => Failure::new(format!("{address}: the connection is lost: {e}")),
            }
        })?;
        for reply in &replies {
            if let Reply::Error(text) = reply {
                return Err(self.refused(text));
            }
        }
        Ok(replies)
    }

    fn refused(&self, text: &[u8]) -> Failure {
        let next = match text.split(|byte| *byte == b' ').next() {
            Some(b"NOAUTH") => {
                "\ngive --user and --password, or BRISTLECONE_USER and BRISTLECONE_PASSWORD"
            }
            Some(b"NOPERM") => "\nthe user needs the rights +info +latency +slowlog",
            _ => "",
        };
        Failure::new(format!("{}: {}{next}", self.address, escape(text)))
    }

    fn try_call(&mut self, commands: &[&[&str]]) -> io::Result<Vec<Reply>> {
        let mut request = Vec::new();
        for words in commands {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode(&mut request, &words);
        }
        let stream = self.stream.get_mut();
        stream.write_all(&request)?;
        stream.flush()?;
        let each = |_: &&[&str]| reply(&mut (&mut self.stream).take(MAX_REPLY), 0);
        commands.iter().map(each).collect()
    }
}

fn open(address: &str) -> Outcome<TcpStream> {
    let unknown = |e: &dyn std::fmt::Display| {
        Failure::Usage(format!("{address}: not an address, as 127.0.0.1:6379: {e}"))
    };
    let found = address.to_socket_addrs().map_err(|e| unknown(&e))?;
    let mut last = None;
    for place in found {
        match TcpStream::connect_timeout(&place, PATIENCE) {
            Ok(stream) => {
                let set = stream
                    .set_nodelay(true)
                    .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
                    .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                set.map_err(|e| Failure::new(format!("{address}: {e}")))?;
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    Err(match last {
        None => unknown(&"it has no address"),
        Some(e) if e.kind() == io::ErrorKind::ConnectionRefused => Failure::new(format!(
            "{address}: connection refused: no server listens there. To start one:\n  {} serve POOL --listen {}",
            program(),
            shell_word(address)
        )),
        Some(e) => Failure::new(format!("{address}: connecting failed: {e}")),
    })
}
