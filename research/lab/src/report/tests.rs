//! Reports of files that tests write.

use super::*;
use crate::figure::{Claim, Expect, Panel, Verdict};
use std::path::Path;
use tempfile::TempDir;

fn file(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(format!("{name}.json")), text).unwrap();
}

fn about(missing: &str) -> About {
    let mut about = About::here(crate::figure::Scale::Small);
    about.parts.push(Part {
        name: "lb-fig10-model".to_owned(),
        seconds: None,
        missing: missing.to_owned(),
    });
    about
}

/// A directory with `about.json` and one figure, of which a claim fails as the ledger says.
fn with_a_figure() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    file(
        dir.path(),
        "about",
        &serde_json::to_string(&about("")).unwrap(),
    );
    let ledger = ledger().unwrap();
    let row = ledger
        .rows
        .iter()
        .find(|row| row.verdict == Some(Verdict::Fails) && row.on == crate::figure::On::Model);
    let row = row.unwrap();
    let entry = crate::figure::find(&row.figure).unwrap();
    let panel = Panel::bars("a < b", "x", "ns", ["one", "two"]).with("s", vec![1.0, f64::NAN]);
    let fails = Claim::new(row.claim.clone(), 1.4, 0.7, Expect::ratio(1.4));
    let exceeds = Claim::new("faster & better", 1.4, 9.0, Expect::ratio(1.4)).note("as <b>");
    let figure = serde_json::json!({
        "name": entry.name, "on": "model", "scale": "small", "title": entry.title,
        "paper": entry.paper, "place": entry.place, "claims": [fails, exceeds],
        "panels": [panel], "notes": ["a note"], "svg": null, "csv": null,
    });
    file(
        dir.path(),
        &format!("{}-model", entry.name),
        &figure.to_string(),
    );
    (dir, row.reason.clone())
}

#[test]
fn a_page_has_a_figure_its_verdicts_and_the_ledger_s_reason() {
    let (dir, reason) = with_a_figure();
    let page = Report::read(dir.path()).unwrap().page().unwrap();
    let reason = maud::html! { (reason) }.into_string();
    for part in [
        "<!DOCTYPE html>",
        "faster &amp; better",
        "as &lt;b&gt;",
        "a &lt; b",
        "1 fails",
        "1 exceeds",
        "a note",
        "<svg role=\"img\"",
        "class=\"strip\"",
        &reason,
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("Partial") && !page.contains("holds</span>"));
    // It needs nothing else: no other file, no other host.
    let linked = page.replace("http://www.w3.org/2000/svg", "");
    for other in ["http:", "https:", " src=", "<link", "@import", "url("] {
        assert!(!linked.contains(other), "{other}");
    }
}

#[test]
fn a_partial_report_says_what_it_lacks() {
    let (dir, _) = with_a_figure();
    let text = serde_json::to_string(&about("it failed")).unwrap();
    file(dir.path(), "about", &text);
    let page = Report::read(dir.path()).unwrap().page().unwrap();
    assert!(
        page.contains("Partial: 1 of 1 parts") && page.contains("it failed"),
        "{page}"
    );
}

#[test]
fn sections_are_there_if_their_files_are() {
    let (dir, _) = with_a_figure();
    let page = Report::read(dir.path()).unwrap().page().unwrap();
    let sections = ["id=\"peers\"", "id=\"explorer\"", "id=\"limits\""];
    assert!(sections.iter().all(|section| !page.contains(section)));
    let explored = |index: &str, violations: u32| {
        serde_json::json!({
            "index": index, "model": "x86", "workload": "all", "ops": 60, "threads": 1,
            "workloads": 4, "crash_points": 10, "images": 1000, "nested_images": 200, "kills": 0,
            "killed_images": 34, "exhaustive_share": 1.0, "violations": violations, "leaks": 0,
        })
    };
    let two = serde_json::json!([explored("lbtree", 0), explored("fptree", 1)]);
    file(dir.path(), "explorer", &two.to_string());
    // One alone is no list.
    file(dir.path(), "threads", &explored("lbtree", 0).to_string());
    let mutated = serde_json::json!({
        "index": "lbtree", "model": "x86", "sites": 12, "orderings": 3, "killed": 14,
        "survivors": [], "unneeded": ["a"], "without_effect": 0, "undecided": [],
    });
    file(dir.path(), "mutants", &mutated.to_string());
    let limits = serde_json::json!({
        "flush_fence_ns": 101.5, "flush_extra_line_ns": 20.0, "fence_ns": 5.0, "dram_miss_ns": 90.0,
        "memcpy_gbps": 9.0, "fdatasync_us": 70.0, "cpu": "c", "flush_instruction": "clwb",
    });
    file(dir.path(), "limits", &limits.to_string());
    let row = |engine: &str, rate: f64| {
        serde_json::json!({
            "path": "/d", "value_bytes": 8, "workload": "load", "engine": engine, "threads": 1,
            "ops_per_s": rate, "ratio_to_best_peer": rate / 2e6, "best_peer": "lmdb",
            "resident_bytes": 1 << 20, "bytes_per_entry": null,
        })
    };
    let engine =
        |name: &str| serde_json::json!({"name": name, "version": "1", "setting": "synced"});
    let peers = serde_json::json!({
        "keys": 1000, "rounds": 5, "rows": [row("store", 3e6), row("lmdb", 2e6)],
        "comparisons": [{"path": "/d", "medium": "mapped", "value_bytes": 8, "threads": 1,
            "engines": [engine("store"), engine("lmdb")]}],
    });
    file(dir.path(), "peers", &peers.to_string());
    let page = Report::read(dir.path()).unwrap().page().unwrap();
    for part in sections.into_iter().chain([
        "3\u{202f}468",
        "<strong>1</strong> violations",
        "clwb",
        "101.5",
        "1.500",
        "lmdb 1: synced",
    ]) {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Report::read(dir.path()).unwrap_err();
    assert!(error.contains("no about.json"), "{error}");
    let (dir, _) = with_a_figure();
    file(dir.path(), "peers", "[");
    let error = Report::read(dir.path()).unwrap_err();
    assert!(error.contains("peers.json"), "{error}");
}

#[test]
fn runs_are_alike_on_one_machine_at_one_scale() {
    let (one, mut other) = (about(""), about("it failed"));
    assert!(one.is_like(&other) && one.memory_bytes > 1 << 20);
    assert_eq!(one.day.len(), "2026-11-30".len());
    other.scale = "paper".to_owned();
    assert!(!one.is_like(&other));
}
