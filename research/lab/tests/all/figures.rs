//! The figures: registry, documentation, and the claims that must hold everywhere.

use bristlecone_lab::figure::{ALL, Figure, FigureError, On, Scale, Stated, Step, find, ready};
use std::collections::BTreeSet;
use std::process::Command;

fn made(name: &str, on: On) -> Figure {
    made_at(name, on, Scale::Small)
}

fn made_at(name: &str, on: On, scale: Scale) -> Figure {
    let mut steps = 0;
    let figure = find(name)
        .unwrap()
        .run(Some(on), scale, &mut |step: &Step<'_>| {
            assert!(step.done <= step.total, "{step:?}");
            steps += 1;
        })
        .unwrap();
    assert!(steps > 1, "{name} tells how far it has come");
    assert_eq!((figure.name, figure.on), (name, on));
    assert!(!figure.claims.is_empty() && !figure.panels.is_empty());
    for claim in &figure.claims {
        let told = claim.measured.is_finite() || claim.note.starts_with("no conclusion");
        assert!(told, "{claim:?}");
        assert!(!claim.claim.is_empty() && !claim.tolerance.is_empty());
    }
    for panel in &figure.panels {
        assert!(!panel.series.is_empty() && !panel.places.is_empty());
        for series in &panel.series {
            assert_eq!(series.values.len(), panel.places.len());
            assert!(series.values.iter().all(|v| v.is_finite() && *v >= 0.0));
            let nothing = series.values.iter().all(|v| *v == 0.0);
            assert!(!nothing || scale == Scale::Glance, "{series:?}");
        }
    }
    figure
}

fn assert_all_hold(figure: &Figure) {
    let broken: Vec<_> = figure.claims.iter().filter(|c| !c.holds).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns `figure` as JSON, for comparisons.
fn json(figure: &Figure) -> String {
    serde_json::to_string(figure).unwrap()
}

#[test]
fn names_are_unique_and_places_are_told() {
    let names: BTreeSet<_> = ALL.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), ALL.len());
    for entry in ALL {
        assert!(!entry.on.is_empty(), "{} can be had nowhere", entry.name);
        assert_eq!(find(entry.name).unwrap().title, entry.title);
    }
}

#[test]
fn a_name_that_is_none_brings_those_near_to_it() {
    for (asked, meant) in [
        ("lb-fig-11", "lb-fig11"),
        ("LB-FIG11", "lb-fig11"),
        ("fig11", "lb-fig11"),
        ("lbtheorem-3.5", "lb-theorem-3.5"),
        ("theorem", "lb-theorem-3.5"),
        ("gap_table1", "gap-table1"),
    ] {
        let Err(FigureError::Unknown { near, .. }) = find(asked) else {
            panic!("{asked} is no figure");
        };
        assert_eq!(near.first(), Some(&meant), "{asked}: {near:?}");
        let message = find(asked).unwrap_err().to_string();
        assert!(message.contains(asked) && message.contains(meant));
    }
    for asked in ["", "x", "zzzzzzzzzzzz", &"lb-fig11".repeat(1_000)] {
        let Err(FigureError::Unknown { near, .. }) = find(asked) else {
            panic!("{asked} is no figure");
        };
        assert!(near.is_empty(), "{asked}: {near:?}");
    }
}

#[test]
fn a_figure_is_refused_where_it_cannot_be_had() {
    for (entry, on) in ALL
        .iter()
        .flat_map(|entry| [On::Counted, On::Model, On::Host].map(|on| (entry, on)))
        .filter(|(entry, on)| !entry.on.contains(on))
    {
        let refused = entry.run(Some(on), Scale::Small, &mut |_| {
            panic!("nothing was to run")
        });
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(entry.name) && message.contains(on.name()));
        assert!(message.contains(entry.on[0].name()), "{message}");
    }
}

#[test]
fn the_documentation_lists_exactly_the_figures() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/figures.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| name "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let expected: Vec<String> = ALL
        .iter()
        .map(|e| {
            let (name, title, places, paper, place) =
                (e.name, e.title, e.places(), e.paper, e.place);
            format!("| `{name}` | {title} | {places} | {paper}, {place} |")
        })
        .collect();
    assert_eq!(rows, expected, "docs/figures.md and figure::ALL differ");
}

#[test]
fn theorem_3_5_holds_counted_and_simulated_alike() {
    let counted = made("lb-theorem-3.5", On::Counted);
    assert_all_hold(&counted);
    let simulated = made("lb-theorem-3.5", On::Model);
    assert_all_hold(&simulated);
    // Both count the same insertions, so that the numbers agree to the last digit.
    assert_eq!(counted.panels, simulated.panels);
    let ratio = counted
        .claims
        .iter()
        .find(|claim| claim.paper == Stated::Number(1.35))
        .unwrap();
    // The ratio is at most two lines to one. A larger one would mean that something else was
    // counted.
    assert!((1.35..=2.0).contains(&ratio.measured), "{ratio:?}");
    assert_eq!(json(&made("lb-theorem-3.5", On::Counted)), json(&counted));
}

/// Returns the values of a panel's series.
fn values<'f>(figure: &'f Figure, panel: &str, series: &str) -> &'f [f64] {
    let panel = figure.panels.iter().find(|p| p.title == panel).unwrap();
    let series = panel.series.iter().find(|s| s.name == series).unwrap();
    &series.values
}

fn assert_above(above: &[f64], below: &[f64]) {
    assert_eq!(above.len(), below.len());
    assert!(
        above.iter().zip(below).all(|(a, b)| a > b),
        "{above:?} {below:?}"
    );
}

/// Returns true if there is this program on this machine. It must be where the variable is set.
fn is_there(program: &str, needed: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    let needed = std::env::var_os(needed).is_some();
    assert!(there || !needed, "there is no {program}");
    there
}

/// Every figure that can be measured here is. Whether its claims hold depends on the scale and on
/// the machine. `same_everywhere` makes the others.
#[test]
fn every_figure_of_the_host_can_be_had() {
    for entry in ALL.iter().filter(|entry| entry.on.contains(&On::Host)) {
        let beside = match entry.name {
            "nv-fig9b" | "nv-fig9c" => Some(("redis-server", "BRISTLECONE_NEED_REDIS")),
            "lb-fig17" => Some(("memcached", "BRISTLECONE_NEED_MEMCACHED")),
            _ => None,
        };
        if beside.is_some_and(|(program, needed)| !is_there(program, needed)) {
            println!("{} is left out: there is no {beside:?}", entry.name);
            continue;
        }
        let figure = made_at(entry.name, On::Host, Scale::Glance);
        assert_eq!(figure.scale, Scale::Glance);
    }
}

#[test]
fn insertion_time_on_the_host() {
    let figure = made_at("lb-fig11", On::Host, Scale::Glance);
    assert_eq!((figure.panels.len(), figure.claims.len()), (3, 9));
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        assert!(series.values.is_sorted(), "{series:?}");
    }
}

#[test]
fn insertion_time_on_the_model() {
    let figure = made("lb-fig11", On::Model);
    assert_eq!((figure.panels.len(), figure.claims.len()), (3, 9));
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        assert!(series.values.is_sorted(), "{series:?}");
    }
    for panel in ["70 % full", "100 % full", "dense"] {
        let lb = values(&figure, panel, "LB+-Tree");
        for other in ["LB+-Tree, traditional", "wB+-Tree", "FPTree"] {
            assert_above(values(&figure, panel, other), lb);
        }
    }
    // The first insertion into a loaded leaf writes one line or two, and full leaves have to split,
    // so the panels differ like the paper's.
    let over = |panel: &str, other: &str| {
        let last = |series| *values(&figure, panel, series).last().unwrap();
        last(other) / last("LB+-Tree")
    };
    assert!(over("100 % full", "FPTree") > 1.2 * over("70 % full", "FPTree"));
    assert!(
        over("70 % full", "LB+-Tree, traditional") > over("100 % full", "LB+-Tree, traditional")
    );
}

#[test]
fn one_seed_one_figure_on_the_model() {
    let made = || json(&made_at("lb-fig13", On::Model, Scale::Glance));
    assert_eq!(made(), made());
}

#[test]
fn skip_lists_differ_by_where_their_towers_are() {
    let figure = made_at("lb-fig10", On::Model, Scale::Glance);
    let mops = |list| values(&figure, "throughput", list);
    assert_above(mops("divided-skiplist"), mops("nvm-skiplist"));
    assert_above(mops("dram-skiplist"), mops("divided-skiplist"));
}

#[test]
fn the_nv_tree_flushes_the_same_in_nodes_of_every_size_and_the_others_do_not() {
    let figure = made_at("nv-fig5", On::Counted, Scale::Glance);
    let flushes = |tree| values(&figure, "(b) flushes", tree);
    let nv = flushes("NV-Tree");
    assert!(nv.iter().all(|lines| (2.0..3.5).contains(lines)), "{nv:?}");
    for (other, least) in [("LCB+-Tree", 4.0), ("CDDS-Tree", 2.0)] {
        assert_above(flushes(other), nv);
        assert!(flushes(other)[3] > least * flushes(other)[0]);
    }
    // The counts are the same with the model's clock.
    let model = made_at("nv-fig5", On::Model, Scale::Glance);
    assert_eq!(
        values(&model, "(b) flushes", "LCB+-Tree"),
        flushes("LCB+-Tree")
    );
}

#[test]
fn volatile_trees_are_faster_and_sorting_costs_most() {
    let figure = made_at("nv-fig1", On::Model, Scale::Glance);
    let of = |panel, tree| values(&figure, panel, tree);
    for panel in ["(a) time", "(b) cache misses"] {
        assert_above(of(panel, "LCB+-Tree"), of(panel, "B+-tree"));
        assert_above(of(panel, "CDDS-Tree"), of(panel, "volatile CDDS-Tree"));
    }
    for tree in ["LCB+-Tree", "CDDS-Tree"] {
        let shares = of("(d) flushes for keeping leaves sorted", tree);
        assert!(
            shares.iter().all(|share| (0.3..1.0).contains(share)),
            "{shares:?}"
        );
        assert!(
            shares.is_sorted(),
            "larger nodes, more to shift: {shares:?}"
        );
    }
}

#[test]
fn the_model_has_the_hardware_s_characteristics() {
    let figure = made("gap-table1", On::Model);
    assert_eq!((figure.panels.len(), figure.claims.len()), (4, 14));
    assert_all_hold(&figure);
    // The table is measured and not read back, so hardly a number equals the paper's to the last
    // digit.
    let copied = figure
        .claims
        .iter()
        .filter(|claim| claim.paper == Stated::Number(claim.measured));
    assert!(copied.count() < figure.claims.len() / 2);
}

#[test]
fn every_swap_of_the_bztree_is_met_and_has_the_paper_s_words() {
    let figure = made("bz-table1", On::Counted);
    // All rows but the update of an inlined payload, which deletes the old record in the same swap.
    let broken: Vec<_> = figure.claims.iter().filter(|c| !c.holds).collect();
    assert_eq!(figure.claims.len(), 7);
    assert!(
        matches!(broken[..], [claim] if claim.claim.contains("inlined") && claim.measured == 5.0),
        "{broken:#?}"
    );
    // `same_everywhere` compares the whole figure between two processes. Here, threads of other
    // tests delay the reclamation of records. That changes the number of swaps of a kind, but not
    // their words.
    let words =
        |figure: &Figure| -> Vec<f64> { figure.claims.iter().map(|c| c.measured).collect() };
    assert_eq!(words(&made("bz-table1", On::Counted)), words(&figure));
}

#[test]
fn node_split_is_counted_from_the_sources_of_both_trees() {
    let figure = made("bz-complexity", On::Counted);
    let of = |tree| values(&figure, "Node split", tree);
    for tree in ["BzTree", "Bw-Tree"] {
        // The functions have more than a few lines, and more than a few branches.
        assert!(of(tree)[0] > 100.0 && of(tree)[1] > 20.0, "{:?}", of(tree));
    }
}

#[test]
fn the_bztree_s_figures_can_be_had_on_the_host() {
    for name in ["bz-recovery", "bz-fig8"] {
        made_at(name, On::Host, Scale::Glance);
    }
    let figure = made_at("bz-fig9", On::Host, Scale::Glance);
    for mix in ["balanced", "read-mostly"] {
        let shares = values(&figure, "Time by component", mix);
        assert!(shares[..2].iter().all(|share| *share > 0.0), "{shares:?}");
        assert!(shares.iter().sum::<f64>() > 99.9, "{shares:?}");
    }
}

#[test]
fn drawing_and_numbers_are_written_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/folder");
    let mut figure = made("lb-theorem-3.5", On::Counted);
    figure.write(&out).unwrap();
    let svg = std::fs::read_to_string(figure.svg.as_ref().unwrap()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("entry moving"));
    let csv = std::fs::read_to_string(figure.csv.as_ref().unwrap()).unwrap();
    let numbers: usize = figure
        .panels
        .iter()
        .map(|panel| panel.series.len() * panel.places.len())
        .sum();
    assert_eq!(csv.lines().count(), numbers + 1, "{csv}");
    assert!(csv.starts_with("panel,x,series,value\n"), "{csv}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 2);

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (at, error) in [
        (&file, ready(&file).unwrap_err()),
        (&file, figure.write(&file.join("below")).unwrap_err()),
    ] {
        let message = error.to_string();
        assert!(message.contains(&*at.to_string_lossy()), "{message}");
    }
}
