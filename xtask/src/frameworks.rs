//! Frameworks that keep their jobs, locks and limits in Redis, unchanged, against `bristlecone
//! serve`, which is killed between their two phases. What each does, and what it must find, is in
//! `xtask/clients/frameworks`.

use crate::memcached_suite::program;
use crate::server::Server;
use crate::tools::{Outcome, output, root, run as execute, target_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python's: their names in `frameworks.py`, and packages as pip knows them.
const PYTHON: [(&str, &[&str]); 4] = [
    ("redis", &["redis==6.4.0"]),
    ("huey", &["huey==2.5.3"]),
    ("dramatiq", &["dramatiq[redis]==1.18.0"]),
    ("celery", &["celery==5.5.3"]),
];

/// JavaScript's: their names in `frameworks.js`, and packages as npm knows them.
const NODE: [(&str, &[&str]); 4] = [
    ("bull", &["bull@4.16.5"]),
    ("bee-queue", &["bee-queue@1.7.1"]),
    (
        "rate-limiter-flexible",
        &["rate-limiter-flexible@5.0.5", "ioredis@5.4.1"],
    ),
    ("redlock", &["redlock@4.2.0"]),
];

/// Installs all of them into a folder of the build's.
fn installed() -> Outcome<PathBuf> {
    let folder = target_dir()?.join("frameworks");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let python = folder.join("venv");
    if !python.exists() {
        execute(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
    }
    let mut pip = Command::new(python.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet"]);
    pip.arg("--disable-pip-version-check");
    execute(pip.args(PYTHON.iter().flat_map(|(_, packages)| *packages)))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-save", "--prefix"]);
    npm.arg(&folder);
    execute(npm.args(NODE.iter().flat_map(|(_, packages)| *packages)))?;
    Ok(folder)
}

/// Returns the command that runs a framework's phases.
fn command(name: &str, folder: &Path) -> Command {
    let scripts = root().join("xtask/clients/frameworks");
    let mut command = if PYTHON.iter().any(|(known, _)| *known == name) {
        let mut python = Command::new(folder.join("venv/bin/python"));
        python.arg(scripts.join("frameworks.py"));
        python
    } else {
        let mut node = Command::new("node");
        node.arg(scripts.join("frameworks.js"));
        node.env("NODE_PATH", folder.join("node_modules"));
        node
    };
    command.env("FRAMEWORK", name);
    command
}

/// Runs one of them.
fn framework(name: &str, program: &Path, folder: &Path) -> Outcome {
    let pool = folder.join("pool");
    if pool.exists() {
        fs::remove_dir_all(&pool).map_err(|e| format!("{}: {e}", pool.display()))?;
    }
    fs::create_dir_all(&pool).map_err(|e| format!("{}: {e}", pool.display()))?;
    for phase in ["before", "after"] {
        let mut serve = Command::new(program);
        serve.arg("serve").arg(pool.join("pool"));
        // Dropped, and so killed, when the phase ends.
        let mut server = Server::start(serve.args(["--listen", "127.0.0.1:0"]))?;
        let address = server.after(" on ")?;
        let (host, port) = address
            .rsplit_once(':')
            .ok_or("an address without a port")?;
        let done = output(command(name, folder).args([phase, host, port]));
        done.map_err(|e| format!("{name}, {phase} the kill: {e}"))?;
    }
    Ok(())
}

/// Runs those that are named, or all.
///
/// # Errors
/// One of them finds something else than it must; what is missing to run it.
pub fn run(programs: Option<&Path>, names: &[String]) -> Outcome {
    let program = program(programs)?;
    let folder = installed()?;
    let all = PYTHON.iter().chain(&NODE).map(|(name, _)| *name);
    let all: Vec<&str> = all.collect();
    if let Some(unknown) = names.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(format!("{unknown}: none of {}", all.join(", ")));
    }
    for name in all {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            framework(name, &program, &folder)?;
            println!("{name}: passed");
        }
    }
    Ok(())
}
