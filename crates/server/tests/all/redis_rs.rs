//! A client library, unchanged: the Rust crate `redis`.

use crate::live::{Live, settings};
use bristlecone_pmem::MediumKind;
use redis::{Commands, Connection, ConnectionLike, ProtocolVersion, RedisResult, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Runs a test with each protocol, on each medium.
fn each(test: fn(&Live, &mut Connection)) {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        for protocol in ["resp2", "resp3"] {
            let live = Live::with(settings(), medium);
            test(&live, &mut connection(&live, protocol));
        }
    }
}

fn connection(live: &Live, protocol: &str) -> Connection {
    let url = format!("redis://{}/?protocol={protocol}", live.address());
    let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let patience = Some(Duration::from_secs(20));
    connection.set_read_timeout(patience).unwrap();
    connection
}

#[test]
fn strings_and_keys() {
    each(|_, db| {
        let () = db.set("a", "text").unwrap();
        assert_eq!(db.get::<_, String>("a").unwrap(), "text");
        assert_eq!(db.get::<_, Option<String>>("none").unwrap(), None);
        assert_eq!(db.append::<_, _, usize>("a", "s").unwrap(), 5);
        assert_eq!(db.incr::<_, _, i64>("n", 7).unwrap(), 7);
        assert_eq!(db.incr::<_, _, f64>("f", 1.5).unwrap(), 1.5);
        let () = db.mset(&[("x", 1), ("y", 2)]).unwrap();
        let found: Vec<Option<i64>> = db.mget(&["x", "none", "y"]).unwrap();
        assert_eq!(found, [Some(1), None, Some(2)]);
        let () = db.set_ex("t", "v", 100).unwrap();
        assert!((1..=100).contains(&db.ttl::<_, i64>("t").unwrap()));
        assert!(db.set_nx::<_, _, bool>("new", 1).unwrap());
        assert!(!db.set_nx::<_, _, bool>("new", 2).unwrap());
        assert_eq!(db.del::<_, usize>(&["x", "y", "none"]).unwrap(), 2);
        assert!(!db.exists::<_, bool>("x").unwrap());
        let wrong: RedisResult<i64> = db.incr("a", 1);
        let wrong = wrong.unwrap_err();
        assert!(
            wrong.to_string().contains("not an integer or out of range"),
            "{wrong}"
        );
        let binary: Vec<u8> = (0..=255).collect();
        let () = db.set(&binary, &binary).unwrap();
        assert_eq!(db.get::<_, Vec<u8>>(&binary).unwrap(), binary);
    });
}

#[test]
fn hashes_lists_sets_and_sorted_sets() {
    each(|_, db| {
        let () = db.hset_multiple("h", &[("a", 1), ("b", 2)]).unwrap();
        assert_eq!(db.hincr::<_, _, _, i64>("h", "a", 4).unwrap(), 5);
        let hash: BTreeMap<String, i64> = db.hgetall("h").unwrap();
        assert_eq!(hash, BTreeMap::from([("a".into(), 5), ("b".into(), 2)]));
        assert!(db.hdel::<_, _, bool>("h", "b").unwrap());

        assert_eq!(db.rpush::<_, _, usize>("l", &[1, 2, 3]).unwrap(), 3);
        assert_eq!(db.lpush::<_, _, usize>("l", 0).unwrap(), 4);
        assert_eq!(db.lrange::<_, Vec<i64>>("l", 0, -1).unwrap(), [0, 1, 2, 3]);
        assert_eq!(db.lpop::<_, Vec<i64>>("l", None).unwrap(), [0]);
        assert_eq!(db.llen::<_, usize>("l").unwrap(), 3);

        assert_eq!(db.sadd::<_, _, usize>("s", &["a", "b", "a"]).unwrap(), 2);
        let () = db.sadd("other", &["b", "c"]).unwrap();
        let union: BTreeSet<String> = db.sunion(&["s", "other"]).unwrap();
        assert_eq!(union, ["a", "b", "c"].map(String::from).into());
        assert!(db.sismember::<_, _, bool>("s", "a").unwrap());

        let scores = [(3.5, "c"), (1.0, "a"), (2.0, "b")];
        assert_eq!(db.zadd_multiple::<_, _, _, usize>("z", &scores).unwrap(), 3);
        let sorted: Vec<(String, f64)> = db.zrange_withscores("z", 0, -1).unwrap();
        let expected = [("a", 1.0), ("b", 2.0), ("c", 3.5)];
        assert_eq!(
            sorted,
            expected.map(|(name, score)| (name.to_owned(), score))
        );
        assert_eq!(db.zscore::<_, _, Option<f64>>("z", "none").unwrap(), None);
        assert_eq!(db.zrank::<_, _, usize>("z", "c").unwrap(), 2);
        let wrong: RedisResult<i64> = db.llen("z");
        assert_eq!(wrong.unwrap_err().code(), Some("WRONGTYPE"));
    });
}

#[test]
fn pipelines_and_transactions() {
    each(|live, db| {
        let mut pipe = redis::pipe();
        for i in 0..1000 {
            pipe.set(format!("key{i}"), i).ignore();
        }
        pipe.get("key7").get("key999");
        assert_eq!(pipe.query::<(i64, i64)>(db).unwrap(), (7, 999));
        let mut pipe = redis::pipe();
        pipe.atomic().incr("a", 1).ignore().incr("b", 2).get("a");
        assert_eq!(pipe.query::<(i64, i64)>(db).unwrap(), (2, 1));

        // Another client changes the watched key under the first attempt.
        let mut other = connection(live, "resp2");
        let mut attempts = 0;
        let moved: (i64, i64) = redis::transaction(db, &["a", "b"], |db, pipe| {
            attempts += 1;
            let a: i64 = db.get("a")?;
            if attempts == 1 {
                let () = other.incr("a", 10)?;
            }
            pipe.set("a", a - 1)
                .ignore()
                .get("a")
                .incr("b", 1)
                .query(db)
        })
        .unwrap();
        assert_eq!((attempts, moved), (2, (10, 3)));
    });
}

#[test]
fn channels_and_patterns() {
    each(|live, db| {
        let mut listener = connection(live, "resp2");
        let mut listener = listener.as_pubsub();
        listener.subscribe("news").unwrap();
        listener.psubscribe("w*").unwrap();
        assert_eq!(db.publish::<_, _, usize>("news", "first").unwrap(), 1);
        assert_eq!(db.publish::<_, _, usize>("weather", "rain").unwrap(), 1);
        assert_eq!(db.publish::<_, _, usize>("else", "nobody").unwrap(), 0);
        let message = listener.get_message().unwrap();
        assert_eq!(message.get_channel_name(), "news");
        assert_eq!(message.get_payload::<String>().unwrap(), "first");
        assert!(!message.from_pattern());
        let message = listener.get_message().unwrap();
        assert_eq!(message.get_pattern::<String>().unwrap(), "w*");
        assert_eq!(message.get_channel_name(), "weather");
        listener.unsubscribe("news").unwrap();
        assert_eq!(db.publish::<_, _, usize>("news", "second").unwrap(), 0);
    });
}

#[test]
fn a_listener_that_speaks_resp3_is_told_by_pushes() {
    let live = Live::start();
    let mut listener = connection(&live, "resp3");
    let mut listener = listener.as_pubsub();
    listener.subscribe("news").unwrap();
    let mut db = connection(&live, "resp3");
    assert_eq!(db.publish::<_, _, usize>("news", "first").unwrap(), 1);
    let message = listener.get_message().unwrap();
    assert_eq!(message.get_payload::<String>().unwrap(), "first");
}

#[test]
fn scans_give_everything_once() {
    each(|_, db| {
        let mut pipe = redis::pipe();
        for i in 0..2000 {
            pipe.set(format!("key:{i}"), i).ignore();
            pipe.hset("hash", format!("f{i}"), i).ignore();
            pipe.sadd("set", i).ignore();
            pipe.zadd("sorted", i, i).ignore();
        }
        let () = pipe.query(db).unwrap();
        let keys: Vec<String> = db.scan_match("key:*").unwrap().collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 2000);
        assert_eq!(keys.len(), 2000);
        let hash: HashMap<String, i64> = db.hscan("hash").unwrap().collect();
        assert_eq!((hash.len(), hash["f1999"]), (2000, 1999));
        let set: BTreeSet<i64> = db.sscan("set").unwrap().collect();
        assert_eq!(set, (0..2000).collect());
        let sorted: Vec<(i64, f64)> = db.zscan("sorted").unwrap().collect();
        assert_eq!(sorted.len(), 2000);
        assert!(sorted.iter().all(|(i, score)| *i as f64 == *score));
    });
}

#[test]
fn resp3_has_types_of_its_own() {
    let live = Live::start();
    let url = format!("redis://{}/?protocol=resp3", live.address());
    let client = redis::Client::open(url).unwrap();
    let info = client.get_connection_info();
    assert_eq!(info.redis.protocol, ProtocolVersion::RESP3);
    let mut db = client.get_connection().unwrap();
    assert!(db.supports_pipelining() && db.check_connection());
    let () = db.hset("h", "a", 1).unwrap();
    let () = db.sadd("s", "m").unwrap();
    let () = db.zadd("z", "m", 1.5).unwrap();
    let ask = |db: &mut Connection, words: &[&str]| -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(db).unwrap()
    };
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(
        ask(&mut db, &["HGETALL", "h"]),
        Value::Map(vec![(bulk("a"), bulk("1"))])
    );
    assert_eq!(
        ask(&mut db, &["SMEMBERS", "s"]),
        Value::Set(vec![bulk("m")])
    );
    assert_eq!(ask(&mut db, &["ZSCORE", "z", "m"]), Value::Double(1.5));
    assert_eq!(ask(&mut db, &["GET", "none"]), Value::Nil);
    assert!(matches!(ask(&mut db, &["HELLO", "3"]), Value::Map(_)));
}
