//! A server in a process of its own, killed while clients write: every acknowledged write survives.

use crate::live::process::Process;
use crate::live::{Client, connect, encoded};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long writers have for their first acknowledgements.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes until the connection breaks. Returns the number of acknowledged writes. `begun` is
/// increased when the first ones were.
fn write_on(stream: TcpStream, writer: usize, first: usize, begun: &AtomicUsize) -> usize {
    let mut client = Client::new(stream);
    let mut acknowledged = first;
    loop {
        let mut batch = Vec::new();
        for i in acknowledged..acknowledged + 16 {
            let (key, value) = (format!("w{writer}:{i}"), format!("v{i}"));
            batch.extend(encoded(&[b"SET", key.as_bytes(), value.as_bytes()]));
        }
        if client.stream.write_all(&batch).is_err() {
            return acknowledged;
        }
        for _ in 0..16 {
            match client.try_reply() {
                Ok(reply) => assert_eq!(reply, "+OK\r\n"),
                Err(_) => return acknowledged,
            }
            acknowledged += 1;
            if acknowledged == first + 1 {
                // ORDERING: Relaxed; only the number matters.
                begun.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn killed(medium: &str) {
    const WRITERS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let mut acknowledged = [0; WRITERS];
    for round in 0..3 {
        let mut process = Process::start(&pool, medium);
        let begun = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (stream, first) = (connect(process.address), acknowledged[writer]);
                let begun = Arc::clone(&begun);
                std::thread::spawn(move || write_on(stream, writer, first, &begun))
            })
            .collect();
        let waiting = Instant::now();
        while begun.load(Ordering::Relaxed) < WRITERS && waiting.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50 + 70 * round));
        process.child.kill().unwrap();
        for (writer, thread) in writers.into_iter().enumerate() {
            let now = thread.join().unwrap();
            assert!(
                now > acknowledged[writer],
                "writer {writer} came to nothing"
            );
            acknowledged[writer] = now;
        }
        drop(process);
        let process = Process::start(&pool, medium);
        let mut client = Client::new(connect(process.address));
        for (writer, count) in acknowledged.iter().enumerate() {
            for i in 0..*count {
                let value = format!("v{i}");
                let reply = format!("${}\r\n{value}\r\n", value.len());
                assert_eq!(client.call(&format!("GET w{writer}:{i}")), reply);
            }
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_on_the_mapped_medium() {
    killed("mapped");
}

#[test]
fn nothing_acknowledged_is_lost_on_the_journal_medium() {
    killed("journal");
}
