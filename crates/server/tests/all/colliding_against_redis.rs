//! Random commands of two connections on three keys in two databases go to a real `redis-server`
//! and to this server's data layer: all types meet, and all that moves keys between names and
//! databases, under transactions of one connection that watch what the other changes.

use crate::common::compare::{PAUSE, WHOLE, conversations};
use crate::generate::{self, Words, colliding, rarely};
use crate::{against_redis, collections_against_redis};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const CONNECTIONS: usize = 2;

/// Returns a command and those that follow it, and the connection that they are on.
fn next(rng: &mut SmallRng) -> (usize, Vec<Words>) {
    let connection = rng.random_range(0..CONNECTIONS);
    if rarely(rng, 300) {
        // A key that expires and that nobody has looked at since. Redis removes it then, and so the
        // connections agree on which keys a database has.
        let key = &["a", "ab", "b"][rng.random_range(0..3)];
        let discard = generate::words(&["discard"]);
        let expire = generate::words(&["pexpire", key, "1"]);
        let look = generate::words(&["exists", "a", "ab", "b"]);
        return (
            connection,
            vec![discard, expire, vec![PAUSE.to_vec()], look],
        );
    }
    loop {
        let command = colliding::command(rng, WHOLE);
        if !against_redis::expires_meanwhile(&command) {
            return (connection, vec![command]);
        }
    }
}

/// Returns the elements of an iteration, each once: Redis may give one again.
fn set_of(reply: &[u8]) -> Vec<&[u8]> {
    let mut elements = crate::common::elements(reply);
    elements.sort_unstable();
    elements.dedup();
    elements
}

/// Returns true if both replies to `words` are right.
fn same(words: &Words, theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    if words.iter().any(|word| word == WHOLE) {
        return !theirs.starts_with(b"-") && set_of(theirs) == set_of(ours);
    }
    against_redis::same(words, theirs, ours) || collections_against_redis::same(words, theirs, ours)
}

fn compare_all(resp3: bool, count: u64, seed: u64) {
    let mut queued: [Vec<Words>; CONNECTIONS] = Default::default();
    conversations(
        CONNECTIONS,
        resp3,
        (count, seed),
        next,
        |connection, words, theirs, ours| {
            let queued = &mut queued[connection];
            against_redis::same_or_queued(queued, words, theirs, ours, same)
        },
    );
}

#[test]
fn replies_are_those_of_redis() {
    compare_all(false, 60_000, 1);
}

#[test]
fn replies_in_resp3_are_those_of_redis() {
    compare_all(true, 20_000, 2);
}

/// What the commands meet is what they are for, or they would say little.
#[test]
fn the_commands_meet_values_of_their_type_and_of_others() {
    let mut ours = crate::common::Ours::new();
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut good, mut of_another_type, mut aborted) = (0, 0, 0);
    for _ in 0..4000 {
        let command = colliding::command(&mut rng, b"0");
        let reply = ours.call(&command);
        if reply.starts_with(b"-WRONGTYPE") {
            of_another_type += 1;
        } else if reply == b"*-1\r\n" {
            aborted += 1;
        } else if !reply.starts_with(b"-") {
            good += 1;
        }
    }
    assert!(
        good > 2000 && of_another_type > 200 && aborted > 0,
        "{good}, {of_another_type}, {aborted}"
    );
}
