//! The same random commands go to a real memcached and to this server, over TCP. Their replies are
//! the same, byte for byte; [`same`] names the exceptions.

use crate::live::{Live, connect, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Set in the environment if a missing memcached is a failure.
const NEEDED: &str = "BRISTLECONE_NEED_MEMCACHED";
/// The number of commands sent at once.
const BATCH: usize = 20;

/// A real memcached, killed at the end.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memcached {
    /// Starts one on a free port. Without one on this machine, prints that and returns `None`, or
    /// panics if [`NEEDED`] is set.
    fn start() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.unwrap();
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]);
        // Without the thread that keeps its lists, which now and then holds an item: `decr` does
        // not change that one in its place.
        command.args(["-U", "0", "-m", "1024", "-o", "no_modern"]);
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        let child = match command.stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let test = std::thread::current().name().unwrap_or_default().to_owned();
                assert!(std::env::var_os(NEEDED).is_none(), "there is no memcached");
                // Past the capture of the test's output.
                let mut out = std::io::stderr();
                writeln!(out, "SKIPPED {test}: there is no memcached to compare with").unwrap();
                return None;
            }
            Err(e) => panic!("memcached: {e}"),
        };
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "memcached does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { child, address })
    }
}

/// Sends bytes, and reads replies until they end as `is_whole` says.
fn call(stream: &mut TcpStream, bytes: &[u8], is_whole: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).unwrap());
        let (mut replies, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        while !is_whole(&replies) {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => replies.extend_from_slice(&chunk[..read]),
                Err(e) => panic!("{e}; so far: {}", shown(&replies)),
            }
        }
        replies
    })
}

fn shown(bytes: &[u8]) -> String {
    let end = bytes.len().min(600);
    bytes[..end].escape_ascii().to_string()
}

fn pick<'a>(rng: &mut SmallRng, of: &[&'a str]) -> &'a str {
    of[rng.random_range(0..of.len())]
}

fn key(rng: &mut SmallRng) -> String {
    match rng.random_range(0..60) {
        0 => "k".repeat(250),
        1 => "k".repeat(251),
        2 => "with:colon".into(),
        _ => format!("k{}", rng.random_range(0..8)),
    }
}

/// Returns a time that does not come while the test runs.
fn time(rng: &mut SmallRng) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    match rng.random_range(0..12) {
        0 => "-1".into(),
        1 => "2592000".into(),
        2 => "2592001".into(),
        3 => (now.as_secs() + 500_000).to_string(),
        4 => "100000".into(),
        5 => "4294967295".into(),
        _ => "0".into(),
    }
}

fn number(rng: &mut SmallRng) -> String {
    match rng.random_range(0..10) {
        0 => "18446744073709551615".into(),
        1 => rng.random::<u64>().to_string(),
        _ => rng.random_range(0..200).to_string(),
    }
}

/// Returns a number that no command takes, or that is read in another way than it looks.
fn odd(rng: &mut SmallRng) -> &'static str {
    const ODD: [&str; 10] = [
        "x",
        "-1",
        "+3",
        "1.5",
        "1x",
        "4294967296",
        "18446744073709551616",
        "99999999999999999999999",
        "-",
        "00012",
    ];
    pick(rng, &ODD)
}

fn value(rng: &mut SmallRng) -> Vec<u8> {
    match rng.random_range(0..400) {
        0..150 => number(rng).into_bytes(),
        150..160 => format!("{} ", rng.random_range(0..20)).into_bytes(),
        160..170 => b"12\r\n34\0x".to_vec(),
        170 => vec![b'v'; rng.random_range(500_000..1_048_576)],
        // About the largest item that there may be.
        171..174 => vec![b'v'; 1_048_576 - rng.random_range(40..80)],
        174..180 => vec![b'v'; rng.random_range(4000..70_000)],
        _ => vec![b'v'; rng.random_range(0..40)],
    }
}

/// Returns a cas: one that was seen lately, or another.
fn cas(rng: &mut SmallRng, seen: &[u64]) -> u64 {
    match rng.random_range(0..8) {
        0 => 0,
        1 => rng.random_range(0..1000),
        _ if seen.is_empty() => 1,
        _ => seen[rng.random_range(0..seen.len())] + u64::from(rng.random_range(0..8) == 0),
    }
}

/// Replaces a number by an odd one, now and then.
fn spoilt(rng: &mut SmallRng, number: impl FnOnce(&mut SmallRng) -> String) -> String {
    if rng.random_range(0..40) == 0 {
        odd(rng).into()
    } else {
        number(rng)
    }
}

fn maybe(rng: &mut SmallRng, text: &str) -> String {
    if rng.random_range(0..10) == 0 {
        text.into()
    } else {
        String::new()
    }
}

/// Returns a value that may stand for a command, without which a connection would end.
fn short_value(rng: &mut SmallRng) -> Vec<u8> {
    loop {
        let value = value(rng);
        if value.len() < 1000 {
            return value;
        }
    }
}

/// Returns a store of a long value.
fn long_store(rng: &mut SmallRng) -> Option<Vec<u8>> {
    let value = value(rng);
    let stores = ["set k1 1 0 ", "append k2 1 0 ", "add k3 0 0 ", "ms k4 "];
    let line = format!("{}{}\r\n", pick(rng, &stores), value.len());
    let whole = [line.as_bytes(), &value, b"\r\n"].concat();
    (value.len() >= 1000).then_some(whole)
}

/// Appends a value, whose length may be another than was announced.
fn with_value(rng: &mut SmallRng, line: String, value: &[u8]) -> Vec<u8> {
    let mut bytes = line.into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(value);
    if rng.random_range(0..60) == 0 {
        bytes.push(b'?');
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Returns a classic command.
fn classic(rng: &mut SmallRng, seen: &[u64]) -> Vec<u8> {
    let key_ = key(rng);
    let line = match rng.random_range(0..40) {
        0..10 => {
            let name = pick(
                rng,
                &["set", "set", "set", "add", "replace", "append", "prepend"],
            );
            let value = short_value(rng);
            let (flags, time) = (spoilt(rng, number), spoilt(rng, time));
            let length = spoilt(rng, |_| value.len().to_string());
            let end = maybe(rng, " noreply");
            let line = format!("{name} {key_} {flags} {time} {length}{end}");
            return with_value(rng, line, &value);
        }
        10..13 => {
            let value = short_value(rng);
            let (flags, time) = (number(rng), time(rng));
            let cas = spoilt(rng, |rng| cas(rng, seen).to_string());
            let end = maybe(rng, " noreply");
            let line = format!("cas {key_} {flags} {time} {} {cas}{end}", value.len());
            return with_value(rng, line, &value);
        }
        13..22 => {
            let mut line = pick(rng, &["get", "gets", "gets", "bget"]).to_owned();
            for _ in 0..rng.random_range(1..30) {
                line += &format!(" k{}", rng.random_range(0..8));
                if rng.random_range(0..3) > 0 {
                    break;
                }
            }
            line
        }
        22..25 => {
            let name = pick(rng, &["gat", "gats"]);
            format!("{name} {} k1 {key_}", spoilt(rng, time))
        }
        25..32 => {
            let name = pick(rng, &["incr", "decr"]);
            format!(
                "{name} {key_} {}{}",
                spoilt(rng, number),
                maybe(rng, " noreply")
            )
        }
        32..34 => {
            let zero = maybe(rng, " 0");
            format!("delete {key_}{zero}{}", maybe(rng, " noreply"))
        }
        34..36 => format!(
            "touch {key_} {}{}",
            spoilt(rng, time),
            maybe(rng, " noreply")
        ),
        36 => match rng.random_range(0..20) {
            0 => "flush_all".into(),
            1 => "flush_all 0".into(),
            2 => "flush_all noreply".into(),
            3 => "flush_all -5".into(),
            4 => "flush_all x".into(),
            5 => "verbosity 1".into(),
            6 => "verbosity".into(),
            7 => "verbosity x".into(),
            8 => "mn".into(),
            9 => "stats nothing".into(),
            _ => format!("gets {key_}"),
        },
        37 => pick(
            rng,
            &[
                "", " ", "x", "get", "set", "set a", "nothing", "delete", "incr a", "GET a",
                "shutdown", "touch a", "gat 0",
            ],
        )
        .into(),
        38 => format!("delete {key_} 5"),
        _ => format!("  get   {key_}  "),
    };
    let mut bytes = line.into_bytes();
    if rng.random_range(0..200) == 0 {
        bytes.extend_from_slice(b"\0 behind");
    }
    bytes.extend_from_slice(if rng.random_range(0..20) == 0 {
        b"\n"
    } else {
        b"\r\n"
    });
    bytes
}

/// Returns flags for a meta command.
fn meta_flags(rng: &mut SmallRng, letters: &str, seen: &[u64]) -> String {
    let mut flags = String::new();
    for _ in 0..rng.random_range(0..5) {
        let at = rng.random_range(0..letters.len());
        let letter = &letters[at..=at];
        let token = match letter {
            "O" => match rng.random_range(0..20) {
                0 => "o".repeat(31),
                // With `mg` and `ma` memcached notices only once it has changed something.
                1 if letters.contains('I') => "o".repeat(32),
                _ => rng.random_range(0..100).to_string(),
            },
            "N" | "T" => spoilt(rng, time),
            "R" => spoilt(rng, |rng| {
                pick(rng, &["0", "30", "200000", "-1", "2592000"]).into()
            }),
            "F" | "D" | "J" => spoilt(rng, number),
            "C" => spoilt(rng, |rng| cas(rng, seen).to_string()),
            "M" => pick(rng, &["E", "A", "P", "R", "S", "I", "D", "+", "-", "X", ""]).into(),
            "P" | "L" => "token".into(),
            _ => String::new(),
        };
        flags += &format!(" {letter}{token}");
    }
    flags
}

/// Returns a meta command.
fn meta(rng: &mut SmallRng, seen: &[u64]) -> Vec<u8> {
    let mut key = key(rng);
    let mut binary = "";
    if rng.random_range(0..6) == 0 {
        binary = " b";
        key = pick(rng, &["azA=", "azE=", "AAEC", "Zm9vYmFyYg==", "Zm9", "x"]).into();
    }
    let line = match rng.random_range(0..20) {
        0..6 => {
            let value = short_value(rng);
            let flags = meta_flags(rng, "cCFIkOqTMMPLc", seen);
            let length = spoilt(rng, |_| value.len().to_string());
            let line = format!("ms {key} {length}{binary}{flags}");
            return with_value(rng, line, &value);
        }
        6..13 => format!(
            "mg {key}{binary}{}",
            meta_flags(rng, "cfhkOqstuvvNRTz", seen)
        ),
        13..15 => format!("md {key}{binary}{}", meta_flags(rng, "CIkOqTI", seen)),
        // `T` is lost in memcached when the number gets longer.
        15..18 => format!("ma {key}{binary}{}", meta_flags(rng, "NJDMqtcvvCOk", seen)),
        18 => format!("me {key}{binary}"),
        _ => pick(
            rng,
            &["mg", "ms a", "ms a x", "md", "ma", "me", "mz a", "mg a v v"],
        )
        .into(),
    };
    let mut bytes = line.into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Returns true if both words of a reply are right.
fn same_word(theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    let split = |word: &[u8]| {
        let digits = word
            .iter()
            .position(|byte| byte.is_ascii_digit() || *byte == b'-');
        let (name, rest) = word.split_at(digits.unwrap_or(word.len()));
        let number = std::str::from_utf8(rest)
            .ok()
            .and_then(|text| text.parse::<i64>().ok());
        (name.to_vec(), number)
    };
    let ((name, theirs), (other, ours)) = (split(theirs), split(ours));
    let (Some(theirs), Some(ours)) = (theirs, ours) else {
        return false;
    };
    name == other
        && match name.as_slice() {
            // Of what has just expired.
            b"t" if theirs > i64::from(i32::MAX) => ours == 0,
            // Time passes between the two, and memcached's clock ticks once a second.
            b"t" | b"exp=" => theirs.abs_diff(ours) <= 3,
            // Which uses count for that, and slabs, are memcached's own business.
            b"la=" | b"cls=" => true,
            _ => false,
        }
}

/// Returns true if both replies are right.
fn same(theirs: &[u8], ours: &[u8]) -> bool {
    let words = |reply: &[u8]| -> Vec<Vec<u8>> {
        reply
            .split(|byte| matches!(byte, b' ' | b'\r'))
            .map(<[u8]>::to_vec)
            .collect()
    };
    theirs == ours || {
        let (theirs, ours) = (words(theirs), words(ours));
        theirs.len() == ours.len() && theirs.iter().zip(&ours).all(|(a, b)| same_word(a, b))
    }
}

/// What is counted by both.
const COUNTED: [&str; 19] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "cmd_meta",
    "get_hits",
    "get_misses",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
];

fn counts(stream: &mut TcpStream) -> Vec<String> {
    let replies = call(stream, b"stats\r\n", |replies| {
        replies.ends_with(b"END\r\n")
    });
    let text = String::from_utf8(replies).unwrap();
    let counted = |line: &&str| {
        COUNTED
            .iter()
            .any(|name| line.starts_with(&format!("STAT {name} ")))
    };
    let mut lines: Vec<String> = text.lines().filter(counted).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

fn ours() -> Live {
    let settings = Settings {
        memcached: Some("127.0.0.1:0".into()),
        ..settings()
    };
    Live::with(settings, MediumKind::Mapped)
}

/// Compares the replies to `count` commands. `COMMANDS` and `SEED` in the environment override
/// `count` and `seed`.
fn compare_text(count: u64, seed: u64, mut next: impl FnMut(&mut SmallRng, &[u64]) -> Vec<u8>) {
    let (count, seed) = (setting("COMMANDS", count), setting("SEED", seed));
    let Some(real) = Memcached::start() else {
        return;
    };
    let live = ours();
    let mut theirs = connect(real.address);
    let mut ours = connect(live.running().memcached_address().unwrap());
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut seen, mut done) = (Vec::new(), 0);
    while done < count {
        let mut commands: Vec<Vec<u8>> = (0..BATCH).map(|_| next(&mut rng, &seen)).collect();
        // Behind a value that is too short it would be a line that is too long.
        if let Some(store) = (0..BATCH).find_map(|_| long_store(&mut rng)) {
            commands[0] = store;
        }
        // An answer that nothing else gives tells the replies apart. A value that is missing is
        // taken from what follows, by both.
        let mut bytes = commands.join(&b"\r\nmn\r\n"[..]);
        bytes.extend_from_slice(&b"\r\nmn\r\n".repeat(30));
        bytes.extend_from_slice(b"version\r\n");
        let is_whole = |replies: &[u8]| {
            let end = replies.len().saturating_sub(30);
            replies[end..].windows(7).any(|part| part == b"VERSION") && replies.ends_with(b"\r\n")
        };
        let replies = call(&mut theirs, &bytes, is_whole);
        let mine = call(&mut ours, &bytes, is_whole);
        let parts = |replies: &[u8]| -> Vec<String> {
            // Values have no line of that kind.
            let text: String = replies.iter().map(|byte| char::from(*byte)).collect();
            text.split("\r\nMN\r\n").map(str::to_owned).collect()
        };
        if !same(&replies, &mine) {
            let (theirs, ours) = (parts(&replies), parts(&mine));
            for (at, (a, b)) in theirs.iter().zip(&ours).enumerate() {
                if !same(a.as_bytes(), b.as_bytes()) {
                    let until = at.min(commands.len() - 1);
                    let before: Vec<String> =
                        commands[..=until].iter().map(|it| shown(it)).collect();
                    panic!(
                        "seed {seed}, command {}:\n  memcached: {}\n  ours:      {}\nbefore it:\n  {}",
                        done + at as u64,
                        shown(a.as_bytes()),
                        shown(b.as_bytes()),
                        before.join("\n  ")
                    );
                }
            }
            panic!(
                "seed {seed}, after command {done}: {} and {} replies",
                theirs.len(),
                ours.len()
            );
        }
        let text = String::from_utf8_lossy(&replies).into_owned();
        let numbers = text
            .lines()
            .filter(|line| line.starts_with("VALUE ") || line.contains(" c"));
        seen.extend(numbers.filter_map(|line| {
            let word = line.split(' ').rev().find(|word| !word.is_empty())?;
            word.trim_start_matches('c').parse::<u64>().ok()
        }));
        let surplus = seen.len().saturating_sub(30);
        seen.drain(..surplus);
        done += BATCH as u64;
    }
    assert_eq!(counts(&mut theirs), counts(&mut ours), "seed {seed}");
}

#[test]
fn replies_to_classic_commands_are_those_of_memcached() {
    compare_text(100_000, 1, classic);
}

#[test]
fn replies_to_meta_commands_are_those_of_memcached() {
    compare_text(100_000, 2, |rng, seen| {
        if rng.random_range(0..5) == 0 {
            classic(rng, seen)
        } else {
            meta(rng, seen)
        }
    });
}

fn request(
    code: u8,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    (opaque, cas): (u32, u64),
) -> Vec<u8> {
    let mut bytes = vec![0x80, code];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    let body = (extras.len() + key.len() + value.len()) as u32;
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&cas.to_be_bytes());
    bytes.extend_from_slice(extras);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes
}

/// Returns a request of the binary protocol.
fn binary(rng: &mut SmallRng, opaque: u32, seen: &[u64]) -> Vec<u8> {
    let key = format!("k{}", rng.random_range(0..8));
    let key = if rng.random_range(0..50) == 0 {
        "k".repeat(250)
    } else {
        key
    };
    let key = key.as_bytes();
    let quiet = rng.random_range(0..3) == 0;
    let either = |loud: u8, silent: u8| if quiet { silent } else { loud };
    let cas_ = if rng.random_range(0..4) == 0 {
        cas(rng, seen)
    } else {
        0
    };
    let time_ = time(rng);
    let time_: [u8; 4] = (time_.parse::<i64>().unwrap() as u32).to_be_bytes();
    let plain = (opaque, 0);
    match rng.random_range(0..30) {
        0..8 => {
            let (loud, silent) =
                [(0x01, 0x11), (0x01, 0x11), (0x02, 0x12), (0x03, 0x13)][rng.random_range(0..4)];
            let extras = [rng.random::<u32>().to_be_bytes(), time_].concat();
            request(
                either(loud, silent),
                &extras,
                key,
                &value(rng),
                (opaque, cas_),
            )
        }
        8..11 => {
            let (loud, silent) = [(0x0e, 0x19), (0x0f, 0x1a)][rng.random_range(0..2)];
            request(either(loud, silent), b"", key, &value(rng), (opaque, cas_))
        }
        11..18 => {
            let (loud, silent) = [(0x00, 0x09), (0x0c, 0x0d)][rng.random_range(0..2)];
            request(either(loud, silent), b"", key, b"", plain)
        }
        18..21 => {
            let (loud, silent) = [(0x1c, 0x1c), (0x1d, 0x1e), (0x23, 0x24)][rng.random_range(0..3)];
            request(either(loud, silent), &time_, key, b"", plain)
        }
        21..27 => {
            let (loud, silent) = [(0x05, 0x15), (0x06, 0x16)][rng.random_range(0..2)];
            let by: u64 = number(rng).parse().unwrap();
            let initial: u64 = number(rng).parse().unwrap();
            let extras = [&by.to_be_bytes()[..], &initial.to_be_bytes(), &time_].concat();
            request(either(loud, silent), &extras, key, b"", (opaque, cas_))
        }
        27 => request(either(0x04, 0x14), b"", key, b"", (opaque, cas_)),
        28 => match rng.random_range(0..6) {
            0 => request(either(0x08, 0x18), b"", b"", b"", plain),
            1 => request(0x08, &[0; 4], b"", b"", plain),
            2 => request(0x0b, b"", b"", b"", plain),
            3 => request(0x0a, b"", b"", b"", plain),
            4 => request(0x77, b"", b"", b"some", plain),
            _ => request(0x10, b"", b"nothing", b"", plain),
        },
        _ => request(0x00, b"", key, b"", plain),
    }
}

/// Splits replies; the last one may be incomplete.
fn packets(mut replies: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(length) = replies.get(8..12) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize + 24;
        let Some((one, rest)) = replies.split_at_checked(length) else {
            break;
        };
        all.push(one);
        replies = rest;
    }
    all
}

#[test]
fn replies_in_binary_are_those_of_memcached() {
    const LAST: u32 = 0xfeed_beef;
    let (count, seed) = (setting("COMMANDS", 100_000), setting("SEED", 3));
    let Some(real) = Memcached::start() else {
        return;
    };
    let live = ours();
    let mut theirs = connect(real.address);
    let mut ours = connect(live.running().memcached_address().unwrap());
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut seen, mut done) = (Vec::new(), 0);
    while done < count {
        let requests: Vec<Vec<u8>> = (0..BATCH)
            .map(|at| binary(&mut rng, at as u32, &seen))
            .collect();
        // A number that is still being sent is not changed in its place: `noop` has all of it sent.
        let noop = request(0x0a, b"", b"", b"", (LAST - 1, 0));
        let mut bytes = requests.join(&noop[..]);
        bytes.extend_from_slice(&request(0x0a, b"", b"", b"", (LAST, 0)));
        let is_whole = |replies: &[u8]| {
            let last = packets(replies).last().map(|last| last[12..16].to_vec());
            last.is_some_and(|opaque| opaque == LAST.to_be_bytes())
        };
        let replies = call(&mut theirs, &bytes, is_whole);
        let mine = call(&mut ours, &bytes, is_whole);
        if replies != mine {
            let (theirs, ours) = (packets(&replies), packets(&mine));
            let at = theirs.iter().zip(&ours).position(|(a, b)| a != b);
            let at = at.unwrap_or(theirs.len().min(ours.len()));
            let show = |all: &[&[u8]]| {
                all.get(at)
                    .map_or_else(|| "nothing".into(), |one| shown(one))
            };
            let sent: Vec<String> = requests.iter().map(|it| shown(it)).collect();
            panic!(
                "seed {seed}, after command {done}, reply {at}:\n  memcached: {}\n  ours:      {}\nsent:\n  {}",
                show(&theirs),
                show(&ours),
                sent.join("\n  ")
            );
        }
        seen.extend(packets(&replies).iter().filter_map(|one| {
            let cas = u64::from_be_bytes(one[16..24].try_into().unwrap());
            (cas > 0).then_some(cas)
        }));
        let surplus = seen.len().saturating_sub(30);
        seen.drain(..surplus);
        done += BATCH as u64;
    }
    drop((theirs, ours));
    let mut theirs = connect(real.address);
    let mut ours = connect(live.running().memcached_address().unwrap());
    assert_eq!(counts(&mut theirs), counts(&mut ours), "seed {seed}");
}
