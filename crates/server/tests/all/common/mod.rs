//! A real `redis-server` and this server's data layer behind the same interface: words in, the
//! bytes of the reply out.

#![allow(dead_code, reason = "not every test uses all of it")]

pub mod compare;

use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_server::command::{Access, Command, Keys};
use bristlecone_server::commands;
use bristlecone_server::data::watch::Watch;
use bristlecone_server::data::{Data, Reads};
use bristlecone_server::execute::exec::Queued;
use bristlecone_server::reply::{Out, Protocol};
use bristlecone_store::{Store, StoreOptions};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Returns a directory in memory, if there is such.
pub fn directory() -> TempDir {
    let fast = PathBuf::from("/dev/shm");
    let made = if fast.is_dir() {
        tempfile::tempdir_in(fast)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}

/// Set in the environment if a missing `redis-server` is a failure.
const NEEDED: &str = "BRISTLECONE_NEED_REDIS";

/// A real server, killed at the end.
pub struct Redis {
    child: Child,
    stream: BufReader<TcpStream>,
    _dir: TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    /// Starts one on a free port. Without a `redis-server` on this machine, prints that and returns
    /// `None`, or panics if [`NEEDED`] is set.
    pub fn start() -> Option<Self> {
        let dir = directory();
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let started = std::process::Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let test = std::thread::current().name().unwrap_or_default().to_owned();
                assert!(
                    std::env::var_os(NEEDED).is_none(),
                    "there is no redis-server"
                );
                // Past the capture of the test's output.
                let mut out = std::io::stderr();
                writeln!(
                    out,
                    "SKIPPED {test}: there is no redis-server to compare with"
                )
                .unwrap();
                return None;
            }
            Err(e) => panic!("redis-server: {e}"),
        };
        let until = Instant::now() + Duration::from_secs(20);
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(e) if Instant::now() > until => panic!("redis-server: {e}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true).unwrap();
        Some(Self {
            child,
            stream: BufReader::new(stream),
            _dir: dir,
        })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.stream.get_ref().peer_addr().unwrap()
    }

    /// Sends commands, all at once, and returns their replies.
    pub fn call_all(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
        commands.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut open = 1usize;
        while open > 0 {
            open -= 1;
            let start = reply.len();
            let read = self.stream.read_until(b'\n', &mut reply).unwrap();
            assert!(read > 0, "redis-server is gone");
            let number = || -> i64 {
                let digits = &reply[start + 1..reply.len() - 2];
                std::str::from_utf8(digits).unwrap().parse().unwrap()
            };
            match reply[start] {
                b'*' | b'~' | b'>' => open += usize::try_from(number()).unwrap_or(0),
                b'%' => open += 2 * usize::try_from(number()).unwrap_or(0),
                b'$' | b'=' => {
                    if let Ok(len) = usize::try_from(number()) {
                        let start = reply.len();
                        reply.resize(start + len + 2, 0);
                        self.stream.read_exact(&mut reply[start..]).unwrap();
                    }
                }
                _ => {}
            }
        }
        reply
    }
}

/// This server's data, and the state of a connection.
pub struct Ours {
    pub data: Data,
    table: HashMap<&'static str, &'static Command>,
    protocol: Protocol,
    db: usize,
    /// The database that `EXEC` would select, and the queued commands; `None` if one was refused.
    multi: Option<(usize, Option<Vec<Queued>>)>,
    watch: Watch,
    _dir: TempDir,
}

impl Ours {
    /// Returns empty databases.
    pub fn new() -> Self {
        let dir = directory();
        let pool = Pool::<Auto>::create(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
        let store = Store::create(&pool, "s", &StoreOptions::default()).unwrap();
        Self {
            data: Data::open(store).unwrap(),
            table: commands::data()
                .map(|command| (command.spec.name, command))
                .collect(),
            protocol: Protocol::Resp2,
            db: 0,
            multi: None,
            watch: Watch::default(),
            _dir: dir,
        }
    }

    /// Returns the reply to a command.
    pub fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut reply = Vec::new();
        let name = String::from_utf8_lossy(&words[0]).to_lowercase();
        let mut out = Out::new(&mut reply, self.protocol);
        if name == "hello" {
            self.protocol = Protocol::Resp3;
            return reply;
        }
        let known = SESSION.iter().find(|command| command.spec.name == name);
        let table = self.table.get(name.as_str()).copied();
        let Some(command) = checked(known.or(table), words, &mut out) else {
            if name == "exec" {
                let error = String::from_utf8_lossy(&reply[5..]).trim_end().to_owned();
                self.multi = None;
                self.watch.clear();
                reply.clear();
                Out::new(&mut reply, self.protocol).error(&format!(
                    "EXECABORT Transaction discarded because of: {error}"
                ));
            } else if let Some((_, queue)) = &mut self.multi {
                *queue = None;
            }
            return reply;
        };
        match (name.as_str(), &mut self.multi) {
            ("multi", None) => {
                self.multi = Some((self.db, Some(Vec::new())));
                out.status("OK");
            }
            ("multi", Some(_)) => out.error("ERR MULTI calls can not be nested"),
            ("watch", Some(_)) => out.error("ERR WATCH inside MULTI is not allowed"),
            ("watch", None) => {
                for key in &words[1..] {
                    self.data.watch(&mut self.watch, self.db, key).unwrap();
                }
                out.status("OK");
            }
            ("exec" | "discard", None) => {
                out.error(&format!("ERR {} without MULTI", name.to_uppercase()));
            }
            ("discard", Some(_)) => {
                self.multi = None;
                self.watch.clear();
                out.status("OK");
            }
            ("exec", Some(_)) => self.exec(&mut out),
            (_, Some((db, queue))) => {
                if let Some(queue) = queue {
                    queue.push(Queued {
                        command,
                        db: *db,
                        args: words.to_vec(),
                    });
                }
                if name == "select" {
                    *db = number(&words[1]);
                }
                out.status("QUEUED");
            }
            ("unwatch", None) => {
                self.watch.clear();
                out.status("OK");
            }
            ("select", None) => {
                self.db = number(&words[1]);
                out.status("OK");
            }
            _ => {
                let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                self.data
                    .run(command, self.db, &args, Reads::Applied, &mut out);
            }
        }
        reply
    }

    fn exec(&mut self, out: &mut Out<'_>) {
        match self.multi.take() {
            Some((db, Some(queue))) => {
                let mark = out.mark();
                self.data.exec(&queue, &mut self.watch, out);
                // A null array: nothing was done.
                if out.mark() > mark + 5 || queue.is_empty() {
                    self.db = db;
                }
            }
            _ => {
                self.watch.clear();
                out.error("EXECABORT Transaction discarded because of previous errors.");
            }
        }
    }

    /// Makes all writes durable, so that they need not be kept in memory.
    pub fn settle(&self) {
        self.data.settle(self.data.applied()).unwrap();
    }
}

/// Parses the number of an existing database.
fn number(word: &[u8]) -> usize {
    std::str::from_utf8(word).unwrap().parse().unwrap()
}

/// Commands of the connection, which only reply OK here.
const SESSION: [Command; 6] = [
    session("select", 2),
    session("multi", 1),
    session("exec", 1),
    session("discard", 1),
    session("watch", -2),
    session("unwatch", 1),
];

const fn session(name: &'static str, arity: i32) -> Command {
    Command::new(
        name,
        arity,
        Access::ReadOne,
        Keys::None,
        &["connection"],
        |_, _, out| {
            out.status("OK");
            Ok(())
        },
    )
}

/// Returns the command if it takes this number of words; otherwise its error is in `out`.
fn checked(
    command: Option<&'static Command>,
    words: &[Vec<u8>],
    out: &mut Out<'_>,
) -> Option<&'static Command> {
    let Some(command) = command else {
        let args: String = words[1..]
            .iter()
            .map(|word| format!("'{}' ", String::from_utf8_lossy(word)))
            .collect();
        let name = String::from_utf8_lossy(&words[0]);
        out.error(&format!(
            "ERR unknown command '{name}', with args beginning with: {args}"
        ));
        return None;
    };
    let (arity, len) = (command.spec.arity, words.len() as i32);
    if arity >= 0 && len != arity || len < -arity {
        let name = command.spec.name;
        out.error(&format!(
            "ERR wrong number of arguments for '{name}' command"
        ));
        return None;
    }
    let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    if let Some(Err(e)) = command.spec.check.map(|check| check(&args)) {
        out.error(&e.to_string());
        return None;
    }
    Some(command)
}

/// Returns the elements of an array's reply.
pub fn elements(reply: &[u8]) -> Vec<&[u8]> {
    let mut rest = reply;
    let header = frame(&mut rest, false);
    let mut elements = Vec::new();
    if header.starts_with(b"*") {
        while !rest.is_empty() {
            elements.push(frame(&mut rest, true));
        }
    }
    elements
}

/// Splits a reply off; only its first line, unless `whole`.
fn frame<'r>(rest: &mut &'r [u8], whole: bool) -> &'r [u8] {
    let all = *rest;
    let line = |rest: &mut &'r [u8]| -> &'r [u8] {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let (line, after) = rest.split_at(end);
        *rest = after;
        line
    };
    let mut open = 1;
    while open > 0 {
        open -= 1;
        let header = line(rest);
        if !whole {
            break;
        }
        let number = || -> usize {
            let digits = std::str::from_utf8(&header[1..header.len() - 2]).unwrap();
            digits.parse().unwrap_or(0)
        };
        match header[0] {
            b'*' | b'~' | b'>' => open += number(),
            b'%' => open += 2 * number(),
            b'$' | b'=' if header[1] != b'-' => *rest = &rest[number() + 2..],
            _ => {}
        }
    }
    &all[..all.len() - rest.len()]
}
