//! The workspace's tests, as `cargo test` runs them, but as many programs at a time as there are
//! processors, each with one thread. `cargo test` takes one program after the other, and waits for
//! the longest test of each while the other processors have nothing to do.

use crate::tools::{self, Executable, Outcome};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a lane takes next.
enum Job {
    Program(Executable),
    /// The examples in documentation, which cargo compiles and runs.
    Documentation,
}

/// Builds and runs all tests, with these options of `cargo test`.
pub fn run(args: &[String]) -> Outcome {
    let mut cargo = tools::cargo();
    cargo.args([
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let done = cargo
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !done.status.success() {
        return Err(format!("cargo test --no-run ended with {}", done.status));
    }
    let messages = String::from_utf8_lossy(&done.stdout);
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut programs: Vec<_> = messages.filter_map(|m| tools::test_program(&m)).collect();
    if programs.is_empty() {
        return Err("there are no tests".into());
    }
    // The last of the queue go first. The larger a program is, the more it tests.
    programs.sort_by_key(|program| program.path.metadata().map_or(0, |file| file.len()));
    let mut queue: Vec<_> = programs.into_iter().map(Job::Program).collect();
    queue.insert(queue.len().saturating_sub(2), Job::Documentation);
    let queue = Mutex::new(queue);
    let failed = Mutex::new(Vec::new());
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                while let Some(job) = next() {
                    if let Err(what) = execute(&job, args) {
                        failed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(what);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("tests failed: {}", failed.join("; "))),
    }
}

/// Runs it, and prints what it said when it has ended.
fn execute(job: &Job, args: &[String]) -> Outcome {
    let (mut command, name) = match job {
        Job::Program(program) => {
            let mut command = Command::new(&program.path);
            command.arg("--test-threads=1").current_dir(&program.folder);
            // As cargo has it.
            command.env("CARGO_MANIFEST_DIR", &program.folder);
            let folder = program.folder.strip_prefix(tools::root());
            let folder = folder.unwrap_or(&program.folder).display();
            (command, format!("{folder}: {}", program.name))
        }
        Job::Documentation => {
            let mut command = tools::cargo();
            command
                .args(["test", "--workspace", "--no-fail-fast", "--doc"])
                .args(args);
            (command, "documentation".into())
        }
    };
    let begun = Instant::now();
    let told = tempfile::NamedTempFile::new().map_err(|e| format!("a temporary file: {e}"))?;
    let out = |file: &File| {
        file.try_clone()
            .map_err(|e| format!("a temporary file: {e}"))
    };
    command
        .stdin(Stdio::null())
        .stdout(out(told.as_file())?)
        .stderr(out(told.as_file())?);
    let status = command.status().map_err(|e| format!("{name}: {e}"))?;
    show(
        told.path(),
        &format!("{name}: {status}, {} s", begun.elapsed().as_secs()),
    );
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} ({status})")),
    }
}

/// Prints a file under a title, without what another lane prints in between.
fn show(file: &Path, title: &str) {
    let text = std::fs::read(file).unwrap_or_default();
    print!("\n--- {title}\n{}", String::from_utf8_lossy(&text));
}
