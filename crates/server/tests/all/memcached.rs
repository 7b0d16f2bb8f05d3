//! Memcached clients over TCP: what memcached itself cannot be asked about, as restarts, users,
//! eviction by the server's budget, limits.

use crate::live::process::Process;
use crate::live::{Live, connect, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::{Allowed, Settings};
use bristlecone_server::memory::Share;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub fn with_memcached() -> Settings {
    Settings {
        memcached: Some("127.0.0.1:0".into()),
        ..settings()
    }
}

fn address(live: &Live) -> SocketAddr {
    live.running().memcached_address().unwrap()
}

pub struct Client(TcpStream);

impl Client {
    pub fn of(live: &Live) -> Self {
        Self(connect(address(live)))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut reply = vec![0; length];
        self.0.read_exact(&mut reply).unwrap();
        reply
    }

    /// Sends commands to which there is no reply, in which `|` is a line's end.
    pub fn tells(&mut self, commands: &str) {
        self.send((commands.replace('|', "\r\n") + "\r\n").as_bytes());
    }

    /// Sends commands, in which `|` is a line's end, and compares all that comes.
    #[track_caller]
    pub fn says(&mut self, commands: &str, replies: &str) {
        self.tells(commands);
        let expected = replies.replace('|', "\r\n") + "\r\n";
        let mut reply = Vec::new();
        while reply.len() < expected.len() && expected.as_bytes().starts_with(&reply) {
            let mut chunk = [0; 4096];
            let read = self.0.read(&mut chunk).unwrap();
            assert!(read > 0, "closed after {}", reply.escape_ascii());
            reply.extend_from_slice(&chunk[..read]);
        }
        assert_eq!(String::from_utf8_lossy(&reply), expected);
    }

    /// Returns a statistic.
    pub fn stat(&mut self, name: &str) -> u64 {
        self.send(b"stats\r\n");
        let mut text = String::new();
        while !text.ends_with("END\r\n") {
            let mut chunk = [0; 4096];
            let read = self.0.read(&mut chunk).unwrap();
            text += std::str::from_utf8(&chunk[..read]).unwrap();
        }
        let start = format!("STAT {name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap().parse().unwrap()
    }

    /// Sends a command and returns the line that answers it.
    pub fn asks(&mut self, command: &str) -> String {
        self.tells(command);
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            line.extend(self.read(1));
        }
        String::from_utf8(line).unwrap().trim().to_owned()
    }

    pub fn cas(&mut self, key: &str) -> u64 {
        let line = self.asks(&format!("mg {key} c"));
        line.strip_prefix("HD c").unwrap().parse().unwrap()
    }

    fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0; 64]).is_ok_and(|read| read == 0)
    }
}

#[test]
fn items_outlive_the_server_and_no_cas_comes_again() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let mut live = Live::with(with_memcached(), medium);
        let mut client = Client::of(&live);
        client.says(
            "set a 7 0 1|x|set b 0 100000 2|yy|set gone 0 -1 1|z",
            "STORED|STORED|STORED",
        );
        client.says("set deleted 0 0 1|d", "STORED");
        let (cas, deleted) = (client.cas("a"), client.cas("deleted"));
        client.says("delete deleted", "DELETED");
        live.reopen(with_memcached());
        let mut client = Client::of(&live);
        client.says("get a b gone deleted", "VALUE a 7 1|x|VALUE b 0 2|yy|END");
        assert_eq!(client.cas("a"), cas);
        client.says("set deleted 0 0 1|e", "STORED");
        assert!(client.cas("deleted") > deleted.max(cas));
        client.says(&format!("cas deleted 0 0 1 {deleted}|f"), "EXISTS");
        client.says(&format!("cas a 1 0 1 {cas}|f"), "STORED");
        // A flush does, too, and so does one that is not due yet.
        client.says("flush_all|set new 0 0 1|n|flush_all 100000", "OK|STORED|OK");
        live.reopen(with_memcached());
        let mut client = Client::of(&live);
        client.says("get a new", "VALUE new 0 1|n|END");
        let until = Instant::now() + Duration::from_secs(30);
        while client.stat("curr_items") > 1 {
            assert!(Instant::now() < until, "what was flushed stays");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_flush_with_a_delay_takes_what_was_stored_before_it() {
    let settings = Settings {
        enable_debug_command: Allowed::Local,
        ..with_memcached()
    };
    let mut live = Live::with(settings.clone(), MediumKind::Mapped);
    let mut client = Client::of(&live);
    client.says(
        "set a 0 0 1|1|flush_all 100|set b 0 0 1|2",
        "STORED|OK|STORED",
    );
    client.says("debugtime 99|get a b", "OK|VALUE a 0 1|1|VALUE b 0 1|2|END");
    live.reopen(settings);
    let mut client = Client::of(&live);
    client.says("get a b", "VALUE a 0 1|1|VALUE b 0 1|2|END");
    client.says(
        "debugtime 101|set c 0 0 1|3|get a b c",
        "OK|STORED|VALUE c 0 1|3|END",
    );
    assert_eq!(client.stat("get_flushed"), 2);
    // Expiry goes by the same clock.
    client.says(
        "set d 0 10 1|4|debugtime 9|get d",
        "STORED|OK|VALUE d 0 1|4|END",
    );
    client.says(
        "mg d t|touch d 3|debugtime 2|get d",
        "HD t1|TOUCHED|OK|VALUE d 0 1|4|END",
    );
    client.says("debugtime 2|get d", "OK|END");
}

#[test]
fn stores_and_retrievals_of_a_pipeline_are_answered_in_order_however_they_come() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let live = Live::with(with_memcached(), medium);
        let mut client = Client::of(&live);
        let (mut sent, mut expected) = (Vec::new(), String::new());
        for i in 0..3000 {
            let (key, value) = (format!("key{}", i % 700), format!("value{i}"));
            let length = value.len();
            let quiet = if i % 3 == 0 { " noreply" } else { "" };
            sent.extend(format!("set {key} {i} 0 {length}{quiet}\r\n{value}\r\n").bytes());
            if i % 3 != 0 {
                expected += "STORED\r\n";
            }
            if i % 7 < 3 {
                sent.extend(format!("get {key} none {key}\r\n").bytes());
                let item = format!("VALUE {key} {i} {length}\r\n{value}\r\n");
                expected += &format!("{item}{item}END\r\n");
            }
        }
        let mut writer = client.0.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for piece in sent.chunks(1999) {
                    writer.write_all(piece).unwrap();
                }
            });
            let reply = client.read(expected.len());
            assert!(reply == expected.as_bytes());
        });
    }
}

#[test]
fn replies_that_are_long_together_come_in_pieces() {
    let live = Live::with(with_memcached(), MediumKind::Mapped);
    let mut client = Client::of(&live);
    let value = "v".repeat(700_000);
    client.says(&format!("set long 0 0 700000|{value}"), "STORED");
    for command in ["get", "gat 0"] {
        let keys = " long none".repeat(40);
        client.send(format!("{command}{keys}\r\nmn\r\n").as_bytes());
        let item = format!("VALUE long 0 700000\r\n{value}\r\n");
        let reply = client.read(40 * item.len() + 9);
        assert!(reply.starts_with(item.as_bytes()) && reply.ends_with(b"END\r\nMN\r\n"));
    }
}

#[test]
fn a_retrieval_of_very_many_keys_is_answered_in_parts() {
    let settings = Settings {
        users: vec!["default on nopass ~* -@all +@string".into()],
        ..with_memcached()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let mut client = Client::of(&live);
    client.says("set a 1 0 1|x|set b 2 0 2|yy", "STORED|STORED");
    for (command, rest) in [("get", ""), ("gets", "\0 a"), ("get", "  ")] {
        // A short one goes with it, and one comes after it.
        let keys = " a none b".repeat(50_000);
        client.send(format!("get a\r\n{command}{keys}{rest}\r\nmn\r\n").as_bytes());
        let cas = match command {
            "gets" => ["a", "b"].map(|key| format!(" {}", Client::of(&live).cas(key))),
            _ => [String::new(), String::new()],
        };
        let pair = format!(
            "VALUE a 1 1{}\r\nx\r\nVALUE b 2 2{}\r\nyy\r\n",
            cas[0], cas[1]
        );
        let first = "VALUE a 1 1\r\nx\r\nEND\r\n";
        let whole = format!("{first}{}END\r\nMN\r\n", pair.repeat(50_000));
        assert!(client.read(whole.len()) == whole.as_bytes(), "{command}");
    }
    // One key that may not be got refuses all of them.
    let (keys, long) = (" a".repeat(100_000), "k".repeat(251));
    client.says(
        &format!("get{keys} {long}|get b"),
        "CLIENT_ERROR bad command line format|VALUE b 2 2|yy|END",
    );
}

/// A change that was made of an item before a flush, and committed after it, brought it back.
#[test]
fn no_change_carries_an_item_over_a_flush() {
    let live = Live::with(with_memcached(), MediumKind::Journal);
    let mut client = Client::of(&live);
    for _ in 0..30 {
        client.says("set n 0 0 1|1|set t 0 0 1|x", "STORED|STORED");
        let other = Client::of(&live);
        let changes = std::thread::spawn(move || {
            let mut other = other;
            let mut counted = 0;
            loop {
                other.send(b"incr n 1\r\nappend t 0 0 1\r\nx\r\nmn\r\n");
                let mut reply = Vec::new();
                while !reply.ends_with(b"MN\r\n") {
                    reply.extend(other.read(1));
                }
                if reply == b"NOT_FOUND\r\nNOT_STORED\r\nMN\r\n" {
                    return counted;
                }
                counted += 1;
                assert!(counted < 100_000, "the flush is never seen");
            }
        });
        std::thread::sleep(Duration::from_millis(2));
        client.says("flush_all|get n t", "OK|END");
        changes.join().unwrap();
        client.says("get n t", "END");
    }
}

#[test]
fn the_least_recently_used_are_evicted_beyond_the_budget() {
    let settings = Settings {
        memcached_memory: Share::Bytes(200_000),
        ..with_memcached()
    };
    let mut live = Live::with(settings.clone(), MediumKind::Mapped);
    let mut client = Client::of(&live);
    let value = "v".repeat(1000);
    let store = |client: &mut Client, from: usize| {
        for n in from..from + 150 {
            client.says(&format!("set k{n} 0 0 1000|{value}"), "STORED");
        }
    };
    store(&mut client, 0);
    client.says("mg k0 s", "HD s1000");
    store(&mut client, 150);
    client.says("mg k0 s|mg k1 s|mg k299 s", "HD s1000|EN|HD s1000");
    let evicted = client.stat("evictions");
    assert_eq!(client.stat("curr_items"), 300 - evicted);
    assert!(
        client.stat("bytes") <= 200_000 && (90..140).contains(&evicted),
        "{evicted}"
    );
    // After a restart what was stored first goes first.
    live.reopen(settings.clone());
    let mut client = Client::of(&live);
    assert_eq!(client.stat("curr_items"), 300 - evicted);
    store(&mut client, 300);
    client.says("mg k299 s|mg k0 s", "HD s1000|EN");
    // The records of flushed items are deleted, which does not count as eviction.
    let evicted = client.stat("evictions");
    client.says("flush_all", "OK");
    let until = Instant::now() + Duration::from_secs(30);
    while client.stat("bytes") > 0 {
        assert!(Instant::now() < until, "what was flushed stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.stat("evictions"), evicted);
    // A smaller budget holds after a restart, whoever stores.
    store(&mut client, 0);
    live.reopen(Settings {
        memcached_memory: Share::Bytes(20_000),
        ..settings
    });
    let mut client = Client::of(&live);
    let until = Instant::now() + Duration::from_secs(30);
    while client.stat("bytes") > 20_000 {
        assert!(Instant::now() < until, "items stay beyond the budget");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client.stat("curr_items") > 0);
}

/// Some items at most are evicted after a store, and small ones make no room for a long one.
#[test]
fn who_stores_more_than_is_evicted_waits() {
    const BUDGET: usize = 2_000_000;
    let settings = Settings {
        memcached_memory: Share::Bytes(BUDGET),
        ..with_memcached()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let mut client = Client::of(&live);
    for n in 0..200 {
        let small: String = (0..100)
            .map(|m| format!("set k{} 0 0 1 noreply|x|", n * 100 + m))
            .collect();
        client.says(&format!("{small}mn"), "MN");
    }
    assert!(client.stat("curr_items") > 15_000);
    let value = "v".repeat(500_000);
    let mut other = Client::of(&live);
    for n in 0..30 {
        client.says(&format!("set long{n} 0 0 500000|{value}"), "STORED");
        let bytes = other.stat("bytes");
        assert!(bytes <= BUDGET as u64 + 600_000, "{n}: {bytes}");
    }
    client.says("mg long29 s|mg k0 s", "HD s500000|EN");
}

#[test]
fn a_flush_before_the_start_flushes_nothing() {
    let live = Live::with(with_memcached(), MediumKind::Mapped);
    let mut client = Client::of(&live);
    client.says("set s 0 0 1|x", "STORED");
    client.says("flush_all 2592001|mg s s", "OK|HD s1");
    client.says("flush_all|mg s s", "OK|EN");
}

#[test]
fn users_log_in_and_have_their_rights() {
    let settings = Settings {
        requirepass: "secret".into(),
        users: vec!["app on >pw ~app:* +get +set".into()],
        ..with_memcached()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let mut client = Client::of(&live);
    client.says("get a", "CLIENT_ERROR unauthenticated");
    client.says(
        "set x 0 0 10|app wrong1",
        "CLIENT_ERROR authentication failure",
    );
    client.says("set x 0 0 6|app pw", "STORED");
    client.says(
        "set app:1 0 0 1|x|get app:1",
        "STORED|VALUE app:1 0 1|x|END",
    );
    let denied = "CLIENT_ERROR NOPERM this user has no permissions to";
    client.says(
        "get b",
        &format!("{denied} access one of the keys used as arguments"),
    );
    client.says(
        "set b 0 0 2|xy",
        &format!("{denied} access one of the keys used as arguments"),
    );
    client.says("delete app:1", &format!("{denied} run the 'del' command"));
    // Nor does a value that is too large take away what it may not replace.
    let mut other = Client::of(&live);
    other.says("set x 0 0 14|default secret", "STORED");
    other.says("set b 0 0 3|old", "STORED");
    let large = "v".repeat(2_000_000);
    client.says(
        &format!("set b 0 0 2000000|{large}"),
        &format!("{denied} access one of the keys used as arguments"),
    );
    other.says("get b", "VALUE b 0 3|old|END");
    client.says("flush_all", &format!("{denied} run the 'flushdb' command"));
    client.says("stats", &format!("{denied} run the 'info' command"));
    // SASL, PLAIN.
    let mut client = Client::of(&live);
    let packet = |code: u8, key: &[u8], value: &[u8]| {
        let mut bytes = vec![0x80, code, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0];
        bytes.push((key.len() + value.len()) as u8);
        bytes.extend([0; 12]);
        bytes.extend([key, value].concat());
        bytes
    };
    client.send(&packet(0x20, b"", b""));
    assert_eq!(client.read(24 + 5)[24..], *b"PLAIN");
    client.send(&packet(0x21, b"PLAIN", b"\0app\0wrong"));
    let reply = client.read(24 + 13);
    assert_eq!((reply[7], &reply[24..]), (0x20, &b"Auth failure."[..]));
    client.send(&packet(0x21, b"PLAIN", b"\0app\0pw"));
    let reply = client.read(24 + 13);
    assert_eq!((reply[7], &reply[24..]), (0, &b"Authenticated"[..]));
    client.send(&packet(0x00, b"app:1", b""));
    assert_eq!(client.read(24 + 5)[28..], *b"x");
    client.send(&packet(0x04, b"app:1", b""));
    assert_eq!(client.read(24)[7], 0x20);
    // Nothing else is answered before that.
    let mut client = Client::of(&live);
    client.send(&packet(0x00, b"app:1", b""));
    assert_eq!(client.read(24 + 13)[7], 0x20);
    assert!(client.is_closed());
}

#[test]
fn limits_hold_and_what_is_wrong_ends_one_connection_only() {
    let settings = Settings {
        memcached_item_size: 4096,
        memcached_max_key: 300,
        memcached_shutdown: true,
        ..with_memcached()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let mut client = Client::of(&live);
    let (long, longer) = ("k".repeat(300), "k".repeat(301));
    client.says(
        &format!("set {long} 0 0 1|x|get {long}"),
        &format!("STORED|VALUE {long} 0 1|x|END"),
    );
    client.says(
        &format!("get {longer}"),
        "CLIENT_ERROR bad command line format",
    );
    // A value that is refused is not kept, and neither is the one before.
    let large = "v".repeat(100_000);
    client.says("set a 0 0 1|x", "STORED");
    client.says(
        &format!("set a 0 0 100000|{large}|get a"),
        "SERVER_ERROR object too large for cache|END",
    );
    client.says("shutdown x", "CLIENT_ERROR invalid shutdown mode");
    // A line without an end, lengths that contradict one another, another magic byte.
    for bytes in [
        b"x".repeat(5000),
        [&[0x80, 0, 0, 9, 0, 0, 0, 0][..], &[0; 40]].concat(),
        [&[0x80, 0x0a][..], &[0; 22], &[0x81; 24]].concat(),
    ] {
        let mut other = Client::of(&live);
        other.send(&bytes);
        let mut rest = Vec::new();
        // The rest of what was sent may reset it.
        let _ = other.0.read_to_end(&mut rest);
        assert!(other.is_closed() || rest.len() < 200);
    }
    let mut other = Client::of(&live);
    other.send(b"POST / HTTP/1.1\r\nset a 0 0 1\r\nx\r\n");
    assert!(other.is_closed());
    client.says("get a|mn", "END|MN");
    client.send(b"shutdown\r\n");
    assert!(client.is_closed());
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address(&live)).is_ok() {
        assert!(Instant::now() < until, "it serves on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client that asks for more than it reads holds no more than others are to hold.
#[test]
fn a_client_that_does_not_read_is_bounded() {
    let settings = Settings {
        maxmemory_clients: Share::Bytes(8 << 20),
        memcached_item_size: 16 << 20,
        ..with_memcached()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let mut client = Client::of(&live);
    let value = "v".repeat(900_000);
    client.says(&format!("set v 0 0 900000|{value}"), "STORED");
    let mut idle = Client::of(&live);
    for _ in 0..50 {
        idle.send(format!("get{}\r\n", " v".repeat(1000)).as_bytes());
    }
    std::thread::sleep(Duration::from_millis(500));
    let held = live.running().server().clients.budget().total();
    assert!(held < 4 << 20, "{held}");
    // One whose own request is too long is disconnected, and others are served.
    let mut other = Client::of(&live);
    let _ = other
        .0
        .write_all(format!("set w 0 0 15000000\r\n{}", "w".repeat(14_000_000)).as_bytes());
    let mut rest = Vec::new();
    let _ = other.0.read_to_end(&mut rest);
    assert!(rest.is_empty());
    client.says("mg v s", "HD s900000");
}

/// Stores until the connection breaks. Returns the number of acknowledged stores.
fn store_on(address: SocketAddr, writer: usize, first: usize) -> usize {
    let mut stream = connect(address);
    let mut acknowledged = first;
    loop {
        let mut batch = String::new();
        for i in acknowledged..acknowledged + 16 {
            let value = format!("v{i}");
            batch += &format!("set w{writer}:{i} {i} 0 {}\r\n{value}\r\n", value.len());
        }
        if stream.write_all(batch.as_bytes()).is_err() {
            return acknowledged;
        }
        for _ in 0..16 {
            let mut reply = [0; 8];
            if stream.read_exact(&mut reply).is_err() {
                return acknowledged;
            }
            assert_eq!(&reply, b"STORED\r\n");
            acknowledged += 1;
        }
    }
}

fn killed(medium: &str, kills: usize) {
    const WRITERS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let mut acknowledged = [0; WRITERS];
    let mut checked = [0; WRITERS];
    let mut process = Process::serving_memcached(&pool, medium);
    for round in 0..kills {
        let address = process.memcached.unwrap();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let first = acknowledged[writer];
                std::thread::spawn(move || store_on(address, writer, first))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(30 + 13 * (round as u64 % 7)));
        process.child.kill().unwrap();
        for (writer, thread) in writers.into_iter().enumerate() {
            acknowledged[writer] = thread.join().unwrap();
        }
        drop(process);
        process = Process::serving_memcached(&pool, medium);
        let mut client = Client(connect(process.memcached.unwrap()));
        let is_last = round + 1 == kills;
        for (writer, count) in acknowledged.iter().enumerate() {
            let from = if is_last { 0 } else { checked[writer] };
            for i in from..*count {
                let value = format!("v{i}");
                let expected = format!("VALUE w{writer}:{i} {i} {}|{value}|END", value.len());
                client.says(&format!("get w{writer}:{i}"), &expected);
            }
            checked[writer] = *count;
        }
    }
    assert!(
        acknowledged.iter().sum::<usize>() > kills * 16,
        "{acknowledged:?}"
    );
}

fn kills(otherwise: usize) -> usize {
    std::env::var("KILLS").map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn no_acknowledged_store_is_lost_on_the_mapped_medium() {
    killed("mapped", kills(4));
}

#[test]
fn no_acknowledged_store_is_lost_on_the_journal_medium() {
    killed("journal", kills(4));
}
