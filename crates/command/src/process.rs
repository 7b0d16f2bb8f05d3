//! Child processes that work on a pool until they are killed.

use crate::failure::{Failure, Outcome};
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
