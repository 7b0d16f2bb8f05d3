//! The device model runs from the command line, repeats its numbers, and refuses nonsense.

use crate::common::Bench;

const RUN: [&str; 13] = [
    "model",
    "--index",
    "lbtree",
    "--device",
    "optane",
    "--workload",
    "insert",
    "--threads",
    "2",
    "--keys",
    "20K",
    "--ops",
    "2K",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().chain(more).copied().collect()
}

/// Returns [`RUN`] with the value of `option` replaced.
fn changed<'a>(option: &str, value: &'a str) -> Vec<&'a str> {
    let at = RUN
        .iter()
        .position(|arg| *arg == option)
        .expect("an option of RUN");
    let mut args = RUN.to_vec();
    args[at + 1] = value;
    args
}

#[test]
fn a_run_reports_every_field_and_repeats_to_the_last_digit() {
    let b = Bench::new();
    let ran = b.run(&with(&["--json"])).ok();
    let report = ran.json();
    for field in [
        "ns_per_op",
        "mops",
        "lines_read_per_op",
        "lines_written_per_op",
        "media_bytes_read_per_op",
        "media_bytes_written_per_op",
        "read_amplification",
        "write_amplification",
        "flushes_per_op",
        "fences_per_op",
    ] {
        let number = report[field].as_f64();
        assert!(number.is_some_and(|n| n > 0.0), "{field}: {report}");
    }
    assert_eq!(report["index"], "lbtree");
    assert_eq!(report["device"], "optane");
    assert_eq!(report["workload"], "insert");
    assert_eq!(
        (&report["threads"], &report["ops"]),
        (&2.into(), &2_000.into())
    );
    assert!(report["stalls"]["fence_ns"].is_number(), "{report}");
    assert_eq!(ran.stdout, b.run(&with(&["--json"])).ok().stdout);
    assert_ne!(
        ran.stdout,
        b.run(&with(&["--json", "--seed", "7"])).ok().stdout,
        "another seed, other keys"
    );
    assert!(
        std::fs::read_dir(b.dir()).unwrap().next().is_none(),
        "files were left behind"
    );
}

#[test]
fn a_person_gets_a_table() {
    let b = Bench::new();
    let text = b.run(&RUN).ok().text();
    for part in ["optane", "simulated time", "write amplification", "fences"] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn nonsense_is_named() {
    let b = Bench::new();
    for (option, value, parts) in [
        ("--device", "optain", &["\"optain\"", "optane", "dram"][..]),
        ("--index", "btreemap", &["btreemap", "lbtree"]),
        ("--workload", "juggle", &["juggle", "insert", "mixed"]),
        ("--workload", "mixed:101", &["mixed:101"]),
        ("--threads", "0", &["--threads", "0"]),
        ("--threads", "65", &["--threads", "65"]),
        ("--threads", "-1", &["-1"]),
        ("--keys", "0", &["--keys", "at least 1"]),
        ("--keys", "many", &["--keys", "many"]),
        ("--ops", "1e6", &["--ops", "1e6"]),
    ] {
        b.run(&changed(option, value)).ends(2, parts);
    }
    for (more, parts) in [
        (&["--fill", "-0.5"][..], &["--fill", "-0.5"][..]),
        (&["--fill", "0"], &["--fill", "above 0"]),
        (&["--fill", "1.5"], &["--fill", "1.5"]),
        (&["--fill", "NaN"], &["--fill", "NaN"]),
        (&["--node-bytes", "300"], &["300", "256"]),
        (&["--seed", "x"], &["--seed", "x"]),
    ] {
        b.run(&with(more)).ends(2, parts);
    }
    b.run(&["model"])
        .ends(2, &["--index", "--device", "--workload", "--threads"]);
}

#[test]
fn device_files_are_read_and_their_faults_named() {
    let b = Bench::new();
    b.run(&changed("--device", "absent.toml"))
        .fails(&["absent.toml", "No such file"]);
    b.run(&changed("--device", ".")).ends(2, &["\".\""]);
    b.run(&changed("--device", "./")).fails(&["./"]);
    b.file("broken.toml", "name = ");
    b.run(&changed("--device", "broken.toml"))
        .fails(&["broken.toml"]);
    b.file("binary.toml", [0xff, 0xfe, 0, 1]);
    b.run(&changed("--device", "binary.toml"))
        .fails(&["binary.toml"]);
    b.file("short.toml", "name = \"mine\"\nsummary = \"\"\n");
    b.run(&changed("--device", "short.toml"))
        .fails(&["short.toml", "geometry"]);

    let optane = include_str!("../../../lab/devices/optane.toml");
    b.file("mine.toml", optane);
    let mine = b.run(&[&changed("--device", "mine.toml")[..], &["--json"]].concat());
    let shipped = b.run(&with(&["--json"]));
    assert_eq!(
        mine.ok().json()["ns_per_op"],
        shipped.ok().json()["ns_per_op"],
        "one description, one result"
    );
}

#[test]
fn help_names_what_is_shipped() {
    let b = Bench::new();
    let text = b.run(&["model", "--help"]).ok().text();
    for part in [
        "--index", "--device", "optane", "dram", "insert", "mixed", "--fill",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}
