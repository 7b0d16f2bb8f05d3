//! A pool whose own tables were damaged, or whose journal was lost, did not open, and `repair` did
//! not open it either: all that was whole in it was out of reach.

use crate::common::Bench;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

/// A table of the pool's (`pmem/src/format/layout.rs`).
const CHUNK_TABLE: usize = 0x2000;
/// The first root slot.
const ROOT_TABLE: usize = 0x4000;

/// A database `p` of small values, of one in a run of chunks, and of one in parts.
fn filled(b: &Bench, medium: &str) -> String {
    b.run(&["create", "p", "--medium", medium]).ok();
    let rows: String = (0..3_000)
        .map(|i| format!("k{i:05},\"the value of number {i}\"\n"))
        .collect();
    b.file("rows.csv", format!("key,value\n{rows}"));
    b.run(&["import", "p", "rows.csv"]).ok();
    b.run_with(&["put", "p", "run", "-"], &vec![b'r'; 200_000])
        .ok();
    b.run_with(&["put", "p", "parts", "-"], &vec![b'p'; 5_000_000])
        .ok();
    b.run(&["put", "p", "k", "v", "--keyspace", "other"]).ok();
    b.content("p")
}

fn change(pool: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(pool).unwrap();
    change(&mut bytes);
    std::fs::write(pool, bytes).unwrap();
}

/// `repair` saves all of `content`, and names what is wrong.
#[track_caller]
fn all_is_saved(b: &Bench, content: &str, parts: &[&str]) {
    let before = std::fs::read(b.path("p")).unwrap();
    b.run(&["info", "p"]).fails(&["p"]);
    let _ = std::fs::remove_file(b.path("new"));
    let ran = b.run(&["repair", "p", "new", "--json"]).ends(3, parts);
    let report = ran.json();
    assert!(report["pool_problems"].as_u64().unwrap() > 0);
    assert_eq!(
        (&report["skipped"], &report["keyspaces"]),
        (&0.into(), &2.into())
    );
    assert!(b.content("new") == content, "not all is there");
    assert_eq!(
        b.run(&["get", "new", "k", "--keyspace", "other"])
            .ok()
            .text(),
        "v"
    );
    b.run(&["check", "new"]).ok();
    assert!(std::fs::read(b.path("p")).unwrap() == before);
}

#[test]
fn a_database_without_superblocks_is_saved_whole() {
    for medium in ["journal", "mapped"] {
        let b = Bench::new();
        let content = filled(&b, medium);
        change(&b.path("p"), |bytes| {
            bytes[..512].fill(0);
            bytes[4096..4608].fill(0);
        });
        all_is_saved(&b, &content, &["p: not a Bristlecone pool"]);
    }
}

#[test]
fn a_database_with_a_wrong_bit_in_all_its_tables_is_saved_whole() {
    let b = Bench::new();
    let content = filled(&b, "mapped");
    let mut wrong = 0;
    change(&b.path("p"), |bytes| {
        for chunk in 0..400 {
            let word = &mut bytes[CHUNK_TABLE + chunk * 8..][..8];
            if word != [0; 8] {
                let bit = chunk * 7 % 64;
                word[bit / 8] ^= 1 << (bit % 8);
                wrong += 1;
            }
        }
        bytes[ROOT_TABLE + 20] ^= 4;
    });
    assert!(wrong > 6, "{wrong} words are in use");
    let parts = [
        "its chunk-table word fails its check",
        "one wrong bit was turned back",
    ];
    all_is_saved(&b, &content, &parts);
}

/// What `repair` saves of `content` has nothing that was not in it, and what is not there is told.
/// Returns whether some, and not all, is there; `None` if nothing can be saved.
#[track_caller]
fn saved(b: &Bench, content: &str) -> Option<bool> {
    let _ = std::fs::remove_file(b.path("new"));
    let ran = b.run(&["repair", "p", "new", "--json"]);
    if ran.status == Some(1) {
        ran.fails(&["restore a backup"]);
        assert!(!b.path("new").exists());
        return None;
    }
    let report = ran.json();
    b.run(&["check", "new"]).ok();
    let (new, all) = (b.content("new"), content.lines().collect::<BTreeSet<_>>());
    assert!(new.lines().all(|line| all.contains(line)));
    let (saved, all) = (new.lines().count(), all.len());
    if saved == all {
        return Some(false);
    }
    assert!(
        report["skipped"].as_u64().unwrap() > 0,
        "{saved} of {all}: {report}"
    );
    ran.ends(3, &["damaged: "]);
    Some(saved > 0)
}

#[test]
fn of_a_database_that_was_cut_short_the_rest_is_saved() {
    let b = Bench::new();
    let content = filled(&b, "mapped");
    let length = std::fs::metadata(b.path("p")).unwrap().len();
    let file = std::fs::File::options()
        .write(true)
        .open(b.path("p"))
        .unwrap();
    let saved = (1..24).rev().map(|share| {
        file.set_len(length * share / 24 + 77).unwrap();
        b.run(&["info", "p"]).fails(&["p"]);
        saved(&b, &content)
    });
    let saved: Vec<_> = saved.collect();
    assert!(saved.contains(&Some(true)), "{saved:?}");
}

#[test]
fn words_of_the_chunk_table_that_are_gone_cost_nothing() {
    let b = Bench::new();
    let content = filled(&b, "mapped");
    let mut in_use = Vec::new();
    change(&b.path("p"), |bytes| {
        let words = (1..400).map(|chunk| CHUNK_TABLE + chunk * 8);
        in_use = words.filter(|at| bytes[*at] != 0).collect();
    });
    let saved = in_use.iter().rev().map(|at| {
        change(&b.path("p"), |bytes| bytes[*at..][..8].fill(0));
        saved(&b, &content)
    });
    let saved: Vec<_> = saved.collect();
    assert!(
        saved.len() > 6 && saved.iter().all(|lost| *lost == Some(false)),
        "{saved:?}"
    );
}

/// A database that was killed, with what it has acknowledged.
fn killed(b: &Bench) -> u64 {
    b.run(&["create", "p", "--medium", "journal"]).ok();
    b.run(&["put", "p", "early", "1"]).ok();
    let mut child = b
        .command()
        .args(["demo-writer", "p"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = [0; 4096];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut told)
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    told.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[test]
fn without_its_journal_a_killed_database_is_as_its_file_has_it() {
    let b = Bench::new();
    let acknowledged = killed(&b);
    assert!(acknowledged > 10);
    std::fs::rename(b.path("p.journal"), b.path("away")).unwrap();
    b.run(&["info", "p"]).fails(&["journal file is missing"]);
    let ran = b.run(&["repair", "p", "new"]);
    ran.ends(3, &["damaged: p: corrupt", "journal file is missing"]);
    b.run(&["check", "new"]).ok();
    assert_eq!(b.run(&["get", "new", "early"]).ok().text(), "1");
    // Another database's is left aside.
    b.run(&["create", "q", "--medium", "journal"]).ok();
    b.run(&["put", "q", "k", "v"]).ok();
    std::fs::copy(b.path("q.journal"), b.path("p.journal")).unwrap();
    b.run(&["repair", "p", "newer"])
        .ends(3, &["journal file is missing"]);
    // With its own it opens, and needs no repair.
    std::fs::rename(b.path("away"), b.path("p.journal")).unwrap();
    b.run(&["repair", "p", "newest"]).ok();
    let entries = b.run(&["info", "newest", "--json"]).ok().json()["entries"].as_u64();
    assert!(entries.unwrap() > acknowledged);
}

#[test]
fn what_is_no_database_is_not_repaired() {
    let b = Bench::new();
    b.file("diary", "Dear diary,\n".repeat(50_000));
    b.run(&["repair", "diary", "new"])
        .fails(&["diary: not a Bristlecone pool"]);
    assert!(!b.path("new").exists());
}
