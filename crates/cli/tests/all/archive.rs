//! Archives from the command line: incremental backups of a database, and a server whose data is
//! restored as it was before somebody's mistake.

use crate::common::Bench;
use crate::common::server::Server;
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime};

fn update(b: &Bench) -> Value {
    b.run(&["archive", "update", "p", "kept", "--json"])
        .ok()
        .json()
}

#[test]
fn updates_are_incremental_and_each_can_be_restored() {
    let b = Bench::new();
    b.pool(&[("a", "1"), ("b", "2")]);
    let rows: String = (0..20_000).map(|i| format!("{i:06},{i}\n")).collect();
    b.file("rows.csv", format!("key,value\n{rows}"));
    b.run(&["import", "p", "rows.csv"]).ok();
    let first = update(&b);
    assert_eq!(
        [&first["full_states"], &first["incremental_states"]],
        [1, 0]
    );
    b.run(&["put", "p", "a", "another"]).ok();
    b.run(&["del", "p", "b"]).ok();
    let second = update(&b);
    assert_eq!(
        [&second["full_states"], &second["incremental_states"]],
        [0, 1]
    );
    let [whole, part] = [&first, &second].map(|update| update["bytes"].as_u64().unwrap());
    assert!(part < whole / 20, "{part} of {whole} bytes");
    b.run(&["put", "p", "c", "3"]).ok();
    let third = update(&b);

    let listed = b.run(&["archive", "list", "kept", "--json"]).ok().json();
    assert_eq!(listed["leads_to_its_end"], true);
    assert_eq!(listed["timestamp"], third["timestamp"]);
    assert_eq!(listed["files"][0]["kind"], "full state");
    let checked = b.run(&["archive", "check", "kept"]).ok();
    assert!(
        checked.text().contains("leads to any commit"),
        "{}",
        checked.text()
    );

    let expected = [
        (&first, "1", 20_002),
        (&second, "another", 20_001),
        (&third, "another", 20_002),
    ];
    for (i, (update, a, entries)) in expected.into_iter().enumerate() {
        let (ts, new) = (update["timestamp"].to_string(), format!("new-{i}"));
        let restored = ["restore", "kept", &new, "--until-commit", &ts, "--json"];
        let report = b.run(&restored).ok().json();
        assert_eq!(report["timestamp"], update["timestamp"]);
        b.run(&["check", &new]).ok();
        assert_eq!(b.run(&["get", &new, "a"]).ok().text().trim(), a);
        let info = b.run(&["info", &new, "--json"]).ok().json();
        assert!(info.to_string().contains(&entries.to_string()), "{info}");
    }
    b.run(&["restore", "kept", "end"]).ok();
    assert_eq!(b.run(&["get", "end", "c"]).ok().text().trim(), "3");
}

#[test]
fn what_cannot_be_restored_is_told() {
    let b = Bench::new();
    b.pool(&[("a", "1")]);
    update(&b);
    b.run(&["put", "p", "a", "2"]).ok();
    let last = update(&b);
    let file = b.path("kept/00000001.state");
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    std::fs::write(&file, flipped).unwrap();
    b.run(&["restore", "kept", "new"])
        .fails(&["00000001.state", "is damaged"]);
    assert!(!b.path("new").exists());
    let checked = b.run(&["archive", "check", "kept", "--json"]);
    assert_eq!(
        (checked.status, &checked.json()["leads_to_its_end"]),
        (Some(1), &Value::from(false))
    );
    std::fs::write(&file, whole).unwrap();
    b.run(&["restore", "kept", "new", "--until-commit", "1"])
        .fails(&["does not lead to time stamp 1", "no full state"]);
    let later = (last["timestamp"].as_u64().unwrap() + 1).to_string();
    b.run(&["restore", "kept", "new", "--until-commit", &later])
        .fails(&["the archive ends with time stamp"]);
    b.run(&["restore", "kept", "new", "--until", "yesterday"])
        .ends(2, &["2026-03-01T12:00:00Z"]);
    b.run(&["restore", "kept", "new", "--until", "2001-01-01T00:00:00Z"])
        .fails(&["2001-01-01T00:00:00.000Z", "no full state"]);
    b.run(&["restore", "p", "new", "--until-commit", "9"])
        .ends(2, &["are for archives"]);
    b.run(&["restore", "nowhere", "new"])
        .fails(&["nowhere: opening failed"]);
    b.run(&["archive", "list", "."]).fails(&["is no archive"]);
    b.run(&["archive", "list", "nowhere"]).fails(&["nowhere: "]);
    // Of another database.
    b.run(&["create", "other"]).ok();
    b.run(&["archive", "update", "other", "kept"])
        .fails(&["is of another pool"]);
    b.run(&["restore", "kept", "p"])
        .fails(&["p: there already"]);
    b.run(&["restore", "kept", "new"]).ok();
}

/// Tells what `INFO` says of something.
fn info(server: &Server, name: &str) -> String {
    let text = server.tell(&["INFO persistence".into()]);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .trim()
        .into()
}

/// Waits until all that was written is in the archive.
fn wait(server: &Server) {
    let begun = Instant::now();
    let applied: u64 = info(server, "applied_timestamp").parse().unwrap();
    while info(server, "archived_timestamp").parse::<u64>().unwrap() < applied {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_is_restored_to_before_a_mistake() {
    for medium in ["mapped", "journal"] {
        let b = Bench::new();
        let args = [
            "--medium",
            medium,
            "--archive",
            "kept",
            "--set",
            "archive-every=20ms",
        ];
        let mut server = Server::start(&b, &args);
        let sets = |from: u32, to: u32| -> Vec<String> {
            (from..to)
                .map(|i| format!("RPUSH list-{} element-{i}", i % 7))
                .collect()
        };
        server.tell(&sets(0, 2_000));
        assert_eq!(info(&server, "archive_enabled"), "1");
        wait(&server);
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let mut server = Server::start(&b, &args);
        server.tell(&sets(2_000, 3_000));
        let asked: Vec<String> = (0..7).map(|i| format!("LRANGE list-{i} 0 -1")).collect();
        let before = server.tell(&asked);
        assert!(before.contains("element-2999"));
        wait(&server);
        std::thread::sleep(Duration::from_millis(30));
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        std::thread::sleep(Duration::from_millis(30));
        server.tell(&["FLUSHALL".into(), "SET after it".into()]);
        wait(&server);
        assert_eq!(info(&server, "archive_status"), "ok");
        assert_eq!(info(&server, "archive_error"), "");
        server.stop();

        std::fs::rename(b.path("s.pool"), b.path("flushed")).unwrap();
        let _ = std::fs::remove_file(b.path("s.pool.journal"));
        let restored = ["restore", "kept", "s.pool", "--until", &now, "--json"];
        let report = b.run(&restored).ok().json();
        assert!(report["commits"].as_u64().unwrap() > 0, "{report}");
        b.run(&["check", "s.pool"]).ok();
        // It is another database, so it has an archive of its own.
        let refused = b.run(&[
            "serve",
            "s.pool",
            "--listen",
            "127.0.0.1:0",
            "--archive",
            "kept",
        ]);
        refused.fails(&["is of another pool", "a directory of its own"]);
        let mut server = Server::start(&b, &["--archive", "other"]);
        assert_eq!(server.tell(&asked), before);
        server.stop();
        b.run(&["restore", "kept", "end"]).ok();
        assert_eq!(b.run(&["get", "end", "after"]).ok().text().trim(), "it");
    }
}

#[test]
fn wrong_settings_of_an_archive_are_told() {
    let b = Bench::new();
    for (set, what) in [
        (
            "archive-every=soon",
            "must be a number of seconds, or a time",
        ),
        ("archive-every=0", "must not be zero"),
        ("archive-queue=many", "archive-queue"),
    ] {
        b.run(&["serve", "s.pool", "--set", set])
            .ends(2, &[set.split_once('=').unwrap().0, what]);
    }
    b.file("taken", "no directory");
    b.run(&["serve", "s.pool", "--archive", "taken"])
        .fails(&["taken: "]);
}
