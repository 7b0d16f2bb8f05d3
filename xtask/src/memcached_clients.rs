//! Clients of memcached in Python, JavaScript and Java, unchanged, against `bristlecone serve
//! --memcached`. What each does, and what it must find, is in `xtask/clients/memcached`.

use crate::memcached_suite::{program, serve};
use crate::tools::{Outcome, output, root, run as execute, target_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python's, as pip knows them; `clients.py` has a part for each.
const PYTHON: [(&str, &str); 3] = [
    ("pymemcache", "4.0.0"),
    ("python-memcached", "1.62"),
    ("pylibmc", "1.6.3"),
];

const MEMJS: &str = "memjs@1.3.2";

/// Where Maven has spymemcached, and the file's SHA-256.
const SPY: (&str, &str) = (
    "https://repo1.maven.org/maven2/net/spy/spymemcached/2.12.3/spymemcached-2.12.3.jar",
    "133092565f8308b9bcbfce83909d11f505d4094b856ead24e299ac93679bb4e2",
);

/// Fetches a file, unless it is there, and compares its sum.
const FETCH: &str = "
import hashlib, os, sys, urllib.request
url, sha256, path = sys.argv[1:]
if not os.path.exists(path):
    urllib.request.urlretrieve(url, path)
found = hashlib.sha256(open(path, 'rb').read()).hexdigest()
if found != sha256:
    sys.exit(f'{path}: SHA-256 {found}, not {sha256}: remove it to fetch it again')
";

/// Installs the clients into a folder of the build's.
fn installed() -> Outcome<PathBuf> {
    let folder = target_dir()?.join("memcached-clients");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let python = folder.join("venv");
    if !python.exists() {
        execute(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let packages = PYTHON.map(|(name, version)| format!("{name}=={version}"));
    execute(
        Command::new(python.join("bin/python"))
            .args(pip)
            .args(packages),
    )?;
    let npm = ["install", "--silent", "--no-save", "--prefix"];
    execute(Command::new("npm").args(npm).arg(&folder).arg(MEMJS))?;
    let fetch = ["-c", FETCH, SPY.0, SPY.1];
    execute(
        Command::new("python3")
            .args(fetch)
            .arg(folder.join("spy.jar")),
    )?;
    Ok(folder)
}

/// Runs all of them.
///
/// # Errors
/// A client finds something else than it must; what is missing to run it.
pub fn run(programs: Option<&Path>) -> Outcome {
    let program = program(programs)?;
    let folder = installed()?;
    let scripts = root().join("xtask/clients/memcached");
    let mut clients: Vec<(&str, Command)> = Vec::new();
    for (name, _) in PYTHON {
        let mut python = Command::new(folder.join("venv/bin/python"));
        python.arg(scripts.join("clients.py")).env("CLIENT", name);
        clients.push((name, python));
    }
    let mut node = Command::new("node");
    node.arg(scripts.join("memjs.js"));
    node.env("NODE_PATH", folder.join("node_modules"));
    clients.push(("memjs", node));
    let mut java = Command::new("java");
    java.arg("-cp").arg(folder.join("spy.jar"));
    java.arg(scripts.join("Spy.java"));
    clients.push(("spymemcached", java));
    for (name, mut command) in clients {
        let (_server, address) = serve(&program, "")?;
        let (host, port) = address
            .rsplit_once(':')
            .ok_or("an address without a port")?;
        output(command.args([host, port])).map_err(|e| format!("{name}: {e}"))?;
        println!("{name}: passed");
    }
    Ok(())
}
