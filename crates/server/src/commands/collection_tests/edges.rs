//! Wrong types, wrong arguments, scans, random elements, watching, expiry, and readers beside a
//! writer.

use crate::commands::collection_tests::{Server, fill, strings};
use crate::data::Reads;
use crate::data::record::{Kind, Value};
use crate::data::watch::Watch;
use crate::reply::{Out, Protocol};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// A command of each collection, by kind. `K` is the key that may be of another kind.
const COMMANDS: [&str; 97] = [
    "hset K a 1",
    "hmset K a 1",
    "hsetnx K a 1",
    "hget K a",
    "hmget K a",
    "hgetall K",
    "hdel K a",
    "hlen K",
    "hexists K a",
    "hkeys K",
    "hvals K",
    "hincrby K a 1",
    "hincrbyfloat K a 1",
    "hstrlen K a",
    "hrandfield K",
    "hrandfield K 2",
    "hscan K 0",
    "lpush K a",
    "rpush K a",
    "lpushx K a",
    "rpushx K a",
    "lpop K",
    "rpop K 1",
    "llen K",
    "lrange K 0 1",
    "lindex K 0",
    "lset K 0 a",
    "linsert K before a b",
    "lrem K 0 a",
    "ltrim K 0 1",
    "lpos K a",
    "lmove K o left left",
    "lmove l K left left",
    "rpoplpush K o",
    "lmpop 1 K left",
    "blpop K 0",
    "brpop K 0",
    "blmove K o left left 0",
    "blmove l K left left 0",
    "brpoplpush K o 0",
    "blmpop 0 1 K left",
    "sort K",
    "sort_ro K by nothing",
    "sadd K a",
    "srem K a",
    "smembers K",
    "sismember K a",
    "smismember K a",
    "scard K",
    "spop K",
    "spop K 1",
    "srandmember K",
    "smove K o a",
    "smove s K a",
    "sinter K s",
    "sunion s K",
    "sdiff s K",
    "sinterstore o K",
    "sunionstore o K",
    "sdiffstore o K",
    "sintercard 1 K",
    "sscan K 0",
    "zadd K 1 a",
    "zincrby K 1 a",
    "zrem K a",
    "zscore K a",
    "zmscore K a",
    "zcard K",
    "zrank K a",
    "zrevrank K a",
    "zpopmin K",
    "zpopmax K",
    "zmpop 1 K min",
    "bzpopmin K 0",
    "bzpopmax K 0",
    "bzmpop 0 1 K min",
    "zrandmember K",
    "zscan K 0",
    "zcount K 0 1",
    "zlexcount K - +",
    "zrange K 0 1",
    "zrangestore o K 0 1",
    "zrevrange K 0 1",
    "zrangebyscore K 0 1",
    "zrevrangebyscore K 1 0",
    "zrangebylex K - +",
    "zrevrangebylex K + -",
    "zremrangebyrank K 0 1",
    "zremrangebyscore K 0 1",
    "zremrangebylex K - +",
    "zunion 1 K",
    "zinter 2 z K",
    "zdiff 1 K",
    "zintercard 1 K",
    "zunionstore o 1 K",
    "zinterstore o 1 K",
    "zdiffstore o 1 K",
];

#[test]
fn every_command_refuses_what_is_of_another_kind() {
    for elements in [1, 200] {
        let mut server = Server::new();
        fill(&mut server, elements);
        server.text("set t 1");
        let mut named = BTreeSet::new();
        for line in COMMANDS {
            let name = line.split(' ').next().unwrap();
            named.insert(name);
            for key in ['h', 's', 'z', 'l', 't'] {
                if takes(name, key) {
                    continue;
                }
                let line = line.replace('K', &key.to_string());
                let reply = server.text(&line);
                assert!(reply.starts_with("-WRONGTYPE"), "{line}: {reply}");
            }
        }
        let ours = crate::commands::data().filter(|known| key_of(known.spec.categories[0]) != 't');
        assert_eq!(named, ours.map(|known| known.spec.name).collect());
        assert_eq!(server.text("exists o"), ":0\r\n");
    }
}

/// Returns the name of the key that holds what a group of commands works on.
fn key_of(group: &str) -> char {
    match group {
        "hash" => 'h',
        "set" => 's',
        "sortedset" => 'z',
        "list" => 'l',
        _ => 't',
    }
}

/// Returns true if a command works on what the key holds.
fn takes(name: &str, key: char) -> bool {
    let known = crate::commands::data().find(|known| known.spec.name == name);
    let own = key_of(known.unwrap().spec.categories[0]);
    let combines = ["zunion", "zinter", "zdiff"]
        .iter()
        .any(|of| name.starts_with(of));
    let sorts = name.starts_with("sort");
    key == own || combines && key == 's' || sorts && "sz".contains(key)
}

#[test]
fn scans_of_large_ones_give_everything_in_steps() {
    let mut server = Server::new();
    fill(&mut server, 1000);
    for (scan, key, width) in [("hscan", "h", 2), ("sscan", "s", 1), ("zscan", "z", 2)] {
        let (mut cursor, mut found, mut steps) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let reply = server.text(&format!("{scan} {key} {cursor} count 20"));
            let mut lines = reply.split("\r\n").skip(2);
            cursor = lines.next().unwrap().to_owned();
            let rest = lines.collect::<Vec<_>>().join("\r\n");
            let names = strings(rest.as_bytes());
            assert!(names.len() <= 22 * width);
            found.extend(names.chunks(width).map(|pair| pair[0].clone()));
            steps += 1;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), 1000, "{scan}");
        assert!((45..=55).contains(&steps));
    }
}

#[test]
fn random_elements_of_large_ones_are_all_found() {
    let mut server = Server::new();
    fill(&mut server, 200);
    for (random, key) in [
        ("hrandfield", "h"),
        ("srandmember", "s"),
        ("zrandmember", "z"),
    ] {
        let mut found = BTreeMap::<String, u32>::new();
        for _ in 0..4000 {
            *found
                .entry(server.text(&format!("{random} {key}")))
                .or_default() += 1;
        }
        assert_eq!(found.len(), 200, "{random}");
        // The mean is 20 each.
        assert!(found.values().all(|times| *times < 80), "{found:?}");
        let many = server.text(&format!("{random} {key} -3000"));
        assert!(many.starts_with("*3000\r\n"));
        let none_twice = strings(server.text(&format!("{random} {key} 6")).as_bytes());
        assert_eq!(none_twice.iter().collect::<BTreeSet<_>>().len(), 6);
        let too_many = server.text(&format!("{random} {key} -100000000"));
        assert!(
            too_many.starts_with("-ERR the reply is longer"),
            "{too_many}"
        );
    }
}

#[test]
fn names_that_are_too_long_are_refused_and_nothing_is_changed() {
    let mut server = Server::new();
    let long = "x".repeat(bristlecone_store::MAX_KEY_BYTES);
    for line in [
        format!("hset h a 1 {long} 2"),
        format!("sadd s a {long}"),
        format!("zadd z 1 a 2 {long}"),
    ] {
        let reply = server.text(&line);
        assert!(
            reply.starts_with("-ERR a field or member of 65536 bytes"),
            "{reply}"
        );
    }
    assert_eq!(server.text("exists h s z"), ":0\r\n");
    assert_eq!(server.elements(), 0);
    fill(&mut server, 200);
    // They are searched for without an error.
    assert_eq!(server.text(&format!("hget h {long}")), "$-1\r\n");
    assert_eq!(server.text(&format!("hdel h {long}")), ":0\r\n");
    assert_eq!(server.text(&format!("sismember s {long}")), ":0\r\n");
    assert_eq!(server.text(&format!("zscore z {long}")), "$-1\r\n");
    assert_eq!(server.text(&format!("zrangebylex z [{long} +")), "*0\r\n");
    assert_eq!(
        server.text(&format!("zrevrangebylex z ({long} [{long}")),
        "*0\r\n"
    );
    // Elements of lists are values.
    assert_eq!(server.text(&format!("rpush l {long}")), ":201\r\n");
    assert_eq!(server.text("lrange l 200 200").len(), 65536 + 14);
}

#[test]
fn a_large_one_that_is_written_to_tells_who_watches_it() {
    let mut server = Server::new();
    fill(&mut server, 200);
    for (line, key, told) in [
        // The number of elements is the same: the head stays as it is.
        ("hset h f1 new", "h", true),
        ("zadd z 77 m1", "z", true),
        ("lset l 3 x", "l", true),
        ("sadd s m1", "s", false),
        ("hget h f1", "h", false),
        ("srem s m1", "s", true),
    ] {
        let mut watch = Watch::default();
        server.data().watch(&mut watch, 0, key.as_bytes()).unwrap();
        server.text(line);
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        server.data().exec(&[], &mut watch, &mut out);
        let right: &[u8] = if told { b"*-1\r\n" } else { b"*0\r\n" };
        assert_eq!(reply, right, "{line}");
    }
}

#[test]
fn an_expiry_stays_when_a_small_one_becomes_large_and_goes_when_it_is_stored_anew() {
    let mut server = Server::new();
    server.fixture.at(1_000_000);
    server.text("sadd s a");
    assert_eq!(server.text("pexpire s 5000"), ":1\r\n");
    for n in 0..200 {
        server.text(&format!("sadd s m{n}"));
    }
    assert_eq!(server.large(&[b"s".to_vec()]), [true]);
    assert_eq!(server.text("pttl s"), ":5000\r\n");
    server.text("srem s a");
    assert_eq!(server.text("pttl s"), ":5000\r\n");
    assert_eq!(server.text("sunionstore t s"), ":200\r\n");
    assert_eq!(server.text("pttl t"), ":-1\r\n");
    server.fixture.at(1_006_000);
    assert_eq!(server.text("scard s"), ":0\r\n");
    assert_eq!(server.text("sadd s b"), ":1\r\n");
    assert_eq!(server.text("smembers s"), "*1\r\n$1\r\nb\r\n");
    assert_eq!(server.elements(), 200);
    assert_eq!(server.text("sinterstore t s t"), ":0\r\n");
    assert_eq!(server.text("exists t"), ":0\r\n");
    assert_eq!(server.elements(), 0);
}

#[test]
fn no_arguments_make_a_command_panic() {
    let mut rng = SmallRng::seed_from_u64(5);
    let mut server = Server::new();
    let of_collections: Vec<_> = crate::commands::data()
        .filter(|known| ["hash", "set", "sortedset", "list"].contains(&known.spec.categories[0]))
        .collect();
    let strange: [&[u8]; 40] = [
        b"h",
        b"s",
        b"z",
        b"l",
        b"t",
        b"o",
        b"",
        b"0",
        b"1",
        b"2",
        b"3",
        b"-1",
        b"-2",
        b"f1",
        b"m1",
        b"i1",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"4611686018427387904",
        b"4294967296",
        b"1e308",
        b"-1e308",
        b"inf",
        b"-inf",
        b"(1",
        b"[m",
        b"(m",
        b"-",
        b"+",
        b"withscores",
        b"withvalues",
        b"limit",
        b"count",
        b"weights",
        b"byscore",
        b"bylex",
        b"rev",
        b"left",
        b"\xff\x00",
        b"rank",
    ];
    for step in 0..30_000 {
        if step % 1000 == 0 {
            for key in ["h", "s", "z", "l", "t", "o"] {
                server.text(&format!("del {key}"));
            }
            fill(&mut server, 5 + step / 1000 % 2 * 150);
        }
        let command = of_collections[rng.random_range(0..of_collections.len())];
        let least = command.spec.arity.unsigned_abs() as usize;
        let most = if command.spec.arity < 0 {
            least + 5
        } else {
            least
        };
        let mut words = vec![command.spec.name.as_bytes()];
        while words.len() < rng.random_range(least..=most) || words.len() < least {
            words.push(strange[rng.random_range(0..strange.len())]);
        }
        let reply = server.call(&words);
        assert!(reply.ends_with(b"\r\n"), "{words:?}");
    }
    server.text("flushall");
    assert_eq!(server.elements(), 0);
}

#[test]
fn readers_see_a_collection_as_it_was_at_one_time() {
    let mut server = Server::new();
    server.text("sadd s m");
    let data = server.data();
    let call = |words: &[&str], reads| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let command = crate::commands::data()
            .find(|known| known.spec.name.as_bytes() == words[0])
            .unwrap();
        let mut reply = Vec::new();
        data.run(
            command,
            0,
            &words,
            reads,
            &mut Out::new(&mut reply, Protocol::Resp2),
        );
        reply
    };
    let members: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    let mut add: Vec<&str> = vec!["sadd", "s"];
    add.extend(members.iter().map(String::as_str));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..60 {
                call(&["del", "s"], Reads::Applied);
                call(&["sadd", "s", "m"], Reads::Applied);
                call(&add, Reads::Applied);
                data.settle(data.applied()).unwrap();
                data.sweep().unwrap();
            }
        });
        let mut seen = BTreeSet::new();
        while !writer.is_finished() {
            for reads in [Reads::Applied, Reads::Durable] {
                let found = strings(&call(&["smembers", "s"], reads));
                assert!([0, 1, 200, 201].contains(&found.len()), "{}", found.len());
                seen.insert(found.len());
            }
        }
        assert!(!seen.is_empty());
    });
}

#[test]
fn damaged_records_are_errors() {
    let mut server = Server::new();
    for kind in [Kind::Hash, Kind::Set, Kind::SortedSet, Kind::List] {
        let lines: &[&str] = match kind {
            Kind::Hash => &["hgetall k", "hset k a b", "hdel k a", "hscan k 0"],
            Kind::Set => &["smembers k", "sadd k a", "srem k a", "spop k", "zunion 1 k"],
            Kind::SortedSet => &["zrange k 0 -1", "zadd k 1 a", "zrem k a", "zunion 1 k"],
            _ => &[
                "lrange k 0 -1",
                "rpush k a",
                "lpop k",
                "linsert k before a b",
            ],
        };
        for (id, body) in [
            (None, &b"\0"[..]),
            (None, b"\0\x05a"),
            (None, b"\0\x01a\xff\xff"),
            (Some(7), b""),
            (Some(7), b"\0\0\0\0\0\0\0\x01\0"),
        ] {
            let expires_at = None;
            let value = Value {
                kind,
                id,
                expires_at,
                body: body.to_vec(),
                item: None,
            };
            let mut tx = server.data().begin(0);
            tx.save(b"k", None, &value).unwrap();
            tx.commit().unwrap();
            for line in lines {
                let reply = server.text(line);
                assert!(
                    reply.starts_with("-ERR the pool is damaged"),
                    "{line}: {reply}"
                );
            }
        }
    }
}
