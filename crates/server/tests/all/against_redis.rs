//! The same random commands on strings and keys go to a real `redis-server` and to this server's
//! data layer. Their replies are the same, byte for byte; [`same`] names the exceptions.

use crate::common::{Ours, compare, elements};
use crate::generate::{self, Words, spoilt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Returns a command on strings or keys, or one that queues commands. Collections are only created.
fn command(rng: &mut SmallRng) -> Words {
    loop {
        let command = match rng.random_range(0..30) {
            0 => generate::multi::command(rng),
            1 => return generate::keys::collection(rng),
            2..10 => generate::keys::command(rng),
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

/// Returns true if a key may expire while the test runs: the moment of its deletion differs between
/// the servers.
pub fn expires_meanwhile(words: &Words) -> bool {
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

/// Returns the elements of a reply, sorted, for replies whose order has no meaning. All elements
/// are strings.
fn sorted(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Parses the number in `:n`.
fn number(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns true if both replies to `words` are right.
pub fn same(words: &Words, theirs: &[u8], ours: &[u8]) -> bool {
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
        // Time passes between the two.
        "ttl" => near(2),
        "pttl" => near(5000),
        "expiretime" => near(2),
        "pexpiretime" => near(5000),
        // Cursors are each server's own, and so is what one has that does not go to the end.
        "scan" if words[1] != b"0" || words.get(3).is_none_or(|count| count != b"100000") => {
            let unknown = words[1] != b"0" && ours == b"-ERR invalid cursor\r\n";
            theirs.starts_with(b"*2") && (ours.starts_with(b"*2") || unknown)
        }
        // Order means nothing.
        "keys" | "scan" => sorted(theirs) == sorted(ours),
        // Any key will do.
        "randomkey" => theirs.starts_with(b"$") && ours.starts_with(b"$") && ours != b"$-1\r\n",
        _ => false,
    }
}

/// Returns true if both replies to `EXEC` are right, which contain the replies to all that was
/// `queued`, or, as `same` says, those to another command.
pub fn same_or_queued(
    queued: &mut Vec<Words>,
    words: &Words,
    theirs: &[u8],
    ours: &[u8],
    same: impl Fn(&Words, &[u8], &[u8]) -> bool,
) -> bool {
    if theirs == b"+QUEUED\r\n" {
        queued.push(words.clone());
        return ours == theirs;
    }
    let exec = words[0].eq_ignore_ascii_case(b"exec");
    let ends = |name: &&[u8]| words[0].eq_ignore_ascii_case(name);
    if ![&b"exec"[..], b"discard", b"reset"].iter().any(ends) {
        return same(words, theirs, ours);
    }
    let queued = std::mem::take(queued);
    if !exec || !theirs.starts_with(b"*") {
        return same(words, theirs, ours);
    }
    let (each, of_ours) = (elements(theirs), elements(ours));
    theirs == ours
        || !each.is_empty()
            && each.len() == of_ours.len()
            && (queued.iter().zip(each.iter().zip(&of_ours)))
                .all(|(words, (theirs, ours))| same(words, theirs, ours))
}

fn compare_all(resp3: bool, count: u64, seed: u64) {
    let mut queued = Vec::new();
    compare::replies(
        resp3,
        count,
        seed,
        |rng| vec![command(rng)],
        |words, theirs, ours| same_or_queued(&mut queued, words, theirs, ours, same),
    );
}

#[test]
fn replies_are_those_of_redis() {
    compare_all(false, 100_000, 1);
}

#[test]
fn replies_in_resp3_are_those_of_redis() {
    compare_all(true, 20_000, 2);
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
