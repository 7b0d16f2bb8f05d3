//! Sends the same random commands to a real `redis-server` and to this server's data layer, and
//! compares the replies to each.

use super::{Ours, Redis, elements};
use crate::generate::{self, Words};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::time::Duration;

/// The number of commands sent at once.
const BATCH: usize = 200;
/// The number of commands before a wrong one that are searched for words in common with it; the
/// last [`SHOWN`] of those are shown.
const HISTORY: usize = 2000;
const SHOWN: usize = 12;

/// The cursor of a scan that is iterated to its end.
pub const WHOLE: &[u8] = b"whole";
/// A command that is not sent: both wait for a moment, in which what expires next has.
pub const PAUSE: &[u8] = b"pause";
const PAUSED: Duration = Duration::from_millis(4);

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Returns the beginning of a long text.
fn start(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

fn shown(words: &Words) -> String {
    let words: Vec<String> = (words.iter().take(20))
        .map(|word| format!("\"{}\"", start(word)))
        .collect();
    words.join(" ")
}

/// Compares the replies to commands of `next`, each with those that have to follow it, until there
/// were `count`. `same` returns true if both replies to one, that of Redis and ours, are right.
/// `COMMANDS` and `SEED` in the environment override `count` and `seed`. Skipped without a
/// `redis-server`; see [`Redis::start`].
pub fn replies(
    resp3: bool,
    count: u64,
    seed: u64,
    mut next: impl FnMut(&mut SmallRng) -> Vec<Words>,
    mut same: impl FnMut(&Words, &[u8], &[u8]) -> bool,
) {
    let next = |rng: &mut SmallRng| (0, next(rng));
    let same = |_: usize, words: &Words, theirs: &[u8], ours: &[u8]| same(words, theirs, ours);
    conversations(1, resp3, (count, seed), next, same);
}

/// As [`replies`], to commands on so many connections, one after another. `next` and `same` give
/// and get the number of the connection.
///
/// A `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN` whose cursor is [`WHOLE`] is a whole iteration. Its reply
/// is an array of all elements. [`PAUSE`] lets time pass.
pub fn conversations(
    connections: usize,
    resp3: bool,
    (count, seed): (u64, u64),
    mut next: impl FnMut(&mut SmallRng) -> (usize, Vec<Words>),
    mut same: impl FnMut(usize, &Words, &[u8], &[u8]) -> bool,
) {
    let (count, seed) = (setting("COMMANDS", count), setting("SEED", seed));
    let Some(redis) = Redis::start() else {
        return;
    };
    let mut theirs: Vec<_> = (0..connections).map(|_| redis.connect()).collect();
    let first = Ours::new();
    let others = (1..connections)
        .map(|_| first.connect())
        .collect::<Vec<_>>();
    let mut ours: Vec<_> = std::iter::once(first).chain(others).collect();
    if resp3 {
        let hello = generate::words(&["hello", "3"]);
        theirs.iter_mut().for_each(|one| {
            one.call_all(std::slice::from_ref(&hello));
        });
        ours.iter_mut().for_each(|one| drop(one.call(&hello)));
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut before: Vec<Said> = Vec::new();
    let mut done = 0;
    while done < count {
        let mut commands: Vec<(usize, Words)> = Vec::new();
        while commands.len() < BATCH {
            let (connection, some) = next(&mut rng);
            commands.extend(some.into_iter().map(|words| (connection, words)));
        }
        for together in commands
            .chunk_by(|(one, a), (other, b)| one == other && !is_by_itself(a) && !is_by_itself(b))
        {
            let connection = together[0].0;
            let words: Vec<Words> = together.iter().map(|(_, words)| words.clone()).collect();
            if words[0] == [PAUSE] {
                std::thread::sleep(PAUSED);
                continue;
            }
            let replies = if is_by_itself(&words[0]) {
                let call = |words: &Words| {
                    theirs[connection]
                        .call_all(std::slice::from_ref(words))
                        .remove(0)
                };
                vec![iterated(&words[0], call)]
            } else {
                theirs[connection].call_all(&words)
            };
            for (words, theirs) in words.into_iter().zip(replies) {
                let mine = if is_by_itself(&words) {
                    iterated(&words, |words| ours[connection].call(words))
                } else {
                    ours[connection].call(&words)
                };
                let said = Said {
                    connection,
                    words,
                    reply: theirs,
                };
                assert!(
                    same(connection, &said.words, &said.reply, &mine),
                    "seed {seed}, command {done}: {}\n  Redis: {}\n  ours:  {}\nbefore it:\n{}",
                    said.shown(),
                    start(&said.reply),
                    start(&mine),
                    related(&before, &said.words)
                );
                before.push(said);
                done += 1;
            }
        }
        let surplus = before.len().saturating_sub(HISTORY);
        before.drain(..surplus);
        ours[0].settle();
    }
}

/// A command, and the reply of Redis.
struct Said {
    connection: usize,
    words: Words,
    reply: Vec<u8>,
}

impl Said {
    fn shown(&self) -> String {
        format!("{}> {}", self.connection, shown(&self.words))
    }
}

/// Whether a command is not sent with others.
fn is_by_itself(words: &Words) -> bool {
    let is_scan = [&b"scan"[..], b"hscan", b"sscan", b"zscan"].contains(&words[0].as_slice());
    words[0] == PAUSE || is_scan && words.iter().any(|word| word == WHOLE)
}

/// Returns an array of all elements that an iteration gives, in its order; what is no page as it
/// is.
fn iterated(words: &Words, mut call: impl FnMut(&Words) -> Vec<u8>) -> Vec<u8> {
    let at = words.iter().position(|word| word == WHOLE).unwrap();
    let mut page = words.clone();
    page[at] = b"0".to_vec();
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        let reply = call(&page);
        let [cursor, some] = elements(&reply)[..] else {
            return reply;
        };
        all.extend(elements(some).into_iter().map(<[u8]>::to_vec));
        let mut lines = cursor.split(|byte| *byte == b'\n').skip(1);
        let cursor = lines.next().unwrap().trim_ascii();
        if cursor == b"0" {
            break;
        }
        page[at] = cursor.to_vec();
    }
    [format!("*{}\r\n", all.len()).into_bytes(), all.concat()].concat()
}

/// Shows the last commands that have a word in common with this one, and their replies.
fn related(before: &[Said], words: &Words) -> String {
    let related: Vec<String> = before
        .iter()
        .filter(|said| said.words[1..].iter().any(|word| words[1..].contains(word)))
        .map(|said| format!("{}\n    {}", said.shown(), start(&said.reply)))
        .collect();
    related[related.len().saturating_sub(SHOWN)..].join("\n")
}
