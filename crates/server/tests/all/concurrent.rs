//! Many threads execute commands on the same keys at the same time, beside a sweeper: nothing is
//! lost, and no command fails because of another one.

use crate::common;
use crate::generate::{self, Words};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_server::command::Command;
use bristlecone_server::commands;
use bristlecone_server::data::watch::Watch;
use bristlecone_server::data::{Data, Reads, sweep};
use bristlecone_server::execute::exec::Queued;
use bristlecone_server::reply::{Out, Protocol};
use bristlecone_store::{Store, StoreOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

const THREADS: u64 = 4;

fn open(dir: &tempfile::TempDir) -> Arc<Data> {
    let pool = Pool::<Auto>::create(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
    let store = Store::create(&pool, "s", &StoreOptions::default()).unwrap();
    Arc::new(Data::open(store).unwrap())
}

/// Returns the command, if there is one that takes this number of words.
fn known(words: &Words) -> Option<&'static Command> {
    let name = words[0].to_ascii_lowercase();
    commands::data()
        .filter(|command| command.spec.name.as_bytes() == name)
        .find(|command| command.spec.takes(words.len()))
}

fn run(data: &Data, db: usize, words: &Words) -> String {
    let mut reply = Vec::new();
    let mut out = Out::new(&mut reply, Protocol::Resp2);
    if let Some(command) = known(words) {
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        data.run(command, db, &args, Reads::Applied, &mut out);
    }
    String::from_utf8_lossy(&reply).into_owned()
}

/// Checks that a reply is not an error that Redis does not have: that would be the fault of another
/// command.
fn check(words: &Words, reply: &str) {
    let foreign = ["conflict", "changed by", "damaged", "pool", "commit"];
    let wrong = reply.starts_with('-') && foreign.iter().any(|text| reply.contains(text));
    assert!(!wrong, "{words:?}: {reply}");
}

fn any_command(rng: &mut SmallRng) -> Words {
    loop {
        let words = match rng.random_range(0..4) {
            0 => generate::keys::command(rng),
            1 => generate::keys::collection(rng),
            _ => generate::strings::command(rng),
        };
        if words[0] != b"select" {
            return words;
        }
    }
}

#[test]
fn no_command_fails_for_the_sake_of_another() {
    let dir = common::directory();
    let data = open(&dir);
    let sweeper = sweep::spawn(&data).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let data = &data;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(thread);
                let mut watch = Watch::default();
                for turn in 0..3000 {
                    let db = rng.random_range(0..2);
                    if turn % 10 > 0 {
                        let words = any_command(&mut rng);
                        check(&words, &run(data, db, &words));
                        continue;
                    }
                    let key = generate::key(&mut rng, "s");
                    data.watch(&mut watch, db, &key).unwrap();
                    let queued: Vec<Queued> = (0..rng.random_range(1..6))
                        .map(|_| any_command(&mut rng))
                        .filter_map(|words| {
                            let command = known(&words)?;
                            let args = words;
                            Some(Queued { command, db, args })
                        })
                        .collect();
                    let mut reply = Vec::new();
                    data.exec(
                        &queued,
                        &mut watch,
                        &mut Out::new(&mut reply, Protocol::Resp2),
                    );
                    assert!(reply.starts_with(b"*"), "{}", reply.escape_ascii());
                    if turn % 100 == 0 {
                        data.settle(data.applied()).unwrap();
                    }
                }
            });
        }
    });
    drop(sweeper);
    assert!(!data.watchers.any());
    for db in 0..16 {
        let reply = run(&data, db, &generate::words(&["flushdb"]));
        assert_eq!(reply, "+OK\r\n");
        assert_eq!(data.len(db), 0);
    }
    while data.sweep().unwrap() {}
    for name in ["elements", "expiries", "garbage"] {
        let keyspace = data.store().find_keyspace(name).unwrap();
        assert_eq!(data.store().len(&keyspace), 0, "{name}");
    }
}

#[test]
fn no_increment_is_lost() {
    let dir = common::directory();
    let data = open(&dir);
    let turns = 2000;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let data = &data;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(thread);
                for _ in 0..turns {
                    run(data, 0, &generate::words(&["incr", "n"]));
                    run(data, 0, &generate::words(&["append", "text", "x"]));
                    // From one to another, and what others did meanwhile stays.
                    let queued = ["incr", "decr"].map(|name| Queued {
                        command: known(&generate::words(&[name, "k"])).unwrap(),
                        db: 0,
                        args: generate::words(&[name, &format!("k{}", rng.random_range(0..5))]),
                    });
                    let mut reply = Vec::new();
                    let mut out = Out::new(&mut reply, Protocol::Resp2);
                    data.exec(&queued, &mut Watch::default(), &mut out);
                    assert!(reply.starts_with(b"*2\r\n:"), "{}", reply.escape_ascii());
                }
            });
        }
    });
    let total = THREADS * turns;
    let number = |words: &[&str]| -> i64 {
        let reply = run(&data, 0, &generate::words(words));
        reply
            .lines()
            .last()
            .unwrap()
            .trim_start_matches(':')
            .parse()
            .unwrap()
    };
    assert_eq!(number(&["get", "n"]), total as i64);
    assert_eq!(number(&["strlen", "text"]), total as i64);
    let sum: i64 = (0..5)
        .map(|key| number(&["incrby", &format!("k{key}"), "0"]))
        .sum();
    assert_eq!(sum, 0, "as much was added as taken away");
}
