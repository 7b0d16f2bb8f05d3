//! `serve`: settings, signals, and a server that is killed while clients write.

mod common;

use common::Bench;
use common::server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long writers have for their first acknowledgements.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends `request` and reads as many bytes as `reply` has.
fn ask(stream: &mut TcpStream, request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut found = vec![0; reply.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(String::from_utf8_lossy(&found), reply, "{request}");
}

/// Writes until the connection breaks; how many writes were acknowledged. `begun`: goes up when the first ones were.
fn write_on(mut stream: TcpStream, writer: usize, first: usize, begun: &AtomicUsize) -> usize {
    let mut acknowledged = first;
    loop {
        let batch: String = (acknowledged..acknowledged + 16)
            .map(|i| format!("SET w{writer}:{i} v{i}\r\n"))
            .collect();
        let mut replies = [0; 16 * 5];
        if stream.write_all(batch.as_bytes()).is_err() {
            return acknowledged;
        }
        let mut read = 0;
        while read < replies.len() {
            match stream.read(&mut replies[read..]) {
                Ok(n) if n > 0 => read += n,
                _ => break,
            }
        }
        assert!(b"+OK\r\n".repeat(16).starts_with(&replies[..read]));
        if acknowledged == first && read >= 5 {
            // ORDERING: Relaxed; only the number matters.
            begun.fetch_add(1, Ordering::Relaxed);
        }
        acknowledged += read / 5;
        if read < replies.len() {
            return acknowledged;
        }
    }
}

fn killed(medium: &str) {
    let b = Bench::new();
    const WRITERS: usize = 4;
    let mut acknowledged = [0; WRITERS];
    for round in 0..3 {
        let mut server = Server::start(&b, &["--medium", medium]);
        let begun = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (stream, first) = (server.connect(), acknowledged[writer]);
                let begun = Arc::clone(&begun);
                std::thread::spawn(move || write_on(stream, writer, first, &begun))
            })
            .collect();
        let waiting = Instant::now();
        while begun.load(Ordering::Relaxed) < WRITERS && waiting.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50 + 70 * round));
        server.child.kill().unwrap();
        for (writer, thread) in writers.into_iter().enumerate() {
            let now = thread.join().unwrap();
            assert!(
                now > acknowledged[writer],
                "writer {writer} came to nothing"
            );
            acknowledged[writer] = now;
        }
        drop(server);
        let server = Server::start(&b, &["--medium", medium]);
        let mut stream = server.connect();
        for (writer, count) in acknowledged.iter().enumerate() {
            for i in 0..*count {
                let value = format!("v{i}");
                let reply = format!("${}\r\n{value}\r\n", value.len());
                ask(&mut stream, &format!("GET w{writer}:{i}\r\n"), &reply);
            }
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_on_the_mapped_medium() {
    killed("mapped");
}

#[test]
fn what_was_acknowledged_survives_a_kill_on_the_journal_medium() {
    killed("journal");
}

#[test]
fn it_ends_when_it_is_told_to_and_keeps_what_it_has() {
    let b = Bench::new();
    b.file("serve.toml", "requirepass = \"secret\"\nmaxclients = 9\n");
    let config = ["--config", "serve.toml", "--set", "maxclients=7"];
    let mut server = Server::start(&b, &config);
    let mut stream = server.connect();
    ask(
        &mut stream,
        "GET k\r\n",
        "-NOAUTH Authentication required.\r\n",
    );
    ask(&mut stream, "AUTH secret\r\n", "+OK\r\n");
    ask(
        &mut stream,
        "CONFIG GET maxclients\r\n",
        "*2\r\n$10\r\nmaxclients\r\n$1\r\n7\r\n",
    );
    ask(&mut stream, "SET k v\r\n", "+OK\r\n");
    let pid = server.child.id().to_string();
    b.shell(&format!("kill -TERM {pid}")).ok();
    assert!(server.ends());
    let mut server = Server::start(&b, &["--design", "nvtree"]);
    let mut stream = server.connect();
    ask(&mut stream, "GET k\r\n", "$1\r\nv\r\n");
    stream.write_all(b"SHUTDOWN\r\n").unwrap();
    assert!(server.ends());
}

#[test]
fn wrong_settings_are_named_with_their_place() {
    let b = Bench::new();
    b.file("serve.toml", "timeout = 1\nmaxclients = \"many\"\n");
    b.run(&["serve", "s.pool", "--config", "serve.toml"])
        .ends(2, &["serve.toml:2", "maxclients", "many"]);
    b.run(&["serve", "s.pool", "--set", "nothing=1"])
        .ends(2, &["--set", "nothing"]);
    b.run(&["serve", "s.pool", "--listen", "nowhere"])
        .fails(&["listening on nowhere failed"]);
    b.run(&["serve", "s.pool", "--tls-listen", "127.0.0.1:0"])
        .fails(&["tls-cert"]);
}
