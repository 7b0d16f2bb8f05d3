//! Commands on lists.

use super::hashes::{name, names};
use super::{Words, key, number, one, rarely, words};
use rand::{Rng, RngExt};

fn end(rng: &mut impl Rng) -> Vec<u8> {
    if rarely(rng, 30) {
        return b"up".to_vec();
    }
    one(rng, &["left", "right"]).into()
}

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    let command = one(
        rng,
        &[
            "lpush",
            "lpush",
            "rpush",
            "rpush",
            "rpush",
            "lpushx",
            "rpushx",
            "lpop",
            "rpop",
            "llen",
            "lrange",
            "lrange",
            "lindex",
            "lset",
            "linsert",
            "linsert",
            "lrem",
            "lrem",
            "ltrim",
            "lpos",
            "lpos",
            "lmove",
            "rpoplpush",
            "lmpop",
        ],
    );
    let mut words = words(&[command]);
    if command == "lmpop" {
        let keys = rng.random_range(1..4);
        words.push(if rarely(rng, 15) {
            number(rng)
        } else {
            keys.to_string().into_bytes()
        });
        words.extend((0..keys).map(|_| key(rng, "l")));
        words.push(end(rng));
        if rarely(rng, 2) {
            words.extend([b"count".to_vec(), number(rng)]);
        }
        return words;
    }
    words.push(key(rng, "l"));
    match command {
        "lpush" | "rpush" | "lpushx" | "rpushx" => words.extend(names(rng)),
        "lpop" | "rpop" if rarely(rng, 3) => words.push(number(rng)),
        "lrange" => words.extend([number(rng), number(rng)]),
        "ltrim" => {
            let far = |rng: &mut _| {
                if rarely(rng, 2) {
                    number(rng)
                } else {
                    b"-2".to_vec()
                }
            };
            words.push(if rarely(rng, 3) {
                number(rng)
            } else {
                b"1".to_vec()
            });
            words.push(far(rng));
        }
        "lindex" => words.push(number(rng)),
        "lset" => words.extend([number(rng), name(rng)]),
        "linsert" => {
            words.push(one(rng, &["before", "after", "before", "after", "BEFORE", "in"]).into());
            words.extend([name(rng), name(rng)]);
        }
        "lrem" => words.extend([number(rng), name(rng)]),
        "lpos" => {
            words.push(name(rng));
            while rarely(rng, 2) {
                words.push(one(rng, &["rank", "count", "maxlen", "RANK", "Count"]).into());
                words.push(number(rng));
            }
        }
        "lmove" => words.extend([key(rng, "l"), end(rng), end(rng)]),
        "rpoplpush" => words.push(key(rng, "l")),
        _ => {}
    }
    words
}
