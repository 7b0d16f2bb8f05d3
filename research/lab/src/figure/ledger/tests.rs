//! The ledger by itself: its text, its checks, and what an update does to it.

use super::*;

fn row(figure: &str, on: On, claim: &str, measured: f64) -> Row {
    Row {
        figure: figure.to_owned(),
        on,
        claim: claim.to_owned(),
        paper: Stated::Number(1.41),
        tolerance: "1.3075 to 1.5125; more exceeds".to_owned(),
        measured: Some(measured),
        range: None,
        when: String::new(),
        verdict: Some(Verdict::Holds),
        reason: String::new(),
        shown_by: String::new(),
    }
}

fn made(claim: &str, measured: f64, verdict: Verdict) -> Made {
    Made {
        claim: claim.to_owned(),
        paper: Stated::Number(1.41),
        tolerance: "1.3075 to 1.5125; more exceeds".to_owned(),
        measured: Some(measured),
        verdict,
    }
}

fn figure(on: On, claims: Vec<Made>) -> MadeFigure {
    MadeFigure {
        name: "gap-fig16".to_owned(),
        on,
        claims,
    }
}

/// Returns a ledger of one figure: a claim that holds, one that fails, one that exceeds.
fn three() -> Ledger {
    let fails = Row {
        verdict: Some(Verdict::Fails),
        reason: "a \"line\" | a \\ and a µs".to_owned(),
        shown_by: "tags".to_owned(),
        ..row("gap-fig16", On::Model, "fails", 0.934)
    };
    let exceeds = Row {
        verdict: Some(Verdict::Exceeds),
        paper: Stated::Words("\"better\"\tin all cases".to_owned()),
        ..row("gap-fig16", On::Model, "exceeds", 2.0)
    };
    Ledger {
        rows: vec![row("gap-fig16", On::Model, "holds", 1.41), fails, exceeds],
    }
}

fn as_made() -> MadeFigure {
    let mut exceeds = made("exceeds", 2.0, Verdict::Exceeds);
    exceeds.paper = Stated::Words("\"better\"\tin all cases".to_owned());
    figure(
        On::Model,
        vec![
            made("holds", 1.410_000_000_3, Verdict::Holds),
            made("fails", 0.934, Verdict::Fails),
            exceeds,
        ],
    )
}

#[test]
fn the_text_is_read_back_as_it_was() {
    let mut ledger = three();
    ledger.rows.push(Row {
        measured: None,
        range: Some([1.2, 3.0]),
        when: "2 processors".to_owned(),
        verdict: Some(Verdict::Fails),
        reason: "noise".to_owned(),
        ..row("lb-fig11", On::Host, "on the host", 0.0)
    });
    ledger.rows.push(Row {
        measured: Some(1e-9),
        paper: Stated::Number(20.0),
        ..row("lb-fig10", On::Model, "small", 0.0)
    });
    let text = ledger.to_string();
    assert_eq!(Ledger::parse(&text), Ok(ledger));
    assert_eq!(Ledger::parse("").unwrap().rows, []);
    for (broken, what) in [
        ("[[claim]]\nfigure = \"x\"", "missing field"),
        ("[[claims]]", "claims"),
        (&*text.replace("reason =", "why ="), "why"),
        (
            &*text.replace("\"fails\"\nreason", "\"loses\"\nreason"),
            "loses",
        ),
        (&*text.replace("\"model\"", "\"moon\""), "moon"),
    ] {
        let refused = Ledger::parse(broken).unwrap_err();
        assert!(refused.contains(what), "{broken}: {refused}");
    }
}

#[test]
fn a_figure_as_the_ledger_has_it_does_not_differ() {
    assert_eq!(three().differences(&as_made()), [""; 0]);
}

#[test]
fn every_kind_of_difference_is_reported() {
    let ledger = three();
    /// Changes a figure, and names what the difference must be told with.
    type Planted = (fn(&mut MadeFigure), &'static [&'static str]);
    let planted: [Planted; 7] = [
        (
            |f| f.claims[1].measured = Some(0.934_002),
            &["fails", "0.934002 measured"],
        ),
        (
            |f| f.claims[1].measured = None,
            &["fails", "nothing measured"],
        ),
        (
            |f| f.claims[0].verdict = Verdict::Fails,
            &["holds", "fails here"],
        ),
        (
            |f| f.claims[0].tolerance = "at least 1".to_owned(),
            &["holds", "at least 1 here"],
        ),
        (
            |f| f.claims[0].paper = Stated::Number(1.4),
            &["holds", "the paper: 1.41"],
        ),
        (|f| drop(f.claims.pop()), &["exceeds", "no such claim"]),
        (
            |f| f.claims.push(made("new", 1.0, Verdict::Fails)),
            &["new", "missing from the ledger"],
        ),
    ];
    for (plant, told) in planted {
        let mut made = as_made();
        plant(&mut made);
        let differences = ledger.differences(&made);
        let [difference] = &differences[..] else {
            panic!("{told:?}: {differences:?}");
        };
        assert!(difference.starts_with("gap-fig16, model: "));
        assert!(
            told.iter().all(|part| difference.contains(part)),
            "{difference}"
        );
    }
    let mut twice = as_made();
    twice.claims.push(twice.claims[0].clone());
    assert!(ledger.differences(&twice)[0].contains("twice"));
    // Another place has claims of its own.
    assert_eq!(ledger.differences(&figure(On::Host, vec![])), [""; 0]);
}

/// Returns the problems that a changed row adds to those of the whole ledger.
#[track_caller]
fn problem(change: impl Fn(&mut Ledger)) -> String {
    let before = three().problems();
    let mut ledger = three();
    change(&mut ledger);
    let mut problems = ledger.problems();
    problems.retain(|problem| !before.contains(problem));
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    problem.clone()
}

#[test]
fn a_ledger_tells_what_is_wrong_with_it() {
    let others = three().problems();
    assert!(
        others.iter().all(|p| p.ends_with("no claims")),
        "{others:?}"
    );
    assert!(others.contains(&"lb-fig10, model: no claims".to_owned()));
    assert!(!others.iter().any(|p| p.starts_with("gap-fig16, model")));
    let told = problem(|l| l.rows[1].reason.clear());
    assert!(told.contains("fails, and has no reason"), "{told}");
    let told = problem(|l| l.rows[0].reason.push('x'));
    assert!(told.contains("does not fail"), "{told}");
    let told = problem(|l| l.rows[0].verdict = Some(Verdict::Exceeds));
    assert!(
        told.contains("the ledger says exceeds, its numbers holds"),
        "{told}"
    );
    let told = problem(|l| l.rows[0].measured = Some(1.3));
    assert!(told.contains("its numbers fails"), "{told}");
    let told = problem(|l| l.rows[0].measured = None);
    assert!(told.contains("not measured"), "{told}");
    let told = problem(|l| l.rows[0].tolerance = "about 1".to_owned());
    assert!(told.contains("about 1"), "{told}");
    let told = problem(|l| l.rows.push(l.rows[0].clone()));
    assert!(told.contains("twice"), "{told}");
    let told = problem(|l| l.rows.push(row("gap-fig99", On::Model, "holds", 1.41)));
    assert!(told.contains("no such figure"), "{told}");
    let told = problem(|l| l.rows.push(row("gap-fig16", On::Counted, "holds", 1.41)));
    assert!(told.contains("no such figure"), "{told}");
}

#[test]
fn an_update_keeps_reasons_and_tells_what_changed() {
    let mut ledger = three();
    ledger
        .rows
        .push(row("nv-fig10", On::Model, "of another", 1.41));
    let mut now = as_made();
    now.claims[0].measured = Some(1.0);
    now.claims[0].verdict = Verdict::Fails;
    now.claims[1].measured = Some(0.9);
    now.claims[2].claim = "new".to_owned();
    let changes = ledger.update(&now, "");
    let told: Vec<_> = changes
        .iter()
        .map(|c| c.split(": ").skip(1).collect())
        .collect();
    let told: Vec<String> = told
        .iter()
        .map(|parts: &Vec<&str>| parts.join(": "))
        .collect();
    assert_eq!(
        told,
        [
            "holds: fails, was holds",
            "new: new, exceeds",
            "exceeds: gone"
        ]
    );
    assert_eq!(ledger.differences(&now), [""; 0]);
    let names: Vec<_> = ledger.rows.iter().map(|row| &*row.claim).collect();
    assert_eq!(
        names,
        ["holds", "fails", "new", "of another"],
        "figures in order"
    );
    assert_eq!(ledger.rows[1].reason, three().rows[1].reason);
    assert_eq!(ledger.rows[1].shown_by, "tags");
    assert_eq!(ledger.update(&now, ""), [""; 0]);
}

#[test]
fn the_host_s_range_grows_and_its_worse_end_decides() {
    let mut ledger = Ledger::default();
    let once = |measured: f64| {
        let mut claim = made("faster", measured, Verdict::Holds);
        claim.measured = Some(measured).filter(|measured| measured.is_finite());
        MadeFigure {
            name: "lb-fig11".to_owned(),
            ..figure(On::Host, vec![claim])
        }
    };
    let mut after = |measured, when| {
        let _ = ledger.update(&once(measured), when);
        let row = &ledger.rows[0];
        (row.range, row.verdict, row.when.clone())
    };
    let (holds, exceeds) = (Some(Verdict::Holds), Some(Verdict::Exceeds));
    assert_eq!(after(f64::NAN, "a"), (None, None, String::new()));
    assert_eq!(after(1.6, "b"), (Some([1.6, 1.6]), exceeds, "b".into()));
    assert_eq!(after(1.4, "c"), (Some([1.4, 1.6]), holds, "c".into()));
    assert_eq!(after(f64::NAN, "d"), (Some([1.4, 1.6]), holds, "c".into()));
    let fails = Some(Verdict::Fails);
    assert_eq!(after(0.9, "e"), (Some([0.9, 1.6]), fails, "e".into()));
}

/// A text with every marker, and something else between them.
fn page() -> String {
    let names = ["summary", "fails", "exceeds", "host fails", "host exceeds"];
    let part = |name| {
        format!(
            "# {name}\n\n<!-- begin: {name} (claims --update) -->\nstale\n<!-- end: {name} -->\n"
        )
    };
    names.map(part).concat()
}

#[test]
fn tables_are_put_between_their_markers() {
    let mut ledger = three();
    ledger.rows.push(Row {
        measured: None,
        range: Some([0.87, 1.18]),
        verdict: Some(Verdict::Fails),
        reason: "noise".to_owned(),
        ..row("lb-fig11", On::Host, "a | b", 0.0)
    });
    let text = ledger.fill(&page()).unwrap();
    assert!(!text.contains("stale"));
    for line in [
        "| `gap-fig16` | model | fails | 1.41 | 0.934 | a \"line\" \\| a \\ and a µs (shown by tags) |",
        "| `gap-fig16` | model | exceeds | \"better\"\tin all cases | 2 |  |",
        "| `lb-fig11` | host | a \\| b | 1.41 | 0.87 to 1.18 | noise |",
        "| Closing the Performance Gap (UCSC-CRSS-20-01) | 1 | 1 | 1 | 67 % | 0 |",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert_eq!(ledger.fill(&text), Ok(text.clone()), "twice is as once");
    let missing = text
        .lines()
        .find(|l| l.starts_with("Not in the ledger yet: "));
    let missing = missing.unwrap();
    assert!(missing.contains("`lb-fig11` (model)") && missing.contains("`lb-fig13` (host)"));
    assert!(!missing.contains("`lb-fig11` (host)") && !missing.contains("gap-fig16"));
    let refused = ledger
        .fill(&page().replace("<!-- end: fails -->", ""))
        .unwrap_err();
    assert!(refused.contains("end: fails"), "{refused}");
}

#[test]
fn the_summary_counts_by_paper_and_leaves_out_what_no_paper_claims() {
    let mut ledger = three();
    ledger.rows.push(Row {
        paper: crate::figure::NOT_IN_THE_PAPER.into(),
        ..row("gap-fig16", On::Model, "own", 1.41)
    });
    ledger.rows.push(Row {
        measured: None,
        verdict: None,
        ..row("lb-fig11", On::Host, "not yet", 0.0)
    });
    let summary = ledger.summary();
    let numbers = |c: &Count| (c.holds, c.exceeds, c.fails, c.not_recorded);
    let everywhere: Vec<_> = summary.same_everywhere.iter().map(numbers).collect();
    assert_eq!(everywhere, [(1, 1, 1, 0), (1, 1, 1, 0)]);
    assert_eq!(summary.same_everywhere[1].paper, "all");
    assert_eq!(summary.same_everywhere[1].percent().round(), 67.0);
    let host: Vec<_> = summary.host.iter().map(numbers).collect();
    assert_eq!(host, [(0, 0, 0, 1), (0, 0, 0, 1)]);
    assert_eq!(summary.host[0].percent(), 0.0);
    assert!(summary.to_string().contains("to look at"));
}
