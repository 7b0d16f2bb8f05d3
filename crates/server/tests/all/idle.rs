//! Thousands of idle connections: each takes bounded memory, and others are served as before.

use crate::live::process::Process;
use crate::live::{Client, connect, encoded, resident, same};
use bristlecone_server::config::Settings;
use bristlecone_server::raise_open_files;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The most memory in bytes that the server may have for one of them, used or not.
const MAX_BYTES: u64 = 24 << 10;
/// How long the server may take to notice that clients came or went.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the server has `count` clients.
fn wait_for(client: &mut Client<TcpStream>, count: usize) {
    let waiting = Instant::now();
    loop {
        let info = client.call("INFO clients");
        if info.contains(&format!("connected_clients:{count}\r\n")) {
            return;
        }
        assert!(waiting.elapsed() < PATIENCE, "{count} expected: {info}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_hold_nobody_up() {
    let wanted = 10_000;
    // Both processes have a descriptor for each.
    let room = raise_open_files(&Settings {
        maxclients: wanted,
        ..Settings::default()
    });
    let idle = wanted.min(usize::try_from(room).unwrap());
    if idle < wanted {
        eprintln!(
            "only {idle} connections, of {wanted}: the limit of open files (ulimit -Hn) allows no more"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Process::for_clients(&dir.path().join("pool"), "mapped", idle + 2);
    let id = server.child.id();
    let mut client = Client::new(connect(server.address));
    same(&client.call("SET k v"), "+OK\n");
    let before = resident(id);
    let mut connections: Vec<_> = (0..idle)
        .map(|_| Client::new(connect(server.address)))
        .collect();
    wait_for(&mut client, idle + 1);
    let unused = resident(id);
    // Now each has done something, and is idle again.
    let value = [b'v'; 1000];
    for connection in &mut connections {
        connection.send(&encoded(&[b"SET", b"k", &value]));
        connection.send(&encoded(&[b"GET", b"k"]));
    }
    for connection in &mut connections {
        same(&connection.reply(), "+OK\n");
        assert_eq!(
            connection.reply().len(),
            "$1000\r\n\r\n".len() + value.len()
        );
    }
    let used = resident(id);
    let each = |now: u64| now.saturating_sub(before) / idle as u64;
    eprintln!(
        "{idle} idle connections: {} KiB before, {} KiB with them ({} bytes each), {} KiB after each had sent a command ({} bytes each)",
        before >> 10,
        unused >> 10,
        each(unused),
        used >> 10,
        each(used)
    );
    assert!(each(unused) <= MAX_BYTES && each(used) <= MAX_BYTES);
    // One that works, and one that comes.
    for i in 0..100 {
        same(&client.call(&format!("SET k{i} v")), "+OK\n");
    }
    let mut last = Client::new(connect(server.address));
    same(&last.call("GET k99"), "$1\nv\n");
    drop(connections);
    wait_for(&mut client, 2);
}
