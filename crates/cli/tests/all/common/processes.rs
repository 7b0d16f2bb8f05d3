//! Commands that run in the background until a test ends them. The research command's tests use
//! this file too.

#![allow(dead_code)] // Either command's tests use most of it.

use super::Bench;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Returns the paths in a test's directory whose names begin so.
pub fn found(b: &Bench, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(b.dir()).unwrap().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(prefix));
    named.map(|entry| entry.path()).collect()
}

pub fn wait_for<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn start(b: &Bench, args: &[&str]) -> Child {
    let mut command = b.command();
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Starts a command and waits until it has a pool in a directory of its own.
pub fn start_and_wait(b: &Bench, args: &[&str], prefix: &str, pool: &str) -> (Child, PathBuf) {
    let child = start(b, args);
    let dir = wait_for("pool", || {
        found(b, prefix)
            .into_iter()
            .find(|dir| dir.join(pool).exists())
    });
    (child, dir)
}

/// Whether a process other than this one works on a path.
pub fn is_in_use(path: &Path) -> bool {
    let path = path.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(path))
}
