//! A redis-server to compare with.

use crate::failure::{Failure, Outcome};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take until it can be connected to.
const MAX_START: Duration = Duration::from_secs(20);

/// When Redis syncs its file of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// After each write: what was acknowledged is durable.
    Always,
    /// Once a second.
    EverySecond,
}

/// A redis-server, killed at the end.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    address: String,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    /// Starts one with its files in `dir`, and returns when it can be connected to.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(dir: &Path, fsync: Fsync) -> Outcome<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port
            .map_err(|e| Failure::new(format!("finding a free port failed: {e}")))?
            .port();
        let fsync = match fsync {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
        };
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", fsync])
            // It is not to rewrite its file while it is measured.
            .args(["--auto-aof-rewrite-percentage", "0"])
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => {
                    Failure::new("redis-server is not installed (Debian: redis-server)")
                }
                _ => Failure::new(format!("starting redis-server failed: {e}")),
            })?;
        let redis = Self {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let waiting = Instant::now();
        while let Err(e) = TcpStream::connect(&redis.address) {
            if waiting.elapsed() > MAX_START {
                return Err(Failure::new(format!("redis-server does not answer: {e}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
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
