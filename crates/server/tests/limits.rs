//! Hostile and broken clients: they only hurt themselves.

mod live;

use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use live::{Live, connect, encoded, resident, same, settings};
use std::time::{Duration, Instant};

#[test]
fn what_is_announced_takes_no_memory() {
    let live = Live::start();
    let before = resident(std::process::id());
    let mut clients: Vec<_> = (0..50).map(|_| live.client()).collect();
    for client in &mut clients {
        client.send(b"*1048576\r\n$536870912\r\nabc");
    }
    let mut other = live.client();
    same(&other.call("PING"), "+PONG\n");
    assert!(resident(std::process::id()).saturating_sub(before) < 64 << 20);
    let mut big = live.client();
    big.send(b"*2\r\n$3\r\nGET\r\n$1073741824\r\n");
    same(&big.reply(), "-ERR Protocol error: invalid bulk length\n");
    assert!(big.is_closed());
}

#[test]
fn an_announced_gibibyte_takes_no_memory_where_it_is_allowed() {
    let live = Live::with(
        Settings {
            proto_max_bulk_len: 1 << 30,
            ..settings()
        },
        MediumKind::Mapped,
    );
    let before = resident(std::process::id());
    let mut clients: Vec<_> = (0..50).map(|_| live.client()).collect();
    for client in &mut clients {
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\nabc");
    }
    let mut other = live.client();
    same(&other.call("SET k v"), "+OK\n");
    assert!(resident(std::process::id()).saturating_sub(before) < 64 << 20);
    // They go without having set anything.
    drop(clients);
    same(&other.call("GET k"), "$1\nv\n");
}

#[test]
fn garbage_is_refused_and_the_connection_closed() {
    let live = Live::start();
    for (garbage, told) in [
        ("*x\r\n".to_owned(), "invalid multibulk length"),
        ("*1\r\nfoo\r\n".to_owned(), "expected '$', got 'f'"),
        ("get \"\r\n".to_owned(), "unbalanced quotes in request"),
        ("x".repeat(70 << 10), "too big inline request"),
    ] {
        let mut client = live.client();
        client.send(garbage.as_bytes());
        same(&client.reply(), &format!("-ERR Protocol error: {told}\n"));
        assert!(client.is_closed());
    }
    let mut client = live.client();
    client.send(b"\r\n\r\n  \r\nPING\r\n");
    same(&client.reply(), "+PONG\n");
}

#[test]
fn large_values_go_in_and_out_and_their_limit_holds() {
    let live = Live::with(
        Settings {
            proto_max_bulk_len: 8 << 20,
            client_query_buffer_limit: 12 << 20,
            ..settings()
        },
        MediumKind::Mapped,
    );
    let mut client = live.client();
    let value = vec![b'v'; 8 << 20];
    client.send(&encoded(&[b"SET", b"k", &value]));
    same(&client.reply(), "+OK\n");
    client.send(&encoded(&[b"GET", b"k"]));
    assert_eq!(client.reply().len(), value.len() + "$8388608\r\n\r\n".len());
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8388609\r\n");
    same(
        &client.reply(),
        "-ERR Protocol error: invalid bulk length\n",
    );
    // More than a client may send before it is executed.
    let mut greedy = live.client();
    greedy.send(&encoded(&[b"MGET", &value[..7 << 20], b"x"])[..]);
    greedy.reply();
    let long = encoded(&[b"MGET", &value[..7 << 20], &value[..7 << 20]]);
    let _ = std::io::Write::write_all(&mut greedy.stream, &long);
    assert!(greedy.is_closed());
}

#[test]
fn idle_and_half_open_connections_hold_nobody_up() {
    let live = Live::start();
    let before = resident(std::process::id());
    let mut idle: Vec<_> = (0..400).map(|_| connect(live.address())).collect();
    let mut client = live.client();
    let start = Instant::now();
    while live.running().server().clients.len() < 401 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    same(&client.call("SET a 1"), "+OK\n");
    assert!(resident(std::process::id()).saturating_sub(before) < 100 << 20);
    // Half of a request, and half of a connection.
    for stream in &mut idle {
        std::io::Write::write_all(stream, b"*2\r\n$3\r\nGE").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    same(&client.call("GET a"), "$1\n1\n");
    while live.running().server().clients.len() > 1 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn too_many_clients_and_idle_ones_are_sent_away() {
    let live = Live::with(
        Settings {
            maxclients: 3,
            timeout: 1,
            ..settings()
        },
        MediumKind::Mapped,
    );
    let mut clients: Vec<_> = (0..3).map(|_| live.client()).collect();
    for client in &mut clients {
        same(&client.call("PING"), "+PONG\n");
    }
    let mut fourth = live.client();
    same(&fourth.reply(), "-ERR max number of clients reached\n");
    assert!(fourth.is_closed());
    let start = Instant::now();
    assert!(clients.iter_mut().all(|client| client.is_closed()));
    assert!(start.elapsed() < Duration::from_secs(15));
}
