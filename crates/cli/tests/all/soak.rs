//! A server under changes that never end, of data that does not grow: neither does its memory, nor
//! do its files.

use crate::common::Bench;
use crate::common::server::Server;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 8;
/// Keys of each client and type.
const KEYS: u64 = 2_000;
/// Commands of a client that are on their way at once.
const AT_ONCE: usize = 32;
/// How many times that of the second quarter a later quarter's largest may be.
const GROWTH: f64 = 1.1;

/// A command of client `client`: overwrites, removals, expiries and growth of collections that is
/// taken back, over keys that come again.
fn command(client: u64, rng: &mut SmallRng) -> String {
    let key = rng.random_range(0..KEYS);
    let text = "x".repeat(rng.random_range(8..1_500));
    let element = rng.random_range(0..200_u32);
    match rng.random_range(0..100) {
        0..35 => format!("SET s:{client}:{key} {text}"),
        35..45 => format!(
            "SET e:{client}:{key} {text} PX {}",
            rng.random_range(50..5_000)
        ),
        45..52 => format!("DEL s:{client}:{key} e:{client}:{key}"),
        52..62 => format!("HSET h:{client}:{} f{element} {text}", key % 100),
        62..68 => format!("HDEL h:{client}:{} f{element} f{}", key % 100, element / 2),
        68..76 => format!("ZADD z:{client}:{} {key} m{element}", key % 100),
        76..80 => format!("ZREM z:{client}:{} m{element} m{}", key % 100, element / 2),
        80..88 => format!("RPUSH l:{client}:{} {text}", key % 50),
        88..96 => format!("LTRIM l:{client}:{} -60 -1", key % 50),
        96 => format!("PEXPIRE h:{client}:{} 1500", key % 100),
        97 => format!("UNLINK z:{client}:{}", key % 100),
        _ => format!("INCR n:{client}"),
    }
}

/// Sends commands until it is told to stop. Counts those that were answered.
fn work(server: &Server, client: u64, stop: &AtomicBool, answered: &AtomicU64) {
    let mut rng = SmallRng::seed_from_u64(client);
    let mut stream = server.connect();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    // ORDERING (all): Relaxed; a flag that is seen soon, and a count.
    while !stop.load(Ordering::Relaxed) {
        let mut requests: Vec<String> = (0..AT_ONCE).map(|_| command(client, &mut rng)).collect();
        requests.push(String::new());
        stream.write_all(requests.join("\r\n").as_bytes()).unwrap();
        for _ in 0..AT_ONCE {
            line.clear();
            replies.read_line(&mut line).unwrap();
            assert!(line.starts_with([':', '+']), "{line}");
        }
        answered.fetch_add(AT_ONCE as u64, Ordering::Relaxed);
    }
}

/// Resident bytes of a process.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Bytes that a pool's files take on the disk.
fn on_disk(pool: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let journal = pool.with_extension("pool.journal");
    let files =
        [pool, &journal].map(|path| std::fs::metadata(path).map_or(0, |m| m.blocks() * 512));
    files.iter().sum()
}

fn soak(medium: &str, minutes: f64) {
    let b = Bench::new();
    let mut server = Server::start(&b, &["--medium", medium, "--durability", "interval=100"]);
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = b.path("s.pool");
    let quarters: Vec<[u64; 2]> = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, stop, answered) = (&server, &stop, &answered);
            scope.spawn(move || work(server, client, stop, answered));
        }
        let quarter = Duration::from_secs_f64(minutes * 15.0);
        let quarters = (1..=4).map(|number| {
            let (begun, mut most) = (Instant::now(), [0, 0]);
            while begun.elapsed() < quarter {
                std::thread::sleep(Duration::from_millis(200));
                let now = [resident(server.child.id()), on_disk(&pool)];
                most = [most[0].max(now[0]), most[1].max(now[1])];
            }
            println!(
                "{medium}, quarter {number}: at most {} MiB resident, {} MiB on the disk, {} commands so far",
                most[0] >> 20,
                most[1] >> 20,
                answered.load(Ordering::Relaxed)
            );
            most
        });
        let quarters = quarters.collect();
        stop.store(true, Ordering::Relaxed);
        quarters
    });
    server.stop();
    b.run(&["check", "s.pool"]).ok();
    assert!(answered.into_inner() > 10_000);
    for (what, at) in [("memory", 0), ("files", 1)] {
        let before = quarters[1][at] as f64;
        for later in &quarters[2..] {
            assert!(
                later[at] as f64 <= before * GROWTH,
                "{medium}: {what} grew: {quarters:?}"
            );
        }
    }
}

#[test]
#[ignore = "an hour; CI_FULL runs ten minutes of it"]
fn a_server_does_not_grow_under_changes() {
    let minutes = std::env::var("BRISTLECONE_SOAK_MINUTES");
    let minutes: f64 = minutes.map_or(60.0, |minutes| minutes.parse().unwrap());
    for medium in ["journal", "mapped"] {
        soak(medium, minutes / 2.0);
    }
}
