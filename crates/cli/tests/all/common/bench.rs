//! A directory of its own for each test, and the command in it. The research command's tests use
//! this file too.

#![allow(dead_code)] // Either command's tests use most of it.

use super::PROGRAM;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub struct Bench {
    dir: TempDir,
}

/// The result of a command: status, and both outputs.
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The JSON object on the last line of standard output.
    pub fn json(&self) -> Value {
        let text = self.text();
        let last = text.lines().last().expect("a line of JSON");
        serde_json::from_str(last).expect("JSON on the last line")
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(
            self.status,
            Some(0),
            "stderr: {}\nstdout: {}",
            self.stderr,
            self.text()
        );
        self
    }

    /// Asserts status 1 and a message with all these parts, without the traces of a panic.
    #[track_caller]
    pub fn fails(self, parts: &[&str]) -> Self {
        self.ends(1, parts)
    }

    #[track_caller]
    pub fn ends(self, status: i32, parts: &[&str]) -> Self {
        assert_eq!(
            self.status,
            Some(status),
            "stderr: {}\nstdout: {}",
            self.stderr,
            self.text()
        );
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "no {part:?} in: {}",
                self.stderr
            );
        }
        self
    }
}

impl Bench {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("writing a test's file");
        path
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.dir.path());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        self.run_with(args, b"")
    }

    /// Runs with standard input. A command that does not read it is fine.
    pub fn run_with<S: AsRef<OsStr>>(&self, args: &[S], stdin: &[u8]) -> Ran {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting the command");
        let mut pipe = child.stdin.take().expect("a pipe");
        let stdin = stdin.to_vec();
        let feeder = std::thread::spawn(move || {
            let _ = pipe.write_all(&stdin);
        });
        let output = child.wait_with_output().expect("waiting for the command");
        feeder.join().expect("feeding standard input");
        Ran::new(output)
    }

    /// Runs a command line as a person would paste it into a shell.
    pub fn shell(&self, line: &str) -> Ran {
        let output = Command::new("sh")
            .args(["-c", line])
            .current_dir(self.dir.path())
            .output()
            .expect("starting a shell");
        Ran::new(output)
    }

    /// A pool `p` with these pairs.
    pub fn pool(&self, pairs: &[(&str, &str)]) -> PathBuf {
        self.run(&["create", "p"]).ok();
        for (key, value) in pairs {
            self.run(&["put", "p", "--", key, value]).ok();
        }
        self.path("p")
    }

    /// The whole content of a pool, as `scan --format json` prints it.
    pub fn content(&self, pool: &str) -> String {
        self.run(&["scan", pool, "--format", "json"]).ok().text()
    }
}
