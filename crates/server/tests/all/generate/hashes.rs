//! Commands on hashes.

use super::{Words, float, key, number, one, rarely, value, words};
use rand::{Rng, RngExt};

/// Returns the name of a field, member or element: usually one of a few, seldom one of many, or a
/// long one.
pub fn name(rng: &mut impl Rng) -> Vec<u8> {
    match rng.random_range(0..20) {
        0 => value(rng),
        1 => vec![b'n'; rng.random_range(60..70)],
        2 if rarely(rng, 10) => vec![b'l'; rng.random_range(1000..1100)],
        2..5 => format!("n{}", rng.random_range(0..300)).into_bytes(),
        _ => format!("n{}", rng.random_range(0..12)).into_bytes(),
    }
}

/// Returns many names, so that a collection becomes large; or a few names to be removed.
pub fn names(rng: &mut impl Rng) -> Vec<Vec<u8>> {
    if rarely(rng, 12) {
        let start = rng.random_range(0..200);
        let count = rng.random_range(20..160);
        return (start..start + count)
            .map(|n| format!("n{n}").into_bytes())
            .collect();
    }
    let count = if rarely(rng, 2) {
        1
    } else {
        rng.random_range(1..5)
    };
    (0..count).map(|_| name(rng)).collect()
}

/// Returns the options of a scan that sees everything at once.
pub fn scan(rng: &mut impl Rng, command: &str, group: &str) -> Words {
    let cursor = if rarely(rng, 15) {
        one(rng, &["x", " 0", "18446744073709551616", "", "0x"])
    } else {
        "0"
    };
    let mut words = vec![command.into(), key(rng, group), cursor.into()];
    words.extend([b"count".to_vec(), b"1000".to_vec()]);
    if rarely(rng, 3) {
        words.push(b"match".to_vec());
        words.push(one(rng, &["n*", "n?", "*1*", "n[1-3]", "[^n]*", "x", "n\\1"]).into());
    }
    if rarely(rng, 20) {
        words.push(one(rng, &["count", "match", "type", "bla"]).into());
        words.push(one(rng, &["0", "-1", "x", "string"]).into());
    }
    words
}

/// Returns a count of random elements.
pub fn count(rng: &mut impl Rng) -> Vec<u8> {
    if rarely(rng, 15) {
        return one(
            rng,
            &[
                "-9223372036854775808",
                "9223372036854775807",
                "x",
                "1.5",
                "4611686018427387904",
            ],
        )
        .into();
    }
    rng.random_range(-10..20).to_string().into_bytes()
}

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    let command = one(
        rng,
        &[
            "hset",
            "hset",
            "hset",
            "hset",
            "hmset",
            "hsetnx",
            "hget",
            "hmget",
            "hgetall",
            "hdel",
            "hdel",
            "hlen",
            "hexists",
            "hkeys",
            "hvals",
            "hincrby",
            "hincrbyfloat",
            "hstrlen",
            "hrandfield",
            "hscan",
        ],
    );
    if command == "hscan" {
        return scan(rng, command, "h");
    }
    let mut words = words(&[command]);
    words.push(key(rng, "h"));
    match command {
        "hset" | "hmset" => {
            for name in names(rng) {
                words.push(name);
                let text = if rarely(rng, 40) {
                    vec![b'v'; rng.random_range(900..3000)]
                } else {
                    value(rng)
                };
                words.push(text);
            }
        }
        "hsetnx" => words.extend([name(rng), value(rng)]),
        "hget" | "hexists" | "hstrlen" => words.push(name(rng)),
        "hmget" | "hdel" => words.extend(names(rng)),
        "hincrby" => words.extend([name(rng), number(rng)]),
        "hincrbyfloat" => words.extend([name(rng), float(rng)]),
        "hrandfield" if !rarely(rng, 3) => {
            words.push(count(rng));
            if rarely(rng, 2) {
                words.push(b"withvalues".to_vec());
            }
        }
        _ => {}
    }
    words
}
