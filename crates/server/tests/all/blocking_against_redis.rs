//! Clients that wait and one that pushes do the same at a real `redis-server` and at this server.
//! After each command, the same clients have been served with the same elements, and the same ones
//! still wait.
//!
//! `SEED` and `COMMANDS` in the environment select other commands.

use crate::common::Redis;
use crate::generate::{one, rarely};
use crate::live::{Client, Live, connect, encoded};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The number of clients that wait; another one does the rest.
const WAITERS: usize = 5;
/// No step takes longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// Commands of one client, sent one after the other.
struct Step {
    client: usize,
    commands: Vec<String>,
}

fn list(rng: &mut SmallRng) -> &'static str {
    one(rng, &["a", "b", "c"])
}

fn set(rng: &mut SmallRng) -> &'static str {
    one(rng, &["y", "z", "z", "a"])
}

fn end(rng: &mut SmallRng) -> &'static str {
    one(rng, &["LEFT", "RIGHT"])
}

/// Returns a command that may wait.
fn waiting(rng: &mut SmallRng) -> String {
    let count = if rarely(rng, 2) { " COUNT 2" } else { "" };
    match rng.random_range(0..9) {
        0..3 => format!(
            "{} {} {} 0",
            one(rng, &["BLPOP", "BRPOP"]),
            list(rng),
            list(rng)
        ),
        3 => format!(
            "BLMOVE {} {} {} {} 0",
            list(rng),
            list(rng),
            end(rng),
            end(rng)
        ),
        4 => format!("BRPOPLPUSH {} {} 0", list(rng), list(rng)),
        5 => format!("BLMPOP 0 2 {} {} {}{count}", list(rng), list(rng), end(rng)),
        6 | 7 => format!(
            "{} {} {} 0",
            one(rng, &["BZPOPMIN", "BZPOPMAX"]),
            set(rng),
            set(rng)
        ),
        _ => format!(
            "BZMPOP 0 1 {} {}{count}",
            set(rng),
            one(rng, &["MIN", "MAX"])
        ),
    }
}

/// Returns a command that may serve waiting clients.
fn serving(rng: &mut SmallRng) -> String {
    let number = rng.random_range(0..1000);
    let more = if rarely(rng, 2) { " p q" } else { "" };
    match rng.random_range(0..20) {
        0..6 => format!(
            "{} {} {number}{more}",
            one(rng, &["RPUSH", "LPUSH"]),
            list(rng)
        ),
        6..10 => format!("ZADD {} {number} m{number} 5 n", set(rng)),
        10 => format!(
            "LMOVE {} {} {} {}",
            list(rng),
            list(rng),
            end(rng),
            end(rng)
        ),
        11 => format!("RENAME {} {}", list(rng), list(rng)),
        12 => format!("COPY {} {} REPLACE", list(rng), list(rng)),
        13 => format!("SORT {} ALPHA STORE {}", list(rng), list(rng)),
        14 => format!("ZUNIONSTORE {} 2 y z", set(rng)),
        15 => format!("SET {} string", list(rng)),
        16 => format!("LPOP {}", list(rng)),
        17 => format!("LRANGE {} 0 -1", list(rng)),
        _ => format!("DEL {} {}", list(rng), set(rng)),
    }
}

/// Returns commands like [`serving`], with a `DEL` of keys that they would overwrite: Redis serves
/// no client then.
fn serving_alone(rng: &mut SmallRng) -> Vec<String> {
    let command = serving(rng);
    let words: Vec<&str> = command.split(' ').collect();
    let overwritten = match words[0] {
        "SORT" => words.last(),
        "ZUNIONSTORE" => words.get(1),
        _ => None,
    };
    let deleted = overwritten.map(|key| format!("DEL {key}"));
    deleted.into_iter().chain([command]).collect()
}

fn step(rng: &mut SmallRng, blocked: &[bool]) -> Step {
    let free = rng.random_range(0..WAITERS);
    if !blocked[free] && !rarely(rng, 3) {
        return Step {
            client: free,
            commands: vec![waiting(rng)],
        };
    }
    let mut commands = serving_alone(rng);
    if rarely(rng, 3) {
        commands.extend((0..2).flat_map(|_| serving_alone(rng)));
        commands.insert(0, "MULTI".into());
        commands.push("EXEC".into());
    }
    Step {
        client: WAITERS,
        commands,
    }
}

fn send(client: &mut Client<TcpStream>, command: &str) {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    client.send(&encoded(&words));
}

fn clients(address: SocketAddr) -> Vec<Client<TcpStream>> {
    (0..=WAITERS)
        .map(|_| Client::new(connect(address)))
        .collect()
}

/// Returns the clients that wait. Their names are their numbers.
fn blocked(watcher: &mut Client<TcpStream>) -> Vec<bool> {
    let list = watcher.call("CLIENT LIST");
    let waits = |number: usize| {
        let name = format!(" name=w{number} ");
        let line = list.lines().find(|line| line.contains(&name));
        line.is_some_and(|line| line.contains(" flags=b "))
    };
    (0..WAITERS).map(waits).collect()
}

/// Returns true if there is something to be read.
fn has_reply(client: &Client<TcpStream>) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let there = client.stream.peek(&mut [0]).is_ok();
    client.stream.set_nonblocking(false).unwrap();
    there
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}");
    }
}

#[test]
fn who_waits_gets_what_redis_gives() {
    let setting = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let Some(redis) = Redis::start() else {
        return;
    };
    let live = Live::start();
    let (mut theirs, mut ours) = (clients(redis.address()), clients(live.address()));
    let mut watchers = [redis.address(), live.address()].map(|at| Client::new(connect(at)));
    for (number, client) in theirs.iter_mut().enumerate() {
        client.call(&format!("CLIENT SETNAME w{number}"));
    }
    let mut rng = SmallRng::seed_from_u64(setting("SEED", 1));
    let mut before = vec![false; WAITERS];
    let mut history: Vec<String> = Vec::new();
    let (mut served, mut waited) = (0, 0);
    for _ in 0..setting("COMMANDS", 3000) {
        let step = step(&mut rng, &before);
        history.push(format!("{}: {}", step.client, step.commands.join("; ")));
        let shown = |history: &[String]| history[history.len().saturating_sub(12)..].join("\n");
        for command in &step.commands {
            send(&mut theirs[step.client], command);
            send(&mut ours[step.client], command);
            if step.client == WAITERS {
                let (theirs, ours) = (theirs[WAITERS].reply(), ours[WAITERS].reply());
                assert_eq!(theirs, ours, "\n{}", shown(&history));
            }
        }
        if step.client < WAITERS {
            until("nothing happens", || {
                has_reply(&theirs[step.client]) || blocked(&mut watchers[0])[step.client]
            });
        }
        let now = blocked(&mut watchers[0]);
        for number in 0..WAITERS {
            if now[number] || !before[number] && step.client != number {
                waited += usize::from(now[number] && !before[number]);
                continue;
            }
            served += usize::from(before[number]);
            let (theirs, ours) = (theirs[number].reply(), ours[number].try_reply());
            assert_eq!(
                Some(theirs),
                ours.ok(),
                "client {number}\n{}",
                shown(&history)
            );
        }
        let line = format!(
            "blocked_clients:{}\r\n",
            now.iter().filter(|waits| **waits).count()
        );
        until(&format!("not {line} after\n{}", shown(&history)), || {
            watchers[1].call("INFO clients").contains(&line)
        });
        before = now;
    }
    assert!(served > 100 && waited > 100, "{served} of {waited}");
}
