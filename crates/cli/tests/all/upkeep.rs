//! Info, check, compact, backup.

use crate::common::Bench;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

/// The fields that scripts rely on.
const FIELDS: [&str; 11] = [
    "format",
    "medium",
    "survives",
    "index",
    "entries",
    "pool_bytes",
    "used_bytes",
    "free_bytes",
    "fragmentation",
    "clean",
    "errors",
];

#[track_caller]
fn has_fields(report: &Value) {
    let fields: Vec<_> = report
        .as_object()
        .expect("an object")
        .keys()
        .take(FIELDS.len())
        .collect();
    assert_eq!(fields, FIELDS);
}

fn filled(b: &Bench, rows: usize) {
    b.run(&["create", "p"]).ok();
    let lines: String = (0..rows)
        .map(|i| format!("{{\"key\":\"{i:06}\",\"text\":\"{i:0100}\"}}\n"))
        .collect();
    b.file("rows.jsonl", lines);
    b.run(&["import", "p", "rows.jsonl"]).ok();
}

#[test]
fn info_and_check_describe_a_healthy_pool() {
    let b = Bench::new();
    filled(&b, 5_000);
    for command in ["info", "check"] {
        let report = b.run(&[command, "p", "--json"]).ok().json();
        has_fields(&report);
        assert_eq!(report["entries"], 5_000);
        assert_eq!(report["index"], "clustered");
        assert_eq!(report["clean"], true);
        assert_eq!(report["errors"], Value::Array(vec![]));
        let bytes = |field: &str| report[field].as_u64().expect("a number");
        assert_eq!(
            bytes("used_bytes") + bytes("free_bytes"),
            bytes("pool_bytes")
        );
        assert!(bytes("used_bytes") > 500_000);
        let words = b.run(&[command, "p"]).ok().text();
        assert!(words.contains("5,000"), "{words}");
    }
    let words = b.run(&["info", "p"]).ok().text();
    assert!(words.contains("index          clustered, "), "{words}");
    let check = b.run(&["check", "p", "--json"]).ok().json();
    assert!(
        check["leaves_checked"].as_u64().is_some_and(|n| n > 100),
        "{check}"
    );
    assert!(
        check["records_checked"]
            .as_u64()
            .is_some_and(|n| n >= 5_000),
        "{check}"
    );
}

#[test]
fn check_of_what_is_no_pool_reports_in_json_too() {
    let b = Bench::new();
    b.file("notes.txt", "x".repeat(300_000));
    for command in ["info", "check"] {
        let report = b
            .run(&[command, "notes.txt", "--json"])
            .fails(&["not a Bristlecone pool"])
            .json();
        has_fields(&report);
        assert_eq!(report["entries"], Value::Null);
        let errors = report["errors"].as_array().expect("a list");
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0]
                .as_str()
                .is_some_and(|e| e.contains("notes.txt: not a Bristlecone pool"))
        );
    }
}

#[test]
fn compact_gives_space_back_and_keeps_the_rest() {
    let b = Bench::new();
    filled(&b, 30_000);
    // Space given back inside the file counts too: its length may not have changed.
    let space = || std::fs::metadata(b.path("p")).unwrap().blocks();
    let before = space();
    // Replacing every value by a short one leaves most of the space unused.
    let lines: String = (0..30_000).map(|i| format!("{i:06},{i}\n")).collect();
    b.file("short.csv", format!("key,value\n{lines}"));
    b.run(&["import", "p", "short.csv"]).ok();
    let told = b.run(&["compact", "p"]).ok().text();
    assert!(told.starts_with("compacted p: "), "{told}");
    let report = b.run(&["check", "p", "--json"]).ok().json();
    assert_eq!(report["entries"], 30_000);
    assert_eq!(b.run(&["get", "p", "012345"]).ok().text(), "12345");
    assert!(space() <= before, "{} blocks, {before} before", space());
}

#[test]
fn a_backup_is_a_pool_of_its_own() {
    let b = Bench::new();
    filled(&b, 3_000);
    b.run(&["backup", "p", "copy"]).ok();
    let content = b.content("p");
    b.run(&["put", "p", "later", "x"]).ok();
    assert_eq!(b.content("copy"), content);
    b.run(&["check", "copy"]).ok();
    b.run(&["put", "copy", "of its own", "y"]).ok();
    b.run(&["get", "p", "of its own"]).fails(&["no key"]);
    b.run(&["backup", "p", "copy"])
        .fails(&["copy: there already"]);
    b.run(&["backup", "p", "no/such/place"])
        .fails(&["no/such/place"]);
    b.run(&["backup", "absent", "copy2"])
        .fails(&["absent: no such file"]);
    assert!(!b.path("copy2").exists());
}
