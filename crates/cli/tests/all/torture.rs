//! A few kills on each medium; many are run by hand and in continuous integration.

use crate::common::Bench;
use std::process::Command;

fn torture(medium: &str, more: &[&str]) {
    let b = Bench::new();
    let mut args = vec![
        "torture", "--medium", medium, "--kills", "3", "--dir", ".", "--json",
    ];
    args.extend(more);
    let ran = b.run(&args).ok();
    let report = ran.json();
    let fields: Vec<_> = report
        .as_object()
        .expect("an object")
        .keys()
        .take(7)
        .collect();
    assert_eq!(
        fields,
        [
            "medium",
            "kills",
            "acknowledged",
            "lost",
            "phantom",
            "reopen_ms_p50",
            "reopen_ms_max"
        ]
    );
    assert_eq!(report["medium"], medium);
    assert_eq!(report["kills"], 3);
    assert_eq!(report["lost"], 0);
    assert_eq!(report["phantom"], 0);
    assert!(
        report["acknowledged"].as_u64().is_some_and(|n| n > 0),
        "{report}"
    );
    assert!(report["reopen_ms_max"].as_f64() >= report["reopen_ms_p50"].as_f64());
    assert_eq!(ran.text().lines().count(), 1);
    let left = std::fs::read_dir(b.dir()).unwrap().count();
    assert_eq!(left, 0, "a run without findings leaves nothing behind");
}

#[test]
fn nothing_is_lost_on_the_mapped_medium() {
    torture("mapped", &[]);
}

#[test]
fn nothing_is_lost_on_the_journal_medium() {
    torture("journal", &[]);
}

#[test]
fn nothing_but_the_last_is_lost_at_any_durability() {
    for durability in ["interval=20", "none"] {
        torture("journal", &["--server", "--durability", durability]);
    }
}

#[test]
fn an_archive_of_a_killed_server_has_all_of_it() {
    torture("mapped", &["--server", "--archive"]);
    torture(
        "journal",
        &["--server", "--archive", "--durability", "none"],
    );
}

#[test]
fn nothing_is_lost_with_two_threads() {
    torture("mapped", &["--threads", "2", "--seed", "7"]);
}

#[test]
fn a_server_loses_nothing_on_the_mapped_medium() {
    torture("mapped", &["--server"]);
}

#[test]
fn a_server_loses_nothing_on_the_journal_medium() {
    torture("journal", &["--server", "--threads", "5"]);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let b = Bench::new();
    b.run(&["torture", "--medium", "mapped", "--dir", "absent"])
        .fails(&["absent"]);
    b.run(&["torture", "--medium", "dram"]).ends(2, &["dram"]);
}

#[test]
fn nothing_is_lost_by_clients_of_tls() {
    let b = Bench::new();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout key -out cert";
    let openssl = Command::new("openssl")
        .current_dir(b.dir())
        .args(words.split_ascii_whitespace())
        .output();
    if !openssl.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no openssl here that makes a certificate");
        return;
    }
    let files = ["cert", "key"].map(|name| b.path(name).to_str().unwrap().to_owned());
    let tls = ["--tls-cert", &files[0], "--tls-key", &files[1]];
    torture("mapped", &[&["--server"], &tls[..]].concat());
    // The clients trust that certificate, and no server that has none.
    let ran = b.run(&["torture", "--medium", "mapped", "--server", tls[0], tls[1]]);
    ran.ends(2, &["--tls-key"]);
}
