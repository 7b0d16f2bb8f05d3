//! Random requests of memcached clients: classic, meta, binary. `seen` has numbers that items were
//! shown with.

use rand::RngExt;
use rand::rngs::SmallRng;
use std::time::{SystemTime, UNIX_EPOCH};

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
pub fn long_store(rng: &mut SmallRng) -> Option<Vec<u8>> {
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
pub fn classic(rng: &mut SmallRng, seen: &[u64]) -> Vec<u8> {
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
            let last = rng.random_range(0..8);
            format!("{name} {} k1 k{last}", spoilt(rng, time))
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
pub fn meta(rng: &mut SmallRng, seen: &[u64]) -> Vec<u8> {
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

/// Returns a request of the binary protocol with these parts; then its opaque and its cas.
pub fn request(
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
pub fn binary(rng: &mut SmallRng, opaque: u32, seen: &[u64]) -> Vec<u8> {
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
