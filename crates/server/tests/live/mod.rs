//! A server on a free port, over a pool in its own directory, and clients that talk to it over TCP.

#![allow(dead_code, missing_docs)]

pub mod process;

use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use bristlecone_server::Running;
use bristlecone_server::config::Settings;
use bristlecone_store::{Store, StoreOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// No test waits longer than this for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Live {
    running: Option<Running>,
    dir: TempDir,
    medium: MediumKind,
}

/// Returns settings for tests: a free port of this machine.
pub fn settings() -> Settings {
    Settings {
        listen: "127.0.0.1:0".into(),
        threads: 2,
        ..Settings::default()
    }
}

/// Opens the store in a pool. Creates both if they do not exist.
pub fn store(path: &Path, medium: MediumKind) -> Store<Auto> {
    let mut options = PoolOptions::default();
    options.media.medium = Some(medium);
    let choice = StoreOptions::default();
    if path.exists() {
        let pool = Pool::<Auto>::open(path, &options).unwrap();
        Store::open(&pool, "store", &choice).unwrap()
    } else {
        let pool = Pool::<Auto>::create(path, &options).unwrap();
        Store::create(&pool, "store", &choice).unwrap()
    }
}

impl Live {
    pub fn start() -> Self {
        Self::with(settings(), MediumKind::Mapped)
    }

    pub fn with(settings: Settings, medium: MediumKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut live = Self {
            running: None,
            dir,
            medium,
        };
        live.open(settings);
        live
    }

    /// Serves this store, which is not in the directory: it cannot be reopened.
    pub fn over(store: Store<Auto>, settings: Settings) -> Self {
        Self {
            running: Some(Running::start(store, settings).unwrap()),
            dir: tempfile::tempdir().unwrap(),
            medium: MediumKind::Dram,
        }
    }

    fn open(&mut self, settings: Settings) {
        let store = store(&self.dir.path().join("pool"), self.medium);
        self.running = Some(Running::start(store, settings).unwrap());
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.running().address()
    }

    pub fn stop(&mut self) {
        self.running.take().unwrap().stop().unwrap();
    }

    pub fn reopen(&mut self, settings: Settings) {
        self.stop();
        self.open(settings);
    }

    pub fn client(&self) -> Client<TcpStream> {
        Client::new(connect(self.address()))
    }
}

/// Returns the resident memory of a process in bytes.
pub fn resident(process: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub struct Client<S> {
    pub stream: S,
    read: Vec<u8>,
}

/// Encodes a request.
pub fn encoded(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            read: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns the next reply, as it came.
    pub fn reply(&mut self) -> String {
        self.try_reply().unwrap()
    }

    pub fn try_reply(&mut self) -> io::Result<String> {
        let reply = self.reply_bytes()?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    pub fn reply_bytes(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(length) = bristlecone_server::resp::reply_length(&self.read) {
                let rest = self.read.split_off(length);
                return Ok(std::mem::replace(&mut self.read, rest));
            }
            let mut chunk = [0; 16384];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.read.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Sends a command, whose words are separated by spaces, and returns the reply.
    pub fn call(&mut self, command: &str) -> String {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.send(&encoded(&words));
        self.reply()
    }

    /// Returns true if the server closes the connection, after any replies.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

#[track_caller]
pub fn same(reply: &str, expected: &str) {
    assert_eq!(reply, expected.replace('\n', "\r\n"));
}
