//! Twelve connections made the server take 10 GB: `MULTI`, 900 times `GET` of 1 MB, `EXEC`, and no
//! reading. With thirty it was killed. Each connection had a limit, but all together had none; now
//! that is `maxmemory-clients`.

use crate::live::process::Process;
use crate::live::{Client, Live, connect, encoded, resident, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use bristlecone_server::memory::Share;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn with_budget(bytes: usize) -> Live {
    let settings = Settings {
        maxmemory_clients: Share::Bytes(bytes),
        ..settings()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let value = vec![b'v'; MIB];
    let mut client = live.client();
    client.send(&encoded(&[b"SET", b"big", &value]));
    same(&client.reply(), "+OK\n");
    live
}

/// Returns a number of `INFO stats`.
fn stat(client: &mut Client<TcpStream>, name: &str) -> usize {
    let info = client.call("INFO stats");
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.strip_prefix(':'));
    number.unwrap_or_else(|| panic!("{info}")).parse().unwrap()
}

/// Sends as much as the server accepts before it ends the connection.
fn send_on(client: &mut Client<TcpStream>, bytes: &[u8]) {
    let _ = client.stream.write_all(bytes);
}

/// Waits until `number` clients were evicted, while another one is served.
fn evicted(other: &mut Client<TcpStream>, number: usize) {
    let start = Instant::now();
    while stat(other, "evicted_clients") < number {
        assert!(
            start.elapsed() < PATIENCE,
            "{}",
            stat(other, "evicted_clients")
        );
        same(&other.call("PING"), "+PONG\n");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn transactions_that_nobody_reads_take_no_more_than_all_clients_may() {
    const CLIENTS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let process = Process::start(&dir.path().join("pool"), "mapped");
    let mut other = Client::new(connect(process.address));
    let value = vec![b'v'; MIB];
    other.send(&encoded(&[b"SET", b"big", &value]));
    same(&other.reply(), "+OK\n");
    same(&other.call("CONFIG SET maxmemory-clients 64mb"), "+OK\n");
    let before = resident(process.child.id());
    let mut request = encoded(&[b"MULTI"]);
    request.extend(encoded(&[b"GET", b"big"]).repeat(150));
    request.extend(encoded(&[b"EXEC"]));
    let mut deaf: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::new(connect(process.address));
            client.send(&request);
            client
        })
        .collect();
    let (start, mut most) = (Instant::now(), 0);
    while stat(&mut other, "evicted_clients") < CLIENTS {
        same(&other.call("PING"), "+PONG\n");
        most = most.max(resident(process.child.id()));
        assert!(start.elapsed() < PATIENCE);
    }
    let more = most.saturating_sub(before) as usize / MIB;
    assert!(more < 3 * 64, "{more} MiB");
    assert!(deaf.iter_mut().all(Client::is_closed));
    // A reply that is taken is no harm.
    other.send(&encoded(&[b"GET", b"big"]).repeat(200));
    for _ in 0..200 {
        assert!(other.reply().len() > MIB);
    }
}

#[test]
fn the_largest_client_goes_and_the_others_stay() {
    let live = with_budget(16 * MIB);
    let mut other = live.client();
    let mut small = live.client();
    small.send(&encoded(&[b"MULTI"]));
    small.send(&encoded(&[b"SET", b"small", &vec![b'v'; 2 * MIB]]));
    same(&small.reply(), "+OK\n");
    same(&small.reply(), "+QUEUED\n");
    // Commands that wait for EXEC.
    let mut queuing = live.client();
    let mut request = encoded(&[b"MULTI"]);
    request.extend(encoded(&[b"SET", b"k", &vec![b'v'; MIB]]).repeat(20));
    send_on(&mut queuing, &request);
    evicted(&mut other, 1);
    assert!(queuing.is_closed());
    // Half of a request.
    let mut slow = live.client();
    let mut request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$33554432\r\n".to_vec();
    request.resize(20 * MIB, b'v');
    send_on(&mut slow, &request);
    evicted(&mut other, 2);
    assert!(slow.is_closed());
    // Replies that are gathered before they are put.
    for n in 0..20 {
        other.send(&encoded(&[
            b"SET",
            format!("r{n}").as_bytes(),
            &vec![b'v'; MIB],
        ]));
        same(&other.reply(), "+OK\n");
    }
    let mut wide = live.client();
    wide.send(&encoded(&[b"BC.PREFIX", b"r", b"WITHVALUES"]));
    evicted(&mut other, 3);
    assert!(wide.is_closed());
    // Channels, by the length of their names.
    let mut hears = live.client();
    let subscribed = (0..200).take_while(|n| {
        let name = format!("{n}{}", "n".repeat(60 << 10));
        send_on(&mut hears, &encoded(&[b"SUBSCRIBE", name.as_bytes()]));
        hears.try_reply().is_ok()
    });
    let subscribed = subscribed.count();
    assert!((50..200).contains(&subscribed), "{subscribed}");
    evicted(&mut other, 4);
    assert!(hears.is_closed());
    same(&small.call("EXEC"), "*1\n+OK\n");
    let total = live.running().server().clients.budget().total();
    assert!(total < 16 * MIB, "{total}");
}

#[test]
fn messages_that_nobody_takes_are_held_for_all_clients_together() {
    let live = with_budget(16 * MIB);
    let mut deaf: Vec<_> = (0..4).map(|_| live.client()).collect();
    for client in &mut deaf {
        client.call("SUBSCRIBE news");
    }
    let mut other = live.client();
    let message = "m".repeat(MIB);
    // Each may have 32 MiB, and all have 16; the kernel takes some, too.
    for _ in 0..24 {
        other.send(&encoded(&[b"PUBLISH", b"news", message.as_bytes()]));
        other.reply();
        let total = live.running().server().clients.budget().total();
        assert!(total < 48 * MIB, "{total}");
    }
    evicted(&mut other, 1);
    assert!(deaf.iter_mut().any(Client::is_closed));
    same(&other.call("PING"), "+PONG\n");
}

#[test]
fn the_limit_is_set_and_shown_as_redis_does() {
    let live = Live::start();
    let mut client = live.client();
    let shown = |client: &mut Client<TcpStream>| {
        let reply = client.call("CONFIG GET maxmemory-clients");
        reply.lines().last().unwrap().to_owned()
    };
    assert_eq!(shown(&mut client), "25%");
    for (set, got) in [("0", "0"), ("100mb", "104857600"), ("5%", "5%")] {
        let line = format!("CONFIG SET maxmemory-clients {set}");
        same(&client.call(&line), "+OK\n");
        assert_eq!(shown(&mut client), got);
    }
    let refused = client.call("CONFIG SET maxmemory-clients 101%");
    assert!(
        refused.contains("argument must be a memory or percent value"),
        "{refused}"
    );
    client.call("CONFIG SET maxmemory-clients 100mb");
    let info = client.call("INFO memory");
    assert!(info.contains("maxmemory_clients:104857600"), "{info}");
    assert_eq!(stat(&mut client, "evicted_clients"), 0);
}

/// Keys that `BLPOP` waits for were not counted: 11 MB of request became some 400 MB that no limit
/// saw.
#[test]
fn keys_that_are_waited_for_count() {
    let live = with_budget(16 * MIB);
    let mut other = live.client();
    let mut request: Vec<Vec<u8>> = vec![b"BLPOP".to_vec()];
    request.extend((0..100_000).map(|i| format!("nobody pushes here {i}").into_bytes()));
    request.push(b"0".to_vec());
    let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    let mut waiting = live.client();
    send_on(&mut waiting, &encoded(&request));
    evicted(&mut other, 1);
    assert!(waiting.is_closed());
    // A key that is too long for any store waits without effect, and takes nothing.
    let mut long = live.client();
    long.send(&encoded(&[b"BLPOP", &vec![b'k'; MIB], b"0.05"]));
    same(&long.reply(), "*-1\n");
}
