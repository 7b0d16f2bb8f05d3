//! A pool that `serve` wrote could be served and nothing else: `info`, `check`, `scan`, `export`, `backup` and `compact`
//! refused it. And `serve` put its store into any pool, beside the index of `create`, so that one file had two sets of keys
//! of which `check` counted one.

mod common;

use common::Bench;
use common::server::Server;
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
        assert_eq!(report["index"], "lbtree", "{report}");
        assert_eq!(
            (&report["errors"], &report["error_count"]),
            (&json!([]), &json!(0))
        );
        let roots = report["roots"].as_array().unwrap();
        assert_eq!((roots.len(), &roots[0]["kind"]), (1, &json!("store")));
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
        info.contains("\"store\", a server's") && info.contains("\"elements\" 200"),
        "{info}"
    );
    let check = b.run(&["check", "s.pool"]).ok().text();
    assert!(
        check.starts_with("s.pool: store \"store\": whole. "),
        "{check}"
    );
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
    for args in [
        &["put", "s.pool", "k", "v"][..],
        &["get", "s.pool", "a"],
        &["del", "s.pool", "a"],
    ] {
        b.run(args).fails(&[
            "no root named \"main\"",
            "\"store\", a store, as `serve` makes",
        ]);
    }
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
        .fails(&["no keyspace \"none\"; there are \"0\""]);

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
    b.run(&["scan", "p", "--keyspace", "0"])
        .fails(&["p: --keyspace is for pools with a store"]);
    b.run(&["export", "p", "out.jsonl", "--keyspace", "0"])
        .fails(&["this one has none"]);
}

#[test]
fn two_sets_of_keys_in_one_file_are_asked_for_and_both_are_reported() {
    let b = Bench::new();
    b.run(&["create", "s.pool"]).ok();
    b.run(&["put", "s.pool", "of-the-index", "x"]).ok();
    // A server that does not refuse would serve for ever.
    let program = env!("CARGO_BIN_EXE_bristlecone");
    let serve = format!("timeout 60 {program} serve s.pool --listen 127.0.0.1:0");
    b.shell(&serve).fails(&[
        "s.pool: it has an index \"main\" (lbtree",
        "--beside-index",
        "info s.pool",
    ]);
    let report = b.run(&["info", "s.pool", "--json"]).ok().json();
    assert_eq!(
        report["roots"].as_array().unwrap().len(),
        1,
        "a refusal adds nothing"
    );
    served(&b, &["--beside-index"]);
    b.shell(&serve)
        .fails(&["and a store, which is another set of keys"]);

    let report = b.run(&["check", "s.pool", "--json"]).ok().json();
    let roots = report["roots"].as_array().unwrap();
    let kinds: Vec<&Value> = roots.iter().map(|root| &root["kind"]).collect();
    assert_eq!(kinds, ["index", "store"]);
    let entries = |root: usize| roots[root]["entries"].as_u64().unwrap();
    assert_eq!(
        (entries(0), report["entries"].as_u64()),
        (1, Some(1 + entries(1)))
    );
    let check = b.run(&["check", "s.pool"]).ok().text();
    assert!(
        check.contains("s.pool: whole. 1 entries") && check.contains("store \"store\": whole."),
        "{check}"
    );
    assert_eq!(b.run(&["scan", "s.pool"]).ok().text(), "of-the-index\tx\n");
    assert_eq!(
        b.run(&["scan", "s.pool", "--keyspace", "2"]).ok().text(),
        "two\tstring\t2\n"
    );
    b.run(&["export", "s.pool", "out.csv"]).ok();
    assert_eq!(
        std::fs::read_to_string(b.path("out.csv")).unwrap(),
        "key,value\nof-the-index,x\n"
    );
    b.run(&["backup", "s.pool", "copy"]).ok();
    b.run(&["compact", "copy"]).ok();
    let copied = b.run(&["check", "copy", "--json"]).ok().json();
    assert_eq!(copied["roots"].as_array().unwrap().len(), 2);
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
