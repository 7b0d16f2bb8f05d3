//! Formats of versions that this build does not read: each command that opens them says which
//! version it found, which ones it reads, and what to do; nothing is changed.

use crate::common::Bench;
use crate::common::server::Server;
use crate::fixtures::{contents, raw};
use std::fs;

/// A server's database `p`, its backup `p.backup` and its archive `kept`.
fn served() -> Bench {
    let b = Bench::new();
    let args = ["--medium", "journal", "--set", "backup-file=p.backup"];
    let mut server = Server::start(&b, &args);
    let writes = ["SET k v", "RPUSH list a b", "SAVE"].map(String::from);
    let replies = server.tell(&writes);
    assert!(!replies.contains("-ERR"), "{replies}");
    server.stop();
    for suffix in ["", ".journal"] {
        fs::rename(
            b.path(&format!("s.pool{suffix}")),
            b.path(&format!("p{suffix}")),
        )
        .unwrap();
    }
    b.run(&["archive", "update", "p", "kept"]).ok();
    b.file("rows.csv", "key,value\na,b\n");
    b
}

/// Commands that open a database, and whether they read a server's values.
const COMMANDS: [(&[&str], bool); 15] = [
    (&["get", "p", "k", "--keyspace", "0"], true),
    (&["put", "p", "k", "w", "--keyspace", "0"], true),
    (&["del", "p", "k"], true),
    (&["scan", "p"], true),
    (&["import", "p", "rows.csv"], true),
    (&["export", "p", "out.csv"], true),
    (&["export", "p", "out.csv", "--skip-damaged"], true),
    (&["repair", "p", "new"], true),
    (&["serve", "p", "--listen", "127.0.0.1:0"], true),
    (&["upgrade", "p"], true),
    (&["info", "p"], false),
    (&["check", "p"], false),
    (&["compact", "p"], false),
    (&["backup", "p", "copy"], false),
    (&["archive", "update", "p", "kept"], false),
];

/// Runs the commands on a database that has another version of `format`.
fn refused(format: &str, version: u64, next: &str) {
    let b = served();
    let current = match format {
        "server" => 1,
        _ => raw::of_pool(&b.path("p"))[format],
    };
    let holds = contents::of_database(&b.path("p"));
    raw::set(&b.path("p"), format, version);
    let files = |b: &Bench| ["p", "p.journal"].map(|file| fs::read(b.path(file)).unwrap());
    let before = files(&b);
    let found = format!("{format} format version {version}");
    for (command, reads_values) in COMMANDS {
        if format == "server" && !reads_values {
            continue;
        }
        let next = match command[0] {
            "upgrade" if next.contains("upgrade") => "let the release that made it write",
            _ => next,
        };
        let ran = b.run(command).fails(&["p", &found, next]);
        for wrong in ["damage", "repair"] {
            assert!(!ran.stderr.contains(wrong), "{command:?}: {}", ran.stderr);
        }
        // The pool has to be open before its store is looked at: that is written down.
        if ["pool", "journal"].contains(&format) {
            assert!(
                before == files(&b),
                "{format}: {command:?} has changed the files"
            );
        }
    }
    let left = ["new", "copy", "out.csv", "p.upgrading", "p.before-upgrade"];
    for file in left {
        assert!(!b.path(file).exists(), "{file}");
    }
    raw::set(&b.path("p"), format, current);
    b.run(&["check", "p"]).ok();
    let mut found = contents::of_database(&b.path("p"));
    // How the test gives a server's data another version.
    found.retain(|line| !line.starts_with("databases format = "));
    assert_eq!(found, holds, "{format}");
}

#[test]
fn newer_formats_are_refused_by_every_command() {
    let _alone = crate::alone();
    for (format, version) in [
        ("pool", 2),
        ("journal", 3),
        ("store", 4),
        ("tree", 4),
        ("server", 2),
    ] {
        refused(
            format,
            version,
            "install the release that made it, or a later one",
        );
    }
}

#[test]
fn older_formats_that_are_not_read_lead_to_upgrade() {
    let _alone = crate::alone();
    for (format, version) in [
        ("pool", 0),
        ("journal", 0),
        ("store", 1),
        ("tree", 2),
        ("server", 0),
    ] {
        refused(
            format,
            version,
            "`bristlecone upgrade` says what can be done",
        );
    }
}

#[test]
fn backups_and_archives_of_other_versions_are_refused() {
    let _alone = crate::alone();
    for (version, next) in [
        (9, "install the release that made it, or a later one"),
        (0, "let the release that made it restore it"),
    ] {
        let b = served();
        raw::set(&b.path("p.backup"), "backup", version);
        let found = format!("backup format version {version}, and this one reads 1");
        b.run(&["restore", "p.backup", "new"])
            .fails(&["p.backup: ", &found, next]);
        raw::set(&b.path("kept/00000001.state"), "archive", version);
        let found = format!("archive format version {version}, and this one reads 1");
        let commands: [&[&str]; 6] = [
            &["restore", "kept", "new"],
            &["archive", "list", "kept"],
            &["archive", "check", "kept"],
            &["archive", "update", "p", "kept"],
            &["serve", "p", "--listen", "127.0.0.1:0", "--archive", "kept"],
            &[
                "serve",
                "new",
                "--listen",
                "127.0.0.1:0",
                "--archive",
                "kept",
            ],
        ];
        for command in commands {
            b.run(command).fails(&["00000001.state: ", &found, next]);
        }
    }
}

/// A store of the research crate's format is none of an older release.
#[test]
fn the_research_format_is_told() {
    let _alone = crate::alone();
    let b = served();
    raw::set(&b.path("p"), "store", 2);
    for command in ["info", "check", "upgrade"] {
        b.run(&[command, "p"])
            .fails(&["NV-Store (version 2)", "opens version 3"]);
    }
}
