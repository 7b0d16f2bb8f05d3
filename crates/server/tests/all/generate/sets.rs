//! Commands on sets.

use super::hashes::{count, name, names, scan};
use super::{Words, key, number, one, rarely, words};
use rand::{Rng, RngExt};

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    let command = one(
        rng,
        &[
            "sadd",
            "sadd",
            "sadd",
            "sadd",
            "srem",
            "srem",
            "smembers",
            "sismember",
            "smismember",
            "scard",
            "spop",
            "srandmember",
            "smove",
            "sinter",
            "sunion",
            "sdiff",
            "sinterstore",
            "sunionstore",
            "sdiffstore",
            "sintercard",
            "sscan",
        ],
    );
    if command == "sscan" {
        return scan(rng, command, "e");
    }
    let mut words = words(&[command]);
    if command == "sintercard" {
        let keys = rng.random_range(1..4);
        words.push(if rarely(rng, 15) {
            number(rng)
        } else {
            keys.to_string().into_bytes()
        });
        words.extend((0..keys).map(|_| key(rng, "e")));
        if rarely(rng, 3) {
            words.extend([b"limit".to_vec(), number(rng)]);
        }
        return words;
    }
    words.push(key(rng, "e"));
    match command {
        "sadd" | "srem" | "smismember" => words.extend(names(rng)),
        "sismember" => words.push(name(rng)),
        "spop" | "srandmember" if rarely(rng, 2) => words.push(count(rng)),
        "smove" => words.extend([key(rng, "e"), name(rng)]),
        "sinter" | "sunion" | "sdiff" | "sinterstore" | "sunionstore" | "sdiffstore" => {
            let keys = rng.random_range(1..4);
            words.extend((0..keys).map(|_| key(rng, "e")));
        }
        _ => {}
    }
    words
}
