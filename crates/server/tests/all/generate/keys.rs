//! Commands on keys of any type, and on their expiry.

use super::{Words, one, rarely};
use rand::{Rng, RngExt};

fn key(rng: &mut impl Rng) -> Vec<u8> {
    let group = one(rng, &["s", "s", "h", "e", "z", "l"]);
    super::key(rng, group)
}

fn pattern(rng: &mut impl Rng) -> &'static str {
    one(
        rng,
        &[
            "*", "s*", "?1", "[sh]*", "[^s]?", "*[0-3]", "s2", "", "\\s*", "[a-", "*1*", "z[", "**",
        ],
    )
}

fn expire(rng: &mut impl Rng) -> Words {
    let name = one(rng, &["expire", "pexpire", "expireat", "pexpireat"]);
    let far = if name.ends_with("at") {
        4_102_444_800 + rng.random_range(0..3i64) * 1000
    } else {
        100_000 + rng.random_range(0..3i64) * 1000
    };
    let far = if name.starts_with('p') {
        far * 1000
    } else {
        far
    };
    let time = match rng.random_range(0..25) {
        0 => one(
            rng,
            &[
                "x",
                "",
                "9223372036854775807",
                "-9223372036854775808",
                "1e3",
            ],
        )
        .to_owned(),
        1 => one(rng, &["0", "-1", "-100000"]).to_owned(),
        _ => far.to_string(),
    };
    let mut command = vec![name.into(), key(rng), time.into_bytes()];
    while rarely(rng, 3) {
        // The order of two relative times may depend on a millisecond.
        let words = if name.ends_with("at") {
            &["nx", "xx", "gt", "lt", "gt", "lt", "foo"][..]
        } else {
            &["nx", "xx", "nx", "xx", "foo"]
        };
        command.push(one(rng, words).into());
    }
    command
}

fn copy(rng: &mut impl Rng) -> Words {
    let mut command = vec![b"copy".to_vec(), key(rng), key(rng)];
    while rarely(rng, 2) {
        if rarely(rng, 2) {
            command.push(b"replace".to_vec());
        } else {
            let db = one(
                rng,
                &["0", "1", "1", "2", "15", "16", "-1", "x", "3000000000"],
            );
            command.extend([b"db".to_vec(), db.into()]);
        }
    }
    command
}

/// Returns a `SCAN` with a count that is enough for all keys: cursors differ between servers.
fn scan(rng: &mut impl Rng) -> Words {
    let cursor = if rarely(rng, 20) {
        one(rng, &["x", "-x", "1x", "18446744073709551616"])
    } else {
        "0"
    };
    let mut command = vec![
        b"scan".to_vec(),
        cursor.into(),
        b"count".to_vec(),
        b"100000".to_vec(),
    ];
    while rarely(rng, 2) {
        match rng.random_range(0..8) {
            0..3 => command.extend([b"match".to_vec(), pattern(rng).into()]),
            3..6 => {
                let of = one(
                    rng,
                    &["string", "hash", "set", "zset", "list", "none", "HASH"],
                );
                command.extend([b"type".to_vec(), of.into()]);
            }
            6 => command.push(b"match".to_vec()),
            _ => command.extend([b"foo".to_vec(), b"bar".to_vec()]),
        }
    }
    if rarely(rng, 20) {
        command.extend([b"count".to_vec(), one(rng, &["0", "-1", "x"]).into()]);
    }
    command
}

/// Returns a command that creates a small or a large collection, which strings and keys then meet.
pub fn collection(rng: &mut impl Rng) -> Words {
    let (name, group) = match rng.random_range(0..4) {
        0 => ("hset", "h"),
        1 => ("sadd", "e"),
        2 => ("zadd", "z"),
        _ => ("rpush", "l"),
    };
    let members = if rarely(rng, 3) {
        600
    } else {
        rng.random_range(1..5)
    };
    let mut command = vec![name.into(), super::key(rng, group)];
    for member in 0..members {
        let member = format!("member{member}").into_bytes();
        match name {
            "hset" => command.extend([member, b"value".to_vec()]),
            "zadd" => command.extend([b"1".to_vec(), member]),
            _ => command.push(member),
        }
    }
    command
}

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    match rng.random_range(0..60) {
        0..8 => expire(rng),
        8..12 => copy(rng),
        12..14 => scan(rng),
        14..16 => vec![b"keys".to_vec(), pattern(rng).into()],
        16..22 => {
            let name = one(rng, &["del", "exists", "unlink", "touch"]);
            let mut command = vec![name.into()];
            command.extend((0..rng.random_range(1..4)).map(|_| key(rng)));
            command
        }
        22..40 => {
            let name = one(
                rng,
                &[
                    "type",
                    "ttl",
                    "pttl",
                    "expiretime",
                    "pexpiretime",
                    "persist",
                    "exists",
                ],
            );
            vec![name.into(), key(rng)]
        }
        40..46 => {
            let name = one(rng, &["rename", "renamenx"]);
            vec![name.into(), key(rng), key(rng)]
        }
        46..49 => {
            let db = one(
                rng,
                &["0", "1", "1", "2", "15", "16", "-1", "x", "3000000000"],
            );
            vec![b"move".to_vec(), key(rng), db.into()]
        }
        49 => {
            let db = |rng: &mut _| {
                one(
                    rng,
                    &["0", "0", "1", "2", "15", "16", "-1", "x", "3000000000"],
                )
            };
            vec![b"swapdb".to_vec(), db(rng).into(), db(rng).into()]
        }
        50 => vec![b"randomkey".to_vec()],
        51..54 => vec![b"dbsize".to_vec()],
        54..58 => vec![
            b"select".to_vec(),
            one(rng, &["0", "0", "0", "1", "2"]).into(),
        ],
        58 => {
            let what = one(rng, &["freq", "idletime", "foo", "encoding"]);
            // Encodings differ between the servers.
            let key = if what == "encoding" {
                b"nothing".to_vec()
            } else {
                key(rng)
            };
            vec![b"object".to_vec(), what.into(), key]
        }
        _ => {
            if !rarely(rng, 10) {
                return vec![b"dbsize".to_vec()];
            }
            let mut command = vec![one(rng, &["flushdb", "flushall"]).into()];
            if rarely(rng, 2) {
                command.push(one(rng, &["sync", "async", "foo"]).into());
            }
            command
        }
    }
}
