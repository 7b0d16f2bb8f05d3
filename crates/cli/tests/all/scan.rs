//! Ranges, formats, and readers that go away.

use crate::common::Bench;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn keys(b: &Bench, args: &[&str]) -> Vec<String> {
    let mut all = vec!["scan", "p"];
    all.extend(args);
    let out = b.run(&all).ok().text();
    out.lines()
        .map(|l| l.split('\t').next().unwrap_or_default().to_owned())
        .collect()
}

fn fruit() -> Bench {
    let b = Bench::new();
    b.pool(&[
        ("apple", "1"),
        ("apricot", "2"),
        ("banana", "3"),
        ("bilberry", "4"),
        ("cherry", "5"),
    ]);
    b
}

#[test]
fn ranges_are_half_open() {
    let b = fruit();
    assert_eq!(
        keys(&b, &[]),
        ["apple", "apricot", "banana", "bilberry", "cherry"]
    );
    assert_eq!(
        keys(&b, &["--from", "apricot", "--to", "bilberry"]),
        ["apricot", "banana"]
    );
    assert_eq!(keys(&b, &["--from", "b"]), ["banana", "bilberry", "cherry"]);
    assert_eq!(keys(&b, &["--to", "apple"]), [""; 0]);
    assert_eq!(keys(&b, &["--from", "z", "--to", "a"]), [""; 0]);
    assert_eq!(
        keys(&b, &["--from", "z", "--to", "a", "--reverse"]),
        [""; 0]
    );
}

#[test]
fn prefixes_reverse_and_limit_combine() {
    let b = fruit();
    assert_eq!(keys(&b, &["--prefix", "ap"]), ["apple", "apricot"]);
    assert_eq!(
        keys(&b, &["--prefix", "ap", "--reverse"]),
        ["apricot", "apple"]
    );
    assert_eq!(keys(&b, &["--prefix", "b", "--from", "bb"]), ["bilberry"]);
    assert_eq!(
        keys(&b, &["--reverse", "--limit", "2"]),
        ["cherry", "bilberry"]
    );
    assert_eq!(keys(&b, &["--limit", "0"]), [""; 0]);
    assert_eq!(keys(&b, &["--prefix", ""]).len(), 5);
    assert_eq!(keys(&b, &["--prefix", "x"]), [""; 0]);
}

#[test]
fn every_format_is_unambiguous() {
    let b = Bench::new();
    b.pool(&[("tab\there", "back\\slash"), ("Zürich", "a,\"b\"\nc")]);
    b.run_with(&["put", "p", "raw", "-"], b"\xff\x00").ok();
    assert_eq!(
        b.run(&["scan", "p"]).ok().text(),
        "Zürich\ta,\"b\"\\x0ac\nraw\t\\xff\\x00\ntab\\x09here\tback\\\\slash\n"
    );
    assert_eq!(
        b.run(&["scan", "p", "--format", "json"]).ok().text(),
        "{\"key\":\"Zürich\",\"value\":\"a,\\\"b\\\"\\nc\"}\n{\"key\":\"raw\",\"value_base64\":\"/wA=\"}\n{\"key\":\"tab\\there\",\"value\":\"back\\\\slash\"}\n"
    );
    assert_eq!(
        b.run(&["scan", "p", "--format", "csv"]).ok().stdout,
        b"key,value\nZ\xc3\xbcrich,\"a,\"\"b\"\"\nc\"\nraw,\xff\x00\ntab\there,back\\slash\n"
    );
}

#[test]
fn a_reader_that_goes_away_ends_the_scan_quietly() {
    let b = Bench::new();
    b.run(&["create", "p"]).ok();
    let rows: String = (0..20_000)
        .map(|i| format!("{{\"key\":\"{i:06}\",\"text\":\"{}\"}}\n", "x".repeat(50)))
        .collect();
    b.file("rows.jsonl", rows);
    b.run(&["import", "p", "rows.jsonl"]).ok();
    for format in ["text", "json", "csv"] {
        let mut child = b
            .command()
            .args(["scan", "p", "--format", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().is_ok());
        drop(lines);
        let end = child.wait_with_output().unwrap();
        assert_eq!(end.status.code(), Some(0), "{format}");
        assert_eq!(String::from_utf8_lossy(&end.stderr), "", "{format}");
    }
    // The same through a shell, and for a command that prints little.
    assert_eq!(
        b.shell(&format!(
            "{} scan p | head -n 1",
            env!("CARGO_BIN_EXE_bristlecone")
        ))
        .ok()
        .stderr,
        ""
    );
    let quiet = b
        .shell(&format!(
            "{} info p | true",
            env!("CARGO_BIN_EXE_bristlecone")
        ))
        .ok();
    assert_eq!(quiet.stderr, "");
}
