//! Commands of all families on three keys in two databases, which have a value of each type in
//! turn.

use super::{Words, hashes, lists, multi, one, rarely, sets, sort, sorted_sets, strings, words};
use rand::{Rng, RngExt};

/// The keys: one begins like another.
const KEYS: [&str; 3] = ["a", "ab", "b"];
/// The numbers of the databases.
const DATABASES: [&str; 2] = ["0", "1"];

fn key(rng: &mut impl Rng) -> Vec<u8> {
    one(rng, &KEYS).into()
}

fn database(rng: &mut impl Rng) -> Vec<u8> {
    one(rng, &DATABASES).into()
}

/// Whether a word is a key of one of the families: `s3`, `h0`.
fn is_key(word: &[u8]) -> bool {
    matches!(word, [b's' | b'h' | b'e' | b'z' | b'l' | b'x', number] if number.is_ascii_digit())
}

/// Returns a command with all keys of families replaced.
fn on_few(mut command: Words) -> Words {
    for word in command[1..].iter_mut().filter(|word| is_key(word)) {
        *word = KEYS[usize::from(word[1] - b'0') % KEYS.len()].into();
    }
    command
}

/// Whether the reply is a matter of chance.
fn is_random(command: &Words) -> bool {
    let name = command[0].as_slice();
    name.ends_with(b"randfield") || name.ends_with(b"randmember") || name == b"spop"
}

/// Returns an iteration in small steps, some of which give nothing.
fn iteration(rng: &mut impl Rng, whole: &[u8]) -> Words {
    let name = one(rng, &["scan", "scan", "hscan", "sscan", "zscan"]);
    let mut command = words(&[name]);
    if name != "scan" {
        command.push(key(rng));
    }
    command.push(whole.to_vec());
    command.extend([b"count".to_vec(), one(rng, &["1", "1", "2", "3"]).into()]);
    if !rarely(rng, 3) {
        let pattern = one(
            rng,
            &["a", "a*", "ab", "b", "*b", "?", "n1*", "*1", "c", "*"],
        );
        command.extend([b"match".to_vec(), pattern.into()]);
    }
    if name == "scan" && rarely(rng, 3) {
        let kind = one(rng, &["string", "hash", "set", "zset", "list"]);
        command.extend([b"type".to_vec(), kind.into()]);
    }
    command
}

/// Returns a command on keys of any type, or on databases.
fn on_keys(rng: &mut impl Rng) -> Words {
    match rng.random_range(0..30) {
        0..3 => {
            let time = one(rng, &["100000", "200000", "100000", "-1", "0"]);
            let mut command = vec![b"expire".to_vec(), key(rng), time.into()];
            if rarely(rng, 3) {
                command.push(one(rng, &["nx", "xx"]).into());
            }
            command
        }
        3..5 => {
            let time = one(rng, &["4102444800", "4102444900", "1"]);
            let mut command = vec![b"expireat".to_vec(), key(rng), time.into()];
            if rarely(rng, 2) {
                command.push(one(rng, &["nx", "xx", "gt", "lt"]).into());
            }
            command
        }
        5 => vec![b"persist".to_vec(), key(rng)],
        6..9 => {
            let name = one(rng, &["type", "type", "ttl", "expiretime", "exists"]);
            vec![name.into(), key(rng)]
        }
        9..11 => {
            let mut command = vec![one(rng, &["exists", "touch"]).into()];
            command.extend((0..rng.random_range(1..4)).map(|_| key(rng)));
            command
        }
        11..13 => {
            let mut command = vec![one(rng, &["del", "unlink"]).into()];
            command.extend((0..rng.random_range(1..3)).map(|_| key(rng)));
            command
        }
        13..16 => {
            let name = one(rng, &["rename", "renamenx"]);
            vec![name.into(), key(rng), key(rng)]
        }
        16..20 => {
            let mut command = vec![b"copy".to_vec(), key(rng), key(rng)];
            if rarely(rng, 2) {
                command.extend([b"db".to_vec(), database(rng)]);
            }
            if !rarely(rng, 3) {
                command.push(b"replace".to_vec());
            }
            command
        }
        20..23 => vec![b"move".to_vec(), key(rng), database(rng)],
        23 => vec![b"swapdb".to_vec(), database(rng), database(rng)],
        24..27 => vec![b"select".to_vec(), database(rng)],
        27 if rarely(rng, 8) => vec![one(rng, &["flushdb", "flushall"]).into()],
        27 => words(&["keys", one(rng, &["*", "a*", "a", "?"])]),
        _ => {
            let name = one(rng, &["get", "llen", "hlen", "scard", "zcard", "strlen"]);
            vec![name.into(), key(rng)]
        }
    }
}

/// Returns a command, `MULTI` and its relatives included. A scan with the cursor `whole` stands for
/// an iteration to its end.
pub fn command(rng: &mut impl Rng, whole: &[u8]) -> Words {
    loop {
        let command = match rng.random_range(0..40) {
            0..12 => return on_keys(rng),
            12..14 => return iteration(rng, whole),
            14..20 => match multi::command(rng) {
                // One with a word too many is for another test.
                command if command.len() > 1 && command[0] != b"watch" => continue,
                command => command,
            },
            20..24 => strings::command(rng),
            24..28 => hashes::command(rng),
            28..32 => lists::command(rng),
            32..35 => sets::command(rng),
            35..39 => sorted_sets::command(rng).0,
            _ => sort::command(rng).0,
        };
        if !is_random(&command) {
            return on_few(command);
        }
    }
}
