//! One pool, one key: create, put, get, del, and what they refuse.

use crate::common::Bench;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

#[test]
fn a_value_comes_back_as_it_was() {
    let b = Bench::new();
    let made = b.run(&["create", "p"]).ok();
    assert!(
        made.text().contains("acknowledged writes survive"),
        "{}",
        made.text()
    );
    b.run(&["put", "p", "k", "v"]).ok();
    assert_eq!(b.run(&["get", "p", "k"]).ok().stdout, b"v");
    b.run(&["put", "p", "k", "longer value"]).ok();
    assert_eq!(b.run(&["get", "p", "k"]).ok().stdout, b"longer value");
    b.run(&["del", "p", "k"]).ok();
    b.run(&["get", "p", "k"]).fails(&["no key \"k\"", "scan p"]);
    b.run(&["del", "p", "k"]).fails(&["no key \"k\""]);
}

#[test]
fn every_command_has_a_report_in_json() {
    let b = Bench::new();
    let made = b.run(&["create", "p", "--json"]).ok();
    assert!(made.stderr.contains("created p"), "{}", made.stderr);
    let made = made.json();
    assert_eq!(
        (&made["pool"], &made["medium"]),
        (&json!("p"), &json!("journal"))
    );
    assert_eq!(made["survives"], "power failure");

    let put = |value| b.run(&["put", "p", "k", value, "--json"]).ok().json();
    assert_eq!(put("v"), json!({"key": "k", "replaced": false}));
    assert_eq!(put("w"), json!({"key": "k", "replaced": true}));
    let got = b.run(&["get", "p", "k", "--json"]).ok().json();
    assert_eq!(got, json!({"key": "k", "value": "w"}));
    let beside = b.run(&["get", "p", "j", "--json"]);
    assert_eq!(beside.text(), "");
    beside.fails(&["no key \"j\""]);
    let bytes = OsStr::from_bytes(b"\xff");
    let [put, del, p, json]: [&OsStr; 4] = ["put", "del", "p", "--json"].map(OsStr::new);
    let put = b.run(&[put, p, bytes, bytes, json]).ok().json();
    assert_eq!(put, json!({"key_base64": "/w==", "replaced": false}));
    let removed = b.run(&[del, p, bytes, json]).ok().json();
    assert_eq!(removed, json!({"key_base64": "/w==", "removed": true}));
    let absent = b.run(&["del", "p", "j", "--json"]);
    assert_eq!(absent.json(), json!({"key": "j", "removed": false}));
    absent.fails(&["no key \"j\""]);

    b.file("rows.csv", "key,value\nk,w\na,1\na,2\n");
    let imported = b.run(&["import", "p", "rows.csv", "--json"]).ok().json();
    let counts = ["rows", "new", "replaced", "unchanged"].map(|n| imported[n].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 1, 1]);
    assert!(imported["stopped_at_line"].is_null());
    b.file("rows.csv", "key,value\nb,1\nc\n");
    let stopped = b.run(&["import", "p", "rows.csv", "--json"]);
    assert_eq!(stopped.json()["stopped_at_line"], 3);
    stopped.fails(&["--from-line 3"]);

    let copied = b.run(&["backup", "p", "copy", "--json"]).ok().json();
    let length = std::fs::metadata(b.path("copy")).unwrap().len();
    assert_eq!(
        copied,
        json!({"pool": "p", "file": "copy", "bytes": length})
    );
    let compacted = b.run(&["compact", "p", "--json"]).ok().json();
    let length = std::fs::metadata(b.path("p")).unwrap().len();
    assert_eq!(compacted["after_bytes"], length);
}

#[test]
fn keys_and_values_are_any_bytes() {
    let b = Bench::new();
    b.pool(&[("", "of the empty key"), ("-5", "negative"), ("empty", "")]);
    assert_eq!(b.run(&["get", "p", ""]).ok().stdout, b"of the empty key");
    assert_eq!(b.run(&["get", "p", "--", "-5"]).ok().stdout, b"negative");
    assert_eq!(b.run(&["get", "p", "empty"]).ok().stdout, b"");

    let key = OsStr::from_bytes(b"\xff\xfe\nkey");
    let value: Vec<u8> = (0..=255u8).cycle().take(100_000).collect();
    let args: [&OsStr; 4] = ["put".as_ref(), "p".as_ref(), key, "-".as_ref()];
    b.run_with(&args, &value).ok();
    let args: [&OsStr; 3] = ["get".as_ref(), "p".as_ref(), key];
    assert_eq!(b.run(&args).ok().stdout, value);
}

#[test]
fn durability_levels_are_accepted_by_everything_that_writes() {
    let b = Bench::new();
    b.run(&["create", "p", "--durability", "none"]).ok();
    b.run(&["put", "p", "a", "1", "--durability", "interval=20"])
        .ok();
    b.run(&["put", "p", "b", "2", "--durability", "none"]).ok();
    b.run(&["del", "p", "a", "--durability", "interval=5ms"])
        .ok();
    assert_eq!(b.content("p"), "{\"key\":\"b\",\"value\":\"2\"}\n");
}

#[test]
fn media_can_be_named() {
    let b = Bench::new();
    for medium in ["mapped", "journal", "auto"] {
        b.run(&["create", medium, "--medium", medium]).ok();
        b.run(&["put", medium, "k", "v", "--medium", medium]).ok();
        let info = b
            .run(&["info", medium, "--medium", medium, "--json"])
            .ok()
            .json();
        if medium != "auto" {
            assert_eq!(info["medium"], medium);
        }
        assert!(info["survives"].as_str().is_some_and(|s| !s.is_empty()));
    }
}

#[test]
fn wrong_usage_ends_with_status_2() {
    let b = Bench::new();
    b.run(&["create", "p", "--medium", "floppy"])
        .ends(2, &["floppy", "journal"]);
    b.run(&["create", "p", "--durability", "perhaps"])
        .ends(2, &["perhaps", "interval=MS"]);
    b.run(&["create", "p", "--durability", "interval=0"])
        .ends(2, &["at least 1"]);
    b.run(&["bench", "server", "--records", "none"])
        .ends(2, &["none", "10M"]);
    b.run(&["torture", "--medium", "journal", "--kills", "0"])
        .ends(2, &["0"]);
    b.run(&["frobnicate"]).ends(2, &["frobnicate"]);
    assert!(!b.path("p").exists());
}

#[test]
fn create_leaves_what_exists_alone() {
    let b = Bench::new();
    b.pool(&[("k", "v")]);
    b.run(&["create", "p"]).fails(&["p: there already"]);
    assert_eq!(b.run(&["get", "p", "k"]).ok().stdout, b"v");
    let other = b.file("notes.txt", "mine");
    b.run(&["create", "notes.txt"]).fails(&["notes.txt"]);
    assert_eq!(std::fs::read(other).unwrap(), b"mine");
}

#[test]
fn a_key_may_have_65536_bytes_and_no_more() {
    let b = Bench::new();
    b.pool(&[]);
    let longest = "k".repeat(65_536);
    b.run(&["put", "p", &longest, "v"]).ok();
    assert_eq!(b.run(&["get", "p", &longest]).ok().stdout, b"v");
    let too_long = "k".repeat(65_537);
    for command in ["put", "get", "del"] {
        let mut args: Vec<OsString> = vec![command.into(), "p".into(), too_long.clone().into()];
        if command == "put" {
            args.push("v".into());
        }
        b.run(&args).fails(&["65536", "65537 bytes", "kkk…"]);
    }
    assert_eq!(b.run(&["info", "p", "--json"]).ok().json()["entries"], 1);
}

#[test]
fn a_value_that_is_too_long_is_refused_whole() {
    let b = Bench::new();
    b.pool(&[("k", "old")]);
    let huge = vec![7; 80 << 20];
    b.run_with(&["put", "p", "k", "-"], &huge)
        .fails(&["\"k\"", "the most"]);
    assert_eq!(b.run(&["get", "p", "k"]).ok().stdout, b"old");
}
