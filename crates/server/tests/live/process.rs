//! A server in a process of its own: the test's program, started again for the one test that
//! serves.
//!
//! Such a program has a test `serves_when_it_is_asked_to` at its root, which calls [`serve`].

use super::{settings, store};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use bristlecone_server::{Running, raise_open_files};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The variables with the pool, the medium, and the most clients of the process that serves.
const POOL: &str = "SERVED_POOL";
const MEDIUM: &str = "SERVED_MEDIUM";
const CLIENTS: &str = "SERVED_CLIENTS";
/// The variable with the address for memcached clients.
const MEMCACHED: &str = "SERVED_MEMCACHED";

/// The text that the process prints before its address.
const READY: &str = "serving on ";
const MEMCACHED_READY: &str = "serving memcached on ";

/// Serves, in the process that was started for it.
pub fn serve() {
    let (Ok(path), Ok(medium)) = (std::env::var(POOL), std::env::var(MEDIUM)) else {
        return;
    };
    let medium = if medium == "journal" {
        MediumKind::Journal
    } else {
        MediumKind::Mapped
    };
    let mut settings = settings();
    if let Ok(clients) = std::env::var(CLIENTS) {
        settings.maxclients = clients.parse().unwrap();
        raise_open_files(&settings);
    }
    settings.memcached = std::env::var(MEMCACHED).ok();
    let running = Running::start(store(Path::new(&path), medium), settings).unwrap();
    let signals = running.heed_signals().unwrap();
    // Past the capture of the test's output.
    let mut out = std::io::stderr();
    if let Some(address) = running.memcached_address() {
        writeln!(out, "{MEMCACHED_READY}{address}").unwrap();
    }
    writeln!(out, "{READY}{}", running.address()).unwrap();
    running.wait(signals);
    running.stop().unwrap();
}

/// The process, killed at the end.
pub struct Process {
    pub child: Child,
    pub address: SocketAddr,
    pub memcached: Option<SocketAddr>,
}

impl Process {
    /// Starts a process that serves memcached clients, too.
    pub fn serving_memcached(pool: &Path, medium: &str) -> Self {
        let clients = Settings::default().maxclients;
        Self::with(pool, medium, (clients, Some("127.0.0.1:0")))
    }

    pub fn start(pool: &Path, medium: &str) -> Self {
        Self::for_clients(pool, medium, Settings::default().maxclients)
    }

    /// Starts a process that serves this number of clients.
    pub fn for_clients(pool: &Path, medium: &str, clients: usize) -> Self {
        Self::with(pool, medium, (clients, None))
    }

    fn with(pool: &Path, medium: &str, (clients, memcached): (usize, Option<&str>)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(address) = memcached {
            command.env(MEMCACHED, address);
        }
        let mut child = command
            .args(["serves_when_it_is_asked_to", "--exact", "--nocapture"])
            .env(POOL, pool)
            .env(MEDIUM, medium)
            .env(CLIENTS, clients.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut memcached = None;
        let address = lines
            .find_map(|line| {
                let line = line.unwrap();
                if let Some(address) = line.strip_prefix(MEMCACHED_READY) {
                    memcached = Some(address.parse().unwrap());
                }
                Some(line.strip_prefix(READY)?.parse().unwrap())
            })
            .unwrap();
        Self {
            child,
            address,
            memcached,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
