//! `upgrade`: databases of older formats written anew, with the old file kept; whatever ends it
//! leaves a whole database.
//!
//! The one older version that this build reads is that of the journal. No release wrote it: a
//! journal without direct runs is made one of it.

use crate::common::server::Server;
use crate::common::{Bench, PROGRAM};
use crate::fixtures::{contents, raw};
use bristlecone::Medium;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

const KEPT: &str = "p.before-upgrade";

/// A closed database `p`, whose journal has version 1.
fn old() -> (Bench, Vec<String>) {
    let b = Bench::new();
    contents::library(&b.path("p"), Medium::Journal)
        .close()
        .unwrap();
    let holds = contents::of_database(&b.path("p"));
    raw::set(&b.path("p"), "journal", 1);
    (b, holds)
}

fn version_of(report: &Value, format: &str) -> (u64, u64) {
    let formats = report["formats"].as_array().unwrap();
    let found = formats.iter().find(|found| found["format"] == format);
    let found = found.unwrap_or_else(|| panic!("no {format}: {report}"));
    [&found["found"], &found["current"]]
        .map(|n| n.as_u64().unwrap())
        .into()
}

/// The files in the folder.
fn files(b: &Bench) -> Vec<String> {
    let names = fs::read_dir(b.dir()).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// What must not change: content and identity of all files.
fn state(b: &Bench) -> Vec<(String, u64, Vec<u8>)> {
    let names = files(b).into_iter().filter(|name| b.path(name).is_file());
    let each = names.map(|name| {
        let path = b.path(&name);
        (
            name,
            fs::metadata(&path).unwrap().ino(),
            fs::read(&path).unwrap(),
        )
    });
    each.collect()
}

#[test]
fn a_current_database_is_left_as_it_is() {
    let _alone = crate::alone();
    for medium in ["journal", "mapped"] {
        let b = Bench::new();
        b.run(&["create", "p", "--medium", medium]).ok();
        b.run(&["put", "p", "k", "v"]).ok();
        let before = state(&b);
        let text = b.run(&["upgrade", "p"]).ok().text();
        assert!(
            text.contains("pool 1, ") && text.contains("nothing to do"),
            "{text}"
        );
        let report = b.run(&["upgrade", "p", "--json", "--dry-run"]).ok().json();
        assert_eq!([&report["needed"], &report["upgraded"]], [false, false]);
        assert_eq!(report["kept"], Value::Null);
        assert_eq!(version_of(&report, "tree"), (3, 3));
        assert!(before == state(&b), "{medium}");
    }
}

#[test]
fn an_old_database_is_written_anew_and_kept() {
    let _alone = crate::alone();
    let (b, holds) = old();
    fs::set_permissions(b.path("p"), fs::Permissions::from_mode(0o640)).unwrap();
    let before = state(&b);
    let report = b.run(&["upgrade", "p", "--dry-run", "--json"]).ok().json();
    assert_eq!([&report["needed"], &report["upgraded"]], [true, false]);
    assert_eq!(version_of(&report, "journal"), (1, 2));
    assert!(report["kept"].as_str().unwrap().ends_with(KEPT), "{report}");
    let room = ["room_needed", "room"].map(|field| report[field].as_u64().unwrap());
    assert!(
        (9 << 20..1 << 30).contains(&room[0]) && room[1] > 0,
        "{report}"
    );
    assert!(before == state(&b), "a dry run changes nothing");

    let ran = b.run(&["upgrade", "p", "--json"]).ok();
    let report = ran.json();
    assert_eq!([&report["needed"], &report["upgraded"]], [true, true]);
    let entries = holds.iter().filter(|line| line.contains(" = ")).count() as u64;
    // With one that has expired, which is not for this command to drop.
    assert_eq!(report["entries"], entries + 1);
    assert!(
        ran.stderr.contains(&format!("mv {KEPT} p")) || ran.stderr.contains("mv "),
        "{}",
        ran.stderr
    );
    assert_eq!(files(&b), ["p", KEPT]);
    let mode = |file| fs::metadata(b.path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("p"), mode(KEPT)), (0o640, 0o640));
    // The rollback copy is the old file: not a byte was changed.
    let (_, inode, content) = &before[0];
    assert_eq!(fs::metadata(b.path(KEPT)).unwrap().ino(), *inode);
    assert!(fs::read(b.path(KEPT)).unwrap() == *content);
    for file in ["p", KEPT] {
        assert_eq!(contents::of_database(&b.path(file)), holds, "{file}");
        b.run(&["check", file]).ok();
    }
    let again = b.run(&["upgrade", "p", "--json"]).ok().json();
    assert_eq!(again["needed"], false);
    b.run(&["put", "p", "later", "x", "--keyspace", "plain"])
        .ok();
    let report = b.run(&["upgrade", "p", "--json"]).ok().json();
    assert_eq!(version_of(&report, "journal"), (2, 2));
    // The way back.
    fs::remove_file(b.path("p.journal")).unwrap();
    fs::rename(b.path(KEPT), b.path("p")).unwrap();
    assert_eq!(contents::of_database(&b.path("p")), holds);
    b.run(&["put", "p", "k", "v", "--keyspace", "plain"]).ok();
}

#[test]
fn a_killed_servers_data_is_upgraded() {
    let _alone = crate::alone();
    let b = Bench::new();
    let mut server = Server::start(&b, &["--medium", "journal"]);
    contents::fill(&server);
    let holds = contents::of_server(&server);
    b.run(&["upgrade", "s.pool"]).fails(&["s.pool", "in use"]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    raw::set(&b.path("s.pool"), "journal", 1);
    b.run(&["upgrade", "s.pool", "--keep", "old.pool"]).ok();
    assert_eq!(files(&b), ["old.pool", "s.pool"]);
    for _ in 0..2 {
        b.run(&["check", "s.pool"]).ok();
        let mut server = Server::start(&b, &[]);
        assert_eq!(contents::of_server(&server), holds);
        server.stop();
        fs::remove_file(b.path("s.pool.journal")).unwrap();
        // Now what was kept.
        fs::rename(b.path("old.pool"), b.path("s.pool")).unwrap();
        fs::write(b.path("old.pool"), "").unwrap();
    }
}

#[test]
fn a_link_leads_to_the_file_that_is_upgraded() {
    let _alone = crate::alone();
    let (b, holds) = old();
    fs::create_dir(b.path("data")).unwrap();
    for suffix in ["", ".journal"] {
        fs::rename(
            b.path(&format!("p{suffix}")),
            b.path(&format!("data/q{suffix}")),
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("data/q", b.path("p")).unwrap();
    b.run(&["upgrade", "p"]).ok();
    assert_eq!(files(&b), ["data", "p"]);
    assert!(fs::symlink_metadata(b.path("p")).unwrap().is_symlink());
    assert!(b.path("data/q.before-upgrade").exists());
    assert_eq!(contents::of_database(&b.path("data/q")), holds);
}

#[test]
fn what_stands_in_the_way_is_told_and_left_alone() {
    let _alone = crate::alone();
    let (b, holds) = old();
    b.file(KEPT, "mine");
    b.file("other.journal", "mine too");
    fs::create_dir(b.path("folder")).unwrap();
    let before = state(&b);
    for (keep, status, parts) in [
        (KEPT, 1, ["p.before-upgrade: there already", "--keep"]),
        ("other", 1, ["other.journal: there already", "--keep"]),
        ("folder", 1, ["folder: there already", "--keep"]),
        ("nowhere/copy", 1, ["nowhere", "No such file"]),
        ("p", 2, ["in use by the upgrade itself", "name another"]),
        (
            "p.journal",
            2,
            ["in use by the upgrade itself", "name another"],
        ),
        (
            "./folder/../p.upgrading",
            2,
            ["in use by the upgrade itself", "name another"],
        ),
        ("..", 2, ["no name of a file", ".."]),
        ("/proc/copy", 2, ["on another file system", "beside it"]),
    ] {
        b.run(&["upgrade", "p", "--keep", keep])
            .ends(status, &parts);
    }
    assert!(before == state(&b));
    // Another run, which holds the folder.
    let folder = fs::File::open(b.dir()).unwrap();
    folder.lock().unwrap();
    b.run(&["upgrade", "p", "--keep", "kept"])
        .fails(&["another upgrade is working"]);
    drop(folder);
    // Somebody reads: that is no harm. Somebody has it open for writing.
    let db = bristlecone::Database::open(b.path("p")).unwrap();
    b.run(&["upgrade", "p", "--keep", "kept"])
        .fails(&["p: in use by another process"]);
    db.close().unwrap();
    raw::set(&b.path("p"), "journal", 1);
    let reading = bristlecone::Database::builder()
        .read_only(true)
        .open(b.path("p"))
        .unwrap();
    b.run(&["upgrade", "p", "--keep", "kept"]).ok();
    drop(reading);
    assert_eq!(fs::read(b.path(KEPT)).unwrap(), b"mine");
    assert_eq!(fs::read(b.path("other.journal")).unwrap(), b"mine too");
    assert_eq!(contents::of_database(&b.path("p")), holds);
    b.run(&["upgrade", "absent"])
        .fails(&["absent: no such file"]);
    b.file("diary", "Dear diary,\n".repeat(50_000));
    b.run(&["upgrade", "diary"])
        .fails(&["diary: not a Bristlecone pool"]);
    contents::index(&b.path("numbers")).close().unwrap();
    b.run(&["upgrade", "numbers"])
        .fails(&["numbers: holds a bare index"]);
    b.run(&["upgrade", "/dev/null"])
        .fails(&["/dev/null: a device"]);
}

/// What has the name that a killed run leaves is made anew.
#[test]
fn what_an_earlier_run_left_is_no_hindrance() {
    let _alone = crate::alone();
    let (b, holds) = old();
    b.file("p.upgrading", "half a database");
    b.file("p.upgrading.journal", vec![7; 100_000]);
    fs::hard_link(b.path("p"), b.path(KEPT)).unwrap();
    b.run(&["upgrade", "p"]).ok();
    assert_eq!(files(&b), ["p", KEPT]);
    for file in ["p", KEPT] {
        assert_eq!(contents::of_database(&b.path(file)), holds, "{file}");
    }
}

#[test]
fn damage_is_not_copied() {
    let _alone = crate::alone();
    let (b, _) = old();
    let mut bytes = fs::read(b.path("p")).unwrap();
    let value = b"value in parts a value";
    let at = bytes
        .windows(value.len())
        .position(|window| window == value)
        .unwrap();
    bytes[at] ^= 1;
    fs::write(b.path("p"), &bytes).unwrap();
    b.run(&["upgrade", "p"]).fails(&["p: ", "damaged"]);
    assert_eq!(files(&b), ["p", "p.journal"]);
    assert!(fs::read(b.path("p")).unwrap() == bytes);
}

#[test]
fn a_full_disk_leaves_the_old_database() {
    let _alone = crate::alone();
    let (b, holds) = old();
    // A limit on the size of files stands in for a disk that fills up (blocks of 512 bytes).
    let limited = format!("trap '' XFSZ; ulimit -f 16384; {PROGRAM} upgrade p");
    b.shell(&limited).fails(&["p.upgrading"]);
    assert_eq!(files(&b), ["p", "p.journal"]);
    assert_eq!(contents::of_database(&b.path("p")), holds);
    // And a small one, in a name space of its own, where that is allowed.
    let small = format!(
        "mkdir small && mount -t tmpfs -o size=24m none small && cp p p.journal small/ && {PROGRAM} upgrade small/p; \
         ended=$?; ls small >&2; exit $ended"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "sh", "-c"]);
    let can = unshare.arg("mount -t tmpfs none /mnt").status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mounts in a name space of its own");
        return;
    }
    let line = format!("unshare --mount --map-root-user sh -c '{small}'");
    let ran = b.shell(&line);
    let ran = ran.fails(&["small/p: the new form needs about", "nothing was changed"]);
    assert!(!ran.stderr.contains("upgrading"), "{}", ran.stderr);
}

/// Kills the command at each of the calls that make, name and remove files, and make them durable.
#[test]
fn a_kill_at_any_step_leaves_a_whole_database() {
    let _alone = crate::alone();
    let has = Command::new("strace").arg("-V").output().is_ok();
    let needs = std::env::var_os("BRISTLECONE_NEED_STRACE").is_some();
    assert!(has || !needs, "there is no strace");
    if !has {
        eprintln!("skipped: no strace");
        return;
    }
    // Which of them there are depends on the architecture.
    const CALLS: [&str; 15] = [
        "pwrite64",
        "pwritev",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "?unlink",
        "unlinkat",
        "?link",
        "linkat",
        "?rename",
        "?renameat",
        "renameat2",
        "?chmod",
        "fchmodat",
    ];
    let b = Bench::new();
    b.run(&["create", "p", "--medium", "journal"]).ok();
    for i in 0..5 {
        b.run(&["put", "p", &format!("key-{i}"), "value"]).ok();
    }
    let holds = contents::of_database(&b.path("p"));
    raw::set(&b.path("p"), "journal", 1);
    let original = ["p", "p.journal"].map(|file| fs::read(b.path(file)).unwrap());
    let (mut kills, mut kept, mut new) = (0, 0, 0);
    for call in CALLS {
        for n in 1.. {
            for name in files(&b) {
                fs::remove_file(b.path(&name)).unwrap();
            }
            for (file, content) in ["p", "p.journal"].into_iter().zip(&original) {
                fs::write(b.path(file), content).unwrap();
            }
            let traced = Command::new("strace")
                .args(["-f", "-qq", "-o", "/dev/null", "-e"])
                .arg(format!("inject={call}:signal=KILL:when={n}"))
                .args([PROGRAM, "upgrade", "p"])
                .current_dir(b.dir())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            let at = format!("{call} number {n}: {:?}", files(&b));
            assert_eq!(contents::of_database(&b.path("p")), holds, "{at}");
            if traced.success() {
                break;
            }
            kills += 1;
            kept += u32::from(b.path(KEPT).exists());
            let report = b.run(&["upgrade", "p", "--json"]).ok().json();
            new += u32::from(report["needed"] == false);
            assert_eq!(contents::of_database(&b.path("p")), holds, "after {at}");
            // Without its journal the old database has nothing old: then there is no copy.
            let mut expected = vec!["p", "p.journal"];
            if b.path(KEPT).exists() {
                expected.insert(1, KEPT);
                assert_eq!(
                    contents::of_database(&b.path(KEPT)),
                    holds,
                    "copy, after {at}"
                );
                let [one, other] =
                    ["p", KEPT].map(|file| fs::metadata(b.path(file)).unwrap().ino());
                assert_ne!(one, other, "after {at}");
            } else {
                assert_eq!(report["needed"], false, "after {at}");
            }
            b.run(&["put", "p", "k", "v", "--keyspace", "default"]).ok();
            b.run(&["check", "p"]).ok();
            assert_eq!(files(&b), expected, "after {at}");
        }
    }
    assert!(
        kills > 30 && kept > 3 && new > 1,
        "{kills} kills, {kept} with the copy, {new} with the new form"
    );
}
