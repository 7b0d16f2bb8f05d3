//! A server to try things on.

use crate::tools::Outcome;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long servers have to start and to answer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the chore.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `bristlecone serve`, and the lines that it prints.
pub struct Server {
    process: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts it.
    ///
    /// # Errors
    /// The system does not start it.
    pub fn start(command: &mut Command) -> Outcome<Self> {
        let started = command.stdout(Stdio::piped()).spawn();
        let mut process = Running(started.map_err(|e| format!("bristlecone serve: {e}"))?);
        let out = process.0.stdout.take().ok_or("no output of the server")?;
        Ok(Self {
            process,
            lines: BufReader::new(out).lines(),
        })
    }

    /// Returns the part of its next line after `word`.
    ///
    /// # Errors
    /// It has ended, or the line has no such word.
    pub fn after(&mut self, word: &str) -> Outcome<String> {
        let line = self.lines.next().ok_or("the server ended early")?;
        let line = line.map_err(|e| e.to_string())?;
        let (_, rest) = line
            .rsplit_once(word)
            .ok_or(format!("{line:?}: no {word:?}"))?;
        Ok(rest.to_owned())
    }

    /// Waits until it has ended, which it was told to.
    ///
    /// # Errors
    /// It did not end with success.
    pub fn ended(mut self) -> Outcome {
        match self.process.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the server ended with {status}")),
            Err(e) => Err(format!("waiting for the server: {e}")),
        }
    }
}

/// Sends requests, and compares the lines of the replies.
///
/// # Errors
/// They are others.
pub fn call<'r>(
    address: &str,
    requests: &str,
    replies: impl IntoIterator<Item = &'r &'r str>,
) -> Outcome {
    let failed = |e: std::io::Error| format!("{address}: {e}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut lines = BufReader::new(stream.try_clone().map_err(failed)?).lines();
    stream.write_all(requests.as_bytes()).map_err(failed)?;
    for expected in replies {
        let reply = lines
            .next()
            .ok_or("the server has hung up")?
            .map_err(failed)?;
        if reply != **expected {
            return Err(format!("{address}: {reply:?} instead of {expected:?}"));
        }
    }
    Ok(())
}
