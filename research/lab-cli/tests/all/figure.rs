//! Figures are made, drawn and listed, and their JSON has the fields that scripts rely on.

use crate::common::Bench;
use serde_json::Value;

/// Asserts the fields of one figure's JSON, and that each claim has a verdict.
#[track_caller]
fn fields(report: &Value) {
    for field in ["name", "on", "scale"] {
        assert!(report[field].is_string(), "{field}: {report}");
    }
    let claims = report["claims"].as_array().expect("claims");
    assert!(!claims.is_empty());
    for claim in claims {
        for field in ["claim", "tolerance", "note"] {
            assert!(claim[field].is_string(), "{field}: {claim}");
        }
        assert!(claim["paper"].is_string() || claim["paper"].is_number());
        assert!(claim["measured"].is_number() && claim["holds"].is_boolean());
        let verdict = claim["verdict"].as_str().expect("a verdict");
        assert!(["holds", "exceeds", "fails"].contains(&verdict), "{claim}");
        assert_eq!(claim["holds"], verdict != "fails", "{claim}");
    }
    assert!(report.get("svg").is_some(), "{report}");
}

#[test]
fn a_figure_reports_every_field() {
    let b = Bench::new();
    let ran = b.run(&["figure", "lb-theorem-3.5", "--json"]).ok();
    let report = ran.json();
    fields(&report);
    assert_eq!(report["name"], "lb-theorem-3.5");
    assert_eq!(report["on"], "counted");
    assert_eq!(report["scale"], "small");
    assert!(report["svg"].is_null());
    assert!(
        report["claims"]
            .as_array()
            .unwrap()
            .iter()
            .all(|claim| claim["holds"] == true),
        "{report}"
    );
    assert_eq!(
        ran.text().lines().count(),
        1,
        "the table is for standard error"
    );
    assert!(ran.stderr.contains("Claims"), "{}", ran.stderr);
    assert!(
        std::fs::read_dir(b.dir()).unwrap().next().is_none(),
        "files were left behind"
    );
}

#[test]
fn a_figure_is_drawn_where_it_was_told() {
    let b = Bench::new();
    let args = [
        "figure",
        "lb-theorem-3.5",
        "--on",
        "model",
        "--json",
        "--out",
        "new/drawings",
    ];
    let report = b.run(&args).ok().json();
    fields(&report);
    assert_eq!(report["on"], "model");
    let drawing = report["svg"].as_str().expect("a path");
    let drawing = std::fs::read_to_string(b.path(drawing)).expect("the drawing");
    assert!(drawing.starts_with("<svg") && drawing.contains("entry moving"));
    let numbers = report["csv"].as_str().expect("a path");
    let numbers = std::fs::read_to_string(b.path(numbers)).expect("the numbers");
    assert!(numbers.lines().count() > 4, "{numbers}");
}

#[test]
fn a_person_gets_a_table() {
    let b = Bench::new();
    let text = b.run(&["figure", "lb-theorem-3.5"]).ok().text();
    for part in [
        "lb-theorem-3.5",
        "Theorem 3.5",
        "verdict",
        "measured",
        "1.35",
        "holds",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn figures_on_the_host_run() {
    let b = Bench::new();
    let report = b
        .run(&["figure", "lb-fig11", "--on", "host", "--json"])
        .ok()
        .json();
    fields(&report);
    assert_eq!(report["on"], "host");
    // There are three panels, each with LB+-Tree against wB+-Tree, FPTree and itself without entry
    // moving.
    assert_eq!(report["claims"].as_array().unwrap().len(), 9);
}

#[test]
fn the_list_names_every_figure_and_where_it_runs() {
    let b = Bench::new();
    let text = b.run(&["figure", "--list"]).ok().text();
    let json = b.run(&["figure", "--list", "--json"]).ok().json();
    let all = json.as_array().expect("an array");
    assert_eq!(text.lines().count(), all.len());
    for (line, entry) in text.lines().zip(all) {
        for field in ["name", "title", "paper", "place"] {
            assert!(line.contains(entry[field].as_str().unwrap()), "{line}");
        }
        for place in entry["on"].as_array().unwrap() {
            assert!(line.contains(place.as_str().unwrap()), "{line}");
        }
    }
    for name in ["lb-theorem-3.5", "lb-fig11", "gap-table1"] {
        assert!(all.iter().any(|entry| entry["name"] == name), "{text}");
    }
}

#[test]
fn what_cannot_be_made_is_named() {
    let b = Bench::new();
    b.run(&["figure", "lb-fig1l"])
        .ends(2, &["\"lb-fig1l\"", "lb-fig11", "figure --list"]);
    b.run(&["figure", ""]).ends(2, &["\"\"", "figure --list"]);
    b.run(&["figure"]).ends(2, &["NAME"]);
    b.run(&["figure", "gap-table1", "--on", "host"])
        .ends(2, &["gap-table1", "host", "model"]);
    b.run(&["figure", "lb-fig11", "--on", "moon"])
        .ends(2, &["moon", "host"]);
    b.run(&["figure", "lb-fig11", "--scale", "huge"])
        .ends(2, &["huge", "small"]);
    b.run(&["figure", "lb-fig11", "--list"])
        .ends(2, &["--list", "cannot be used with"]);
    let file = b.file("taken", "");
    b.run(&["figure", "lb-theorem-3.5", "--out", "taken"])
        .fails(&["taken", "writing failed"]);
    b.run(&["figure", "lb-theorem-3.5", "--out", "taken/below"])
        .fails(&["taken/below", "writing failed"]);
    assert_eq!(std::fs::read(file).unwrap(), b"");
}

#[test]
fn help_shows_what_may_be_asked() {
    let b = Bench::new();
    let text = b.run(&["figure", "--help"]).ok().text();
    for part in ["--on", "--scale", "--out", "--list", "--json", "lb-fig11"] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}
