//! A report is made part by part, goes on where it was ended, and says what it lacks.

use crate::common::Bench;
use crate::common::processes::{start, wait_for};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

fn page(b: &Bench) -> String {
    std::fs::read_to_string(b.path("out/index.html")).unwrap()
}

fn about(b: &Bench) -> Value {
    let text = std::fs::read_to_string(b.path("out/data/about.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

const TABLE: [&str; 8] = [
    "report",
    "--out",
    "out",
    "--only",
    "counted",
    "--figure",
    "bz-table1",
    "--json",
];

#[test]
fn a_report_is_made_kept_and_written_anew() {
    let b = Bench::new();
    let made = b.run(&TABLE).ok().json();
    assert_eq!(made["page"], "out/index.html");
    let parts = made["parts"].as_array().unwrap();
    assert_eq!(
        (parts.len(), &parts[0]["name"]),
        (1, &"bz-table1-counted".into())
    );
    assert!(parts[0]["seconds"].as_f64().unwrap() > 0.0 && parts[0]["missing"] == "");
    assert_eq!(about(&b)["parts"], made["parts"]);
    let first = page(&b);
    assert!(first.contains("bz-table1") && first.contains("<svg") && !first.contains("Partial"));
    assert!(!b.path("out/data/bz-table1-counted.json.part").exists());

    // A resumed run keeps the part that is there, and adds another.
    let time = || {
        let file = std::fs::metadata(b.path("out/data/bz-table1-counted.json"));
        file.unwrap().modified().unwrap()
    };
    let before = time();
    let more = ["report", "--out", "out", "--only", "limits", "--resume"];
    let told = b.run(&more).ok().text();
    assert!(told.contains("2 of 2 parts: out/index.html"), "{told}");
    assert_eq!(time(), before);
    assert!(page(&b).contains("id=\"limits\"") && page(&b).contains("bz-table1"));

    // The page alone.
    std::fs::remove_file(b.path("out/index.html")).unwrap();
    b.run(&["report", "--out", "out", "--page"]).ok();
    assert!(page(&b).contains("id=\"limits\""));

    // Without --resume what was there goes.
    b.run(&TABLE).ok();
    assert!(!b.path("out/data/limits.json").exists());
    assert!(!page(&b).contains("id=\"limits\""));
}

#[test]
fn a_signal_leaves_a_partial_report() {
    let b = Bench::new();
    let args = [
        "report",
        "--out",
        "out",
        "--only",
        "host",
        "--figure",
        "bz-fig4,bz-fig8",
    ];
    let mut child = start(&b, &args);
    wait_for("the first part", || {
        b.path("out/data/bz-fig4-host.json.part")
            .exists()
            .then_some(())
    });
    b.shell(&format!("kill -INT {}", child.id())).ok();
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert!(page(&b).contains("Partial: 2 of 2 parts"), "{}", page(&b));
    assert!(!b.path("out/data/bz-fig4-host.json").exists());
    assert!(!b.path("out/data/bz-fig4-host.json.part").exists());
}

#[test]
fn what_cannot_be_is_refused_with_its_name() {
    let b = Bench::new();
    let told = b.run(&["report", "--out", "out", "--figure", "bz-tabel1"]);
    assert_eq!(told.status, Some(2), "{}", told.stderr);
    assert!(told.stderr.contains("bz-table1"), "{}", told.stderr);
    let told = b.run(&["report", "--out", "out", "--page"]);
    assert_eq!(told.status, Some(1));
    assert!(told.stderr.contains("no about.json"), "{}", told.stderr);
    let told = b.run(&["report", "--out", "out", "--path", "none"]);
    assert_eq!(told.status, Some(1));
    assert!(
        told.stderr.contains("none: not a directory"),
        "{}",
        told.stderr
    );
    // Parts of a run at another scale are no parts of this report.
    b.run(&TABLE).ok();
    let text = about(&b)
        .to_string()
        .replace("\"scale\":\"small\"", "\"scale\":\"paper\"");
    std::fs::write(b.path("out/data/about.json"), text).unwrap();
    let told = b.run(&["report", "--out", "out", "--only", "counted", "--resume"]);
    assert_eq!(told.status, Some(1));
    assert!(told.stderr.contains("without --resume"), "{}", told.stderr);
}
