//! Bytes that no memcached client sends: the server answers others, and none of its threads panics.
//!
//! `FUZZ_SECONDS` in the environment says for how long, for each protocol.

use crate::live::{Live, connect, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics of the servers' threads from now on.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some("serve") {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

const TEXT: [&[u8]; 24] = [
    b"set k 0 0 3\r\nabc\r\n",
    b"add k 1 100 1 noreply\r\nx\r\n",
    b"append k 0 0 2\r\nxy\r\n",
    b"cas k 0 0 1 5\r\nx\r\n",
    b"get k k2 k3\r\n",
    b"gats 0 k k2\r\n",
    b"incr k 18446744073709551615\r\n",
    b"decr k 1\r\n",
    b"touch k -1\r\n",
    b"delete k 0 noreply\r\n",
    b"stats settings\r\n",
    b"stats items\r\n",
    b"stats detail on\r\n",
    b"stats detail dump\r\n",
    b"stats sizes\r\n",
    b"flush_all 100\r\n",
    b"verbosity 1\r\n",
    b"mg k b c f h k l O1 q s t u v N100 R30 T50\r\n",
    b"ms a2s= 3 b c C5 F7 I k O2 T0 MS\r\nabc\r\n",
    b"md k C1 I k O3 q T30\r\n",
    b"ma k N0 J10 D2 MD T0 q t c v k\r\n",
    b"me k b\r\n",
    b"mn\r\n",
    b"set k 4294967295 2147483647 2147483645\r\n",
];

/// Returns a well-formed binary request.
fn binary(rng: &mut SmallRng) -> Vec<u8> {
    let code = rng.random_range(0..0x28);
    let extras = [0, 4, 8, 20][rng.random_range(0..4)];
    let (key, value) = (rng.random_range(0..5), rng.random_range(0..5));
    let body = extras + key + value;
    let mut bytes = vec![
        0x80,
        code,
        0,
        key as u8,
        extras as u8,
        0,
        0,
        0,
        0,
        0,
        0,
        body as u8,
    ];
    bytes.extend((0..12).map(|_| rng.random_range(0..3)));
    bytes.extend((0..extras).map(|_| rng.random::<u8>()));
    bytes.extend((0..key + value).map(|_| rng.random_range(b'0'..=b'9')));
    bytes
}

fn mutated(rng: &mut SmallRng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..6) {
            0 => bytes[at] = rng.random(),
            1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(
                at,
                *[0, b' ', b'\n', b'\r', b'-', b'9', 0xff]
                    .get(rng.random_range(0..7))
                    .unwrap(),
            ),
            4 => bytes.truncate(at),
            _ => {
                let piece = bytes[at..bytes.len().min(at + 20)].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

fn hostile(seed: u64, mut next: impl FnMut(&mut SmallRng) -> Vec<u8>) {
    count_panics();
    let seconds = std::env::var("FUZZ_SECONDS").map_or(5, |text| text.parse().unwrap());
    let settings = Settings {
        memcached: Some("127.0.0.1:0".into()),
        memcached_item_size: 64 << 10,
        ..settings()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let address = live.running().memcached_address().unwrap();
    let mut rng = SmallRng::seed_from_u64(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut connections = 0;
    while Instant::now() < until {
        let mut stream = connect(address);
        let mut bytes = Vec::new();
        for _ in 0..rng.random_range(1..40) {
            let command = next(&mut rng);
            bytes.extend(mutated(&mut rng, command));
        }
        let mut reader = stream.try_clone().unwrap();
        let read = std::thread::spawn(move || {
            let mut replies = Vec::new();
            // A reset is one way to end.
            let _ = reader.read_to_end(&mut replies);
            replies.len()
        });
        let piece = [1, 7, 100, 5000][rng.random_range(0..4)];
        for piece in bytes.chunks(piece) {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        assert!(read.join().unwrap() < 64 << 20);
        connections += 1;
        assert_eq!(
            PANICS.load(Ordering::SeqCst),
            0,
            "seed {seed}, connection {connections}"
        );
    }
    assert!(connections > 10, "{connections}");
    let mut stream = connect(address);
    stream
        .write_all(b"set alive 0 0 3\r\nyes\r\nget alive\r\n")
        .unwrap();
    let expected = b"STORED\r\nVALUE alive 0 3\r\nyes\r\nEND\r\n";
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, expected);
    assert!(live.running().server().clients.budget().total() < 8 << 20);
}

#[test]
fn no_text_breaks_the_server() {
    hostile(1, |rng| TEXT[rng.random_range(0..17)].to_vec());
}

#[test]
fn no_meta_command_breaks_the_server() {
    hostile(2, |rng| TEXT[rng.random_range(15..24)].to_vec());
}

#[test]
fn no_binary_request_breaks_the_server() {
    hostile(3, binary);
}
