//! A server in a process of its own.

use super::Bench;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// `bristlecone serve` on a free port, killed at the end.
pub struct Server {
    pub child: Child,
    pub address: String,
    out: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one over the pool `s.pool`.
    pub fn start(b: &Bench, args: &[&str]) -> Self {
        Self::with_stderr(b, args, Stdio::inherit())
    }

    /// One whose standard error is that.
    pub fn with_stderr(b: &Bench, args: &[&str], stderr: Stdio) -> Self {
        let mut child = b
            .command()
            .args(["serve", "s.pool", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("serving s.pool on ")
            .unwrap_or_else(|| panic!("{line:?}"));
        Self {
            address: address.into(),
            child,
            out,
        }
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// Sends commands and returns all replies.
    pub fn tell(&self, commands: &[String]) -> String {
        let mut stream = self.connect();
        let mut lines = commands.join("\r\n");
        lines.push_str("\r\nECHO that-was-the-last\r\n");
        let last = b"$17\r\nthat-was-the-last\r\n";
        stream.write_all(lines.as_bytes()).unwrap();
        let mut replies = Vec::new();
        while !replies.ends_with(last) {
            let mut some = [0; 4096];
            let read = stream.read(&mut some).unwrap();
            assert!(read > 0, "the server is gone");
            replies.extend_from_slice(&some[..read]);
        }
        String::from_utf8(replies).unwrap()
    }

    /// Tells it to stop and waits until it has.
    pub fn stop(&mut self) {
        self.connect().write_all(b"SHUTDOWN\r\n").unwrap();
        assert!(self.ends());
    }

    /// True if it ends by itself, with success.
    pub fn ends(&mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
