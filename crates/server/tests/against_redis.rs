//! The same random commands go to a real `redis-server` and to our data layer: their replies are the same, byte for byte.
//!
//! Exceptions are named in [`same`]. If there is no `redis-server` on this machine, the test says so and does nothing. `SEED` and
//! `COMMANDS` in the environment choose others.

mod common;
mod generate;

use common::{Ours, Redis, elements};
use generate::{Words, spoilt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Commands that are sent at once.
const BATCH: usize = 200;

/// A command on strings, keys, or what the connection queues. Collections are only made, if our data layer has them.
fn command(rng: &mut SmallRng, collections: bool) -> Words {
    loop {
        let command = match rng.random_range(0..30) {
            0 => generate::multi::command(rng),
            1 if collections => return generate::keys::collection(rng),
            1..10 => generate::keys::command(rng),
            _ => generate::strings::command(rng),
        };
        // `SELECT` is the test's own here: a spoilt one would say nothing.
        if command[0] == b"select" {
            return command;
        }
        let command = spoilt(rng, command);
        if !expires_meanwhile(&command) {
            return command;
        }
    }
}

/// True if a key would expire while the test runs, or has expired and is still there: when it is gone is each server's own.
fn expires_meanwhile(words: &Words) -> bool {
    let within = |word: Option<&Vec<u8>>, most: u64| {
        word.and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok())
            .is_some_and(|number| (1..=most).contains(&number))
    };
    let name = words[0].to_ascii_lowercase();
    match name.as_slice() {
        b"set" | b"getex" => (2..words.len()).any(|at| {
            let next = words.get(at + 1);
            match words[at].to_ascii_lowercase().as_slice() {
                b"ex" | b"px" => within(next, 99_999),
                b"exat" | b"pxat" => name == b"set" && within(next, 1_000_000_000_000),
                _ => false,
            }
        }),
        b"setex" | b"psetex" | b"expire" | b"pexpire" => within(words.get(2), 99_999),
        _ => false,
    }
}

/// What a reply's elements are, sorted: for those whose order means nothing. Every element is a string of bytes.
fn sorted(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// The number in `:n`.
fn number(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// True if both replies to `words` are right.
fn same(words: &Words, theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    // Errors that show words that are no text, in another way.
    let is_text = |word: &Vec<u8>| !word.contains(&0) && std::str::from_utf8(word).is_ok();
    if theirs.starts_with(b"-") && !words.iter().all(is_text) {
        return ours.get(..9) == theirs.get(..9);
    }
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let near = |most: i64| match (number(theirs), number(ours)) {
        (Some(theirs), Some(ours)) => {
            // Ours expire within 2^48 ms at the latest.
            let latest = (1 << 47) / if most > 1000 { 1 } else { 1000 };
            theirs > 0 && ours > 0 && theirs.abs_diff(ours) <= most as u64
                || theirs > ours && ours > latest
        }
        _ => false,
    };
    match name.as_str() {
        // When keys were used is not kept.
        "object" if words[1].eq_ignore_ascii_case(b"idletime") => ours == b":0\r\n",
        // Time goes on between the two.
        "ttl" => near(2),
        "pttl" => near(5000),
        "expiretime" => near(2),
        "pexpiretime" => near(5000),
        // Cursors are each server's own, and so is what one has that does not go to the end.
        "scan" if words[1] != b"0" || words.get(3).is_none_or(|count| count != b"100000") => {
            theirs.starts_with(b"*2") && ours.starts_with(b"*2")
        }
        // Order means nothing.
        "keys" | "scan" => sorted(theirs) == sorted(ours),
        // Any key will do.
        "randomkey" => theirs.starts_with(b"$") && ours.starts_with(b"$") && ours != b"$-1\r\n",
        _ => false,
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// The beginning of something long.
fn start(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

fn shown(words: &Words) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("\"{}\"", start(word)))
        .collect();
    words.join(" ")
}

fn compare(resp3: bool, count: usize, seed: u64) {
    let Some(mut redis) = Redis::start() else {
        eprintln!("SKIPPED: there is no redis-server on this machine to compare with");
        return;
    };
    let mut ours = Ours::new();
    let collections = ours.knows("hset");
    if resp3 {
        let hello = generate::words(&["hello", "3"]);
        redis.call_all(std::slice::from_ref(&hello));
        ours.call(&hello);
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut before: Vec<(Words, Vec<u8>)> = Vec::new();
    let mut queued: Vec<Words> = Vec::new();
    let mut done = 0;
    while done < count {
        let commands: Vec<Words> = (0..BATCH).map(|_| command(&mut rng, collections)).collect();
        let replies = redis.call_all(&commands);
        for (words, theirs) in commands.into_iter().zip(replies) {
            let mine = ours.call(&words);
            let right = if theirs == b"+QUEUED\r\n" {
                queued.push(words.clone());
                mine == theirs
            } else if theirs.starts_with(b"*") && words[0].eq_ignore_ascii_case(b"exec") {
                let (theirs, mine) = (elements(&theirs), elements(&mine));
                theirs.len() == mine.len()
                    && (queued.iter().zip(theirs.iter().zip(&mine)))
                        .all(|(words, (theirs, mine))| same(words, theirs, mine))
            } else {
                same(&words, &theirs, &mine)
            };
            if words[0].eq_ignore_ascii_case(b"exec") || words[0].eq_ignore_ascii_case(b"discard") {
                queued.clear();
            }
            if !right {
                let related = before
                    .iter()
                    .filter(|(other, _)| other[1..].iter().any(|word| words[1..].contains(word)));
                let related: Vec<String> = related
                    .map(|(words, reply)| format!("{}\n    {}", shown(words), start(reply)))
                    .collect();
                let last = &related[related.len().saturating_sub(12)..];
                panic!(
                    "seed {seed}, command {done}: {}\n  Redis: {}\n  ours:  {}\nbefore it:\n{}",
                    shown(&words),
                    start(&theirs),
                    start(&mine),
                    last.join("\n"),
                );
            }
            before.push((words, theirs));
            done += 1;
        }
        let surplus = before.len().saturating_sub(2000);
        before.drain(..surplus);
        ours.settle();
    }
}

#[test]
fn replies_are_those_of_redis() {
    let seed = setting("SEED", 1);
    compare(false, setting("COMMANDS", 100_000) as usize, seed);
}

#[test]
fn replies_in_resp3_are_those_of_redis() {
    let seed = setting("SEED", 2);
    compare(true, setting("COMMANDS", 20_000) as usize, seed);
}

#[test]
fn every_group_makes_commands_that_succeed_and_some_that_do_not() {
    let mut ours = Ours::new();
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..2000 {
        let reply = ours.call(&command(&mut rng, false));
        if reply.starts_with(b"-") {
            bad += 1;
        } else {
            good += 1;
        }
    }
    assert!(good > 1000 && bad > 50, "{good} and {bad}");
}
