//! Commands on sorted sets. Those with keys `x0` to `x2` have the same score for all members.

use super::hashes::{count, name, names, scan};
use super::{Words, float, key, number, one, rarely, words};
use rand::{Rng, RngExt};

fn score(rng: &mut impl Rng) -> Vec<u8> {
    let mut score = match rng.random_range(0..6) {
        0 => one(rng, &["inf", "-inf", "+inf", "0", "1"]).into(),
        _ => float(rng),
    };
    if rarely(rng, 5) {
        score.insert(0, b'(');
    }
    score
}

fn member(rng: &mut impl Rng) -> Vec<u8> {
    match rng.random_range(0..8) {
        0 => b"-".to_vec(),
        1 => b"+".to_vec(),
        2 if rarely(rng, 4) => name(rng),
        _ => {
            let mut end = name(rng);
            end.insert(0, if rarely(rng, 2) { b'(' } else { b'[' });
            end
        }
    }
}

fn limit(rng: &mut impl Rng, words: &mut Words) {
    if rarely(rng, 3) {
        words.extend([b"limit".to_vec(), number(rng), number(rng)]);
    }
}

/// Returns the options of `ZRANGE`, and the range.
fn range(rng: &mut impl Rng, words: &mut Words) {
    let by = rng.random_range(0..2);
    match by {
        0 => words.extend([number(rng), number(rng)]),
        _ => words.extend([score(rng), score(rng), b"byscore".to_vec()]),
    }
    if rarely(rng, 3) {
        words.push(b"rev".to_vec());
    }
    if rarely(rng, 3) && words[0] == b"zrange" || rarely(rng, 30) {
        words.push(b"withscores".to_vec());
    }
    if by == 1 || rarely(rng, 20) {
        limit(rng, words);
    }
    if rarely(rng, 60) {
        words.push(one(rng, &["bylex", "byscore", "rev", "limit"]).into());
    }
}

fn zadd(rng: &mut impl Rng, words: &mut Words) {
    while rarely(rng, 4) {
        words.push(one(rng, &["nx", "xx", "gt", "lt", "ch", "ch", "incr", "CH"]).into());
    }
    let names = names(rng);
    let many = names.len() > 5;
    for name in names {
        // One that is no number would spoil all.
        let score = if many {
            rng.random_range(-9..20).to_string().into_bytes()
        } else {
            float(rng)
        };
        words.extend([score, name]);
    }
}

fn combination(rng: &mut impl Rng, command: &str, words: &mut Words) {
    let keys = rng.random_range(1..4);
    words.push(if rarely(rng, 20) {
        number(rng)
    } else {
        keys.to_string().into_bytes()
    });
    for _ in 0..keys {
        let group = if rarely(rng, 6) { "e" } else { "z" };
        words.push(key(rng, group));
    }
    if command == "zintercard" {
        if rarely(rng, 3) {
            words.extend([b"limit".to_vec(), number(rng)]);
        }
        return;
    }
    let differs = command.starts_with("zdiff") && !rarely(rng, 20);
    if !differs && rarely(rng, 3) {
        words.push(b"weights".to_vec());
        words.extend((0..keys).map(|_| float(rng)));
    }
    if !differs && rarely(rng, 3) {
        words.push(b"aggregate".to_vec());
        words.push(one(rng, &["sum", "min", "max", "MAX", "avg"]).into());
    }
    if !command.ends_with("store") && rarely(rng, 2) {
        words.push(b"withscores".to_vec());
    }
}

/// Returns a command on a sorted set whose members have the same score.
pub fn by_member(rng: &mut impl Rng) -> Words {
    let key = format!("x{}", rng.random_range(0..3)).into_bytes();
    let command = one(
        rng,
        &[
            "zadd",
            "zadd",
            "zlexcount",
            "zrangebylex",
            "zrevrangebylex",
            "zremrangebylex",
            "zrange",
            "zrem",
        ],
    );
    let mut words = words(&[command]);
    words.push(key);
    match command {
        "zadd" => names(rng)
            .into_iter()
            .for_each(|name| words.extend([b"0".to_vec(), name])),
        "zrem" => words.push(name(rng)),
        _ => {
            words.extend([member(rng), member(rng)]);
            if command == "zrange" {
                words.push(b"bylex".to_vec());
                if rarely(rng, 2) {
                    words.push(b"rev".to_vec());
                }
            }
            if command.contains("range") && !command.starts_with("zrem") {
                limit(rng, &mut words);
                if rarely(rng, 30) {
                    words.push(b"withscores".to_vec());
                }
            }
        }
    }
    words
}

/// The commands, some several times so that they are more frequent.
const COMMANDS: [&str; 34] = [
    "zadd",
    "zadd",
    "zadd",
    "zadd",
    "zadd",
    "zrem",
    "zrem",
    "zscore",
    "zmscore",
    "zincrby",
    "zcard",
    "zcount",
    "zrange",
    "zrange",
    "zrangestore",
    "zrangebyscore",
    "zrevrangebyscore",
    "zrevrange",
    "zrank",
    "zrevrank",
    "zpopmin",
    "zpopmax",
    "zrandmember",
    "zremrangebyrank",
    "zremrangebyscore",
    "zunion",
    "zinter",
    "zdiff",
    "zunionstore",
    "zinterstore",
    "zdiffstore",
    "zintercard",
    "zscan",
    "zmpop",
];

/// Returns a command, and whether it may be spoilt.
pub fn command(rng: &mut impl Rng) -> (Words, bool) {
    if rarely(rng, 5) {
        return (by_member(rng), false);
    }
    let command = one(rng, &COMMANDS);
    if command == "zscan" {
        return (scan(rng, command, "z"), true);
    }
    let mut words = words(&[command]);
    match command {
        "zunion" | "zinter" | "zdiff" | "zintercard" => {
            combination(rng, command, &mut words);
            return (words, true);
        }
        "zmpop" => {
            let keys = rng.random_range(1..4);
            words.push(keys.to_string().into_bytes());
            words.extend((0..keys).map(|_| key(rng, "z")));
            words.push(one(rng, &["min", "max", "MIN", "MAX", "min", "mid"]).into());
            if rarely(rng, 2) {
                words.extend([b"count".to_vec(), number(rng)]);
            }
            return (words, true);
        }
        _ => words.push(key(rng, "z")),
    }
    match command {
        "zadd" => zadd(rng, &mut words),
        "zrem" | "zmscore" => words.extend(names(rng)),
        "zscore" | "zrank" | "zrevrank" => words.push(name(rng)),
        "zincrby" => words.extend([float(rng), name(rng)]),
        "zcount" | "zremrangebyscore" => words.extend([score(rng), score(rng)]),
        "zrange" => range(rng, &mut words),
        "zrangestore" => {
            words.push(key(rng, "z"));
            range(rng, &mut words);
        }
        "zrangebyscore" | "zrevrangebyscore" => {
            words.extend([score(rng), score(rng)]);
            if rarely(rng, 3) {
                words.push(b"withscores".to_vec());
            }
            limit(rng, &mut words);
        }
        "zrevrange" | "zremrangebyrank" => {
            words.extend([number(rng), number(rng)]);
            if command == "zrevrange" && rarely(rng, 3) {
                words.push(b"withscores".to_vec());
            }
        }
        "zpopmin" | "zpopmax" if rarely(rng, 2) => words.push(number(rng)),
        "zrandmember" if !rarely(rng, 3) => {
            words.push(count(rng));
            if rarely(rng, 2) {
                words.push(b"withscores".to_vec());
            }
        }
        "zunionstore" | "zinterstore" | "zdiffstore" => combination(rng, command, &mut words),
        _ => {}
    }
    (words, true)
}
