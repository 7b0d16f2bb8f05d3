//! Memcached clients whose items are strings of a database, which Redis clients have, too.

use crate::live::{Live, same};
use crate::memcached::{Client, with_memcached};
use bristlecone_pmem::MediumKind;
use bristlecone_server::Running;
use bristlecone_server::config::{Allowed, Settings};
use bristlecone_server::memory::Share;
use std::time::{Duration, Instant};

fn in_a_database() -> Settings {
    Settings {
        memcached_database: Some(3),
        ..with_memcached()
    }
}

#[test]
fn items_in_a_database_are_its_strings() {
    const WRONG: &str =
        "SERVER_ERROR WRONGTYPE Operation against a key holding the wrong kind of value";
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let mut live = Live::with(in_a_database(), medium);
        let (mut client, mut redis) = (Client::of(&live), live.client());
        let long = "l".repeat(5000);
        client.says(
            &format!("set a 7 0 1|x|set n 1 0 1|8|set long 2 0 5000|{long}|set gone 1 0 1|g"),
            "STORED|STORED|STORED|STORED",
        );
        same(&redis.call("GET a"), "$-1\n");
        same(&redis.call("SELECT 3"), "+OK\n");
        same(&redis.call("GET a"), "$1\nx\n");
        same(&redis.call("STRLEN a"), ":1\n");
        same(&redis.call("STRLEN long"), ":5000\n");
        same(&redis.call("GETRANGE long 4998 -1"), "$2\nll\n");
        same(&redis.call("TYPE a"), "+string\n");
        same(&redis.call("DBSIZE"), ":4\n");
        same(&redis.call("INCR n"), ":9\n");
        same(&redis.call("MGET a n none"), "*3\n$1\nx\n$1\n9\n$-1\n");
        client.says("incr n 3|get n", "12|VALUE n 0 2|12|END");
        client.says("decr n 4", "8");
        same(&redis.call("INCRBY n 4"), ":12\n");
        let all = "*8\n$1\na\n$1\nx\n$4\ngone\n$1\ng\n$4\nlong\n$5000\n";
        same(
            &redis.call("BC.RANGE - + WITHVALUES"),
            &format!("{all}{long}\n$1\nn\n$2\n12\n"),
        );
        client.says("delete gone", "DELETED");
        same(&redis.call("EXISTS gone"), ":0\n");

        // Commands that keep the value keep the flags and the cas.
        let cas = client.cas("a");
        same(&redis.call("PEXPIRE a 100000"), ":1\n");
        same(&redis.call("RENAME a b"), "+OK\n");
        same(&redis.call("COPY b c"), ":1\n");
        same(&redis.call("GETEX b EX 100"), "$1\nx\n");
        same(&redis.call("PERSIST c"), ":1\n");
        same(&redis.call("MOVE c 5"), ":1\n");
        same(&redis.call("SELECT 5"), "+OK\n");
        same(&redis.call("MOVE c 3"), ":1\n");
        same(&redis.call("SELECT 3"), "+OK\n");
        client.says("get a b c", "VALUE b 7 1|x|VALUE c 7 1|x|END");
        assert_eq!((client.cas("c"), client.stat("curr_items")), (cas, 4));
        client.says("mg b t c", &format!("HD t100 c{cas}"));
        same(&redis.call("APPEND c y"), ":2\n");
        client.says("get c", "VALUE c 0 2|xy|END");
        client.says("append c 9 0 1|z|get c", "STORED|VALUE c 0 3|xyz|END");
        client.says("touch b 5", "TOUCHED");
        same(&redis.call("TTL b"), ":5\n");

        // A string that Redis wrote has a hash of its value as its cas.
        same(&redis.call("SET plain one"), "+OK\n");
        let one = client.cas("plain");
        assert!(one >> 62 == 1 && one == client.cas("plain"));
        same(&redis.call("SET plain two"), "+OK\n");
        client.says(&format!("cas plain 0 0 1 {one}|x"), "EXISTS");
        let two = client.cas("plain");
        client.says(&format!("cas plain 4 0 1 {two}|x"), "STORED");
        client.says("get plain", "VALUE plain 4 1|x|END");

        // A string that exceeds the size of items.
        same(&redis.call("SETRANGE longer 2000000 x"), ":2000001\n");
        client.says("get longer", "SERVER_ERROR object too large for cache");
        client.says("append longer 0 0 1|y", "NOT_STORED");
        client.says("touch longer 100", "TOUCHED");
        same(&redis.call("STRLEN longer"), ":2000001\n");
        same(&redis.call("GETRANGE longer -2 -1"), "$2\n\0x\n");
        client.says("delete longer", "DELETED");

        // Commands refuse other types, until those expire.
        same(&redis.call("RPUSH list a b"), ":2\n");
        for command in [
            "get list",
            "set list 0 0 1|x",
            "add list 0 0 1|x",
            "delete list",
            "incr list 1",
        ] {
            client.says(command, WRONG);
        }
        // The other stores of the pipeline go through.
        client.says(
            "set p 0 0 1|1|set list 0 0 1|2|set q 0 0 1|3|get p q",
            &format!("STORED|{WRONG}|STORED|VALUE p 0 1|1|VALUE q 0 1|3|END"),
        );
        same(&redis.call("LLEN list"), ":2\n");
        let members = (0..3000).map(|n| format!(" member{n}")).collect::<String>();
        same(&redis.call(&format!("SADD large{members}")), ":3000\n");
        client.says("get large", WRONG);
        same(&redis.call("PEXPIRE large 1"), ":1\n");
        std::thread::sleep(Duration::from_millis(5));
        client.says(
            "add large 3 0 1|x|get large",
            "STORED|VALUE large 3 1|x|END",
        );

        // A watched key was changed.
        same(&redis.call("WATCH n"), "+OK\n");
        client.says("incr n 1", "13");
        same(&redis.call("MULTI"), "+OK\n");
        same(&redis.call("SET n 0"), "+QUEUED\n");
        same(&redis.call("EXEC"), "*-1\n");

        live.reopen(in_a_database());
        let (mut client, mut redis) = (Client::of(&live), live.client());
        client.says("get n large", "VALUE n 0 2|13|VALUE large 3 1|x|END");
        client.says("set new 1 0 1|n", "STORED");
        assert!(client.cas("new") > cas);
        same(&redis.call("SWAPDB 3 4"), "+OK\n");
        client.says("get n new", "END");
        client.says("set n 6 0 1|s", "STORED");
        same(&redis.call("SWAPDB 3 4"), "+OK\n");
        client.says("get n", "VALUE n 0 2|13|END");
        client.says("flush_all|get n new", "OK|END");
        same(&redis.call("SELECT 3"), "+OK\n");
        same(&redis.call("DBSIZE"), ":0\n");
        same(&redis.call("SELECT 4"), "+OK\n");
        same(&redis.call("GET n"), "$1\ns\n");

        // Without the setting, they are still strings to Redis.
        client.says(&format!("set long 2 0 5000|{long}"), "STORED");
        live.reopen(with_memcached());
        let (mut client, mut redis) = (Client::of(&live), live.client());
        client.says("get long", "END");
        same(&redis.call("SELECT 3"), "+OK\n");
        same(&redis.call("STRLEN long"), ":5000\n");
        same(&redis.call("GETRANGE long 0 1"), "$2\nll\n");
    }
}

#[test]
fn a_flush_of_a_database_is_done_when_it_is_due() {
    let settings = Settings {
        enable_debug_command: Allowed::Local,
        ..in_a_database()
    };
    let mut live = Live::with(settings.clone(), MediumKind::Mapped);
    let mut client = Client::of(&live);
    client.says(
        "set a 0 0 1|1|flush_all 100|set b 0 0 1|2",
        "STORED|OK|STORED",
    );
    live.reopen(settings.clone());
    let mut client = Client::of(&live);
    client.says("get a b", "VALUE a 0 1|1|VALUE b 0 1|2|END");
    client.says(
        "debugtime 101|set c 0 0 1|3|get a b c",
        "OK|STORED|VALUE c 0 1|3|END",
    );
    live.reopen(settings.clone());
    let mut client = Client::of(&live);
    client.says("debugtime 101|get c", "OK|VALUE c 0 1|3|END");

    // Also if no memcached client comes any more.
    client.says("flush_all 1|quit", "OK");
    let mut redis = live.client();
    same(&redis.call("SELECT 3"), "+OK\n");
    let until = Instant::now() + Duration::from_secs(30);
    while redis.call("DBSIZE") != ":0\r\n" {
        assert!(Instant::now() < until, "nothing was flushed");
        std::thread::sleep(Duration::from_millis(20));
    }
    // And nowhere else.
    let mut client = Client::of(&live);
    client.says("set d 0 0 1|4|flush_all 1", "STORED|OK");
    same(&redis.call("SELECT 4"), "+OK\n");
    same(&redis.call("SET e 5"), "+OK\n");
    live.reopen(Settings {
        memcached_database: Some(4),
        ..settings.clone()
    });
    let mut client = Client::of(&live);
    client.says("debugtime 101|get e", "OK|VALUE e 0 1|5|END");
    live.reopen(Settings {
        memcached_database: None,
        ..settings
    });
    let mut client = Client::of(&live);
    client.says(
        "set f 0 0 1|6|debugtime 101|get f",
        "STORED|OK|VALUE f 0 1|6|END",
    );
}

#[test]
fn items_in_a_database_are_not_evicted() {
    let settings = Settings {
        memcached_memory: Share::Bytes(1 << 20),
        ..in_a_database()
    };
    let refused = Running::check(&settings).unwrap_err();
    assert!(refused.is_wrong_setting(), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("memcached-memory 1048576") && text.contains("memcached-database 3"));
}
