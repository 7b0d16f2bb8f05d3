//! The same random commands go to a real memcached and to this server, over TCP. Their replies are
//! the same, byte for byte; [`same`] names the exceptions.

use crate::generate::memcached::{binary, classic, long_store, meta, request};
use crate::live::{Live, connect, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

/// Compares with fresh servers, and again if they differ. What memcached replies depends now and
/// then on when it reads and sends: its clock ticks once a second, and a number whose reply is
/// still being sent is not changed in its place. A fault of ours comes again.
fn compared(compare: impl Fn()) {
    for left in (0..8).rev() {
        match catch_unwind(AssertUnwindSafe(&compare)) {
            Ok(()) => return,
            Err(differs) if left == 0 => resume_unwind(differs),
            Err(_) => eprintln!("they differ; {left} more times"),
        }
    }
}

/// Compares the replies to `count` commands. `COMMANDS` and `SEED` in the environment override
/// `count` and `seed`.
fn compare_text(count: u64, seed: u64, next: impl Fn(&mut SmallRng, &[u64]) -> Vec<u8>) {
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
    compared(|| compare_text(100_000, 1, classic));
}

#[test]
fn replies_to_meta_commands_are_those_of_memcached() {
    let next = |rng: &mut SmallRng, seen: &[u64]| {
        if rng.random_range(0..5) == 0 {
            classic(rng, seen)
        } else {
            meta(rng, seen)
        }
    };
    compared(|| compare_text(100_000, 2, next));
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
    compared(|| compare_binary(100_000, 3));
}

fn compare_binary(count: u64, seed: u64) {
    const LAST: u32 = 0xfeed_beef;
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
    // Memcached does not count these in binary.
    let counted = |line: &String| !line.starts_with("STAT store_too_large ");
    let [theirs, ours] = [&mut theirs, &mut ours].map(|stream| {
        let lines: Vec<String> = counts(stream).into_iter().filter(counted).collect();
        lines
    });
    assert_eq!(theirs, ours, "seed {seed}");
}
