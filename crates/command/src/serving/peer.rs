//! Servers to compare with: redis-server and memcached.

use crate::failure::{Failure, Outcome};
use std::ffi::OsStr;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take until one can be connected to.
const MAX_START: Duration = Duration::from_secs(20);
/// The MiB that memcached may take for items: so many that it evicts none.
const CACHE_MIB: &str = "4096";

/// When Redis syncs its file of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// After each write: what was acknowledged is durable.
    Always,
    /// Once a second.
    EverySecond,
}

/// A server of somebody else's, killed at the end.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    address: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Starts a redis-server with its files in `dir`, and returns when it can be connected to.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn redis(dir: &Path, fsync: Fsync) -> Outcome<Self> {
        let fsync = match fsync {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
        };
        Self::start("redis-server", |command, port| {
            command
                .args(["--port", port, "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "yes", "--appendfsync", fsync])
                // It is not to rewrite its file while it is measured.
                .args(["--auto-aof-rewrite-percentage", "0"])
                .arg("--dir")
                .arg(dir);
        })
    }

    /// Starts a memcached with so many threads, and returns when it can be connected to. Its items
    /// are in memory or, given a `file`, in that one (its option `-e`).
    ///
    /// # Errors
    /// As above.
    pub fn memcached(file: Option<&Path>, threads: usize) -> Outcome<Self> {
        Self::start("memcached", |command, port| {
            command
                .args(["-p", port, "-l", "127.0.0.1", "-m", CACHE_MIB])
                .args(["-t", &threads.to_string()])
                // It refuses to be the superuser's otherwise.
                .args(["-u", "root"]);
            if let Some(file) = file {
                command.args([OsStr::new("-e"), file.as_os_str()]);
            }
        })
    }

    fn start(program: &str, arguments: impl FnOnce(&mut Command, &str)) -> Outcome<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port
            .map_err(|e| Failure::new(format!("finding a free port failed: {e}")))?
            .port();
        let mut command = Command::new(program);
        arguments(&mut command, &port.to_string());
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => {
                    Failure::new(format!("{program} is not installed (Debian: {program})"))
                }
                _ => Failure::new(format!("starting {program} failed: {e}")),
            })?;
        let peer = Self {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let waiting = Instant::now();
        while let Err(e) = TcpStream::connect(&peer.address) {
            if waiting.elapsed() > MAX_START {
                return Err(Failure::new(format!("{program} does not answer: {e}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(peer)
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}
