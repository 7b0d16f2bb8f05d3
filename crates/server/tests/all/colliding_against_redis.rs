//! Programs of several connections over few keys go to a real `redis-server` and to a server of
//! this crate, one step after another. Each reply is the same, or differs as the tests of single
//! families allow.
//!
//! `SEED` in the environment is the first seed, and `SEEDS` how many there are. What differs is
//! shown with its seed, and without the steps that it does not need.

use crate::common::{Redis, elements};
use crate::generate::Words;
use crate::generate::colliding::{CONNECTIONS, PAUSE, PAYLOAD, Program, Step, WHOLE, program};
use crate::live::{Client, Live, connect, encoded};
use crate::{against_redis, collections_against_redis};
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Programs that are run unless the environment says how many.
const SEEDS: u64 = 300;
/// Programs that differ and are shown.
const MOST_SHOWN: usize = 3;
/// Attempts to leave steps out.
const ATTEMPTS: usize = 2000;
/// Pages of an iteration, after which it is taken for one that has no end.
const MOST_PAGES: usize = 2000;
/// The time of a [`PAUSE`]. Redis looks at its clock once for each command.
const PAUSED: Duration = Duration::from_millis(4);

/// A server, and a program's connections to it.
struct Side {
    address: SocketAddr,
    clients: Vec<Client<TcpStream>>,
    /// The last payload of a `DUMP`.
    payload: Vec<u8>,
}

impl Side {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            clients: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Makes the server and the connections as they are at a program's beginning.
    fn begin(&mut self, resp3: bool) {
        self.clients = (0..CONNECTIONS)
            .map(|_| Client::new(connect(self.address)))
            .collect();
        self.payload = b"none".to_vec();
        assert_eq!(self.clients[0].call("flushall"), "+OK\r\n");
        if resp3 {
            for client in &mut self.clients {
                client.call("hello 3");
            }
        }
    }

    fn send(&mut self, steps: &[Step]) {
        let mut bytes = Vec::new();
        for (_, words) in steps {
            let payload = &self.payload;
            let of = |word: &Vec<u8>| {
                if word == PAYLOAD {
                    payload.clone()
                } else {
                    word.clone()
                }
            };
            let words: Vec<Vec<u8>> = words.iter().map(of).collect();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            bytes.extend(encoded(&words));
        }
        self.clients[steps[0].0].send(&bytes);
    }

    /// Returns the reply to that step.
    fn reply(&mut self, (connection, words): &Step) -> Vec<u8> {
        let reply = self.clients[*connection].reply_bytes().unwrap();
        if words[0] == b"dump" && reply.starts_with(b"$") && !reply.starts_with(b"$-") {
            let begin = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            self.payload = reply[begin..reply.len() - 2].to_vec();
        }
        reply
    }

    /// Returns an array of all elements that an iteration gives, in its order; what is no page as
    /// it is.
    fn iterated(&mut self, (connection, words): &Step) -> Vec<u8> {
        let at = words.iter().position(|word| word == WHOLE).unwrap();
        let mut page = words.clone();
        page[at] = b"0".to_vec();
        let mut all: Vec<Vec<u8>> = Vec::new();
        for _ in 0..MOST_PAGES {
            let step = (*connection, page.clone());
            self.send(std::slice::from_ref(&step));
            let reply = self.reply(&step);
            let [cursor, some] = elements(&reply)[..] else {
                return reply;
            };
            all.extend(elements(some).into_iter().map(<[u8]>::to_vec));
            let cursor = cursor.split(|byte| *byte == b'\n').nth(1).unwrap();
            page[at] = cursor.trim_ascii().to_vec();
            if page[at] == b"0" {
                return [format!("*{}\r\n", all.len()).into_bytes(), all.concat()].concat();
            }
        }
        b"an iteration without an end".to_vec()
    }
}

/// Replies of Redis, by kind.
#[derive(Debug, Default)]
struct Met {
    results: u64,
    of_another_type: u64,
    /// Transactions whose watched keys had changed.
    aborted: u64,
}

impl Met {
    fn note(&mut self, words: &Words, reply: &[u8]) {
        let is_null = [&b"*-1\r\n"[..], b"_\r\n"].contains(&reply);
        self.aborted += u64::from(words[0] == b"exec" && is_null);
        self.of_another_type += u64::from(reply.starts_with(b"-WRONGTYPE"));
        self.results += u64::from(!reply.starts_with(b"-") && !is_null);
    }
}

/// Whether a step is not sent with others.
fn is_by_itself((_, words): &Step) -> bool {
    let uses_a_dump = words[0] == b"dump" || words.iter().any(|word| word == PAYLOAD);
    words[0] == PAUSE || words.iter().any(|word| word == WHOLE) || uses_a_dump
}

/// Returns the elements of an iteration, each once: Redis may give one again.
fn set_of<'r>(reply: &'r [u8], words: &Words) -> Vec<Vec<&'r [u8]>> {
    let pairs = words[0] == b"hscan" || words[0] == b"zscan";
    let all = elements(reply);
    let mut all: Vec<_> = all
        .chunks(if pairs { 2 } else { 1 })
        .map(<[_]>::to_vec)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns true if both replies to `words` are right.
fn same(words: &Words, theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    let are = |kind: &[u8]| theirs.starts_with(kind) && ours.starts_with(kind);
    match words[0].as_slice() {
        // Each has its own format.
        b"dump" => are(b"$") && theirs.len() > 5 && ours.len() > 5,
        b"scan" | b"hscan" | b"sscan" | b"zscan" if words.iter().any(|word| word == WHOLE) => {
            are(b"*") && set_of(theirs, words) == set_of(ours, words)
        }
        _ => {
            against_redis::same(words, theirs, ours)
                || collections_against_redis::same(words, theirs, ours)
        }
    }
}

fn start(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

fn shown((connection, words): &Step) -> String {
    let words: Vec<_> = words
        .iter()
        .take(20)
        .map(|word| format!("\"{}\"", start(word)))
        .collect();
    format!("{connection}> {}", words.join(" "))
}

/// Runs a program. Returns the step whose replies differ, and those.
fn run(sides: &mut [Side; 2], program: &Program, met: &mut Met) -> Result<(), String> {
    for side in &mut *sides {
        side.begin(program.resp3);
    }
    let mut queued: [Vec<Words>; CONNECTIONS] = Default::default();
    let together =
        |one: &Step, next: &Step| one.0 == next.0 && !is_by_itself(one) && !is_by_itself(next);
    let mut at = 0;
    for steps in program.steps.chunk_by(together) {
        if steps[0].1 == [PAUSE] {
            std::thread::sleep(PAUSED);
            at += 1;
            continue;
        }
        let iterates = steps[0].1.iter().any(|word| word == WHOLE);
        if !iterates {
            sides.iter_mut().for_each(|side| side.send(steps));
        }
        for step in steps {
            let [theirs, ours] = sides.each_mut().map(|side| {
                if iterates {
                    side.iterated(step)
                } else {
                    side.reply(step)
                }
            });
            let (queued, mut words) = (&mut queued[step.0], step.1.clone());
            if iterates && theirs == b"+QUEUED\r\n" {
                // It is only the first page, which is each server's own.
                let whole = words.iter_mut().filter(|word| *word == WHOLE);
                whole.for_each(|word| *word = b"0".to_vec());
            }
            if !against_redis::same_or_queued(queued, &words, &theirs, &ours, same) {
                return Err(format!(
                    "step {at}: {}\n  Redis: {}\n  ours:  {}",
                    shown(step),
                    start(&theirs),
                    start(&ours)
                ));
            }
            met.note(&step.1, &theirs);
            at += 1;
        }
    }
    Ok(())
}

/// Leaves out steps for as long as a reply differs. Returns what is wrong in the end.
fn minimise(sides: &mut [Side; 2], program: &mut Program, mut wrong: String) -> String {
    let (mut attempts, mut at_once) = (0, program.steps.len());
    while at_once > 0 {
        let (mut from, mut has_shrunk) = (0, false);
        while from < program.steps.len() && attempts < ATTEMPTS {
            attempts += 1;
            let mut shorter = program.clone();
            let to = (from + at_once).min(shorter.steps.len());
            shorter.steps.drain(from..to);
            match run(sides, &shorter, &mut Met::default()) {
                Err(e) => (*program, wrong, has_shrunk) = (shorter, e, true),
                Ok(()) => from += at_once,
            }
        }
        if !has_shrunk || attempts >= ATTEMPTS {
            at_once /= 2;
        }
    }
    wrong
}

/// Runs the program of a seed. Returns what is wrong, with as few steps as show it.
fn wrong_with(sides: &mut [Side; 2], seed: u64, met: &mut Met) -> Option<String> {
    let mut program = program(seed);
    let wrong = run(sides, &program, met).err()?;
    let last = minimise(sides, &mut program, wrong.clone());
    let mut text = format!("seed {seed}, {wrong}\nin short, {last}\n");
    let _ = writeln!(text, "{} of", if program.resp3 { "RESP3" } else { "RESP2" });
    for step in &program.steps {
        let _ = writeln!(text, "    {}", shown(step));
    }
    Some(text)
}

#[test]
fn replies_are_those_of_redis() {
    let setting = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let Some(redis) = Redis::start() else {
        return;
    };
    let live = Live::start();
    // It looks after clients whose time is over when its timer wakes it, ten times in a second.
    let often = Client::new(connect(redis.address())).call("config set hz 500");
    assert_eq!(often, "+OK\r\n");
    let mut sides = [Side::new(redis.address()), Side::new(live.address())];
    let (first, count) = (setting("SEED", 1), setting("SEEDS", SEEDS));
    let (seeds, mut met) = (first..first + count, Met::default());
    let wrong: Vec<_> = seeds
        .filter_map(|seed| wrong_with(&mut sides, seed, &mut met))
        .take(MOST_SHOWN)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // They would say little if each failed at once.
    let enough = met.results > 100 * count && met.of_another_type > 10 * count;
    assert!(enough && met.aborted > count / 4, "{met:?}");
}
