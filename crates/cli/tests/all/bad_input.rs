//! Files that are not healthy pools, and pools that someone else has.

use crate::common::Bench;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

const COPIES: [u64; 2] = [0, 4096];

/// Every command that opens a pool, on `pool`.
fn commands(pool: &str) -> Vec<Vec<String>> {
    [
        &["put", pool, "k", "v"][..],
        &["get", pool, "k"],
        &["del", pool, "k"],
        &["scan", pool],
        &["import", pool, "rows.jsonl"],
        &["export", pool, "out.jsonl"],
        &["info", pool],
        &["check", pool],
        &["compact", pool],
        &["backup", pool, "copy"],
    ]
    .iter()
    .map(|c| c.iter().map(|s| (*s).to_owned()).collect())
    .collect()
}

/// Every command fails with a message with these parts, and the file stays as it is.
#[track_caller]
fn refused(b: &Bench, pool: &str, parts: &[&str]) {
    b.file("rows.jsonl", "{\"key\":1}\n");
    let path = b.path(pool);
    let before = path.is_file().then(|| std::fs::read(&path).unwrap());
    for command in commands(pool) {
        let ran = b.run(&command);
        assert_eq!(ran.status, Some(1), "{command:?}: {}", ran.stderr);
        ran.fails(parts).fails(&[pool]);
    }
    assert!(!b.path("copy").exists() && !b.path("out.jsonl").exists());
    assert!(
        before.is_none_or(|b| b == std::fs::read(&path).unwrap()),
        "the file was changed"
    );
}

/// Changes a superblock copy and makes its checksum right again.
fn patch(pool: &Path, copy: u64, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(pool)
        .unwrap();
    let mut block = [0; 512];
    file.read_exact_at(&mut block, copy).unwrap();
    block[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&block[..508]);
    block[508..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&block, copy).unwrap();
}

fn damage(pool: &Path, copy: u64) {
    let file = std::fs::File::options().write(true).open(pool).unwrap();
    file.write_all_at(&[0x55; 40], copy + 16).unwrap();
}

#[test]
fn what_is_not_there() {
    let b = Bench::new();
    refused(&b, "absent", &["no such file"]);
}

#[test]
fn what_is_not_a_pool() {
    let b = Bench::new();
    b.file("text", "Dear diary,\n".repeat(50_000));
    refused(&b, "text", &["not a Bristlecone pool"]);
    b.file("zeros", vec![0; 3 << 20]);
    refused(&b, "zeros", &["not a Bristlecone pool"]);
    for (name, content) in [("empty", &b""[..]), ("tiny", b"tiny")] {
        b.file(name, content);
        refused(&b, name, &[]);
    }
}

#[test]
fn a_directory_and_a_device() {
    let b = Bench::new();
    std::fs::create_dir(b.path("folder")).unwrap();
    refused(&b, "folder", &["neither a file nor a devdax device"]);
    b.run(&["create", "folder"]).fails(&["folder"]);
    b.run(&["create", "no/such/folder/p"])
        .fails(&["no/such/folder/p: there is no folder no/such/folder;"]);
    b.run(&["info", "/dev/null"]).fails(&["/dev/null"]);
    b.run(&["info", "/dev/zero"]).fails(&["/dev/zero"]);
    assert!(b.shell("mkfifo pipe").status == Some(0));
    b.run(&["info", "pipe"]).fails(&["pipe"]);
    b.run(&["put", "pipe", "k", "v"]).fails(&["pipe"]);
}

#[test]
fn a_truncated_pool() {
    let b = Bench::new();
    let pool = b.pool(&[("k", "v")]);
    let whole = std::fs::metadata(&pool).unwrap().len();
    let file = std::fs::File::options().write(true).open(&pool).unwrap();
    for keep in [whole - 1, whole / 2, 200_000, 70_000, 4096, 512, 40, 8, 1] {
        file.set_len(keep).unwrap();
        let ran = b.run(&["get", "p", "k"]);
        assert_eq!(ran.status, Some(1), "{keep} bytes kept: {}", ran.stderr);
        let ran = ran.fails(&["p: "]);
        if keep >= 70_000 {
            let ran = ran.fails(&["truncated", &keep.to_string()]);
            if keep >= 200_000 {
                ran.fails(&[&whole.to_string()]);
            }
        }
    }
    drop(file);
    refused(&b, "p", &[]);
}

#[test]
fn a_newer_version() {
    let b = Bench::new();
    let pool = b.pool(&[("k", "v")]);
    for copy in COPIES {
        patch(&pool, copy, 12, &99u32.to_le_bytes());
    }
    refused(&b, "p", &["version 99", "newer"]);
}

#[test]
fn the_other_byte_order() {
    let b = Bench::new();
    let pool = b.pool(&[("k", "v")]);
    for copy in COPIES {
        patch(&pool, copy, 8, &[1, 2, 3, 4]);
    }
    refused(&b, "p", &["other byte order"]);
}

#[test]
fn either_superblock_copy_serves() {
    for copy in COPIES {
        let b = Bench::new();
        let pool = b.pool(&[("k", "v")]);
        damage(&pool, copy);
        assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "v");
        b.run(&["put", "p", "k", "w"]).ok();
        assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "w");
        b.run(&["check", "p"]).ok();
    }
}

#[test]
fn both_superblock_copies_corrupt() {
    let b = Bench::new();
    let pool = b.pool(&[("k", "v")]);
    for copy in COPIES {
        damage(&pool, copy);
    }
    refused(&b, "p", &["corrupt"]);
}

#[test]
fn a_second_writer_waits_for_its_turn() {
    let b = Bench::new();
    b.pool(&[("k", "v")]);
    // The writer of `demo` keeps its pool open until it is killed.
    let mut writer = b
        .command()
        .args(["demo-writer", "p"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().is_ok());
    for args in [
        &["put", "p", "k", "w"][..],
        &["get", "p", "k"],
        &["check", "p"],
    ] {
        b.run(args).fails(&["p: in use by another process"]);
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "v");
    b.run(&["put", "p", "k", "w"]).ok();
}

#[test]
fn a_read_only_file_can_be_read() {
    let b = Bench::new();
    let pool = b.pool(&[("k", "v")]);
    std::fs::set_permissions(&pool, std::fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "v");
    b.run(&["check", "p"]).ok();
    b.run(&["scan", "p"]).ok();
    let put = b.run(&["put", "p", "k", "w"]);
    if std::fs::File::options().write(true).open(&pool).is_ok() {
        // A superuser may write whatever the mode says.
        put.ok();
    } else {
        put.fails(&["p: open", "denied"]);
        assert_eq!(b.run(&["get", "p", "k"]).ok().text(), "v");
    }
}

#[test]
fn random_damage_is_reported_or_harmless() {
    let b = Bench::new();
    let rows: String = (0..2_000)
        .map(|i| format!("{{\"key\":\"{i:05}\",\"n\":{i}}}\n"))
        .collect();
    b.file("rows.jsonl", rows);
    let pool = b.pool(&[]);
    b.run(&["import", "p", "rows.jsonl"]).ok();
    let whole = std::fs::read(&pool).unwrap();
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state >> 8) as usize % bytes.len();
            bytes[at] ^= 1 << (state & 7);
        }
        std::fs::write(&pool, &bytes).unwrap();
        let check = b.run(&["check", "p", "--json"]);
        assert!(
            matches!(check.status, Some(0 | 1)),
            "{:?}: {}",
            check.status,
            check.stderr
        );
        assert!(!check.stderr.contains("panicked"), "{}", check.stderr);
        let errors = check.json()["errors"].as_array().expect("a list").len();
        assert_eq!(errors > 0, check.status == Some(1));
    }
}
