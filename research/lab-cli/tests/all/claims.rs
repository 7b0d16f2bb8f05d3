//! The ledger of claims is summed up, compared with figures, and written.

use crate::common::Bench;
use std::path::Path;

/// Copies the ledger and the page of figures to `docs` in the working directory.
fn with_docs() -> Bench {
    let b = Bench::new();
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    std::fs::create_dir(b.path("docs")).unwrap();
    for file in ["claims.toml", "figures.md"] {
        let text = std::fs::read_to_string(docs.join(file)).unwrap();
        b.file(&format!("docs/{file}"), &text);
    }
    b
}

fn text(b: &Bench, file: &str) -> String {
    std::fs::read_to_string(b.path(file)).unwrap()
}

#[test]
fn the_summary_counts_by_paper() {
    let b = with_docs();
    let text = b.run(&["claims"]).ok().text();
    for part in [
        "LB+-Trees",
        "NV-Tree",
        "Crab-tree",
        "BzTree",
        "exceeds",
        "On the host",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    let json = b.run(&["claims", "--json"]).ok().json();
    let all = json["same_everywhere"].as_array().unwrap();
    let count = |of: &serde_json::Value, verdict: &str| of[verdict].as_u64().unwrap();
    let (sum, papers) = all.split_last().unwrap();
    assert_eq!((&sum["paper"], papers.len()), (&"all".into(), 5));
    for verdict in ["holds", "exceeds", "fails", "not_recorded"] {
        let of_papers: u64 = papers.iter().map(|paper| count(paper, verdict)).sum();
        assert_eq!(count(sum, verdict), of_papers, "{verdict}");
    }
    assert!(
        count(sum, "holds") > 50 && count(sum, "fails") > 50,
        "{sum}"
    );
}

#[test]
fn a_figure_is_compared_with_the_ledger() {
    let b = with_docs();
    let args = ["claims", "--check", "lb-theorem-3.5"];
    let said = b.run(&args).ok().text();
    assert!(said.contains("2 figures as in the ledger"), "{said}");
    let ledger = text(&b, "docs/claims.toml");
    let changed = ledger.replace(
        "figure = \"lb-theorem-3.5\"\non = \"model\"",
        "figure = \"lb-fig10\"\non = \"model\"",
    );
    assert_ne!(changed, ledger);
    b.file("docs/claims.toml", &changed);
    b.run(&args).fails(&[]);
    let json = b.run(&[&args[..], &["--json"]].concat()).json();
    let differences = json["differences"].as_array().unwrap();
    let missing = |d: &&serde_json::Value| {
        let told = d.as_str().unwrap();
        told.starts_with("lb-theorem-3.5, model: ") && told.ends_with("missing from the ledger")
    };
    assert_eq!(differences.iter().filter(missing).count(), 4, "{json}");
    assert_eq!(
        text(&b, "docs/claims.toml"),
        changed,
        "a check writes nothing"
    );
}

#[test]
fn an_update_takes_numbers_over_and_keeps_reasons() {
    let b = with_docs();
    let before = (text(&b, "docs/claims.toml"), text(&b, "docs/figures.md"));
    let said = b.run(&["claims", "--update", "bz-complexity"]).ok().text();
    assert!(said.contains("1 figures, 0 changes"), "{said}");
    let after = || (text(&b, "docs/claims.toml"), text(&b, "docs/figures.md"));
    assert!(after() == before, "nothing changed");
    // A claim that nobody makes goes, and a number that is wrong is put right.
    let wrong = before.0.replace(
        "claim = \"lines of node split",
        "claim = \"no lines of node split",
    );
    assert_ne!(wrong, before.0);
    b.file("docs/claims.toml", &wrong);
    let json = b
        .run(&["claims", "--update", "bz-complexity", "--json"])
        .ok()
        .json();
    assert_eq!(json["changes"].as_array().unwrap().len(), 2, "{json}");
    let reasonless = json["problems"].to_string();
    assert!(
        reasonless.contains("bz-complexity, counted: lines"),
        "{reasonless}"
    );
    assert!(!after().0.contains("no lines of node split"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let b = with_docs();
    b.run(&["claims", "--check", "lb-fig1l"])
        .ends(2, &["lb-fig1l"]);
    b.run(&["claims", "lb-fig11"]).ends(2, &["--check"]);
    b.run(&["claims", "--check", "--update"])
        .ends(2, &["--update", "--check"]);
    b.run(&["claims", "--check", "--host", "x"])
        .ends(2, &["--host"]);
    b.run(&["claims", "--check", "lb-fig15"])
        .ends(2, &["lb-fig15", "--host"]);
    b.run(&["claims", "--docs", "nowhere"])
        .fails(&["nowhere/claims.toml", "reading failed"]);
    b.file("docs/claims.toml", "[[claim]]\nfigure = 3\n");
    b.run(&["claims"]).fails(&["claims.toml", "figure"]);
    let help = b.run(&["claims", "--help"]).ok().text();
    for part in ["--check", "--update", "--host", "Examples:"] {
        assert!(help.contains(part), "no {part:?} in: {help}");
    }
}
