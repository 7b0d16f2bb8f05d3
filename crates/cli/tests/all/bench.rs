//! The benchmark runs, and its JSON has the fields that scripts rely on.

use crate::common::Bench;
use serde_json::Value;
use std::process::Command;

/// Measures servers with these arguments beside those that keep it short; returns the report, and
/// the mixes with the numbers of clients.
fn measured(arguments: &[&str]) -> (Value, Vec<(String, u64)>) {
    let b = Bench::new();
    let short = "bench server --clients 1,3 --pipeline 4 --records 1K --slice-ms 20 --rounds 1 --path . --json";
    let args: Vec<_> = short.split(' ').chain(arguments.iter().copied()).collect();
    let report = b.run(&args).ok().json();
    let left = std::fs::read_dir(b.dir()).unwrap().count();
    assert_eq!(left, 0, "nothing is left behind");
    let rows = report["rows"].as_array().expect("rows");
    let told = rows.iter().map(|row| {
        let mix = row["mix"].as_str().unwrap().to_owned();
        (mix, row["clients"].as_u64().unwrap())
    });
    let told = told.collect();
    (report, told)
}

fn each(mixes: [&str; 2]) -> Vec<(String, u64)> {
    let counts = |mix: &str| [1, 3].map(|clients| (mix.to_owned(), clients));
    mixes.into_iter().flat_map(counts).collect()
}

#[test]
fn a_server_is_measured_under_both_mixes() {
    let (report, told) = measured(&[]);
    assert_eq!(told, each(["status-update", "session-store"]));
    for row in report["rows"].as_array().unwrap() {
        let figures = &row["bristlecone"];
        assert!(figures["kops"].as_f64().unwrap() > 0.0, "{row}");
        assert!(figures["p99_us"].as_f64() >= figures["p50_us"].as_f64());
        assert_eq!(row["peers"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_server_is_measured_beside_memcached() {
    let there = Command::new("memcached").arg("--version").output().is_ok();
    let needed = std::env::var_os("BRISTLECONE_NEED_MEMCACHED").is_some();
    assert!(there || !needed, "there is no memcached");
    if !there {
        println!("left out: there is no memcached");
        return;
    }
    let (report, told) = measured(&["--against", "memcached", "--mix", "gets,sets"]);
    assert_eq!(told, each(["gets", "sets"]));
    for row in report["rows"].as_array().unwrap() {
        let names = row["peers"].as_array().unwrap().iter().map(|peer| {
            assert!(peer["kops"].as_f64().unwrap() > 0.0, "{row}");
            peer["name"].as_str().unwrap()
        });
        assert_eq!(names.collect::<Vec<_>>(), ["memcached", "memcached -e"]);
    }
}
