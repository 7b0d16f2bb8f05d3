//! The same random commands go to a real `redis-server` and to our data layer: their replies are the same, byte for byte.
//!
//! Exceptions are named in [`same`]. If there is no `redis-server` on this machine, the test says so and does nothing. `SEED` and
//! `COMMANDS` in the environment choose others.

mod common;
mod generate;

use common::{Ours, Redis};
use generate::{Words, spoilt};
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Commands that are sent at once.
const BATCH: usize = 200;

/// A command of any group.
fn command(rng: &mut SmallRng) -> Words {
    let command = generate::strings::command(rng);
    spoilt(rng, command)
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
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let near = |most: i64| match (number(theirs), number(ours)) {
        (Some(theirs), Some(ours)) => {
            theirs > 0 && ours > 0 && theirs.abs_diff(ours) <= most as u64
        }
        _ => false,
    };
    match name.as_str() {
        // Time goes on between the two.
        "ttl" => near(2),
        "pttl" => near(5000),
        "expiretime" => near(2),
        "pexpiretime" => near(5000),
        // Order means nothing.
        "keys" => sorted(theirs) == sorted(ours),
        // Any key will do.
        "randomkey" => theirs.starts_with(b"$") && ours.starts_with(b"$") && ours != b"$-1\r\n",
        _ => false,
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

fn shown(words: &Words) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("\"{}\"", word.escape_ascii()))
        .collect();
    words.join(" ")
}

fn compare(resp3: bool, count: usize, seed: u64) {
    let Some(mut redis) = Redis::start() else {
        eprintln!("SKIPPED: there is no redis-server on this machine to compare with");
        return;
    };
    let mut ours = Ours::new();
    if resp3 {
        let hello = generate::words(&["hello", "3"]);
        redis.call_all(std::slice::from_ref(&hello));
        ours.call(&hello);
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut before: Vec<(Words, Vec<u8>)> = Vec::new();
    let mut done = 0;
    while done < count {
        let commands: Vec<Words> = (0..BATCH).map(|_| command(&mut rng)).collect();
        let replies = redis.call_all(&commands);
        for (words, theirs) in commands.into_iter().zip(replies) {
            let mine = ours.call(&words);
            if !same(&words, &theirs, &mine) {
                let related = before
                    .iter()
                    .filter(|(other, _)| other[1..].iter().any(|word| words[1..].contains(word)));
                let related: Vec<String> = related
                    .map(|(words, reply)| format!("{}\n    {}", shown(words), reply.escape_ascii()))
                    .collect();
                let last = &related[related.len().saturating_sub(12)..];
                panic!(
                    "seed {seed}, command {done}: {}\n  Redis: {}\n  ours:  {}\nbefore it:\n{}",
                    shown(&words),
                    theirs.escape_ascii(),
                    mine.escape_ascii(),
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
        let reply = ours.call(&command(&mut rng));
        if reply.starts_with(b"-") {
            bad += 1;
        } else {
            good += 1;
        }
    }
    assert!(good > 1000 && bad > 50, "{good} and {bad}");
}
