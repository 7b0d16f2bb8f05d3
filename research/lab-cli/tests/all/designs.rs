//! Every command on every design and leaf size.

use crate::common::Bench;
use bristlecone_designs::designs::{DESIGNS, DesignInfo};

/// Rows for `import`: enough for several leaves of any design.
fn rows() -> String {
    let mut rows = "key,value\n".to_owned();
    // The rows are not in order.
    for n in (0..600u32).map(|n| n * 7 % 600) {
        rows += &format!("key{n:04},value {n}\n");
    }
    rows
}

fn one_pool(design: &DesignInfo, bytes: u32) {
    let b = Bench::new();
    let size = bytes.to_string();
    let made = b.run(&["create", "p", "--index", design.name, "--node-bytes", &size]);
    let told = made.ok().text();
    assert!(
        told.contains(&format!("{} with {bytes}-byte nodes", design.name)),
        "{told}"
    );
    b.file("rows.csv", rows());
    b.run(&["import", "p", "rows.csv"]).ok();
    b.run(&["put", "p", "key0007", "changed"]).ok();
    b.run(&["put", "p", "another", "new"]).ok();
    assert_eq!(b.run(&["get", "p", "key0007"]).ok().stdout, b"changed");
    b.run(&["del", "p", "key0100"]).ok();
    b.run(&["get", "p", "key0100"]).fails(&["no key"]);
    b.run(&["del", "p", "key0100"]).fails(&["no key"]);

    let up = b.run(&["scan", "p", "--prefix", "key00", "--limit", "9"]);
    let up = up.ok().text();
    let expected: Vec<_> = (0..9)
        .map(|n| match n {
            7 => "key0007\tchanged".to_owned(),
            n => format!("key{n:04}\tvalue {n}"),
        })
        .collect();
    assert_eq!(up.lines().collect::<Vec<_>>(), expected);
    let down = b.run(&["scan", "p", "--reverse", "--limit", "2"]).ok();
    assert_eq!(down.text(), "key0599\tvalue 599\nkey0598\tvalue 598\n");

    let info = b.run(&["info", "p", "--json"]).ok().json();
    assert_eq!(info["index"], design.name);
    assert_eq!(info["node_bytes"], bytes);
    assert_eq!(info["entries"], 600);
    assert_eq!(info["clean"], true);
    let described = b.run(&["info", "p"]).ok().text();
    let line = format!("{}, {bytes}-byte nodes", design.name);
    assert!(described.contains(&line), "{described}");
    let check = b.run(&["check", "p", "--json"]).ok().json();
    assert_eq!(check["index"], design.name);
    assert_eq!(check["errors"].as_array().map(Vec::len), Some(0));
    // There is a record of each key and value, or of each pair. BzTree keeps short ones in its
    // nodes, without checksums.
    let least = if design.name == "bztree" { 0 } else { 600 };
    assert!((check["records_checked"].as_u64()).is_some_and(|n| n >= least));

    // The entries go out, and into a pool of the default design.
    b.run(&["export", "p", "out.jsonl"]).ok();
    b.run(&["create", "q"]).ok();
    b.run(&["import", "q", "out.jsonl"]).ok();
    assert_eq!(b.content("p"), b.content("q"));
    b.run(&["compact", "p"]).ok();
    b.run(&["backup", "p", "copy"]).ok();
    assert_eq!(b.content("copy"), b.content("q"));
    b.run(&["check", "p"]).ok();
}

#[test]
fn a_pool_of_any_design_is_worked_on_by_every_command() {
    for design in DESIGNS {
        for bytes in design.node_bytes {
            one_pool(design, *bytes);
        }
    }
}

#[test]
fn the_usual_leaf_size_is_the_designs_own() {
    for design in DESIGNS {
        let b = Bench::new();
        b.run(&["create", "p", "--index", design.name]).ok();
        let info = b.run(&["info", "p", "--json"]).ok().json();
        assert_eq!(info["node_bytes"], design.default_node_bytes);
        assert_eq!(info["entries"], 0);
        b.run(&["create", "q", "--index", design.name, "--node-bytes", "77"])
            .ends(2, &["--node-bytes", design.name, "77"]);
        assert!(!b.path("q").exists());
    }
}

#[test]
fn help_and_errors_list_the_designs() {
    let b = Bench::new();
    for command in [
        &["create"][..],
        &["torture"],
        &["bench", "micro"],
        &["model"],
    ] {
        let mut help = command.to_vec();
        help.push("--help");
        let help = b.run(&help).ok().text();
        for design in DESIGNS {
            assert!(help.contains(design.name), "{command:?}: {help}");
        }
    }
    let names: Vec<_> = DESIGNS.iter().map(|design| design.name).collect();
    b.run(&["create", "p", "--index", "btree-2000"])
        .ends(2, &names);
    b.run(&["bench", "micro", "--index", "btree-2000"])
        .ends(2, &names);
}

#[test]
fn every_design_is_tortured() {
    for design in DESIGNS {
        for medium in ["mapped", "journal"] {
            let b = Bench::new();
            let args = [
                "torture",
                "--index",
                design.name,
                "--medium",
                medium,
                "--kills",
                "2",
                "--dir",
                ".",
                "--json",
            ];
            let report = b.run(&args).ok().json();
            assert_eq!(
                (report["lost"].as_u64(), report["phantom"].as_u64()),
                (Some(0), Some(0))
            );
            assert!(
                report["acknowledged"].as_u64().is_some_and(|n| n > 0),
                "{}: {report}",
                design.name
            );
        }
    }
}

#[test]
fn every_design_is_measured_and_modelled() {
    for design in DESIGNS {
        let b = Bench::new();
        let args = [
            "bench",
            "micro",
            "--index",
            design.name,
            "--keys",
            "5K",
            "--ops",
            "insert,lookup,scan",
            "--path",
            ".",
            "--json",
        ];
        let report = b.run(&args).ok().json();
        assert_eq!(report["index"], design.name);
        assert_eq!(report["node_bytes"], design.default_node_bytes);
        let lines = report["ops"]["insert"]["lines_per_op"].as_f64();
        assert!(lines.is_some_and(|lines| lines >= 1.0), "{report}");
        let args = [
            "model",
            "--index",
            design.name,
            "--device",
            "optane",
            "--workload",
            "insert",
            "--threads",
            "2",
            "--keys",
            "5K",
            "--ops",
            "1K",
            "--json",
        ];
        let report = b.run(&args).ok().json();
        assert_eq!(report["index"], design.name);
        assert_eq!(report["node_bytes"], design.default_node_bytes);
        assert!(
            report["ns_per_op"].as_f64().is_some_and(|ns| ns > 100.0),
            "{report}"
        );
    }
}

/// Time for the images of one design, and what it may take on a busy machine.
const SECONDS: [&str; 2] = if cfg!(feature = "thorough") {
    ["4", "60"]
} else {
    ["1", "60"]
};

/// Each design is found by its name, and images of each layout are recovered.
#[test]
fn every_design_is_explored() {
    for design in DESIGNS {
        let b = Bench::new();
        let explore = |seconds: &str| {
            let args = [
                "crash",
                "--index",
                design.name,
                "--workload",
                "mixed",
                "--ops",
                "12",
                "--budget",
                seconds,
                "--json",
            ];
            let reports = b.run(&args).ok().json();
            let reports = reports.as_array().expect("one for each layout").clone();
            assert!(reports.len() >= 2, "{}: {reports:?}", design.name);
            for report in &reports {
                let name = report["index"].as_str().expect("a name");
                assert!(name.starts_with(design.name), "{name}");
                assert_eq!(report["violations"], 0);
            }
            let few =
                |report: &&serde_json::Value| report["images"].as_u64().is_none_or(|n| n <= 10);
            reports.iter().find(few).cloned()
        };
        // On a busy machine a second may be over before a layout's turn.
        if explore(SECONDS[0]).is_some()
            && let Some(few) = explore(SECONDS[1])
        {
            panic!("{few}");
        }
    }
}

#[test]
fn every_node_size_works_and_is_remembered() {
    let b = Bench::new();
    for size in ["256", "1024"] {
        b.run(&["create", size, "--node-size", size, "--index", "lbtree"])
            .ok();
        for i in 0..20 {
            b.run(&["put", size, &format!("key{i:02}"), &format!("value{i}")])
                .ok();
        }
        assert_eq!(b.run(&["get", size, "key07"]).ok().stdout, b"value7");
        let info = b.run(&["info", size, "--json"]).ok().json();
        assert_eq!(info["node_bytes"].to_string(), size);
        assert_eq!(info["entries"], 20);
        b.run(&["check", size]).ok();
    }
}

#[test]
fn what_makes_no_sense_ends_with_status_2() {
    let b = Bench::new();
    b.run(&["create", "p", "--node-size", "300"])
        .ends(2, &["300", "256, 512, 1024"]);
    b.run(&["create", "p", "--index", "hash"])
        .ends(2, &["hash", "lbtree"]);
    b.run(&["create", "p", "--index", "btree"])
        .ends(2, &["btree", "keeps nothing"]);
    b.run(&["bench", "micro", "--keys", "none"])
        .ends(2, &["none", "10M"]);
    assert!(!b.path("p").exists());
}
