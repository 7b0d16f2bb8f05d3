//! Memcached's own tests, against `bristlecone serve --memcached`.
//!
//! They are those of Debian's source package, which apt fetches with a list of its own: the
//! machine's are left as they are. Each test gets a new server, and is told its address in
//! `T_MEMD_USE_DAEMON`. What the test would give to a memcached as options is given to the server
//! as settings. A test that is about something that the server does not have is left out, and the
//! reason is printed.

use crate::server::Server;
use crate::tools::{Outcome, apt_install, cargo, output, run as execute, say, target_dir, which};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings of the server for a test, in TOML, where it is to have others.
const SETTINGS: [(&str, &str); 5] = [
    (
        "ascii-auth.t",
        "requirepass = \"x\"\nusers = [\"foo on >bar ~* +@all\", \"baaaz on >quux ~* +@all\"]",
    ),
    ("evictions.t", "memcached-memory = \"3mb\""),
    ("expirations.t", "enable-debug-command = \"yes\""),
    ("idle-timeout.t", "timeout = 3"),
    ("lru.t", "memcached-memory = \"64mb\""),
];

/// Tests that are left out, by the beginning of their names, and why.
const LEFT_OUT: [(&str, &str); 36] = [
    ("00-startup", "options of the program memcached"),
    ("64bit", "slabs"),
    ("binary-extstore", "extstore"),
    (
        "binary-sasl",
        "makes a password file of Cyrus SASL; the server's users are tested in crates/server",
    ),
    ("chunked-extstore", "extstore"),
    (
        "conn-limits",
        "memcached's limits of buffers; ours are tested in crates/server",
    ),
    ("daemonize", "an option of the program memcached"),
    ("dash-M", "slabs: how many items fit into two of them"),
    ("dyn-maxbytes", "slabs: cache_memlimit"),
    ("error-extstore", "extstore"),
    ("extstore", "extstore"),
    ("flush-all", "servers with -F and -C, which are no settings"),
    ("issue_67", "options of the program memcached"),
    (
        "item_size_max",
        "starts memcached with several sizes; ours is tested in crates/server",
    ),
    ("lru-crawler", "slabs: the crawler of their lists"),
    ("lru-maintainer", "slabs: the parts of their lists"),
    (
        "maxconns",
        "its checks pass, but then it stops a memcached that it has not started",
    ),
    ("misbehave", "seccomp"),
    ("proxy", "memcached's proxy"),
    (
        "restart",
        "memcached's -e; restarts are tested in crates/server",
    ),
    (
        "shutdown",
        "servers with and without -A; tested in crates/server",
    ),
    ("slab", "slabs"),
    (
        "ssl_",
        "TLS, which the address for memcached clients has not",
    ),
    ("stats-conns", "stats conns, of a Unix socket and of UDP"),
    ("udp", "UDP"),
    ("unixsocket", "a Unix socket"),
    ("watcher", "watch"),
    ("whitespace", "the white space of memcached's source"),
    ("issue_163", "slabs: the bytes of a class of them"),
    ("issue_22", "slabs: the evictions of a class of them"),
    ("issue_29", "slabs: the used chunks of a class of them"),
    ("issue_42", "slabs: what was allocated for them"),
    (
        "issue_50",
        "an option of the program memcached: binary only",
    ),
    ("issue_61", "-R: how often a connection yields to others"),
    ("strtol-testing", "slabs automove"),
    (
        "stats.t",
        "counts the names of a memcached without its maintainer, and uses stats cachedump",
    ),
];

/// Returns the folder of memcached's source, which is fetched if it is not there.
fn source() -> Outcome<PathBuf> {
    let folder = target_dir()?.join("memcached-suite");
    let unpacked = folder.join("source");
    if unpacked.join("t").is_dir() {
        return Ok(unpacked);
    }
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(folder.join("lists/partial")).map_err(io)?;
    let release =
        fs::read_to_string("/etc/os-release").map_err(|e| format!("/etc/os-release: {e}"))?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite =
        suite.ok_or("/etc/os-release names no VERSION_CODENAME: this needs Debian's apt")?;
    let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let list = format!("deb-src [signed-by={key}] http://deb.debian.org/debian {suite} main\n");
    fs::write(folder.join("sources.list"), list).map_err(io)?;
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        let place = |name: &str| folder.join(name).display().to_string();
        apt.current_dir(&folder)
            .args([
                "-qq",
                "-o",
                &format!("Dir::Etc::sourcelist={}", place("sources.list")),
            ])
            .args(["-o", "Dir::Etc::sourceparts=-"])
            .args(["-o", &format!("Dir::State::lists={}", place("lists"))])
            .args(["-o", "APT::Sandbox::User=root"])
            .args(words);
        execute(&mut apt)
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", "memcached"])?;
    let archive = fs::read_dir(&folder)
        .map_err(io)?
        .filter_map(Result::ok)
        .find(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("memcached_") && name.contains(".orig.tar")
        });
    let archive = archive.ok_or("apt-get source has fetched no memcached_*.orig.tar.*")?;
    let fresh = folder.join("unpacking");
    fs::create_dir_all(&fresh).map_err(io)?;
    let mut tar = Command::new("tar");
    tar.arg("xf")
        .arg(archive.path())
        .arg("-C")
        .arg(&fresh)
        .arg("--strip-components=1");
    execute(&mut tar)?;
    // The tests ask this program what it can: nothing that needs an option.
    let program = fresh.join("memcached-debug");
    fs::write(&program, "#!/bin/sh\n").map_err(io)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(io)?;
    fs::rename(&fresh, &unpacked).map_err(io)?;
    Ok(unpacked)
}

fn reason(test: &str) -> Option<&'static str> {
    let left_out = LEFT_OUT.iter().find(|(start, _)| test.starts_with(start));
    left_out.map(|(_, why)| *why)
}

/// Starts a server with these settings, in TOML. Returns it with its address for memcached clients.
pub fn serve(program: &Path, settings: &str) -> Outcome<(Server, String)> {
    let folder = target_dir()?.join("memcached-suite").join("pool");
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io)?;
    }
    fs::create_dir_all(&folder).map_err(io)?;
    let config = folder.join("serve.toml");
    fs::write(&config, settings).map_err(io)?;
    let mut serve = Command::new(program);
    serve
        .arg("serve")
        .arg(folder.join("pool"))
        .arg("--config")
        .arg(&config);
    serve.args(["--listen", "127.0.0.1:0", "--memcached", "127.0.0.1:0"]);
    // The tests expect as many clients as memcached has by default.
    serve.args(["--set", "maxclients=1024"]);
    let mut server = Server::start(&mut serve)?;
    server.after(" on ")?;
    let address = server.after("serving memcached on ")?;
    Ok((server, address))
}

/// Runs one test against a new server. Returns what it printed if it failed.
fn passes(program: &Path, source: &Path, test: &str) -> Outcome<Result<(), String>> {
    let settings = SETTINGS.iter().find(|(name, _)| *name == test);
    let (_server, address) = serve(program, settings.map_or("", |(_, settings)| settings))?;
    let mut perl = Command::new("timeout");
    perl.args(["100", "perl", &format!("t/{test}")])
        .current_dir(source);
    perl.env("T_MEMD_USE_DAEMON", &address);
    let done = perl.output().map_err(|e| format!("perl: {e}"))?;
    if done.status.success() {
        return Ok(Ok(()));
    }
    let printed = [&done.stdout[..], &done.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let wrong = printed.lines().filter(|line| !line.starts_with("ok "));
    Ok(Err(wrong.take(40).collect::<Vec<_>>().join("\n")))
}

/// Runs `memccapable`, libmemcached's test of what a server can, in text and binary.
fn is_capable(program: &Path) -> Outcome {
    if which("memccapable").is_none() {
        apt_install(&["libmemcached-tools"], None)?;
    }
    let (_server, address) = serve(program, "")?;
    let (host, port) = address
        .rsplit_once(':')
        .ok_or("an address without a port")?;
    execute(Command::new("memccapable").args(["-h", host, "-p", port]))
}

/// Returns `bristlecone`, of this folder or built.
pub fn program(programs: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(folder) = programs {
        return Ok(folder.join("bristlecone"));
    }
    execute(cargo().args(["build", "-p", "bristlecone-cli"]))?;
    Ok(target_dir()?.join("debug/bristlecone"))
}

/// Runs the tests, or those that were named.
///
/// # Errors
/// Tests that fail; what is missing to run them.
pub fn run(programs: Option<&Path>, tests: &[String]) -> Outcome {
    if which("perl").is_none() {
        apt_install(&["perl"], None)?;
    }
    let program = program(programs)?;
    say(output(Command::new(&program).arg("--version"))?.trim());
    let source = source()?;
    let files = fs::read_dir(source.join("t")).map_err(|e| e.to_string())?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".t")).collect();
    names.sort();
    let (mut passed, mut failed, mut left_out) = (0, Vec::new(), 0);
    for name in &names {
        if !tests.is_empty() && !tests.contains(name) {
            continue;
        }
        if let (Some(why), true) = (reason(name), tests.is_empty()) {
            println!("{name}: left out: {why}");
            left_out += 1;
            continue;
        }
        match passes(&program, &source, name)? {
            Ok(()) => {
                println!("{name}: passed");
                passed += 1;
            }
            Err(printed) => {
                println!("{name}: FAILED\n{printed}");
                failed.push(name.as_str());
            }
        }
    }
    println!(
        "{passed} passed, {} failed, {left_out} left out",
        failed.len()
    );
    if !failed.is_empty() {
        return Err(format!("failed: {}", failed.join(", ")));
    }
    if tests.is_empty() {
        is_capable(&program)?;
    }
    Ok(())
}
