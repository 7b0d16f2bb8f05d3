//! `check` ended at the first damage and advised `export`. That command refused the pool, or wrote
//! the damaged values as if they were whole. Now `check` lists all damage, and `export
//! --skip-damaged` saves the rest.

use crate::common::Bench;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Changes a pool's bytes.
fn change(pool: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(pool).unwrap();
    change(&mut bytes);
    std::fs::write(pool, bytes).unwrap();
}

/// Returns the place of the bytes of the record that holds a string, behind length and checksum.
fn record_of(bytes: &[u8], text: &str) -> usize {
    let head = |at: usize| {
        let length = (text.len() as u32).to_le_bytes();
        let sum = crc32c::crc32c(text.as_bytes()).to_le_bytes();
        at >= 8 && bytes[at - 8..at] == [length, sum].concat()
    };
    let mut places = bytes.windows(text.len()).enumerate();
    let found = places.find(|(at, window)| *window == text.as_bytes() && head(*at));
    found.unwrap_or_else(|| panic!("no record of {text:?}")).0
}

fn key(i: usize) -> String {
    format!("k{i:05}")
}

fn value(i: usize) -> String {
    format!("a value that can be found, {i:05}")
}

/// Creates a pool `p` with a number of entries.
fn filled(b: &Bench, design: &str, entries: usize) {
    b.run(&["create", "p", "--medium", "mapped", "--index", design])
        .ok();
    let rows: String = (0..entries)
        .map(|i| format!("{},\"{}\"\n", key(i), value(i)))
        .collect();
    b.file("rows.csv", format!("key,value\n{rows}"));
    b.run(&["import", "p", "rows.csv"]).ok();
}

/// Returns the pairs of an exported file.
fn exported(b: &Bench, name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(b.path(name)).unwrap();
    let rows = text.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let field = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        (field("key"), field("value"))
    });
    rows.collect()
}

/// Returns true if bytes contain a string.
fn contains(bytes: &[u8], sought: &[u8]) -> bool {
    bytes.windows(sought.len()).any(|window| window == sought)
}

#[test]
fn all_damaged_values_of_an_index_are_listed_and_the_rest_is_saved() {
    const ENTRIES: usize = 2_000;
    const DAMAGED: [usize; 4] = [0, 17, 1_000, ENTRIES - 1];
    for design in [
        "lbtree",
        "fptree",
        "wbtree",
        "nvtree",
        "fastfair",
        "lcbtree",
        "skiplist-nvm",
    ] {
        let b = Bench::new();
        filled(&b, design, ENTRIES);
        change(&b.path("p"), |bytes| {
            for i in DAMAGED {
                let at = record_of(bytes, &value(i));
                bytes[at + 3] ^= 0x20;
            }
        });
        let check = b
            .run(&["check", "p", "--json"])
            .fails(&["export --skip-damaged p"])
            .json();
        let errors = check["errors"].as_array().unwrap();
        assert_eq!(
            (errors.len(), &check["error_count"]),
            (4, &4.into()),
            "{design}: {check}"
        );
        for error in errors {
            assert!(
                error.as_str().unwrap().contains("checksum"),
                "{design}: {error}"
            );
        }
        for file in ["out.jsonl", "out.csv"] {
            b.run(&["export", "p", file]).fails(&[
                "p: damaged: ",
                "checksum",
                "check p",
                "export --skip-damaged p",
            ]);
            assert!(!b.path(file).exists());
        }
        let named: Vec<String> = DAMAGED
            .map(|i| format!("skipped key \"{}\"", key(i)))
            .into();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let args = ["export", "p", "out.jsonl", "--skip-damaged", "--json"];
        let report = b.run(&args).ends(3, &named).json();
        let counts = (report["records"].as_u64(), report["skipped"].as_u64());
        assert_eq!(counts, (Some(ENTRIES as u64 - 4), Some(4)), "{design}");
        let rest = (0..ENTRIES).filter(|i| !DAMAGED.contains(i));
        let rest: BTreeMap<_, _> = rest.map(|i| (key(i), value(i))).collect();
        assert!(exported(&b, "out.jsonl") == rest, "{design}");
        b.run(&["export", "p", "out.csv", "--skip-damaged"])
            .ends(3, &named);
        let rows = std::fs::read_to_string(b.path("out.csv")).unwrap();
        assert_eq!(rows.lines().count(), 1 + ENTRIES - 4);
    }
}

#[test]
fn a_long_list_ends_with_how_many_there_are() {
    let b = Bench::new();
    filled(&b, "lbtree", 1_000);
    change(&b.path("p"), |bytes| {
        for i in 0..150 {
            let at = record_of(bytes, &value(i * 3));
            bytes[at] ^= 1;
        }
    });
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["50 more errors, 150 in all"])
        .json();
    assert_eq!(check["errors"].as_array().unwrap().len(), 100);
    assert_eq!(check["error_count"], 150);
}

#[test]
fn damaged_keys_do_not_keep_others_from_being_saved() {
    const ENTRIES: usize = 2_000;
    const DAMAGED: [usize; 3] = [5, 700, 1_500];
    for design in ["lbtree", "nvtree"] {
        let b = Bench::new();
        filled(&b, design, ENTRIES);
        change(&b.path("p"), |bytes| {
            for i in DAMAGED {
                let at = record_of(bytes, &key(i));
                bytes[at] ^= 0x41;
            }
        });
        let check = b
            .run(&["check", "p", "--json"])
            .fails(&["--skip-damaged"])
            .json();
        assert!(
            check["error_count"].as_u64().is_some_and(|n| n >= 3),
            "{check}"
        );
        b.run(&["export", "p", "out.jsonl"])
            .fails(&["--skip-damaged"]);
        let args = ["export", "p", "out.jsonl", "--skip-damaged", "--json"];
        let report = b.run(&args).ends(3, &["checksum"]).json();
        let counts = (report["records"].as_u64(), report["skipped"].as_u64());
        assert_eq!(counts, (Some(ENTRIES as u64 - 3), Some(3)), "{design}");
        let rest = (0..ENTRIES).filter(|i| !DAMAGED.contains(i));
        let rest: BTreeMap<_, _> = rest.map(|i| (key(i), value(i))).collect();
        assert!(exported(&b, "out.jsonl") == rest, "{design}");
    }
}

/// Opening walks a pool that was not closed. The walk failed at a record with a damaged length.
#[test]
fn a_pool_that_damage_keeps_from_opening_is_listed_and_saved_too() {
    for design in ["lbtree", "nvtree"] {
        let b = Bench::new();
        b.run(&["create", "p", "--medium", "mapped", "--index", design])
            .ok();
        let rows: String = (0..200_000)
            .map(|i| format!("{},\"{}\"\n", key(i), value(i)))
            .collect();
        b.file("rows.csv", format!("key,value\n{rows}"));
        let mut writer = b
            .command()
            .args(["import", "p", "rows.csv"])
            .spawn()
            .unwrap();
        // Rows are stored in their order, and stored rows outlive the process.
        let sought = value(20_000);
        while !contains(&std::fs::read(b.path("p")).unwrap(), sought.as_bytes()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        let whole = b.run(&["export", "p", "whole.jsonl", "--json"]).ok().json();
        let all = whole["records"].as_u64().unwrap();
        let values = [3, 1_400, 2_900].map(value);
        change(&b.path("p"), |bytes| {
            for value in &values {
                let at = record_of(bytes, value);
                bytes[at - 6..at - 4].fill(0xFF);
            }
        });
        b.run(&["get", "p", &key(0)]).fails(&["corrupt"]);
        let check = b
            .run(&["check", "p", "--json"])
            .fails(&["--skip-damaged"])
            .json();
        assert!(
            check["error_count"].as_u64().is_some_and(|n| n >= 3),
            "{check}"
        );
        b.run(&["export", "p", "out.jsonl"])
            .fails(&["p: damaged: ", "--skip-damaged"]);
        let args = ["export", "p", "out.jsonl", "--skip-damaged", "--json"];
        let report = b.run(&args).ends(3, &["skipped"]).json();
        let counts = (report["records"].as_u64(), report["skipped"].as_u64());
        assert_eq!(counts, (Some(all - 3), Some(3)), "{design}");
        let expected = std::fs::read_to_string(b.path("whole.jsonl")).unwrap();
        let rest: Vec<&str> = expected
            .lines()
            .filter(|line| !values.iter().any(|value| line.contains(value.as_str())))
            .collect();
        let saved = std::fs::read_to_string(b.path("out.jsonl")).unwrap();
        assert!(saved.lines().eq(rest.iter().copied()), "{design}");
    }
}
