//! Sends the same random commands to a real `redis-server` and to this server's data layer, and
//! compares the replies to each.

use super::{Ours, Redis};
use crate::generate::{self, Words};
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// The number of commands sent at once.
const BATCH: usize = 200;
/// The number of commands before a wrong one that are searched for words in common with it; the
/// last [`SHOWN`] of those are shown.
const HISTORY: usize = 2000;
const SHOWN: usize = 12;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Returns the beginning of a long text.
fn start(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

/// Returns where to begin to show two replies: at the start, or not far before they differ.
fn difference(theirs: &[u8], ours: &[u8]) -> usize {
    let same = theirs.iter().zip(ours).take_while(|(a, b)| a == b);
    same.count().saturating_sub(100)
}

fn shown(words: &Words) -> String {
    let words: Vec<String> = (words.iter().take(20))
        .map(|word| format!("\"{}\"", start(word)))
        .collect();
    words.join(" ")
}

/// What replies beside Redis.
pub trait Mine {
    /// Returns the reply to a command.
    fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8>;
    /// Makes all writes durable, so that they need not be kept in memory.
    fn settle(&mut self);
}

impl Mine for Ours {
    fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        Self::call(self, words)
    }

    fn settle(&mut self) {
        Self::settle(self);
    }
}

/// Compares the replies to commands of `next`, each with those that have to follow it, until there
/// were `count`. `same` returns true if both replies to one, that of Redis and ours, are right.
/// `COMMANDS` and `SEED` in the environment override `count` and `seed`. Skipped without a
/// `redis-server`; see [`Redis::start`].
pub fn replies(
    resp3: bool,
    count: u64,
    seed: u64,
    next: impl FnMut(&mut SmallRng) -> Vec<Words>,
    same: impl FnMut(&Words, &[u8], &[u8]) -> bool,
) {
    replies_by(Ours::new, resp3, count, seed, next, same);
}

/// As [`replies`], with those of what `ours` returns.
pub fn replies_by<M: Mine>(
    ours: impl FnOnce() -> M,
    resp3: bool,
    count: u64,
    seed: u64,
    mut next: impl FnMut(&mut SmallRng) -> Vec<Words>,
    mut same: impl FnMut(&Words, &[u8], &[u8]) -> bool,
) {
    let (count, seed) = (setting("COMMANDS", count), setting("SEED", seed));
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut ours = ours();
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
            commands.extend(next(&mut rng));
        }
        let replies = redis.call_all(&commands);
        for (words, theirs) in commands.into_iter().zip(replies) {
            let mine = ours.call(&words);
            assert!(
                same(&words, &theirs, &mine),
                "seed {seed}, command {done}: {}\n  Redis: {}\n  ours:  {}\nbefore it:\n{}",
                shown(&words),
                start(&theirs[difference(&theirs, &mine)..]),
                start(&mine[difference(&theirs, &mine)..]),
                related(&before, &words)
            );
            before.push((words, theirs));
            done += 1;
        }
        let surplus = before.len().saturating_sub(HISTORY);
        before.drain(..surplus);
        ours.settle();
    }
}

/// Shows the last commands that have a word in common with this one, and their replies.
fn related(before: &[(Words, Vec<u8>)], words: &Words) -> String {
    let related: Vec<String> = before
        .iter()
        .filter(|(other, _)| other[1..].iter().any(|word| words[1..].contains(word)))
        .map(|(words, reply)| format!("{}\n    {}", shown(words), start(reply)))
        .collect();
    related[related.len().saturating_sub(SHOWN)..].join("\n")
}
