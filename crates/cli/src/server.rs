//! `bristlecone serve` as a process of its own, for what kills it or measures it.

use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::process::{kill, spawn_self};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout};

/// A server that runs, killed at the end.
pub struct Server {
    child: Child,
    /// Open as long as the server may write to it.
    _out: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    /// Starts a server on a free port, with more arguments of `serve`; returns when it can be
    /// connected to, with TLS or by memcached clients if they say where.
    pub fn start(pool: &Path, arguments: &[&str]) -> Outcome<Self> {
        let mut child = Self::spawn(pool, arguments)?;
        let out = child.stdout.take();
        let mut out = BufReader::new(out.ok_or_else(|| Failure::new("the server has no output"))?);
        let mut line = String::new();
        let mut told = out.read_line(&mut line);
        // The second line is about those.
        if arguments.contains(&"--tls-listen") || arguments.contains(&"--memcached") {
            line.clear();
            told = told.and_then(|_| out.read_line(&mut line));
        }
        let address = line.trim_end().rsplit_once(" on ");
        match (told, address) {
            (Ok(_), Some((_, address))) => Ok(Self {
                address: address.to_owned(),
                child,
                _out: out,
            }),
            _ => {
                kill(&mut child)?;
                Err(Failure::new("the server ended before it served"))
            }
        }
    }

    /// Starts a server and does not wait for it.
    pub fn spawn(pool: &Path, arguments: &[&str]) -> Outcome<Child> {
        spawn_self(|command| {
            command
                .arg("serve")
                .arg(pool)
                .args(["--listen", "127.0.0.1:0", "--set", "log-level=warn"])
                .args(arguments);
        })
    }

    /// Where it listens; for TLS or for memcached clients if it does.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Outcome {
        kill(&mut self.child).map(drop)
    }

    /// Tells it to stop, and waits until it has.
    pub fn stop(mut self) -> Outcome {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::TERM)
                .map_err(|e| Failure::new(format!("stopping the server failed: {e}")))?;
        }
        let status = self
            .child
            .wait()
            .map_err(|e| Failure::new(format!("waiting for the server failed: {e}")))?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("the server ended with {status}")))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, or nobody is there to be told.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
