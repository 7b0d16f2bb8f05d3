//! Child processes that work on a pool until they are killed.

use crate::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Starts this program again, with its output in a pipe.
///
/// # Errors
/// The system refuses.
pub fn spawn_self(arguments: impl FnOnce(&mut Command)) -> Outcome<Child> {
    let program = std::env::current_exe().map_err(|e| {
        Failure::new(format!(
            "finding this program to start it again failed: {e}"
        ))
    })?;
    let mut command = Command::new(&program);
    arguments(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(&program, "starting it again", &e))
}

/// Asks a process to end, by SIGTERM, and waits until it is gone.
///
/// # Errors
/// The system refuses.
pub fn end(child: &mut Child) -> Outcome<ExitStatus> {
    let failed = |e: std::io::Error| Failure::new(format!("ending a process failed: {e}"));
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    child.wait().map_err(failed)
}

/// SIGKILLs a process and waits until it is gone.
///
/// # Errors
/// The system refuses.
pub fn kill(child: &mut Child) -> Outcome<ExitStatus> {
    child
        .kill()
        .and_then(|()| child.wait())
        .map_err(|e| Failure::new(format!("killing the writer failed: {e}")))
}
