//! SAVE wrote a file that nothing could restore: the library could, and no command called it. Now
//! `restore` makes a pool of it, which has all that the server had.

use crate::common::Bench;
use crate::common::server::Server;
use std::path::PathBuf;

fn commands(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// All types, small and large, with and without expiry, in several databases, two of which were
/// swapped.
fn writes() -> Vec<String> {
    let mut all = commands(&[
        "SET text hello",
        "SET empty \"\"",
        "SET later soon PXAT 4102444800000",
        "RPUSH list a b c",
        "SADD set x y",
        "ZADD zset 1.5 one 2 two",
        "HSET hash f v g w",
        "PEXPIREAT hash 4102444800001",
        "SELECT 3",
        "SET elsewhere yes",
        "SELECT 0",
        "SWAPDB 0 5",
        "SELECT 5",
    ]);
    for i in 0..300 {
        all.push(format!("RPUSH biglist element-{i}"));
        all.push(format!("SADD bigset member-{i}"));
        all.push(format!("ZADD bigzset {i} member-{i}"));
        all.push(format!("HSET bighash field-{i} value-{i}"));
    }
    all.push("PEXPIREAT bighash 4102444800002".into());
    all
}

/// Replies that do not depend on when they are asked for, nor on an order that is no one's.
fn reads() -> Vec<String> {
    commands(&[
        "DBSIZE",
        "SELECT 3",
        "GET elsewhere",
        "SELECT 5",
        "DBSIZE",
        "GET text",
        "STRLEN empty",
        "GET later",
        "PEXPIRETIME later",
        "LRANGE list 0 -1",
        "SMISMEMBER set x y z",
        "ZRANGE zset 0 -1 WITHSCORES",
        "HMGET hash f g h",
        "PEXPIRETIME hash",
        "LRANGE biglist 0 -1",
        "SCARD bigset",
        "SISMEMBER bigset member-299",
        "ZRANGE bigzset 0 -1 WITHSCORES",
        "HLEN bighash",
        "HGET bighash field-150",
        "PEXPIRETIME bighash",
    ])
}

/// A server's backup, and what the server answered when it was made.
fn backup(b: &Bench) -> (PathBuf, String) {
    let mut server = Server::start(b, &["--set", "backup-file=shop.backup"]);
    let written = server.tell(&writes());
    assert!(!written.contains("-ERR"), "{written}");
    let answers = server.tell(&reads());
    assert!(server.tell(&commands(&["SAVE"])).starts_with("+OK"));
    server.stop();
    (b.path("shop.backup"), answers)
}

#[test]
fn what_a_server_saved_is_there_again() {
    let b = Bench::new();
    let (backup, answers) = backup(&b);
    assert!(answers.contains("element-299") && answers.contains(":4102444800002"));
    let backup = backup.to_str().unwrap();
    for medium in ["mapped", "journal"] {
        let b = Bench::new();
        let args = ["--medium", medium, "--json"];
        let ran = b
            .run(&[&["restore", backup, "s.pool"], &args[..]].concat())
            .ok();
        let report = ran.json();
        assert_eq!([&report["medium"], &report["index"]], [medium, "clustered"]);
        assert_eq!(
            report["backup_bytes"],
            std::fs::metadata(backup).unwrap().len()
        );
        assert!(
            report["entries"].as_u64().is_some_and(|n| n > 1200),
            "{report}"
        );
        assert!(ran.stderr.contains("serve s.pool"), "{}", ran.stderr);
        b.run(&["check", "s.pool"]).ok();
        let mut server = Server::start(&b, &[]);
        assert_eq!(server.tell(&reads()), answers, "{medium}");
        server.stop();
    }
}

#[test]
fn a_restore_leaves_what_is_there_and_nothing_of_a_damaged_backup() {
    let b = Bench::new();
    let (backup, _) = backup(&b);
    let before = std::fs::read(b.path("s.pool")).unwrap();
    b.run(&["restore", "shop.backup", "s.pool"])
        .fails(&["s.pool: there already", "name another file"]);
    assert!(before == std::fs::read(b.path("s.pool")).unwrap());

    let whole = std::fs::read(backup).unwrap();
    let mut flipped = whole.clone();
    let at = flipped.windows(9).position(|w| w == b"value-150").unwrap();
    flipped[at] ^= 1;
    let mut newer = whole.clone();
    newer[8] = 9;
    let cases: [(&str, &[u8], &str); 6] = [
        ("flipped", &flipped, "a frame fails its checksum"),
        ("short", &whole[..whole.len() - 1], "it ends too early"),
        ("long", &[&whole[..], b"more"].concat(), "the file goes on"),
        ("newer", &newer, "its head fails its checksum"),
        ("other", b"Dear diary", "not a backup of a store"),
        ("empty", b"", "not a backup of a store"),
    ];
    for (name, content, what) in cases {
        b.file(name, content);
        for medium in ["mapped", "journal"] {
            b.run(&["restore", name, "new.pool", "--medium", medium])
                .fails(&[&format!("{name}: "), what]);
            assert!(!b.path("new.pool").exists() && !b.path("new.pool.journal").exists());
        }
    }
    b.run(&["restore", "s.pool", "new.pool"]).fails(&[
        "s.pool: not a backup",
        "a copy of a pool is opened as it is",
    ]);
    b.run(&["restore", "absent", "new.pool"])
        .fails(&["absent: opening failed"]);
    b.run(&["restore", ".", "new.pool"])
        .fails(&["is no archive"]);
    b.run(&["restore", "shop.backup", "no/such/place"])
        .fails(&["no/such/place"]);
}

#[test]
fn a_restore_that_finds_no_room_leaves_nothing() {
    let b = Bench::new();
    let mut server = Server::start(&b, &["--set", "backup-file=shop.backup"]);
    let value = "x".repeat(10_000);
    let sets: Vec<String> = (0..600).map(|i| format!("SET key-{i} {value}")).collect();
    server.tell(&sets);
    assert!(server.tell(&commands(&["SAVE"])).starts_with("+OK"));
    server.stop();
    // A limit on the size of files stands in for a full disk (8192 blocks of 512 bytes).
    let program = env!("CARGO_BIN_EXE_bristlecone");
    let limited = format!(
        "trap '' XFSZ; ulimit -f 8192; {program} restore shop.backup new.pool --medium mapped"
    );
    b.shell(&limited).fails(&["new.pool: ", "space"]);
    assert!(!b.path("new.pool").exists());
}
