//! `check` ended at the first damage and advised `export`, which refused the pool or wrote the
//! damaged values as if they were whole. Now `check` lists all damage, and `export --skip-damaged`
//! saves the rest, as `repair` does, which makes a new database of it.

use crate::common::Bench;
use crate::common::server::Server;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Changes a pool's bytes.
fn change(pool: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(pool).unwrap();
    change(&mut bytes);
    std::fs::write(pool, bytes).unwrap();
}

fn key(i: usize) -> String {
    format!("k{i:05}")
}

fn value(i: usize) -> String {
    format!("a value that can be found, {i:05}")
}

/// The pairs of an exported file.
fn exported(b: &Bench, name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(b.path(name)).unwrap();
    let rows = text.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let field = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        (field("key"), field("value"))
    });
    rows.collect()
}

/// Changes a bit of each of these values, wherever the file has them: a page that was written anew
/// elsewhere leaves its old bytes behind.
fn damage_values(pool: &Path, which: &[usize]) {
    let texts: Vec<String> = which.iter().map(|i| value(*i)).collect();
    let len = texts[0].len();
    change(pool, |bytes| {
        let mut found = 0;
        for at in 0..bytes.len() - len {
            if bytes[at] == b'a'
                && texts
                    .iter()
                    .any(|text| bytes[at..].starts_with(text.as_bytes()))
            {
                bytes[at + 3] ^= 0x20;
                found += 1;
            }
        }
        assert!(found >= which.len(), "{found} of {}", which.len());
    });
}

/// A database `p` of so many entries.
fn filled(b: &Bench, entries: usize) {
    b.run(&["create", "p", "--medium", "mapped"]).ok();
    let rows: String = (0..entries)
        .map(|i| format!("{},\"{}\"\n", key(i), value(i)))
        .collect();
    b.file("rows.csv", format!("key,value\n{rows}"));
    b.run(&["import", "p", "rows.csv"]).ok();
}

/// Damage may cost more than the values that it is in, but it never goes unnoticed, what is written
/// to the file is right, and all that is far from the damage is there.
#[test]
fn damage_is_found_and_the_rest_is_saved() {
    const ENTRIES: usize = 2_000;
    const DAMAGED: [usize; 2] = [700, 1_300];
    /// More than a page has.
    const NEAR: usize = 200;
    let b = Bench::new();
    filled(&b, ENTRIES);
    damage_values(&b.path("p"), &DAMAGED);
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["repair p NEW"])
        .json();
    let errors = check["errors"].as_array().unwrap();
    assert_eq!(
        (errors.len(), &check["error_count"]),
        (2, &2.into()),
        "{check}"
    );
    for error in errors {
        let error = error.as_str().unwrap();
        let parts = ["keyspace \"default\", key \"k0", "damaged"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    b.run(&["get", "p", &key(700)])
        .fails(&["p: key \"k00700\"", "damaged"]);
    for i in [0, 1_000, ENTRIES - 1] {
        assert_eq!(b.run(&["get", "p", &key(i)]).ok().text(), value(i));
    }
    b.run(&["scan", "p"]).fails(&["p: ", "damaged"]);
    b.run(&["export", "p", "out.jsonl"]).fails(&[
        "p: damaged: ",
        "check p",
        "export --skip-damaged p",
    ]);
    assert!(!b.path("out.jsonl").exists());
    let args = ["export", "p", "out.jsonl", "--skip-damaged", "--json"];
    let report = b.run(&args).ends(3, &["skipped key \"k0"]).json();
    assert_eq!(report["skipped"], 2, "{report}");
    let saved = exported(&b, "out.jsonl");
    assert_eq!(report["records"], saved.len());
    let far = |i: &usize| DAMAGED.iter().all(|damaged| damaged.abs_diff(*i) > NEAR);
    for i in (0..ENTRIES).filter(far) {
        assert!(saved.contains_key(&key(i)), "{}", key(i));
    }
    for (i, (key, found)) in (0..ENTRIES).map(|i| (i, (key(i), saved.get(&key(i))))) {
        let right = found.is_none_or(|found| *found == value(i));
        assert!(
            right && (found.is_none() || !DAMAGED.contains(&i)),
            "{key}: {found:?}"
        );
    }
}

/// `repair` makes a database of all that `export` would save, of every keyspace.
#[test]
fn what_is_whole_becomes_a_new_database() {
    const ENTRIES: usize = 2_000;
    const DAMAGED: [usize; 2] = [700, 1_300];
    let b = Bench::new();
    filled(&b, ENTRIES);
    b.run(&["put", "p", "kept", "yes", "--keyspace", "other"])
        .ok();
    let report = b.run(&["repair", "p", "copy", "--json"]).ok().json();
    let entries = ENTRIES as u64 + 1;
    assert_eq!(
        (&report["entries"], &report["skipped"]),
        (&entries.into(), &0.into())
    );
    let before = std::fs::read(b.path("p")).unwrap();
    damage_values(&b.path("p"), &DAMAGED);
    let damaged = std::fs::read(b.path("p")).unwrap();
    assert_ne!(before, damaged);
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["repair p NEW"])
        .json();
    let report = b
        .run(&["repair", "p", "mended", "--json"])
        .ends(3, &["damaged: keyspace \"default\", key \"k0", "checksum"])
        .json();
    let saved = entries - lost(&check);
    assert_eq!(
        (&report["entries"], &report["skipped"]),
        (&saved.into(), &2.into())
    );
    assert_eq!(
        std::fs::read(b.path("p")).unwrap(),
        damaged,
        "it is left as it is"
    );
    b.run(&["check", "mended"]).ok();
    assert_eq!(b.run(&["get", "mended", &key(0)]).ok().text(), value(0));
    let other = ["get", "mended", "kept", "--keyspace", "other"];
    assert_eq!(b.run(&other).ok().text(), "yes");
    b.run(&["get", "mended", &key(DAMAGED[0])]).ends(1, &[]);
    // Files that are there are left alone.
    b.run(&["repair", "p", "mended"])
        .fails(&["name another file"]);
    b.run(&["repair", "p", "p"]).ends(2, &["name a new file"]);
    b.file("none", "not a database");
    b.run(&["repair", "none", "new"]).fails(&["none"]);
    assert!(!b.path("new").exists());
}

/// After `repair` a hash's head counted elements that were lost: `HGETALL` announced more than it
/// sent, and the client waited for the rest for ever.
#[test]
fn collections_that_lost_elements_are_whole_without_them() {
    const FIELDS: usize = 1_000;
    let b = Bench::new();
    let args = ["--medium", "mapped"];
    let mut server = Server::start(&b, &args);
    let sets = (0..FIELDS).map(|i| format!("HSET hash f{i} \"{}\"", value(i)));
    let sets: Vec<String> = sets.chain(["RPUSH list a b c".into()]).collect();
    server.tell(&sets);
    server.stop();
    damage_values(&b.path("s.pool"), &[500]);
    let report = b
        .run(&["repair", "s.pool", "mended", "--json"])
        .ends(
            3,
            &[
                "changed: ",
                "of the 1000 elements of key \"hash\" in database 0 are there",
            ],
        )
        .json();
    assert_eq!(report["collections_with_losses"], 1, "{report}");
    b.run(&["check", "mended"]).ok();
    std::fs::rename(b.path("mended"), b.path("s.pool")).unwrap();
    let mut server = Server::start(&b, &args);
    let replies = server.tell(&["HVALS hash", "HLEN hash", "LLEN list"].map(str::to_owned));
    let found = replies.matches("a value that can be found").count();
    assert!((FIELDS - 100..FIELDS).contains(&found), "{found}");
    assert!(replies.contains(&format!("*{found}")), "{replies}");
    assert!(replies.contains(&format!(":{found}\r\n:3")), "{replies}");
    server.stop();
}

/// Returns how many entries the damaged pages of a check have lost, as its errors say.
fn lost(check: &serde_json::Value) -> u64 {
    let errors = check["errors"].as_array().unwrap();
    let of = |error: &serde_json::Value| {
        let error = error.as_str().unwrap();
        let before = error.split(" of its entries cannot be read").next();
        let number = before.unwrap().rsplit(' ').next().unwrap();
        number.parse::<u64>().unwrap()
    };
    errors.iter().map(of).sum()
}

#[test]
fn all_damaged_pages_are_listed_and_the_rest_is_saved() {
    const ENTRIES: usize = 2_000;
    // The first two are in one page.
    const DAMAGED: [usize; 4] = [0, 17, 1_000, ENTRIES - 1];
    const PAGES: usize = 3;
    let b = Bench::new();
    filled(&b, ENTRIES);
    damage_values(&b.path("p"), &DAMAGED);
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["repair p NEW"])
        .json();
    let errors = check["errors"].as_array().unwrap();
    assert_eq!(
        (errors.len(), &check["error_count"]),
        (PAGES, &PAGES.into()),
        "{check}"
    );
    for error in errors {
        assert!(error.as_str().unwrap().contains("checksum"), "{error}");
    }
    b.run(&["get", "p", &key(17)])
        .fails(&["p: key \"k00017\"", "damaged"]);
    b.run(&["get", "p", &key(200)]).ok();
    b.run(&["scan", "p"]).fails(&["p: ", "damaged"]);
    for file in ["out.jsonl", "out.csv"] {
        b.run(&["export", "p", file]).fails(&[
            "p: damaged: ",
            "checksum",
            "check p",
            "export --skip-damaged p",
        ]);
        assert!(!b.path(file).exists());
    }
    let args = ["export", "p", "out.jsonl", "--skip-damaged", "--json"];
    let report = b.run(&args).ends(3, &["skipped key \"k0"]).json();
    let counts = (report["records"].as_u64(), report["skipped"].as_u64());
    let saved = ENTRIES as u64 - lost(&check);
    assert!(
        (ENTRIES as u64 - 200..=ENTRIES as u64 - 4).contains(&saved),
        "{check}"
    );
    assert_eq!(counts, (Some(saved), Some(PAGES as u64)));
    let rest = exported(&b, "out.jsonl");
    assert_eq!(rest.len() as u64, saved);
    let all: BTreeMap<_, _> = (0..ENTRIES).map(|i| (key(i), value(i))).collect();
    assert!(rest.iter().all(|(key, found)| all[key] == *found));
    assert!(DAMAGED.iter().all(|i| !rest.contains_key(&key(*i))));
    b.run(&["export", "p", "out.csv", "--skip-damaged"])
        .ends(3, &["skipped key \"k0"]);
    let rows = std::fs::read_to_string(b.path("out.csv")).unwrap();
    assert_eq!(rows.lines().count() as u64, 1 + saved);
}

#[test]
fn a_long_list_ends_with_how_many_there_are() {
    // So far apart that no page has two of them.
    let damaged: Vec<usize> = (600..17_100).step_by(110).collect();
    assert_eq!(damaged.len(), 150);
    let b = Bench::new();
    filled(&b, 17_500);
    damage_values(&b.path("p"), &damaged);
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["50 more errors, 150 in all"])
        .json();
    assert_eq!(check["errors"].as_array().unwrap().len(), 100);
    assert_eq!(check["error_count"], 150);
}

#[test]
fn a_damaged_store_is_served() {
    const ENTRIES: usize = 2_000;
    let b = Bench::new();
    let args = ["--medium", "mapped"];
    let mut server = Server::start(&b, &args);
    let sets = (0..ENTRIES).map(|i| format!("SET {} \"{}\"", key(i), value(i)));
    let sets: Vec<String> = sets.chain(["HSET hash f v".into()]).collect();
    server.tell(&sets);
    server.stop();
    damage_values(&b.path("s.pool"), &[1_000]);
    // That key answers with an error, the others as ever.
    let mut server = Server::start(&b, &args);
    let replies = server.tell(&[1_000, 500].map(|i| format!("GET {}", key(i))));
    assert!(replies.contains("damaged"), "{replies}");
    assert!(replies.contains(&value(500)), "{replies}");
    let replies = server.tell(&["SET new yes".into(), "GET new".into()]);
    assert!(replies.contains("yes"), "{replies}");
    // Scrubbing finds it by itself.
    let until = Instant::now() + Duration::from_secs(20);
    while !server
        .tell(&["INFO persistence".into()])
        .contains("\r\ndamaged:1\r\n")
    {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop();
    let check = b
        .run(&["check", "s.pool", "--json"])
        .fails(&["repair s.pool NEW"])
        .json();
    assert_eq!(check["error_count"], 1, "{check}");
    b.run(&["export", "s.pool", "out.jsonl"])
        .fails(&["damaged", "--skip-damaged"]);
    let args = ["export", "s.pool", "out.jsonl", "--skip-damaged", "--json"];
    let report = b.run(&args).ends(3, &["skipped key \"k0"]).json();
    assert_eq!(report["skipped"], 1);
    let saved = exported(&b, "out.jsonl");
    assert!(saved.contains_key("hash") && saved["new"] == "yes");
    assert!(saved[&key(500)] == value(500) && !saved.contains_key(&key(1_000)));
}

#[test]
fn all_that_is_damaged_in_a_servers_store_is_listed_and_the_rest_is_saved() {
    const ENTRIES: usize = 500;
    // The server's own keys, without which it does not start, are behind the last.
    const DAMAGED: [usize; 3] = [3, 200, 400];
    let b = Bench::new();
    let args = ["--medium", "mapped"];
    let mut server = Server::start(&b, &args);
    let sets = (0..ENTRIES).map(|i| format!("SET {} \"{}\"", key(i), value(i)));
    let sets: Vec<String> = sets.chain(["HSET hash f v".into()]).collect();
    server.tell(&sets);
    server.stop();
    damage_values(&b.path("s.pool"), &DAMAGED);
    let check = b
        .run(&["check", "s.pool", "--json"])
        .fails(&["repair s.pool NEW"])
        .json();
    let errors = check["errors"].as_array().unwrap();
    assert!(errors.len() >= DAMAGED.len(), "{check}");
    // It is served all the same: those keys answer with an error, the others as ever.
    let mut server = Server::start(&b, &args);
    let replies = server.tell(&DAMAGED.map(|i| format!("GET {}", key(i))));
    let refused = replies.matches("the store is damaged").count();
    assert_eq!(refused, DAMAGED.len(), "{replies}");
    let replies = server.tell(&[format!("GET {}", key(100))]);
    assert!(replies.contains(&value(100)), "{replies}");
    server.stop();
    let again = b
        .run(&["check", "s.pool", "--json"])
        .fails(&["repair s.pool NEW"])
        .json();
    assert_eq!(again["errors"], check["errors"]);
    b.run(&["export", "s.pool", "out.jsonl"])
        .fails(&["damaged", "--skip-damaged"]);
    assert!(!b.path("out.jsonl").exists());
    let args = ["export", "s.pool", "out.jsonl", "--skip-damaged", "--json"];
    let report = b.run(&args).ends(3, &["skipped key \"k0"]).json();
    let rest = exported(&b, "out.jsonl");
    assert_eq!(report["records"].as_u64(), Some(rest.len() as u64));
    assert!(rest.contains_key("hash") && rest[&key(100)] == value(100));
    for i in 0..ENTRIES {
        let right = rest.get(&key(i)).is_none_or(|found| *found == value(i));
        assert!(right && !(DAMAGED.contains(&i) && rest.contains_key(&key(i))));
    }
}

/// A store has the names of its keyspaces at both ends.
#[test]
fn a_damaged_page_with_names_of_keyspaces_loses_none() {
    const ENTRIES: usize = 2_000;
    for damaged in [0, ENTRIES - 1] {
        let b = Bench::new();
        filled(&b, ENTRIES);
        damage_values(&b.path("p"), &[damaged]);
        assert_eq!(b.run(&["get", "p", &key(1_000)]).ok().text(), value(1_000));
        b.run(&["put", "p", &key(1_000), "other"]).ok();
        b.run(&["check", "p", "--json"]).fails(&["damaged"]);
        let args = ["export", "p", "out.jsonl", "--skip-damaged", "--keyspace"];
        b.run(&[&args[..], &["default"]].concat()).ends(3, &[]);
        let saved = exported(&b, "out.jsonl");
        assert!(saved[&key(1_000)] == "other" && !saved.contains_key(&key(damaged)));
    }
}

#[test]
fn a_name_that_one_copy_has_lost_is_told_by_who_opens_for_writing() {
    let b = Bench::new();
    filled(&b, 2_000);
    let told = "only one of the two copies of the catalogue had keyspace \"default\"";
    let before = b.run(&["put", "p", "a", "b"]).ok().stderr;
    assert!(before.is_empty(), "{before}");
    // The second copy's value: what it says of the number, then the name.
    change(&b.path("p"), |bytes| {
        let name = b"ndefault";
        let found: Vec<usize> = (0..bytes.len() - name.len())
            .filter(|at| bytes[*at..].starts_with(name))
            .collect();
        assert!(!found.is_empty());
        found.iter().for_each(|at| bytes[at + 1] ^= 0x20);
    });
    b.run(&["put", "p", &key(1_000), "other"])
        .ends(0, &["p: damaged", told, "check p"]);
    assert_eq!(b.run(&["get", "p", &key(1_000)]).ok().text(), "other");
    b.run(&["check", "p", "--json"]).fails(&["error: "]);
}

/// Where both copies of a keyspace's name are damaged, opening refuses the whole store.
#[test]
fn entries_of_a_keyspace_whose_name_is_damaged_are_saved_by_its_number() {
    let b = Bench::new();
    b.run(&["create", "p", "--medium", "mapped"]).ok();
    b.run(&["put", "p", "kept", "yes", "--keyspace", "unmistakable"])
        .ok();
    change(&b.path("p"), |bytes| {
        let name = b"unmistakable";
        let found: Vec<usize> = (0..bytes.len() - name.len())
            .filter(|at| bytes[*at..].starts_with(name))
            .collect();
        assert!(found.len() >= 2);
        found.iter().for_each(|at| bytes[at + 2] ^= 0x20);
    });
    b.run(&["serve", "p", "--listen", "127.0.0.1:0"])
        .fails(&["damaged"]);
    let check = b
        .run(&["check", "p", "--json"])
        .fails(&["repair p NEW"])
        .json();
    assert!(check["errors"].to_string().contains("catalogue"), "{check}");
    b.run(&["repair", "p", "mended"]).ends(3, &["catalogue"]);
    let kept = ["get", "mended", "kept", "--keyspace", "number 1"];
    assert_eq!(b.run(&kept).ok().text(), "yes");
    let args = ["export", "p", "out.jsonl", "--skip-damaged", "--keyspace"];
    b.run(&[&args[..], &["number 1"]].concat())
        .ends(3, &["catalogue"]);
    assert_eq!(
        exported(&b, "out.jsonl"),
        BTreeMap::from([("kept".into(), "yes".into())])
    );
    b.run(&[&args[..], &["unmistakable"]].concat())
        .fails(&["no keyspace \"unmistakable\"", "\"number 1\""]);
}
