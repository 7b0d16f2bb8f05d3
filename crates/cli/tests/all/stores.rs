//! A pool that `serve` wrote could be served and nothing else: the other commands worked on a bare
//! index, `serve` on a store, and one file could have both, of which `check` counted one. Now all
//! of them work on databases.

use crate::common::Bench;
use crate::common::server::Server;
use serde_json::{Value, json};

fn lines(commands: &[&str]) -> Vec<String> {
    commands.iter().map(|line| (*line).to_owned()).collect()
}

/// A pool `s.pool` that was served, and what was written to it.
fn served(b: &Bench, args: &[&str]) {
    let mut server = Server::start(b, args);
    let mut commands = lines(&[
        "SET a 1",
        "SET \"b\\xff\" \"\\x00\\tbytes\"",
        "SET later soon PXAT 4102444800000",
        "SET gone x PX 1",
        "HSET h f not-to-be-seen",
        "SELECT 2",
        "SET two 2",
        "SELECT 0",
    ]);
    commands.extend((0..200).map(|i| format!("RPUSH big element-{i}")));
    let replies = server.tell(&commands);
    assert!(!replies.contains("-ERR"), "{replies}");
    std::thread::sleep(std::time::Duration::from_millis(5));
    server.stop();
}

#[test]
fn every_command_on_pools_takes_one_that_was_served() {
    let b = Bench::new();
    served(&b, &[]);
    for command in ["info", "check"] {
        let report = b.run(&[command, "s.pool", "--json"]).ok().json();
        assert_eq!(
            (&report["errors"], &report["error_count"]),
            (&json!([]), &json!(0))
        );
        let roots = report["roots"].as_array().unwrap();
        assert_eq!((roots.len(), &roots[0]["kind"]), (1, &json!("database")));
        assert_eq!(report["entries"], roots[0]["entries"]);
        let keyspaces = roots[0]["keyspaces"].as_array().unwrap();
        let entries = |name: &str| {
            let of = keyspaces.iter().find(|keyspace| keyspace["name"] == name);
            of.unwrap()["entries"].as_u64().unwrap()
        };
        assert!((5..=6).contains(&entries("0")), "{report}");
        assert_eq!((entries("2"), entries("elements")), (1, 200), "{report}");
    }
    let info = b.run(&["info", "s.pool"]).ok().text();
    assert!(
        info.contains("keyspaces, a server's") && info.contains("\"elements\"   200"),
        "{info}"
    );
    let check = b.run(&["check", "s.pool"]).ok().text();
    assert!(check.starts_with("s.pool: whole. "), "{check}");
    let told = b.run(&["compact", "s.pool"]).ok().text();
    assert!(told.starts_with("compacted s.pool: "), "{told}");
    b.run(&["backup", "s.pool", "copy"]).ok();
    b.run(&["check", "copy"]).ok();
    let copied = Bench::new();
    std::fs::copy(b.path("copy"), copied.path("s.pool")).unwrap();
    let mut server = Server::start(&copied, &[]);
    assert!(
        server
            .tell(&lines(&["LLEN big", "GET a"]))
            .starts_with(":200\r\n$1\r\n1\r\n")
    );
    server.stop();
}

/// `put`, `get` and `del` refused a pool that was served, and a server saw nothing of what `put`
/// wrote.
#[test]
fn what_the_command_writes_a_server_reads_and_the_other_way_round() {
    let b = Bench::new();
    served(&b, &[]);
    assert_eq!(b.run(&["get", "s.pool", "a"]).ok().text(), "1");
    b.run(&["put", "s.pool", "a", "changed"]).ok();
    b.run(&["put", "s.pool", "n", "5", "--keyspace", "3"]).ok();
    b.run(&["del", "s.pool", "later"]).ok();
    b.run(&["del", "s.pool", "later"])
        .fails(&["no key \"later\""]);
    b.run(&["get", "s.pool", "big"])
        .fails(&["key \"big\"", "holds a list", "serve"]);
    // A list is replaced with all its elements, as SET does it.
    b.run(&["put", "s.pool", "big", "small now"]).ok();
    b.file(
        "rows.jsonl",
        "{\"key\":\"x\",\"value\":\"1\"}\n{\"key\":\"y\",\"value\":\"2\"}\n",
    );
    let told = b.run(&["import", "s.pool", "rows.jsonl", "--keyspace", "4"]);
    assert!(told.ok().text().contains("2 new keys"));
    let report = b.run(&["check", "s.pool", "--json"]).ok().json();
    assert_eq!(report["errors"], json!([]));
    let mut server = Server::start(&b, &[]);
    let replies = server.tell(&lines(&[
        "GET a",
        "GET big",
        "EXISTS later",
        "SELECT 3",
        "INCR n",
        "SELECT 4",
        "MGET x y",
    ]));
    let expected = "$7\r\nchanged\r\n$9\r\nsmall now\r\n:0\r\n+OK\r\n:6\r\n+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n";
    assert!(replies.starts_with(expected), "{replies}");
    server.tell(&lines(&["SWAPDB 3 4"]));
    server.stop();
    let text = b
        .run(&["get", "s.pool", "n", "--keyspace", "4"])
        .ok()
        .text();
    assert_eq!(text, "6", "databases go by the numbers that clients use");
    b.run(&["put", "s.pool", "x", "3", "--keyspace", "3"]).ok();
    for format in ["text", "json"] {
        let scan = ["scan", "s.pool", "--keyspace", "3", "--format", format];
        assert_eq!(b.run(&scan).ok().text().lines().count(), 2);
    }
    b.run(&["export", "s.pool", "four.jsonl", "--keyspace", "4"])
        .ok();
    let four = std::fs::read_to_string(b.path("four.jsonl")).unwrap();
    assert_eq!(four, "{\"key\":\"n\",\"value\":\"6\"}\n");
}

#[test]
fn a_database_that_the_command_made_is_served_and_keeps_its_keyspaces() {
    let b = Bench::new();
    b.run(&["create", "s.pool"]).ok();
    b.run(&["put", "s.pool", "k", "of the default keyspace"])
        .ok();
    b.run(&["put", "s.pool", "k", "raw", "--keyspace", "orders"])
        .ok();
    b.run(&["put", "s.pool", "k", "served", "--keyspace", "0"])
        .ok();
    let mut server = Server::start(&b, &[]);
    let replies = server.tell(&lines(&["GET k"]));
    assert!(replies.starts_with("$6\r\nserved\r\n"), "{replies}");
    server.stop();
    for (keyspace, value) in [
        ("default", "of the default keyspace"),
        ("orders", "raw"),
        ("0", "served"),
    ] {
        let got = b.run(&["get", "s.pool", "k", "--keyspace", keyspace]);
        assert_eq!(got.ok().text(), value);
    }
    assert_eq!(
        b.run(&["scan", "s.pool"]).ok().text(),
        "k\tof the default keyspace\n"
    );
    b.run(&["scan", "s.pool", "--keyspace", "none"])
        .fails(&["no keyspace \"none\"", "\"orders\""]);
    b.run(&["put", "s.pool", "k", "v", "--keyspace", "elements"])
        .fails(&["bookkeeping"]);
}

/// Values that expire would have stayed so when an import had the same value, and not when it had
/// another.
#[test]
fn imported_values_of_a_server_do_not_expire() {
    let b = Bench::new();
    let mut server = Server::start(&b, &[]);
    server.tell(&lines(&[
        "SET k same PXAT 4102444800000",
        "SET l other PXAT 4102444800000",
    ]));
    server.stop();
    b.file("rows.csv", "key,value\nk,same\nl,new\n");
    b.run(&["import", "s.pool", "rows.csv"]).ok();
    let mut server = Server::start(&b, &[]);
    let replies = server.tell(&lines(&["PTTL k", "PTTL l", "MGET k l"]));
    assert!(
        replies.starts_with(":-1\r\n:-1\r\n*2\r\n$4\r\nsame\r\n$3\r\nnew\r\n"),
        "{replies}"
    );
    server.stop();
}

#[test]
fn several_keyspaces_are_asked_about() {
    let b = Bench::new();
    b.run(&["create", "p"]).ok();
    assert_eq!(b.run(&["scan", "p"]).ok().text(), "");
    b.run(&["put", "p", "k", "1", "--keyspace", "one"]).ok();
    assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "1");
    b.run(&["put", "p", "k", "2", "--keyspace", "two"]).ok();
    b.run(&["get", "p", "k"])
        .ends(2, &["which keyspace?", "\"one\", \"two\""]);
    b.run(&["put", "p", "k", "3"]).ends(2, &["which keyspace?"]);
    b.run(&["export", "p", "out.csv"])
        .ends(2, &["which keyspace?"]);
    b.run(&["export", "p", "out.csv", "--keyspace", "two"]).ok();
    assert_eq!(
        std::fs::read_to_string(b.path("out.csv")).unwrap(),
        "key,value\nk,2\n"
    );
}

#[test]
fn keys_of_a_server_come_with_their_types_and_collections_without_values() {
    let b = Bench::new();
    served(&b, &[]);
    let text = "a\tstring\t1\nbig\tlist\t\nb\\xff\tstring\t\\x00\\x09bytes\nh\thash\t\nlater\tstring\tsoon\n";
    assert_eq!(b.run(&["scan", "s.pool"]).ok().text(), text);
    assert_eq!(
        b.run(&["scan", "s.pool", "--keyspace", "0"]).ok().text(),
        text
    );
    assert_eq!(
        b.run(&["scan", "s.pool", "--keyspace", "2"]).ok().text(),
        "two\tstring\t2\n"
    );
    assert_eq!(
        b.run(&["scan", "s.pool", "--keyspace", "3"]).ok().text(),
        ""
    );
    let last = ["scan", "s.pool", "--reverse", "--limit", "2"];
    assert_eq!(b.run(&last).ok().text(), "later\tstring\tsoon\nh\thash\t\n");
    let args = [
        "scan", "s.pool", "--from", "b", "--to", "later", "--format", "csv",
    ];
    assert_eq!(
        b.run(&args).ok().stdout,
        b"key,type,value\nbig,list,\nb\xff,string,\x00\tbytes\nh,hash,\n"
    );
    let json = b
        .run(&["scan", "s.pool", "--prefix", "l", "--format", "json"])
        .ok()
        .json();
    let later = json!({"key": "later", "type": "string", "value": "soon", "expires_at": 4_102_444_800_000u64});
    assert_eq!(json, later);
    b.run(&["scan", "s.pool", "--keyspace", "elements"])
        .fails(&["\"elements\" is the server's own bookkeeping", "\"15\""]);
    b.run(&["scan", "s.pool", "--keyspace", "none"])
        .fails(&["no keyspace \"none\"; there are "]);

    let report = b.run(&["export", "s.pool", "out.jsonl", "--json"]).ok();
    assert!(
        report.stderr.contains("2 of them are collections"),
        "{}",
        report.stderr
    );
    let report = report.json();
    let counts = ["records", "collections", "skipped"].map(|field| report[field].as_u64().unwrap());
    assert_eq!(counts, [5, 2, 0]);
    let exported = std::fs::read_to_string(b.path("out.jsonl")).unwrap();
    let rows: Vec<Value> = exported
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows[0], json!({"key": "a", "value": "1"}));
    assert_eq!(rows[2], json!({"key_base64": "Yv8=", "value": "\0\tbytes"}));
    assert_eq!(rows[1], json!({"key": "big", "type": "list"}));
    assert_eq!(rows[4], later);
    assert!(!exported.contains("not-to-be-seen"));
    b.run(&["export", "s.pool", "out.csv"])
        .ends(2, &["out.csv", ".jsonl"]);
    b.run(&["create", "p"]).ok();
    b.run(&["import", "p", "out.jsonl"]).ok();
    assert_eq!(b.run(&["get", "p", "a"]).ok().text(), "1");
    b.run(&["export", "p", "out.jsonl", "--keyspace", "none"])
        .fails(&["p: no keyspace \"none\"; there are \"default\""]);
}

#[test]
fn a_pool_whose_server_was_killed_can_be_looked_at() {
    let b = Bench::new();
    let mut server = Server::start(&b, &[]);
    server.tell(&lines(&[
        "SET a 1", "DEL a", "SET b 2", "MULTI", "SET c 3", "SET d 4", "EXEC",
    ]));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let before = std::fs::read(b.path("s.pool")).unwrap();
    for command in ["info", "check"] {
        let report = b.run(&[command, "s.pool", "--json"]).ok().json();
        assert_eq!(report["clean"], false);
    }
    assert_eq!(
        b.run(&["scan", "s.pool"]).ok().text(),
        "b\tstring\t2\nc\tstring\t3\nd\tstring\t4\n"
    );
    b.run(&["export", "s.pool", "out.jsonl"]).ok();
    assert_eq!(
        std::fs::read_to_string(b.path("out.jsonl"))
            .unwrap()
            .lines()
            .count(),
        3
    );
    assert!(
        before == std::fs::read(b.path("s.pool")).unwrap(),
        "looking changes nothing"
    );
}
