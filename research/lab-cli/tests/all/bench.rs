//! The benchmarks run, and their JSON has the fields that scripts rely on.

use crate::common::Bench;

#[test]
fn micro_reports_every_field() {
    let b = Bench::new();
    let args = [
        "bench",
        "micro",
        "--index",
        "lbtree",
        "--keys",
        "20K",
        "--threads",
        "1",
        "--ops",
        "insert,lookup,update,scan,delete",
        "--medium",
        "mapped",
        "--path",
        ".",
        "--json",
    ];
    let report = b.run(&args).ok().json();
    for field in [
        "index",
        "medium",
        "keys",
        "value_bytes",
        "threads",
        "seed",
        "pm_bytes_per_entry",
        "dram_bytes_per_entry",
        "recovery_ms",
        "clean_open_ms",
    ] {
        assert!(!report[field].is_null(), "{field}: {report}");
    }
    assert_eq!(report["keys"], 20_000);
    for op in ["insert", "lookup", "update", "scan", "delete"] {
        for field in [
            "mops",
            "ns_per_op",
            "p50_ns",
            "p99_ns",
            "lines_per_op",
            "fences_per_op",
        ] {
            let number = report["ops"][op][field].as_f64();
            assert!(number.is_some_and(|n| n >= 0.0), "{op}.{field}: {report}");
        }
        assert!(report["ops"][op]["mops"].as_f64().is_some_and(|n| n > 0.0));
    }
    assert!(
        std::fs::read_dir(b.dir()).unwrap().next().is_none(),
        "files were left behind"
    );
}

#[test]
fn limits_reports_every_field() {
    let b = Bench::new();
    let report = b
        .run(&["bench", "limits", "--json", "--path", "."])
        .ok()
        .json();
    for field in [
        "flush_fence_ns",
        "flush_extra_line_ns",
        "fence_ns",
        "dram_miss_ns",
        "memcpy_gbps",
        "fdatasync_us",
        "cpu",
        "flush_instruction",
    ] {
        assert!(!report[field].is_null(), "{field}: {report}");
    }
}

/// The fields of a row that scripts rely on.
const ROW: [&str; 8] = [
    "workload",
    "engine",
    "threads",
    "ops_per_s",
    "ratio_to_best_peer",
    "resident_bytes",
    "bytes_per_entry",
    "written_per_user_byte",
];

#[test]
fn peers_reports_every_field_of_every_row() {
    let b = Bench::new();
    let args = [
        "bench",
        "peers",
        "--path",
        ".",
        "--engines",
        "store,tree",
        "--workloads",
        "insert,load,get,scan100,update,delete,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f",
        "--keys",
        "2K",
        "--threads",
        "2",
        "--value-bytes",
        "100",
        "--rounds",
        "1",
        "--slice-ms",
        "5",
        "--out",
        "drawn.svg",
        "--json",
    ];
    let report = b.run(&args).ok().json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    for row in rows {
        for field in ROW {
            assert!(
                row.as_object().unwrap().contains_key(field),
                "{field}: {row}"
            );
        }
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["ratio_to_best_peer"].is_null(),
            "there is no peer: {row}"
        );
        assert_eq!(row["threads"], 2);
        // Counted in a process of its own, which had little else in memory.
        let resident = row["resident_bytes"].as_u64().unwrap();
        assert!((100_000..64 << 20).contains(&resident), "{row}");
        if row["workload"] == "load" {
            assert!(row["bytes_per_entry"].as_f64().unwrap() > 108.0, "{row}");
        }
        if row["workload"] == "get" {
            assert!(row["written_per_user_byte"].is_null(), "{row}");
        }
    }
    let engine = &report["comparisons"][0]["engines"][1];
    assert_eq!(engine["name"], "tree");
    assert!(engine["version"].is_string() && engine["setting"].is_string());
    let drawn = std::fs::read_to_string(b.path("drawn.svg")).unwrap();
    assert!(drawn.contains("ycsb-a") && drawn.contains("bristlecone"));
    let left = std::fs::read_dir(b.dir()).unwrap().flatten();
    let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["drawn.json", "drawn.svg"]);
}

#[test]
fn peers_keeps_within_a_bound_in_processes_of_their_own() {
    let b = Bench::new();
    let args = [
        "bench",
        "peers",
        "--path",
        ".",
        "--engines",
        "store",
        "--workloads",
        "load,get,update",
        "--memory",
        "64M",
        "--keys",
        "120K",
        "--value-bytes",
        "1000",
        "--rounds",
        "2",
        "--slice-ms",
        "50",
        "--json",
    ];
    let report = b.run(&args).ok().json();
    assert_eq!(report["memory"], 64_000_000);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["ops_per_s_min"].as_f64().unwrap() > 0.0, "{row}");
        let [resident, peak] = ["resident_bytes", "peak_bytes"].map(|f| row[f].as_u64().unwrap());
        assert!(resident <= peak, "{row}");
        // All values have 120 MB, and on tmpfs there is no bound.
        if report["comparisons"][0]["medium"] == "journal" {
            assert!(peak < 80_000_000, "{row}");
        }
    }
    let text = b.run(&args[..args.len() - 1]).ok().text();
    assert!(
        text.contains("61 MiB of memory") && text.contains("MiB at most, load"),
        "{text}"
    );
    let run = |args: &[&str]| b.run(&[&["bench", "peers", "--path", "."], args].concat());
    run(&["--memory", "1K", "--engines", "store"]).fails(&["memory cannot be", "1000"]);
    run(&["--memory", "64M", "--engines", "tree"]).fails(&["engines cannot be", "tree"]);
}

#[test]
fn peers_prints_a_table_for_people() {
    let b = Bench::new();
    let args = [
        "bench",
        "peers",
        "--path",
        ".",
        "--engines",
        "tree",
        "--workloads",
        "load,get",
        "--keys",
        "1K",
        "--rounds",
        "1",
        "--slice-ms",
        "5",
    ];
    let text = b.run(&args).ok().text();
    for part in ["operations/s", "tree", "load", "get", "bytes/entry, load"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn peers_names_what_this_build_or_the_command_line_lacks() {
    let b = Bench::new();
    let run = |args: &[&str]| b.run(&[&["bench", "peers"], args].concat());
    run(&["--path", "absent"]).fails(&["absent: not a directory"]);
    run(&["--engines", "oracle"]).ends(2, &["oracle", "rocksdb"]);
    run(&["--workloads", "juggle"]).ends(2, &["juggle", "ycsb-f"]);
    run(&["--keys", "1", "--engines", "store", "--path", "."]).fails(&["keys cannot be"]);
    if !cfg!(feature = "peers") {
        run(&["--engines", "store,lmdb", "--path", "."]).fails(&["lmdb", "--features peers"]);
    }
    assert!(std::fs::read_dir(b.dir()).unwrap().next().is_none());
}

#[test]
fn what_cannot_be_measured_is_named() {
    let b = Bench::new();
    b.run(&["bench", "limits", "--path", "absent"])
        .fails(&["absent: not a directory"]);
    b.run(&["bench", "micro", "--path", "absent"])
        .fails(&["absent: not a directory"]);
    b.run(&["bench", "micro", "--ops", "juggle"])
        .ends(2, &["juggle"]);
    b.run(&["bench", "micro", "--against", "oracle"])
        .ends(2, &["oracle"]);
    b.run(&["bench", "micro", "--threads", "0"])
        .ends(2, &["--threads"]);
}
