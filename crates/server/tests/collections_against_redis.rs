//! The same random commands on hashes, lists, sets and sorted sets go to a real `redis-server` and to our data layer: their replies are
//! the same, byte for byte, but for an order that means nothing, and for what is random.
//!
//! If there is no `redis-server` on this machine, the tests say so and do nothing. `SEED` and `COMMANDS` in the environment choose
//! others.

mod common;
mod generate;

use common::{Ours, Redis};
use generate::{Words, one, rarely, spoilt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Commands that are sent at once.
const BATCH: usize = 200;

/// A command on keys, whatever they hold.
fn on_keys(rng: &mut SmallRng) -> Words {
    let name = one(
        rng,
        &[
            "del", "expire", "persist", "rename", "copy", "type", "exists",
        ],
    );
    let group = one(rng, &["h", "l", "e", "z", "x"]);
    let key = |rng: &mut SmallRng| format!("{group}{}", rng.random_range(0..3)).into_bytes();
    let mut words = generate::words(&[name]);
    words.push(key(rng));
    match name {
        "expire" => words.push(b"100000".to_vec()),
        "rename" => words.push(key(rng)),
        "copy" => words.extend([key(rng), b"replace".to_vec()]),
        _ => {}
    }
    words
}

/// A command of any group.
fn command(rng: &mut SmallRng) -> Words {
    if rarely(rng, 60) {
        return on_keys(rng);
    }
    let (command, may_be_spoilt) = match rng.random_range(0..9) {
        0 => (generate::strings::command(rng), false),
        1 | 2 => (generate::hashes::command(rng), true),
        3 | 4 => (generate::lists::command(rng), true),
        5 | 6 => (generate::sets::command(rng), true),
        _ => generate::sorted_sets::command(rng),
    };
    if may_be_spoilt {
        spoilt(rng, command)
    } else {
        command
    }
}

/// A reply.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reply {
    Line(Vec<u8>),
    Bulk(Vec<u8>),
    Many(u8, Vec<Reply>),
}

/// The reply that `bytes` begin with, which go on after it.
fn parse(bytes: &mut &[u8]) -> Reply {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let (line, rest) = bytes.split_at(end + 1);
    *bytes = rest;
    let number =
        || -> Option<usize> { std::str::from_utf8(&line[1..end - 1]).unwrap().parse().ok() };
    match (line[0], number) {
        (b'$', number) => match number() {
            Some(len) => {
                let (text, rest) = bytes.split_at(len);
                *bytes = &rest[2..];
                Reply::Bulk(text.to_vec())
            }
            None => Reply::Line(line.to_vec()),
        },
        (kind @ (b'*' | b'~' | b'%'), number) => match number() {
            Some(len) => {
                let len = if kind == b'%' { 2 * len } else { len };
                Reply::Many(kind, (0..len).map(|_| parse(bytes)).collect())
            }
            None => Reply::Line(line.to_vec()),
        },
        _ => Reply::Line(line.to_vec()),
    }
}

/// A reply in whose arrays the order of groups of so many means nothing.
fn sorted(reply: Reply, group: usize) -> Reply {
    match reply {
        Reply::Many(kind, replies) => {
            let mut replies = replies.into_iter().map(|reply| sorted(reply, group));
            let mut groups = Vec::new();
            loop {
                let next: Vec<Reply> = replies.by_ref().take(group).collect();
                if next.is_empty() {
                    break;
                }
                groups.push(next);
            }
            groups.sort();
            Reply::Many(kind, groups.into_iter().flatten().collect())
        }
        other => other,
    }
}

/// A reply with scores in one form. Sorted sets of ours do not keep the sign of zero, those of Redis only if they are, or have been,
/// large; the same goes for the text of large scores in a scan.
fn plain_scores(reply: Reply) -> Reply {
    match reply {
        Reply::Many(kind, replies) => {
            Reply::Many(kind, replies.into_iter().map(plain_scores).collect())
        }
        Reply::Bulk(text) if text == b"-0" => Reply::Bulk(b"0".to_vec()),
        Reply::Bulk(text) if text == b"100000000000000000" => Reply::Bulk(b"1e+17".to_vec()),
        Reply::Line(line) if line == b",-0\r\n" => Reply::Line(b",0\r\n".to_vec()),
        other => other,
    }
}

/// What a reply is made of, whatever it says.
fn shape(reply: Reply) -> Reply {
    match reply {
        Reply::Many(kind, replies) => Reply::Many(kind, replies.into_iter().map(shape).collect()),
        Reply::Bulk(_) => Reply::Bulk(Vec::new()),
        Reply::Line(line) if line.starts_with(b",") => Reply::Line(b",".to_vec()),
        other => other,
    }
}

/// True if both replies to `words` are right.
fn same(words: &Words, mut theirs: &[u8], mut ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    let (mut theirs, mut ours) = (parse(&mut theirs), parse(&mut ours));
    let name = words[0].to_ascii_lowercase();
    if name.starts_with(b"z") {
        (theirs, ours) = (plain_scores(theirs), plain_scores(ours));
    }
    let scan_of_all = generate::words(&["0", "count", "1000"]);
    match name.as_slice() {
        // Cursors, and how many are found at once, are each server's own.
        b"sscan" | b"hscan" | b"zscan" if words[2..].iter().take(3).ne(&scan_of_all) => {
            matches!((theirs, ours), (Reply::Many(b'*', _), Reply::Many(b'*', _)))
        }
        b"smembers" | b"sinter" | b"sunion" | b"sdiff" | b"hkeys" | b"hvals" | b"sscan" => {
            sorted(theirs, 1) == sorted(ours, 1)
        }
        b"hgetall" | b"hscan" | b"zscan" => sorted(theirs, 2) == sorted(ours, 2),
        b"spop" | b"hrandfield" | b"srandmember" | b"zrandmember" => shape(theirs) == shape(ours),
        _ => theirs == ours,
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// The beginning of something long.
fn start(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(400)].escape_ascii().to_string()
}

fn shown(words: &Words) -> String {
    let words: Vec<String> = words.iter().map(|word| start(word)).collect();
    let text = words.join(" ");
    text[..text.len().min(1000)].to_owned()
}

/// A set of which something random was taken is emptied, that both have the same again.
fn emptied(words: &Words) -> Words {
    vec![b"spop".to_vec(), words[1].clone(), b"1000000".to_vec()]
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
        let mut commands: Vec<Words> = Vec::new();
        while commands.len() < BATCH {
            let words = command(&mut rng);
            let random = words[0].eq_ignore_ascii_case(b"spop") && words.len() > 1;
            let after = random.then(|| emptied(&words));
            commands.push(words);
            commands.extend(after);
        }
        let replies = redis.call_all(&commands);
        for (words, theirs) in commands.into_iter().zip(replies) {
            let mine = ours.call(&words);
            if !same(&words, &theirs, &mine) {
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
    compare(true, setting("COMMANDS", 40_000) as usize, seed);
}
