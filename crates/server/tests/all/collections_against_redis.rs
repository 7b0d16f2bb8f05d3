//! The same random commands on hashes, lists, sets and sorted sets go to a real `redis-server` and
//! to this server's data layer. Their replies are the same, byte for byte, except for random ones
//! and for an order without meaning.

use crate::common::compare;
use crate::generate::{self, Words, one, rarely, spoilt};
use rand::RngExt;
use rand::rngs::SmallRng;

/// Returns a command on keys of any type.
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

/// Returns a command of any family.
fn command(rng: &mut SmallRng) -> Words {
    if rarely(rng, 60) {
        return on_keys(rng);
    }
    let (command, may_be_spoilt) = match rng.random_range(0..10) {
        0 => (generate::strings::command(rng), false),
        1 | 2 => (generate::hashes::command(rng), true),
        3 | 4 => (generate::lists::command(rng), true),
        5 | 6 => (generate::sets::command(rng), true),
        7 => generate::sort::command(rng),
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

/// Parses the reply at the start of `bytes`. They are advanced past it.
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

/// Sorts the arrays of a reply whose order has no meaning, in groups of `group`.
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

/// Normalizes the scores in a reply. Sorted sets of this server do not keep the sign of zero; those
/// of Redis do so only if they are, or were, large. The same holds for the text of large scores in
/// a scan.
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

/// Returns the shape of a reply, without its content.
fn shape(reply: Reply) -> Reply {
    match reply {
        Reply::Many(kind, replies) => Reply::Many(kind, replies.into_iter().map(shape).collect()),
        Reply::Bulk(_) => Reply::Bulk(Vec::new()),
        Reply::Line(line) if line.starts_with(b",") => Reply::Line(b",".to_vec()),
        other => other,
    }
}

/// Returns true if both replies to `words` are right.
pub fn same(words: &Words, mut theirs: &[u8], mut ours: &[u8]) -> bool {
    let sorts = words[0].to_ascii_lowercase().starts_with(b"sort");
    if theirs == ours || sorts && generate::sort::by_numbers_failed(theirs) {
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
        b"sort" | b"sort_ro" => match generate::sort::unordered(words) {
            Some(group) => sorted(theirs, group) == sorted(ours, group),
            None => false,
        },
        b"spop" | b"hrandfield" | b"srandmember" | b"zrandmember" => shape(theirs) == shape(ours),
        _ => theirs == ours,
    }
}

/// Returns a command. A set from which random members were taken is emptied, so that both servers
/// have the same again.
fn commands(rng: &mut SmallRng) -> Vec<Words> {
    let words = command(rng);
    let random = words[0].eq_ignore_ascii_case(b"spop") && words.len() > 1;
    let emptied = random.then(|| vec![b"spop".to_vec(), words[1].clone(), b"1000000".to_vec()]);
    [words].into_iter().chain(emptied).collect()
}

#[test]
fn replies_are_those_of_redis() {
    compare::replies(false, 100_000, 1, commands, same);
}

#[test]
fn replies_in_resp3_are_those_of_redis() {
    compare::replies(true, 40_000, 2, commands, same);
}
